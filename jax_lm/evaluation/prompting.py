"""How a model is asked, and what of its answer is the program. Prompts are those of the published evaluation.

A base model completes the text of a problem; a chat model answers a message, in a turn that is opened for it.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference
from jax_lm.infilling import Template, candidate_lengths
from jax_lm.rewards.code import FENCE, extract_code
from jax_lm.tokenizer import DIFFUSION_PAD

ORACLE = "oracle"
OPENING = f"Here is the code to solve this problem:\n{FENCE}python\n"
"""How the assistant's turn begins, so that what follows is code."""


@runtime_checkable
class Asking(Protocol):
    """A way of asking."""

    def prompt(self, engine: DiffuCoderInference, problem: Problem) -> str:
        """What stands before the answer."""
        ...

    def templates(self, engine: DiffuCoderInference, problem: Problem, limit: int) -> list[Template]:
        """What is to be decoded, `limit` tokens at most; of several templates the likeliest result is kept."""
        ...

    def program(self, problem: Problem, answer: str) -> str:
        """The program that an answer makes."""
        ...


@dataclass(frozen=True)
class Completing:
    """The text goes on, or its gap is filled.

    Attributes:
        middle_length: as in `DiffuCoderInference.infill`, or "oracle" for that of the canonical filling.
    """

    middle_length: int | str | None = None

    def prompt(self, engine: DiffuCoderInference, problem: Problem) -> str:
        return problem.prefix

    def templates(self, engine: DiffuCoderInference, problem: Problem, limit: int) -> list[Template]:
        if self.middle_length == ORACLE:
            lengths = [max(1, len(engine.tokenizer.encode(problem.canonical)))]
        else:
            lengths = candidate_lengths(limit, self.middle_length)
        return [Template.infilling(problem.prefix, length, problem.suffix) for length in lengths]

    def program(self, problem: Problem, answer: str) -> str:
        return problem.program(problem.filling(answer))


@dataclass(frozen=True)
class Chatting:
    """A user's message, and an answer whose code block has been opened."""

    def prompt(self, engine: DiffuCoderInference, problem: Problem) -> str:
        if not problem.question:
            raise ValueError(f"problem {problem.name!r} is not a question: a chat model cannot be asked")
        return engine.chat_prompt(problem.question) + OPENING

    def templates(self, engine: DiffuCoderInference, problem: Problem, limit: int) -> list[Template]:
        return [Template.completion(self.prompt(engine, problem), limit)]

    def program(self, problem: Problem, answer: str) -> str:
        return f"{problem.preamble}\n{code_of(answer)}"


def code_of(answer: str) -> str:
    """The code of an answer to an opened block: up to the closing fence, or a block that the answer opens anew."""
    code = answer.partition(FENCE)[0]
    return code if code.strip() else extract_code(answer)


def is_instruct(engine: DiffuCoderInference) -> bool:
    """Whether a model was tuned to answer messages: of the published ones, those with a token of their own to pad with.

    The built-in model has that token too, and answers both ways; it counts as a base model.
    """
    return not engine.is_builtin and engine.tokenizer.backend.token_to_id(DIFFUSION_PAD) is not None
