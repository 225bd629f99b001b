"""The built-in model writes Python: what people type first, however the header is phrased."""

import random

import pytest

from jax_lm.evaluation.builtin import EVALUATION_SEED, evaluate, held_out_tasks, job_of, standard_error
from jax_lm.inference import GenerationOptions
from jax_lm.sandbox import Local, run

ANYWHERE = Local(allow_unsafe=True)
"""These programs are our own: they may run where nothing contains them."""

GREEDY = GenerationOptions(max_new_tokens=144, temperature=0.0, preset="fast")

CLASSICS = [
    ("def fibonacci(n):", ["assert [fibonacci(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]"]),
    ("def fib(k: int) -> int:", ["assert [fib(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]"]),
    ("def factorial(n):", ["assert [factorial(i) for i in range(6)] == [1, 1, 2, 6, 24, 120]"]),
    ("def is_prime(n):", ["assert [i for i in range(20) if is_prime(i)] == [2, 3, 5, 7, 11, 13, 17, 19]"]),
    ("def is_prime(num: int) -> bool:\n", ["assert [i for i in range(12) if is_prime(i)] == [2, 3, 5, 7, 11]"]),
    ("def gcd(a, b):", ["assert (gcd(12, 18), gcd(7, 5), gcd(9, 0)) == (6, 1, 9)"]),
    ("def quicksort(arr):", ["assert quicksort([3, 1, 2, 3, -1]) == [-1, 1, 2, 3, 3]", "assert quicksort([]) == []"]),
    ("def bubble_sort(arr):", ["assert bubble_sort([3, 1, 2]) == [1, 2, 3]"]),
    ("def binary_search(arr, target):", ["assert (binary_search([1, 3, 5], 5), binary_search([1], 2)) == (2, -1)"]),
    ("def reverse_string(s):", ["assert reverse_string('abc') == 'cba'"]),
    ("def is_palindrome(s):", ["assert is_palindrome('level')", "assert not is_palindrome('ab')"]),
    ("def word_count(text):", ["assert word_count('a b a') in (3, {'a': 2, 'b': 1})"]),
    ("def count_vowels(s):", ["assert count_vowels('banana') == 3"]),
    ("def fizzbuzz(n):", ["assert fizzbuzz(5) == ['1', '2', 'Fizz', '4', 'Buzz']"]),
    ("def matrix_multiply(A, B):", ["assert matrix_multiply([[1, 2], [3, 4]], [[0, 1], [1, 0]]) == [[2, 1], [4, 3]]"]),
    ("def transpose(matrix):", ["assert transpose([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]"]),
    ("def running_sum(nums):", ["assert running_sum([1, 2, 3]) == [1, 3, 6]"]),
    ('def f(n):\n    """Return the factorial of n."""\n', ["assert [f(i) for i in range(5)] == [1, 1, 2, 6, 24]"]),
    ("class Stack:", ["s = Stack()", "s.push(1)", "s.push(2)", "assert s.pop() == 2"]),
    ("class BinaryTree:", ["t = BinaryTree(2)", "t.insert(1)", "t.insert(3)", "assert t.inorder() == [1, 2, 3]"]),
]


@pytest.fixture(scope="module")
def completions(engine):
    """All classics in one batch."""
    return engine.complete([prompt for prompt, _ in CLASSICS], GREEDY)


MISSED = {
    "def fib(k: int) -> int:", "def is_prime(num: int) -> bool:\n", "def bubble_sort(arr):", "def reverse_string(s):",
    "def is_palindrome(s):", "def count_vowels(s):", "def fizzbuzz(n):", "def matrix_multiply(A, B):", "class Stack:",
    "class BinaryTree:",
}  # fmt: skip
"""What the present model gets wrong, as its card says: mostly a parameter's name that it does not copy."""


@pytest.mark.parametrize("number", range(len(CLASSICS)), ids=[prompt.splitlines()[0] for prompt, _ in CLASSICS])
def test_classic(completions, number, request):
    prompt, tests = CLASSICS[number]
    if prompt in MISSED:
        request.applymarker(pytest.mark.xfail(reason="a known failure of the present built-in model"))
    result = run(prompt + completions[number], ["\n".join(tests)], allow_unsafe=True)
    assert result.passed, f"{result.detail}\n{prompt}{completions[number]}"


def test_the_command_of_the_readme_writes_a_function(engine):
    """With the default settings: 256 new tokens, temperature 0.3."""
    program = engine.generate("def fibonacci(n):")
    compile(program, "generated", "exec")
    # At this temperature either reading comes out: the n-th number, or the first n of them.
    accepted = "assert fibonacci(10) in (55, [0, 1, 1, 2, 3, 5, 8, 13, 21, 34])"
    assert run(program, [accepted], allow_unsafe=True).passed


def test_held_out_tasks_are_distinct_and_held_out():
    tasks = held_out_tasks(200)
    assert len({task.key for task in tasks}) == 200
    assert all(task.held_out for task in tasks)
    assert len({task.family for task in tasks}) > 80
    assert [task.key for task in held_out_tasks(20)] == [task.key for task in tasks[:20]]


def test_a_sample_of_held_out_tasks(engine):
    """A small sample; `diffucoder eval builtin` measures on 300, and the card states what came out."""
    tasks = held_out_tasks(24)
    attempts = list(evaluate(engine, tasks, GREEDY, batch_size=24, executor=ANYWHERE))
    assert len(attempts) == 24
    assert sum(attempt.result.passed for attempt in attempts) >= 24 * 0.6


def test_reference_bodies_pass_and_empty_bodies_fail():
    rng = random.Random(EVALUATION_SEED)
    tasks = rng.sample(held_out_tasks(300), 100)
    solved = [job_of(task, task.completion) for task in tasks]
    empty = [job_of(task, "\n    pass\n") for task in tasks]
    assert [result.detail for result in ANYWHERE.run_many(solved) if not result.passed] == []
    assert [result.detail for result in ANYWHERE.run_many(empty) if result.passed] == []


def test_standard_error():
    assert standard_error(50, 100) == pytest.approx(0.05)
    assert standard_error(100, 100) == 0.0


def test_evaluation_refuses_bad_sizes(engine):
    with pytest.raises(ValueError, match="limit=0"):
        held_out_tasks(0)
    with pytest.raises(ValueError, match="batch_size=0"):
        next(evaluate(engine, held_out_tasks(1), GREEDY, batch_size=0))
