"""Tests of the functions that documentation and examples let the built-in model write."""

import untrusted as sandbox

TRUTHS = {
    "factorial": "assert factorial(5) == 120",
    # The number or the numbers up to it: the header says neither.
    "fibonacci": "assert fibonacci(7) in (13, [0, 1, 1, 2, 3, 5, 8])",
    "gcd": "assert gcd(12, 18) == 6",
    "is_even": "assert is_even(4) and not is_even(3)",
    "is_prime": "assert [n for n in range(12) if is_prime(n)] == [2, 3, 5, 7, 11]",
    "quicksort": "assert quicksort([3, 1, 2, 1]) == [1, 1, 2, 3]",
    "transpose": "assert [list(row) for row in transpose([[1, 2], [3, 4]])] == [[1, 3], [2, 4]]",
    # Of the whole text or of each word: the header says neither.
    "word_count": "assert word_count('one two  three') in (3, {'one': 1, 'two': 1, 'three': 1})",
}


def check_program(program):
    """Run a program against the tests of the functions that it defines; at least one must be known."""
    tests = [test for name, test in TRUTHS.items() if f"def {name}(" in program]
    assert tests, program
    result = sandbox.run(program, tests)
    assert result.outcome == "passed", program
