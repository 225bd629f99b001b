"""What the card's other numbers are measured on: five spellings, holes, questions; and what
training may have seen.
"""

import ast
import tomllib

import pytest

from builtin_model.classics import CLASSICS
from builtin_model.families import FAMILIES
from builtin_model.measure import (
    SAMPLES,
    SPELLINGS,
    AnswerPrompting,
    asked_problems,
    header_of,
    holed_problems,
    is_whole,
    spelled_problems,
)
from builtin_model.overlap import readings, seen_of
from jax_lm.data.prompts import load_tasks
from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference
from untrusted import run


@pytest.fixture(scope="module")
def classics():
    return tomllib.loads((SAMPLES / "spellings.toml").read_text(encoding="utf-8"))


SOLUTIONS = {
    "fibonacci": "    a, b = 0, 1\n    for _ in range(X):\n        a, b = b, a + b\n    return a\n",
    "is_palindrome": "    return X == X[::-1]\n",
    "find_max": "    return max(X)\n",
}


def test_a_hundred_prompts_that_all_differ(engine: DiffuCoderInference):
    problems = list(spelled_problems(engine))
    assert len(problems) == 100
    assert len({problem.prefix for problem in problems}) == 100
    assert {problem.group for problem in problems} == set(SPELLINGS)


@pytest.mark.parametrize("name", SOLUTIONS)
@pytest.mark.parametrize("spelling", SPELLINGS[:4])
def test_a_right_body_passes_under_every_header(engine: DiffuCoderInference, name, spelling):
    (problem,) = (each for each in spelled_problems(engine) if each.name == f"{name}/{spelling}")
    parameter = problem.prefix.split("(")[1].split(")")[0].split(":")[0]
    lead = "" if problem.prefix.endswith("\n") else "\n"
    program = AnswerPrompting().program(problem, lead + SOLUTIONS[name].replace("X", parameter))
    assert run(program, problem.tests, allow_unsafe=True).passed
    wrong = AnswerPrompting().program(problem, f"{lead}    return None\n")
    assert not run(wrong, problem.tests, allow_unsafe=True).passed


@pytest.mark.parametrize("end", ["\n```", "\n```\nThis works.", ""])
def test_the_code_of_an_answer_is_its_program(classics, end):
    tests = tuple(classics["find_max"]["tests"])
    problem = Problem("a", "chat", "", "", tests=tests, canonical="", question="?")
    program = AnswerPrompting().program(
        problem, f"```python\ndef biggest(a):\n    return max(a){end}"
    )
    assert run(program, tests, allow_unsafe=True).passed


def test_every_hole_is_filled_right_by_what_was_there():
    problems = list(holed_problems(60))
    assert len({problem.group for problem in problems}) == 2
    for problem, task in zip(problems, load_tasks(60), strict=True):
        program = AnswerPrompting().program(problem, problem.canonical)
        assert program.startswith(task.prompt + task.completion)
        assert run(program, ["\n".join(problem.tests)], allow_unsafe=True).passed
        assert problem.suffix or problem.prefix


@pytest.mark.parametrize(
    ("hole", "expected"),
    [
        ("    a = 1\n", True),
        ("a = 1", True),
        ("a = 1\n    b = 2", True),
        ("a = 1\n    b", False),
        ("= 1\n    b = 2", False),
        ("1", False),
    ],
)
def test_holes_are_whole_lines_or_parts(hole, expected):
    text = "def f():\n    a = 1\n    b = 2\n"
    start = text.index(hole)
    assert is_whole(text, start, start + len(hole)) == expected


def test_questions_say_what_the_tests_call(engine: DiffuCoderInference):
    for problem, task in zip(asked_problems(engine, 30), load_tasks(30), strict=True):
        assert task.entry_point in problem.question
        assert problem.question in problem.prefix


def test_headers_are_those_of_the_tasks():
    for task in load_tasks(200):
        header = header_of(task)
        keyword = "" if header.startswith("class ") else "def "
        ast.parse(f"{keyword}{header}: ...")


def test_classics_are_families():
    assert set(CLASSICS) <= {family.name for family in FAMILIES}
    assert all(doc.endswith((".", "?", "!")) for docs in CLASSICS.values() for doc in docs)


def test_readings_leave_out_more_and_more():
    first = 'def f(a: int) -> int:\n    """Add one."""\n    return a + 1\n'
    second = "# Add one.\ndef plus(n):\n    return n + 1\n"
    other = "def f(a):\n    return a + 2\n"
    assert readings(first)[1] == readings(first.replace('    """Add one."""\n', ""))[1]
    assert readings(first)[2] == readings(second)[2]
    assert readings(first)[2] != readings(other)[2]


def test_what_was_seen_is_counted_by_reading():
    tasks = load_tasks(20)
    trained = tuple({text} for text in readings(tasks[0].prompt + tasks[0].completion))
    assert seen_of(tasks, trained)[0] == 1
    assert seen_of(tasks, (set(), set(), set())) == [0, 0, 0]
