"""Families on short formulas: lengths and areas, multiples, steps by a constant, grades and
triangles.
"""

import math
import random
from fractions import Fraction

from builtin_model.families.number_inputs import PAIRS, TRIPLES, draw_signed, draw_small, draw_two
from builtin_model.tasks import Family

SIDES = (
    ("length", "width"),
    ("w", "h"),
    ("l", "w"),
    ("a", "b"),
    ("base", "height"),
    ("height", "width"),
)
LEGS = (
    ("x", "y"),
    ("side1", "side2"),
    ("base", "height"),
    ("leg1", "leg2"),
    ("opposite", "adjacent"),
)


def _triangle(rng: random.Random) -> tuple[int, int, int]:
    a, b = rng.randint(5, 9), rng.randint(5, 9)
    return rng.choice(
        ((a, a, a), (a, a, b), (a, b, a), (b, a, a), (a, b, rng.randint(5, 9)), (3, 4, 5))
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="hypotenuse",
        names=(
            "hypotenuse",
            "get_hypotenuse",
            "find_hypotenuse",
            "calculate_hypotenuse",
            "pythagoras",
            "pythagorean",
        ),
        params=("a: float", "b: float"),
        alternatives=LEGS,
        returns="float",
        docs=(
            "Return the hypotenuse of a right triangle with legs $a and $b.",
            "Compute the length of the hypotenuse from the two other sides.",
            "Given the legs of a right triangle, return the hypotenuse.",
            "This function applies the Pythagorean theorem to $a and $b.",
        ),
        body="return ($a ** 2 + $b ** 2) ** 0.5",
        inputs=lambda rng: rng.choice(
            ((3, 4), (4, 3), (6, 8), (5, 12), (8, 15), (7, 24), (20, 21), (0, 5), (12, 9))
        ),
        oracle=math.hypot,
    ),
    Family(
        name="circle_area",
        names=(
            "circle_area",
            "area_of_circle",
            "calculate_circle_area",
            "get_circle_area",
            "area_circle",
        ),
        params=("radius: float",),
        alternatives=(("r",), ("rad",), ("x",), ("n",), ("value",), ("circle_radius",)),
        returns="float",
        docs=(
            "Return the area of a circle with radius $radius.",
            "Compute the area of a circle.",
            "Given the radius of a circle, return its area.",
            "This function calculates the area of a circle from its radius.",
        ),
        body="""
import math
return math.pi * $radius ** 2
""",
        inputs=draw_small,
        oracle=lambda radius: radius * radius * math.pi,
    ),
    Family(
        name="rectangle_area",
        names=(
            "rectangle_area",
            "area_of_rectangle",
            "calculate_rectangle_area",
            "get_rectangle_area",
            "rect_area",
        ),
        params=("width: int", "height: int"),
        alternatives=SIDES,
        returns="int",
        docs=(
            "Return the area of a rectangle with sides $width and $height.",
            "Compute the area of a rectangle.",
            "Given the two sides of a rectangle, return its area.",
            "This function calculates the area of a rectangle.",
        ),
        body="return $width * $height",
        inputs=lambda rng: (rng.randint(0, 20), rng.randint(1, 20)),
        oracle=lambda width, height: sum([width] * height),
    ),
    Family(
        name="rectangle_perimeter",
        names=(
            "rectangle_perimeter",
            "perimeter_of_rectangle",
            "calculate_perimeter",
            "get_perimeter",
            "perimeter",
        ),
        params=("width: int", "height: int"),
        alternatives=SIDES,
        returns="int",
        docs=(
            "Return the perimeter of a rectangle with sides $width and $height.",
            "Compute the perimeter of a rectangle.",
            "Given the two sides of a rectangle, return its perimeter.",
            "This function calculates the perimeter of a rectangle.",
        ),
        body="return 2 * ($width + $height)",
        inputs=lambda rng: (rng.randint(1, 20), rng.randint(1, 20)),
        oracle=lambda width, height: width + height + width + height,
    ),
    Family(
        name="triangle_area",
        names=(
            "triangle_area",
            "area_of_triangle",
            "calculate_triangle_area",
            "get_triangle_area",
            "area_triangle",
        ),
        params=("base: float", "height: float"),
        alternatives=(
            ("b", "h"),
            ("a", "b"),
            ("width", "height"),
            ("base_length", "height"),
            ("x", "y"),
            ("a", "h"),
        ),
        returns="float",
        docs=(
            "Return the area of a triangle with base $base and height $height.",
            "Compute the area of a triangle from its base and height.",
            "Given the base and the height of a triangle, return its area.",
            "This function calculates the area of a triangle.",
        ),
        body="return $base * $height / 2",
        inputs=lambda rng: (rng.randint(1, 20), rng.randint(1, 20)),
        oracle=lambda base, height: float(Fraction(base * height, 2)),
    ),
    Family(
        name="is_multiple_of_constant",
        names=(
            "is_multiple_of_$k",
            "is_divisible_by_$k",
            "divisible_by_$k",
            "multiple_of_$k",
            "check_divisible_by_$k",
        ),
        params=("n: int",),
        constants={"k": (3, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
        returns="bool",
        docs=(
            "Return True if $n is a multiple of $k.",
            "Check whether $n is divisible by $k.",
            "Given a number, return True if $k divides it evenly.",
            "This function tests if $n is divisible by $k.",
        ),
        body="return $n % $k == 0",
        inputs=lambda rng: (
            rng.choice((0, 12, 30, 60, 77, 72, rng.randint(1, 40), rng.randint(-20, 100))),
        ),
        oracle=lambda n, k: abs(n) in range(0, abs(n) + 1, k),
    ),
    Family(
        name="is_divisible",
        names=(
            "is_divisible",
            "is_divisible_by",
            "is_multiple",
            "check_divisible",
            "is_multiple_of",
            "divides_evenly",
        ),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="bool",
        docs=(
            "Return True if $a is divisible by $b.",
            "Check whether $a is a multiple of $b.",
            "Given two integers, return True if the second divides the first evenly.",
            "This function tests if $a divided by $b leaves no remainder.",
        ),
        body="return $a % $b == 0",
        inputs=lambda rng: rng.choice(
            ((12, 4), (4, 12), (0, 3), (rng.randint(1, 40), rng.randint(1, 6)), (15, 5))
        ),
        oracle=lambda a, b: a // b * b == a,
    ),
    Family(
        name="add_constant",
        names=("add_$k", "plus_$k", "increase_by_$k", "add_${k}_to_number"),
        params=("n: int",),
        constants={"k": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100)},
        returns="int",
        docs=(
            "Return $n plus $k.",
            "Add $k to a number.",
            "Given a number, return it increased by $k.",
            "This function adds $k to $n.",
        ),
        body="return $n + $k",
        inputs=draw_signed,
        oracle=lambda n, k: sum((k, n)),
    ),
    Family(
        name="multiply_by_constant",
        names=("multiply_by_$k", "mul_by_$k", "multiply_number_by_$k", "multiplied_by_$k"),
        params=("n: int",),
        constants={"k": (2, 3, 4, 5, 6, 7, 8, 9, 10, 100)},
        returns="int",
        docs=(
            "Return $n times $k.",
            "Multiply a number by $k.",
            "Given a number, return it multiplied by $k.",
            "This function multiplies $n by $k.",
        ),
        body="return $n * $k",
        inputs=draw_signed,
        oracle=lambda n, k: sum([n] * k),
    ),
    Family(
        name="double",
        names=("double", "double_number", "double_value", "get_double", "twice", "doubled"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return twice the value of $n.",
            "Double a number.",
            "Given a number, return its double.",
            "This function doubles $n.",
        ),
        body="return $n * 2",
        inputs=draw_signed,
        oracle=lambda n: n + n,
    ),
    Family(
        name="integer_sqrt",
        names=("integer_sqrt", "int_sqrt", "isqrt", "integer_square_root", "floor_sqrt", "my_sqrt"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the integer square root of $n.",
            "Compute the square root of $n rounded down.",
            "Given a non-negative integer, return the largest integer whose square is at most $n.",
            "This function returns the floor of the square root of $n.",
        ),
        body="return int($n ** 0.5)",
        inputs=lambda rng: (
            rng.choice((0, 1, 3, 8, 15, rng.randint(2, 20) ** 2, rng.randint(2, 200))),
        ),
        oracle=math.isqrt,
    ),
    Family(
        name="swap",
        names=("swap", "swap_values", "swap_numbers", "swap_two", "swap_two_numbers", "exchange"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="tuple[int, int]",
        docs=(
            "Return $b and $a in swapped order.",
            "Swap two values.",
            "Given two values, return them in the opposite order.",
            "This function swaps $a and $b.",
        ),
        body="return $b, $a",
        inputs=draw_two,
        oracle=lambda a, b: tuple(reversed((a, b))),
    ),
    Family(
        name="grade",
        names=(
            "grade",
            "get_grade",
            "letter_grade",
            "calculate_grade",
            "score_to_grade",
            "assign_grade",
        ),
        params=("score: int",),
        alternatives=(
            ("points",),
            ("marks",),
            ("mark",),
            ("n",),
            ("x",),
            ("value",),
            ("percentage",),
        ),
        returns="str",
        docs=(
            "Return the letter grade for $score.",
            "Convert a score from 0 to 100 to a letter grade from A to F.",
            "Given a score, return A from 90, B from 80, C from 70, D from 60 and F below.",
            "This function maps a score to a letter grade.",
        ),
        body="""
if $score >= 90:
    return "A"
if $score >= 80:
    return "B"
if $score >= 70:
    return "C"
if $score >= 60:
    return "D"
return "F"
""",
        inputs=lambda rng: (rng.choice((0, 59, 60, 70, 79, 80, 89, 90, 100, rng.randint(0, 100))),),
        oracle=lambda score: "FFFFFFDCBAA"[score // 10],
    ),
    Family(
        name="triangle_type",
        names=(
            "triangle_type",
            "classify_triangle",
            "type_of_triangle",
            "get_triangle_type",
            "triangle_kind",
        ),
        params=("a: int", "b: int", "c: int"),
        alternatives=(*TRIPLES, ("side1", "side2", "side3")),
        returns="str",
        docs=(
            "Return whether the triangle with sides $a, $b and $c is equilateral, isosceles or scalene.",
            "Classify a triangle by its three sides.",
            "Given three sides, return equilateral, isosceles or scalene.",
            "This function returns the type of the triangle with the given sides.",
        ),
        body="""
if $a == $b == $c:
    return "equilateral"
if $a == $b or $b == $c or $a == $c:
    return "isosceles"
return "scalene"
""",
        inputs=_triangle,
        oracle=lambda a, b, c: ("", "equilateral", "isosceles", "scalene")[len({a, b, c})],
    ),
)
