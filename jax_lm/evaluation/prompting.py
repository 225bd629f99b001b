"""Prompting: how a problem becomes a prompt, and an answer a program. Prompts are those of the
published evaluation.

A base model completes the text of a problem; a chat model answers a message, in a turn that is
opened for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions
from jax_lm.rewards.code import FENCE, extract_code
from jax_lm.templates import Template
from jax_lm.tokenizer import DIFFUSION_PAD

ORACLE = "oracle"
# How the assistant's turn begins, so that what follows is code.
OPENING = f"Here is the code to solve this problem:\n{FENCE}python\n"


@dataclass(frozen=True)
class CompletionPrompting:
    """Lets the model continue the text, or fill its gap.

    Attributes:
        middle_length: as in `DiffuCoderInference.infill`, or "oracle" for that of the canonical
            filling. Where gaps find their own length, the masks that one begins with.
    """

    name: ClassVar[str] = "base"
    middle_length: int | str | None = None

    def prompt(self, engine: DiffuCoderInference, problem: Problem) -> str:
        """Make the text that stands before the answer."""
        return problem.prefix

    def templates(
        self, engine: DiffuCoderInference, problem: Problem, options: GenerationOptions
    ) -> list[Template]:
        """Make what is decoded; of several templates the likeliest result is kept."""
        if self.middle_length == ORACLE:
            lengths = [max(1, len(engine.tokenizer.encode(problem.canonical)))]
        else:
            lengths = engine.hole_lengths(options.max_new_tokens, self.middle_length, options)
        return [Template.infilling(problem.prefix, length, problem.suffix) for length in lengths]

    def program(self, problem: Problem, answer: str) -> str:
        """Make the program of an answer."""
        return problem.program(problem.filling(answer))


@dataclass(frozen=True)
class ChatPrompting:
    """Asks in a user's message, and opens a code block for the answer."""

    name: ClassVar[str] = "chat"

    def prompt(self, engine: DiffuCoderInference, problem: Problem) -> str:
        if not problem.question:
            raise ValueError(
                f"problem {problem.name!r} is not a question: a chat model cannot be asked"
            )
        return engine.chat_prompt(problem.question) + OPENING

    def templates(
        self, engine: DiffuCoderInference, problem: Problem, options: GenerationOptions
    ) -> list[Template]:
        return [Template.completion(self.prompt(engine, problem), options.max_new_tokens)]

    def program(self, problem: Problem, answer: str) -> str:
        return f"{problem.preamble}\n{code_of(answer)}"


Prompting = CompletionPrompting | ChatPrompting


def choose_prompting(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    middle_length: int | str | None,
    *,
    chat: bool,
    base: bool,
) -> Prompting:
    """Choose chat for questions to an instruct model, else completion; `chat` and `base` decide
    otherwise.
    """
    has_questions = all(problem.question for problem in problems)
    if has_questions and not base and (chat or is_instruct(engine)):
        return ChatPrompting()
    return CompletionPrompting(middle_length)


def code_of(answer: str) -> str:
    """Extract the code of an answer to an opened block: up to the closing fence, or a block that it
    opens anew.
    """
    code = answer.partition(FENCE)[0]
    return code if code.strip() else extract_code(answer)


def is_instruct(engine: DiffuCoderInference) -> bool:
    """Tell whether a model was tuned to answer messages: of the published ones, those with their
    own padding token.

    The built-in model has that token too, and answers both ways; it counts as a base model.
    """
    return not engine.is_builtin and engine.tokenizer.backend.token_to_id(DIFFUSION_PAD) is not None
