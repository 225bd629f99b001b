"""Families on basic arithmetic: powers, the four operations, the larger of two, sums up to n."""

import math
import random
from fractions import Fraction

from builtin_model.families.number_inputs import PAIRS, TRIPLES, draw_medium, draw_signed, draw_small, draw_two
from builtin_model.tasks import Family


def _three(rng: random.Random) -> tuple[int, int, int]:
    return (rng.randint(-20, 20), rng.randint(-20, 20), rng.randint(-20, 20))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="power",
        names=("power", "pow_number", "exponentiate", "raise_to_power", "compute_power", "calculate_power"),
        params=("base: int", "exponent: int"),
        alternatives=(("x", "n"), ("a", "b"), ("base", "exp"), ("x", "y"), ("number", "power"), ("b", "e")),
        returns="int",
        docs=(
            "Return $base raised to the power of $exponent.",
            "Compute $base to the power $exponent.",
            "Given a base and an exponent, return the power.",
            "This function raises $base to $exponent.",
        ),
        body="return $base ** $exponent",
        inputs=lambda rng: (rng.randint(-3, 7), rng.randint(0, 5)),
        oracle=lambda base, exponent: math.prod([base] * exponent),
    ),
    Family(
        name="square_number",
        names=("square", "square_number", "squared", "get_square", "compute_square", "calculate_square"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the square of $n.",
            "Square a number.",
            "Given a number, return it multiplied by itself.",
            "This function returns $n squared.",
            "Compute the square of a number.",
        ),
        body="return $n ** 2",
        inputs=draw_signed,
        oracle=lambda n: n * n,
    ),
    Family(
        name="cube",
        names=("cube", "cube_number", "cubed", "get_cube", "compute_cube", "calculate_cube"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the cube of $n.",
            "Cube a number.",
            "Given a number, return its third power.",
            "This function returns $n cubed.",
            "Compute the cube of a number.",
        ),
        body="return $n ** 3",
        inputs=draw_signed,
        oracle=lambda n: n * n * n,
    ),
    Family(
        name="add",
        names=("add", "add_numbers", "add_two_numbers", "sum_two_numbers", "addition", "sum_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the sum of $a and $b.",
            "Add two numbers.",
            "Given two numbers, return their sum.",
            "This function adds $a and $b.",
            "Compute $a plus $b.",
        ),
        body="return $a + $b",
        inputs=draw_two,
        oracle=lambda a, b: sum((a, b)),
    ),
    Family(
        name="subtract",
        names=("subtract", "subtract_numbers", "subtract_two_numbers", "minus", "subtraction", "difference_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the difference of $a and $b.",
            "Subtract $b from $a.",
            "Given two numbers, return the first minus the second.",
            "This function subtracts the second number from the first.",
        ),
        body="return $a - $b",
        inputs=draw_two,
        oracle=lambda a, b: sum((a, -b)),
    ),
    Family(
        name="multiply",
        names=("multiply", "multiply_numbers", "multiply_two_numbers", "mul", "multiplication", "product_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the product of $a and $b.",
            "Multiply two numbers.",
            "Given two numbers, return their product.",
            "This function multiplies $a by $b.",
        ),
        body="return $a * $b",
        inputs=draw_two,
        oracle=lambda a, b: math.prod((a, b)),
    ),
    Family(
        name="divide",
        names=("divide", "divide_numbers", "divide_two_numbers", "division", "quotient"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="float",
        docs=(
            "Return $a divided by $b.",
            "Divide $a by $b.",
            "Given two numbers, return their quotient.",
            "This function divides the first number by the second.",
        ),
        body="return $a / $b",
        inputs=lambda rng: (rng.randint(-40, 40), rng.choice((1, 2, 4, 5, -2, 8, 10))),
        oracle=lambda a, b: float(Fraction(a, b)),
    ),
    Family(
        name="absolute_value",
        names=("absolute_value", "absolute", "abs_value", "my_abs", "get_absolute_value", "compute_absolute_value"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the absolute value of $n.",
            "Compute the absolute value of a number.",
            "Given a number, return it without its sign.",
            "This function returns the magnitude of $n.",
        ),
        body="""
if $n < 0:
    return -$n
return $n
""",
        inputs=draw_signed,
        oracle=abs,
    ),
    Family(
        name="absolute_difference",
        names=("absolute_difference", "abs_difference", "abs_diff", "distance_between", "get_absolute_difference"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the absolute difference of $a and $b.",
            "Compute the absolute difference between two numbers.",
            "Given two numbers, return the distance between them.",
            "This function returns how far $a is from $b.",
        ),
        body="return abs($a - $b)",
        inputs=draw_two,
        oracle=lambda a, b: max(a, b) - min(a, b),
    ),
    Family(
        name="max_of_two",
        names=("max_of_two", "maximum_of_two", "larger", "get_larger", "larger_of_two", "bigger_number", "max_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the larger of $a and $b.",
            "Return the maximum of two numbers.",
            "Given two numbers, return the bigger one.",
            "This function finds the larger of two numbers.",
        ),
        body="""
if $a > $b:
    return $a
return $b
""",
        inputs=draw_two,
        oracle=max,
    ),
    Family(
        name="min_of_two",
        names=("min_of_two", "minimum_of_two", "smaller", "get_smaller", "smaller_of_two", "smaller_number", "min_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the smaller of $a and $b.",
            "Return the minimum of two numbers.",
            "Given two numbers, return the smaller one.",
            "This function finds the smaller of two numbers.",
        ),
        body="""
if $a < $b:
    return $a
return $b
""",
        inputs=draw_two,
        oracle=min,
    ),
    Family(
        name="max_of_three",
        names=("max_of_three", "maximum_of_three", "largest_of_three", "max_three", "find_max_of_three", "max3"),
        params=("a: int", "b: int", "c: int"),
        alternatives=TRIPLES,
        returns="int",
        docs=(
            "Return the largest of $a, $b and $c.",
            "Return the maximum of three numbers.",
            "Given three numbers, return the biggest one.",
            "This function finds the largest of three numbers.",
        ),
        body="return max($a, $b, $c)",
        inputs=_three,
        oracle=lambda a, b, c: sorted((a, b, c))[-1],
    ),
    Family(
        name="average_of_two",
        names=("average_of_two", "mean_of_two", "average_two_numbers", "avg_of_two", "midpoint"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="float",
        docs=(
            "Return the average of $a and $b.",
            "Compute the mean of two numbers.",
            "Given two numbers, return their average.",
            "This function calculates the arithmetic mean of $a and $b.",
        ),
        body="return ($a + $b) / 2",
        inputs=draw_two,
        oracle=lambda a, b: float(Fraction(a + b, 2)),
    ),
    Family(
        name="sum_to_n",
        names=("sum_to_n", "sum_up_to", "sum_of_n", "sum_n", "sum_first_n", "sum_natural_numbers", "sum_1_to_n"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the integers from 1 to $n.",
            "Compute 1 + 2 + ... + $n.",
            "Sum the first $n natural numbers.",
            "Given $n, return the sum of all numbers from 1 up to $n.",
            "This function adds all integers between 1 and $n.",
        ),
        body="return sum(range(1, $n + 1))",
        inputs=draw_medium,
        oracle=lambda n: n * (n + 1) // 2,
    ),
    Family(
        name="sum_of_squares",
        names=("sum_of_squares", "sum_squares", "squares_sum", "sum_of_squares_up_to", "sum_of_first_squares"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the squares from 1 to $n.",
            "Compute the sum of the first $n squares.",
            "Given $n, return 1 ** 2 + 2 ** 2 + ... + $n ** 2.",
            "This function adds the squares of the integers from 1 to $n.",
        ),
        body="return sum(i ** 2 for i in range(1, $n + 1))",
        inputs=draw_medium,
        oracle=lambda n: n * (n + 1) * (2 * n + 1) // 6,
    ),
    Family(
        name="even_numbers_up_to",
        names=("even_numbers_up_to", "evens_up_to", "list_even_numbers", "get_evens_up_to", "even_numbers_to_n"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of the even numbers from 1 to $n.",
            "List all even integers between 1 and $n.",
            "Given $n, return the positive even numbers up to $n.",
            "This function lists the even numbers from 1 up to and including $n.",
        ),
        body="return [i for i in range(1, $n + 1) if i % 2 == 0]",
        inputs=draw_medium,
        oracle=lambda n: list(range(2, n + 1, 2)),
    ),
    Family(
        name="countdown",
        names=("countdown", "count_down", "countdown_list", "count_down_from", "get_countdown"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return the list of numbers from $n down to 1.",
            "Count down from $n to 1.",
            "Given $n, return a list that counts down to 1.",
            "This function lists the integers from $n to 1 in descending order.",
        ),
        body="return list(range($n, 0, -1))",
        inputs=draw_small,
        oracle=lambda n: [n - i for i in range(n)],
    ),
)
