"""Families on properties of one number: parity, digits, perfect numbers and divisors."""

import random

from builtin_model.families.number_inputs import draw_positive, draw_signed
from builtin_model.tasks import Family


def _digits(rng: random.Random) -> tuple[int]:
    return (
        rng.choice(
            (0, 7, 10, 100, rng.randint(10, 99), rng.randint(100, 999), rng.randint(1000, 99999))
        ),
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="is_even",
        names=("is_even", "iseven", "check_even", "even", "is_even_number", "is_number_even"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is even.",
            "Check whether $n is an even number.",
            "Given an integer, return True if it is even and False otherwise.",
            "This function tests if a number is even.",
            "Determine if $n is divisible by two.",
        ),
        body="return $n % 2 == 0",
        inputs=draw_signed,
        oracle=lambda n: str(n)[-1] in "02468",
    ),
    Family(
        name="is_odd",
        names=("is_odd", "isodd", "check_odd", "odd", "is_odd_number", "is_number_odd"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is odd.",
            "Check whether $n is an odd number.",
            "Given an integer, return True if it is odd and False otherwise.",
            "This function tests if a number is odd.",
            "Determine if $n is not divisible by two.",
        ),
        body="return $n % 2 != 0",
        inputs=draw_signed,
        oracle=lambda n: str(n)[-1] in "13579",
    ),
    Family(
        name="sum_digits",
        names=(
            "sum_digits",
            "sum_of_digits",
            "digit_sum",
            "add_digits",
            "get_digit_sum",
            "digits_sum",
        ),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the digits of $n.",
            "Compute the digit sum of a number.",
            "Add up all digits of $n.",
            "Given a non-negative integer, return the sum of its digits.",
            "This function adds the digits of $n.",
        ),
        body="return sum(int(d) for d in str($n))",
        inputs=_digits,
        oracle=lambda n: sum(n // 10**i % 10 for i in range(10)),
    ),
    Family(
        name="count_digits",
        names=(
            "count_digits",
            "number_of_digits",
            "digit_count",
            "num_digits",
            "get_digit_count",
            "how_many_digits",
        ),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the number of digits of $n.",
            "Count the digits in a number.",
            "Given a non-negative integer, return how many digits it has.",
            "This function counts the digits of $n.",
        ),
        body="return len(str($n))",
        inputs=_digits,
        oracle=lambda n: next(i for i in range(1, 20) if n < 10**i),
    ),
    Family(
        name="reverse_number",
        names=(
            "reverse_number",
            "reverse_int",
            "reverse_integer",
            "reverse_digits",
            "get_reversed_number",
        ),
        params=("n: int",),
        returns="int",
        docs=(
            "Return $n with its digits reversed.",
            "Reverse the digits of a number.",
            "Given a non-negative integer, return the integer with the digits in reverse order.",
            "This function reverses the digits of $n.",
        ),
        body="return int(str($n)[::-1])",
        inputs=_digits,
        oracle=lambda n: sum(int(d) * 10**i for i, d in enumerate(str(n))),
    ),
    Family(
        name="get_digits",
        names=(
            "get_digits",
            "digits",
            "digits_list",
            "list_digits",
            "to_digits",
            "split_digits",
            "number_to_digits",
        ),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of the digits of $n.",
            "Split a number into its digits.",
            "Given a non-negative integer, return its digits as a list of integers.",
            "This function returns the digits of $n from left to right.",
        ),
        body="return [int(d) for d in str($n)]",
        inputs=_digits,
        oracle=lambda n: [n // 10**i % 10 for i in reversed(range(len(str(n))))],
    ),
    Family(
        name="is_palindrome_number",
        names=(
            "is_palindrome_number",
            "is_palindromic_number",
            "is_number_palindrome",
            "check_palindrome_number",
            "is_numeric_palindrome",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if the number $n is a palindrome.",
            "Check whether an integer reads the same forwards and backwards.",
            "Given an integer $n, return True if its digits form a palindrome.",
            "This function tests if a number is a palindrome.",
        ),
        body="return str($n) == str($n)[::-1]",
        inputs=lambda rng: (
            rng.choice((0, 7, 10, 11, 121, 1221, 12321, 123, 1231, rng.randint(10, 999))),
        ),
        oracle=lambda n: list(str(n)) == list(reversed(str(n))),
    ),
    Family(
        name="is_armstrong",
        names=(
            "is_armstrong",
            "is_armstrong_number",
            "check_armstrong",
            "armstrong_number",
            "is_narcissistic",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is an Armstrong number.",
            "Check whether a number is an Armstrong number.",
            "Given $n, return True if it equals the sum of its digits raised to the number of digits.",
            "This function tests if $n is a narcissistic number.",
        ),
        body="""
digits = str($n)
return $n == sum(int(d) ** len(digits) for d in digits)
""",
        inputs=lambda rng: (
            rng.choice((0, 1, 9, 10, 153, 370, 371, 407, 1634, 100, 123, rng.randint(10, 999))),
        ),
        oracle=lambda n: n in (*range(10), 153, 370, 371, 407, 1634),
    ),
    Family(
        name="is_perfect_number",
        names=(
            "is_perfect_number",
            "is_perfect",
            "check_perfect_number",
            "perfect_number",
            "is_number_perfect",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a perfect number.",
            "Check whether a number is perfect.",
            "Given a positive integer, return True if it equals the sum of its proper divisors.",
            "This function tests if $n is a perfect number.",
        ),
        body="return sum(i for i in range(1, $n) if $n % i == 0) == $n",
        inputs=lambda rng: (rng.choice((1, 2, 6, 28, 496, 12, 24, rng.randint(1, 60))),),
        oracle=lambda n: n in (6, 28, 496),
    ),
    Family(
        name="is_perfect_square",
        names=(
            "is_perfect_square",
            "is_square",
            "check_perfect_square",
            "perfect_square",
            "is_square_number",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a perfect square.",
            "Check whether a number is a perfect square.",
            "Given a non-negative integer, return True if it is the square of an integer.",
            "This function tests if $n is a square number.",
        ),
        body="return int($n ** 0.5) ** 2 == $n",
        inputs=lambda rng: (
            rng.choice((0, 1, 2, 3, 8, 15, rng.randint(2, 20) ** 2, rng.randint(2, 100))),
        ),
        oracle=lambda n: any(i * i == n for i in range(n + 1)),
    ),
    Family(
        name="divisors",
        names=(
            "divisors",
            "get_divisors",
            "find_divisors",
            "list_divisors",
            "factors",
            "get_factors",
            "find_factors",
        ),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of all divisors of $n.",
            "Find all positive divisors of a number.",
            "Given a positive integer $n, return all integers that divide it evenly.",
            "This function returns the factors of $n in ascending order.",
        ),
        body="return [i for i in range(1, $n + 1) if $n % i == 0]",
        inputs=draw_positive,
        oracle=lambda n: sorted(
            {d for i in range(1, n + 1) for d in range(1, n + 1) if d * i == n}
        ),
    ),
)
