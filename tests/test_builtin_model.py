"""The built-in model writes Python: what people type first, however the header is phrased.

For a release, and in .ci/run, where it computes with the code that users run.
"""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from builtin_model.measure import (
    HOLE_TOKENS,
    AnswerPrompting,
    count_passed,
    holed_problems,
    spelled_problems,
)
from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import held_out_problems
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template
from untrusted import Local, run

pytestmark = pytest.mark.usefixtures("for_release")

SAMPLES = Path(__file__).parent / "samples"
GREEDY = GenerationOptions(max_new_tokens=176, temperature=0.0)
TURBO = replace(GREEDY, decoding=Decoding(preset="turbo"))

CLASSICS = [
    ("def fibonacci(n):", ["assert [fibonacci(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]"]),
    ("def fib(k: int) -> int:", ["assert [fib(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]"]),
    ("def factorial(n):", ["assert [factorial(i) for i in range(6)] == [1, 1, 2, 6, 24, 120]"]),
    (
        "def is_prime(n):",
        ["assert [i for i in range(20) if is_prime(i)] == [2, 3, 5, 7, 11, 13, 17, 19]"],
    ),
    (
        "def is_prime(num: int) -> bool:\n",
        ["assert [i for i in range(12) if is_prime(i)] == [2, 3, 5, 7, 11]"],
    ),
    ("def gcd(a, b):", ["assert (gcd(12, 18), gcd(7, 5), gcd(9, 0)) == (6, 1, 9)"]),
    (
        "def quicksort(arr):",
        ["assert quicksort([3, 1, 2, 3, -1]) == [-1, 1, 2, 3, 3]", "assert quicksort([]) == []"],
    ),
    ("def bubble_sort(arr):", ["assert bubble_sort([3, 1, 2]) == [1, 2, 3]"]),
    (
        "def binary_search(arr, target):",
        ["assert (binary_search([1, 3, 5], 5), binary_search([1], 2)) == (2, -1)"],
    ),
    ("def reverse_string(s):", ["assert reverse_string('abc') == 'cba'"]),
    ("def is_palindrome(s):", ["assert is_palindrome('level')", "assert not is_palindrome('ab')"]),
    ("def word_count(text):", ["assert word_count('a b a') in (3, {'a': 2, 'b': 1})"]),
    ("def count_vowels(s):", ["assert count_vowels('banana') == 3"]),
    ("def fizzbuzz(n):", ["assert fizzbuzz(5) == ['1', '2', 'Fizz', '4', 'Buzz']"]),
    (
        "def matrix_multiply(A, B):",
        ["assert matrix_multiply([[1, 2], [3, 4]], [[0, 1], [1, 0]]) == [[2, 1], [4, 3]]"],
    ),
    ("def transpose(matrix):", ["assert transpose([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]"]),
    ("def running_sum(nums):", ["assert running_sum([1, 2, 3]) == [1, 3, 6]"]),
    (
        'def f(n):\n    """Return the factorial of n."""\n',
        ["assert [f(i) for i in range(5)] == [1, 1, 2, 6, 24]"],
    ),
    ("class Stack:", ["s = Stack()", "s.push(1)", "s.push(2)", "assert s.pop() == 2"]),
    (
        "class BinaryTree:",
        ["t = BinaryTree(2)", "t.insert(1)", "t.insert(3)", "assert t.inorder() == [1, 2, 3]"],
    ),
]


@pytest.fixture(scope="module")
def answers(engine):
    """The classics in one batch."""
    prompts = [prompt for prompt, _ in CLASSICS]
    return dict(zip(prompts, answers_to(engine, prompts, GREEDY), strict=True))


def answers_to(engine, prompts, options):
    return engine.decode(
        [Template.completion(prompt, options.max_new_tokens) for prompt in prompts], options
    ).rows


@pytest.mark.parametrize(
    ("prompt", "tests"), CLASSICS, ids=[prompt.splitlines()[0] for prompt, _ in CLASSICS]
)
def test_classic(answers, prompt, tests):
    program = prompt + answers[prompt].text
    result = run(program, ["\n".join(tests)], allow_unsafe=True)
    assert result.passed, f"{result.detail}\n{program}"


def test_what_it_knows_is_not_doubted(engine, answers):
    assert [prompt for prompt in answers if engine.doubt(answers[prompt], 0.0)] == []


def test_what_it_cannot_know_is_doubted(engine):
    """A sample; `builtin_model.measure` counts all fifty, and the card states what came out."""
    outside = tomllib.loads((SAMPLES / "outside.toml").read_text(encoding="utf-8"))["prompts"]
    doubts = [engine.doubt(answer, 0.0) for answer in answers_to(engine, outside[::5], TURBO)]
    assert len(doubts) == 10
    assert sum(map(bool, doubts)) >= 6


def test_the_command_of_the_readme_writes_a_function(engine):
    """With the default settings: 256 new tokens, temperature 0.3."""
    program = engine.generate("def fibonacci(n):")
    compile(program, "generated", "exec")
    # At this temperature either reading comes out: the n-th number, or the first n of them.
    accepted = "assert fibonacci(10) in (55, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34])"
    assert run(program, [accepted], allow_unsafe=True).passed


def test_a_sample_of_held_out_tasks(engine):
    """A small sample; `diffucoder eval builtin` measures on 300, and the card states what came out."""
    evaluator = Evaluator(
        engine=engine, executor=Local(allow_unsafe=True), options=TURBO, batch_size=24
    )
    attempts = list(evaluator.attempts(held_out_problems(24)))
    assert len(attempts) == 24
    assert sum(attempt.passed for attempt in attempts) >= 24 * 0.8


@pytest.mark.parametrize(("suite", "share"), [("spellings", 0.85), ("holes", 0.6)])
def test_any_spelling_and_any_hole(engine, request, suite, share):
    """A hundred of each, with --full; the measure of the recipe, whose numbers the card states."""
    if not request.config.getoption("--full"):
        pytest.skip("runs with --full")
    problems = list(spelled_problems(engine) if suite == "spellings" else holed_problems(100))
    options = TURBO if suite == "spellings" else replace(TURBO, max_new_tokens=HOLE_TOKENS)
    assert count_passed(engine, problems, options, AnswerPrompting())["passed"] >= share * len(
        problems
    )
