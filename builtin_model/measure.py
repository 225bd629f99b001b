"""Measure what the card of the built-in model says, beside `diffucoder eval builtin`.

    python -m builtin_model.measure --out out/measured.json

Spellings: twenty classics, each header in five spellings. Infilling: one hole in each held-out
program. Chat: questions for held-out tasks. Outside: how sure the model is of answers that it
cannot know, beside those that it can.
"""

import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from builtin_model.layouts import draw_hole
from jax_lm.data.prompts import BuiltinTask, load_tasks
from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import Problem, load_held_out_problems
from jax_lm.evaluation.prompting import CompletionPrompting, Prompting
from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.results import BUILTIN_SURENESS
from jax_lm.rewards.code import FENCE, extract_code
from jax_lm.templates import Template
from untrusted import Local

SAMPLES = Path(__file__).parents[1] / "tests" / "samples"
SPELLINGS = ("names", "hints", "docstring", "comment", "chat")
CHAT_FORMS = (
    "Complete this Python code:\n{prompt}",
    "Write a Python function `{header}`. {description}",
    "Implement `{name}` in Python. {description}",
)
"""Questions for held-out tasks, one after the other."""

BATCH_SIZE = 25
NEW_TOKENS, HOLE_TOKENS = 176, 64
"""Of the canvas of an answer, and of a hole whose length is not known."""

Suite = Literal["spellings", "infilling", "chat", "outside"]


class AnswerPrompting(CompletionPrompting):
    """Completes code, or answers a message with code; tests may call what it defines first
    `candidate`.
    """

    def program(self, problem: Problem, answer: str) -> str:
        if problem.question:
            # A block that no fence closes ends with the answer.
            code = extract_code(answer if answer.count(FENCE) > 1 else f"{answer}\n{FENCE}")
        else:
            code = super().program(problem, answer)
        defined = re.search(r"^(?:def|class) (\w+)", code, re.MULTILINE)
        alias = f"\ncandidate = {defined[1]}\n" if defined else ""
        return f"{problem.preamble}{code}{alias}"


def spelled_problems(engine: DiffuCoderInference) -> Iterator[Problem]:
    """Read the classics in their five spellings."""
    classics = tomllib.loads((SAMPLES / "spellings.toml").read_text(encoding="utf-8"))
    for name, classic in classics.items():
        for spelling in SPELLINGS:
            question = classic[spelling] if spelling == "chat" else ""
            prefix = engine.chat_prompt(question) if question else classic[spelling]
            yield Problem(
                name=f"{name}/{spelling}",
                group=spelling,
                prefix=prefix,
                suffix="",
                tests=tuple(classic["tests"]),
                canonical="",
                question=question,
                # People paste a header without its imports.
                preamble="from typing import List\n",
            )


def holed_problems(count: int) -> Iterator[Problem]:
    """Cut one hole into each of the first held-out programs, most of them into its body."""
    for number, task in enumerate(load_tasks(count)):
        text = task.prompt + task.completion
        start, end = draw_hole(text, len(task.prompt), random.Random(f"hole {number}"))
        yield Problem(
            name=f"{task.family}/{number}",
            group="whole lines" if is_whole(text, start, end) else "a part of a line",
            prefix=text[:start],
            suffix=text[end:],
            tests=task.tests,
            canonical=text[start:end],
        )


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether nothing but blanks is left of the lines that a hole begins and ends in."""
    before, behind = text[:start].rpartition("\n")[2], text[end:].partition("\n")[0]
    return not before.strip() and (text[:end].endswith("\n") or not behind.strip())


def asked_problems(engine: DiffuCoderInference, count: int) -> Iterator[Problem]:
    """Ask for the first held-out tasks in chat."""
    for number, task in enumerate(load_tasks(count)):
        form = CHAT_FORMS[number % len(CHAT_FORMS)]
        question = form.format(
            prompt=task.prompt.rstrip(),
            header=header_of(task),
            description=task.description,
            name=task.entry_point,
        )
        yield Problem(
            name=f"{task.family}/{number}",
            group=form.split("{", 1)[0].strip(" `\n:"),
            prefix=engine.chat_prompt(question),
            suffix="",
            tests=task.tests,
            canonical=task.completion,
            question=question,
        )


def header_of(task: BuiltinTask) -> str:
    """Find the line that begins the function or class, without its colon."""
    match = re.search(r"^(?:def|class) .*(?=:$)", task.prompt, re.MULTILINE)
    assert match
    return match[0].removeprefix("def ")


def count_passed(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    options: GenerationOptions,
    prompting: Prompting,
) -> dict:
    """Let the model attempt problems, and count what passed by group; with the outcome of each."""
    executor = Local(allow_unsafe=True)
    evaluator = Evaluator(
        engine=engine,
        executor=executor,
        options=options,
        prompting=prompting,
        batch_size=BATCH_SIZE,
    )
    attempts = sorted(evaluator.attempts(problems), key=lambda attempt: attempt.problem.name)
    groups = {
        name: [a.passed for a in attempts if a.problem.group == name]
        for name in {a.problem.group for a in attempts}
    }
    return {
        "passed": sum(attempt.passed for attempt in attempts),
        "count": len(attempts),
        "groups": {
            name: {"passed": sum(passed), "count": len(passed)}
            for name, passed in sorted(groups.items())
        },
        "attempts": [
            {
                "name": a.problem.name,
                "group": a.problem.group,
                "outcome": a.outcome,
                "completion": a.completion,
            }
            for a in attempts
        ],
    }


def count_doubted(
    engine: DiffuCoderInference, prompts: Sequence[str], options: GenerationOptions
) -> dict:
    """Complete prompts, and count the answers that the model is not sure of; with how sure it is of
    each.
    """
    sureness: dict[int, float] = {}
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for start in range(0, len(order), BATCH_SIZE):
        numbers = order[start : start + BATCH_SIZE]
        templates = [
            Template.completion(prompts[number], options.max_new_tokens) for number in numbers
        ]
        # A last batch of another size would compile the loop once more.
        templates += templates[-1:] * (BATCH_SIZE - len(templates))
        rows = engine.decode(templates, options).rows
        sureness |= {
            number: row.sureness(options.temperature)
            for number, row in zip(numbers, rows, strict=False)
        }
    return {
        "doubted": sum(value < BUILTIN_SURENESS for value in sureness.values()),
        "count": len(prompts),
        "sureness": [round(sureness[number], 4) for number in range(len(prompts))],
    }


def main(
    *,
    out: Path,
    model: Path | None = None,
    suites: tuple[Suite, ...] = ("spellings", "infilling", "chat", "outside"),
    count: int = 300,
    middle_length: str | None = None,
    growth: Literal["auto", "on", "off"] = "auto",
    preset: Literal["exact", "fast", "turbo"] = "exact",
    temperature: float = 0.0,
) -> None:
    """Measure, and write every outcome.

    Args:
        out: JSON file.
        model: checkpoint; the built-in model if not given.
        suites: what to measure.
        count: held-out tasks of infilling and chat.
        middle_length: of the hole in infilling: tokens, auto or oracle; as many as are allowed if
            not given.
        growth: whether holes find their own length; `middle_length` is then what they begin with.
        preset: of decoding.
        temperature: of decoding; greedy if not given.
    """
    engine = DiffuCoderInference(model)
    length = int(middle_length) if middle_length and middle_length.isdecimal() else middle_length
    decoding = Decoding(preset=preset)
    measured = {}
    for suite in suites:
        size = HOLE_TOKENS if suite == "infilling" else NEW_TOKENS
        options = GenerationOptions(max_new_tokens=size, temperature=temperature, decoding=decoding)
        options = replace(options, growth=growth if suite == "infilling" else "off")
        if suite == "outside":
            outside = tomllib.loads((SAMPLES / "outside.toml").read_text(encoding="utf-8"))[
                "prompts"
            ]
            asked = {
                "outside": outside,
                "inside": [problem.prefix for problem in load_held_out_problems(count)],
            }
            measured[suite] = {
                name: count_doubted(engine, prompts, options) for name, prompts in asked.items()
            }
            shown = ", ".join(
                f"{name} {c['doubted']}/{c['count']}" for name, c in measured[suite].items()
            )
            sys.stdout.write(f"doubted: {shown}\n")
            continue
        problems = {
            "spellings": lambda: spelled_problems(engine),
            "infilling": lambda: holed_problems(count),
            "chat": lambda: asked_problems(engine, count),
        }[suite]()
        prompting = AnswerPrompting(length if suite == "infilling" else None)
        measured[suite] = count_passed(engine, list(problems), options, prompting)
        counts = {"all": measured[suite], **measured[suite]["groups"]}
        shown = ", ".join(f"{name} {c['passed']}/{c['count']}" for name, c in counts.items())
        sys.stdout.write(f"{suite}: {shown}\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(measured, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
