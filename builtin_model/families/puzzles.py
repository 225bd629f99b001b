"""Families on classic puzzles: the knapsack, parentheses, Roman numerals."""

import functools
import itertools
import random

from builtin_model.families.scans import is_balanced
from builtin_model.tasks import Family

ROMAN = {1: "I", 2: "II", 3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX"}


def _knapsack_case(rng: random.Random) -> tuple[list[int], list[int], int]:
    size = rng.randint(0, 4)
    return (
        [rng.randint(1, 6) for _ in range(size)],
        [rng.randint(1, 9) for _ in range(size)],
        rng.randint(0, 11),
    )


def _knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    chosen = itertools.product((0, 1), repeat=len(weights))
    pairs = [
        (sum(itertools.compress(weights, c)), sum(itertools.compress(values, c))) for c in chosen
    ]
    return max(value for weight, value in pairs if weight <= capacity)


@functools.cache
def _first_block_key(text: str) -> tuple:
    if not text:
        return ()
    depths = list(itertools.accumulate(1 if c == "(" else -1 for c in text))
    end = depths.index(0)
    return end, _first_block_key(text[1:end]), _first_block_key(text[end + 1 :])


def _parentheses(n: int) -> list[str]:
    candidates = ("".join(c) for c in itertools.product("()", repeat=2 * n))
    return sorted(filter(is_balanced, candidates), key=_first_block_key)


@functools.cache
def _roman(number: int) -> str:
    result = ""
    for i, digit in enumerate(reversed(str(number))):
        shift = str.maketrans("IVX", ("IVX", "XLC", "CDM", "M??")[i])
        result = ROMAN.get(int(digit), "").translate(shift) + result
    return result


FAMILIES: tuple[Family, ...] = (
    Family(
        name="knapsack",
        names=(
            "knapsack",
            "knapsack_01",
            "solve_knapsack",
            "max_knapsack_value",
            "zero_one_knapsack",
        ),
        params=("weights: list[int]", "values: list[int]", "capacity: int"),
        alternatives=(
            ("w", "v", "capacity"),
            ("weights", "profits", "capacity"),
            ("weights", "values", "limit"),
            ("w", "v", "W"),
            ("weights", "prices", "max_weight"),
            ("wt", "val", "W"),
        ),
        returns="int",
        docs=(
            "Return the largest total value of items whose weights fit into $capacity.",
            "Solve the 0/1 knapsack problem.",
            "Given weights, values and a capacity, return the best value of a knapsack.",
            "This function finds the maximum value that fits, using each item at most once.",
        ),
        body="""
best = [0] * ($capacity + 1)
for x, y in zip($weights, $values):
    for i in range($capacity, x - 1, -1):
        best[i] = max(best[i], best[i - x] + y)
return best[-1]
""",
        inputs=_knapsack_case,
        oracle=_knapsack,
    ),
    Family(
        name="generate_parentheses",
        names=(
            "generate_parentheses",
            "generate_parenthesis",
            "all_parentheses",
            "gen_parens",
            "make_parentheses",
        ),
        params=("n: int",),
        returns="list[str]",
        docs=(
            "Return all valid combinations of $n pairs of parentheses.",
            "Generate every balanced string with $n pairs of parentheses.",
            "Given $n, return a list of all well-formed strings of $n pairs of parentheses.",
            "This function lists the balanced parentheses strings with $n pairs.",
        ),
        body="""
if $n == 0:
    return [""]
result = []
for i in range($n):
    for left in $f(i):
        for right in $f($n - 1 - i):
            result.append("(" + left + ")" + right)
return result
""",
        inputs=lambda rng: (rng.randint(0, 4),),
        oracle=_parentheses,
    ),
    Family(
        name="roman_to_int",
        names=(
            "roman_to_int",
            "roman_to_integer",
            "roman_to_decimal",
            "from_roman",
            "roman_to_number",
        ),
        params=("s: str",),
        alternatives=(("roman",), ("text",), ("numeral",), ("string",), ("roman_numeral",), ("r",)),
        returns="int",
        docs=(
            "Convert a Roman numeral to an integer.",
            "Return the integer value of the Roman numeral $s.",
            "Given a Roman numeral as a string, return its value.",
            "This function converts Roman numerals such as XIV to integers.",
        ),
        body="""
values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
total = 0
for i in range(len($s)):
    if i + 1 < len($s) and values[$s[i]] < values[$s[i + 1]]:
        total -= values[$s[i]]
    else:
        total += values[$s[i]]
return total
""",
        inputs=lambda rng: (_roman(rng.choice((rng.randint(1, 50), rng.randint(1, 3999)))),),
        oracle=lambda s: next(i for i in range(1, 4000) if _roman(i) == s),
    ),
    Family(
        name="int_to_roman",
        names=(
            "int_to_roman",
            "to_roman",
            "integer_to_roman",
            "decimal_to_roman",
            "number_to_roman",
            "roman_numeral",
        ),
        params=("n: int",),
        returns="str",
        docs=(
            "Convert an integer to a Roman numeral.",
            "Return the Roman numeral of the integer $n.",
            "Given an integer from 1 to 3999, return it as a Roman numeral.",
            "This function converts integers such as 14 to Roman numerals.",
        ),
        body="""
values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
symbols = "M CM D CD C XC L XL X IX V IV I".split()
result = ""
for i in range(13):
    result += symbols[i] * ($n // values[i])
    $n %= values[i]
return result
""",
        inputs=lambda rng: (rng.choice((rng.randint(1, 50), rng.randint(1, 3999))),),
        oracle=_roman,
    ),
)
