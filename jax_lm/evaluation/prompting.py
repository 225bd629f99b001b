"""Prompting: convert problems to prompts, and answers to programs.

A base model completes the text of a problem. A chat model answers a message, and the beginning of
its turn is part of the prompt. Prompts are those of the published evaluation.
"""

from dataclasses import dataclass

from jax_lm.evaluation.problems import Problem, Problems
from jax_lm.inference import DiffuCoderInference
from jax_lm.model_source import is_instruct
from jax_lm.options import GenerationOptions
from jax_lm.rewards.code import FENCE, extract_code
from jax_lm.templates import HoleLength, Template

# Middle length taken from the canonical filling.
ORACLE = "oracle"
# Beginning of the assistant's turn, which the model continues with code.
OPENING = f"Here is the code to solve this problem:\n{FENCE}python\n"


@dataclass(frozen=True)
class CompletionPrompting:
    """The model continues the text of a problem, or fills its gap.

    Attributes:
        middle_length: number of masks as in `DiffuCoderInference.infill`, or "oracle" for the
            length of the canonical filling. With variable-length decoding, the initial number of
            masks.
    """

    name = "base"
    middle_length: HoleLength = None

    def templates(
        self, engine: DiffuCoderInference, problem: Problem, options: GenerationOptions
    ) -> list[Template]:
        """Return the templates to decode, each of which begins with the text before the answer.

        Of several results the most confident one is used.
        """
        # A hole needs at least one token, even if the canonical filling is empty.
        if self.middle_length == ORACLE:
            lengths = [max(1, len(engine.tokenizer.encode(problem.canonical)))]
        else:
            lengths = engine.hole_lengths(options.max_new_tokens, self.middle_length, options)
        return [Template.infilling(problem.prefix, length, problem.suffix) for length in lengths]

    def is_over(self, problem: Problem, answer: str) -> bool:
        """Return whether what follows this beginning of an answer would be cut off."""
        return not problem.suffix and problem.filling(answer) != answer

    def program(self, problem: Problem, answer: str) -> str:
        """Return the program of an answer."""
        return problem.program(problem.filling(answer))


@dataclass(frozen=True)
class ChatPrompting:
    """The model answers the question in a user's message, in a code block that is already open."""

    name = "chat"

    def templates(
        self, engine: DiffuCoderInference, problem: Problem, options: GenerationOptions
    ) -> list[Template]:
        """Return the template to decode, of a problem that is a question (`choose_prompting`)."""
        # The hole begins inside the code block that the prompt opens.
        return [
            Template.completion(
                engine.chat_prompt(problem.question) + OPENING, options.max_new_tokens
            )
        ]

    def is_over(self, problem: Problem, answer: str) -> bool:
        """Return whether what follows this beginning of an answer would be cut off."""
        code, fence, _ = answer.partition(FENCE)
        return bool(fence and code.strip())

    def program(self, problem: Problem, answer: str) -> str:
        """Return the program of an answer."""
        return f"{problem.preamble}\n{extract_answer(answer)}"


Prompting = CompletionPrompting | ChatPrompting


def choose_prompting(
    engine: DiffuCoderInference,
    problems: Problems,
    middle_length: HoleLength,
    *,
    chat: bool,
    base: bool,
) -> Prompting:
    """Return chat prompting for questions to an instruct model, otherwise completion.

    Args:
        engine: the model.
        problems: the problems; chat needs a question of each.
        middle_length: see `CompletionPrompting`.
        chat: treat the model as an instruct model.
        base: always use completion.
    """
    # A suite without questions, such as infilling, is completed by any model.
    has_questions = all(problem.question for problem in problems)
    if has_questions and not base and (chat or is_instruct(engine.source.folder, engine.tokenizer)):
        return ChatPrompting()
    return CompletionPrompting(middle_length)


def extract_answer(answer: str) -> str:
    """Return the code of an answer that continues an open block.

    It is the text up to the closing fence or, if that is blank, the first complete block.
    """
    # "x = 1\n```\nDone." -> "x = 1\n"; "```\n```python\nx = 1\n```" -> "x = 1\n"
    code = answer.partition(FENCE)[0]
    return code if code.strip() else extract_code(answer)
