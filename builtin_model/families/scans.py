"""Families that one pass over a list or a text solves."""

import itertools
import random
import re

from builtin_model.families.list_inputs import draw_integers
from builtin_model.tasks import Family


def _brackets(rng: random.Random) -> tuple[str]:
    text = ""
    for _ in range(rng.randint(0, 4)):
        left, right = rng.choice(("()", "[]", "{}"))
        text = rng.choice((left + text + right, text + left + right))
    if rng.random() < 0.5:
        position = rng.randint(0, len(text))
        text = rng.choice(
            (text[:position] + rng.choice("()[]{}") + text[position:], text[::-1], text[:position])
        )
    return (text,)


def _missing(rng: random.Random) -> tuple[list[int]]:
    numbers = list(range(rng.randint(2, 8)))
    rng.shuffle(numbers)
    numbers.pop()
    return (numbers,)


def _single(rng: random.Random) -> tuple[list[int]]:
    distinct = rng.sample(range(12), rng.randint(1, 4))
    numbers = distinct + distinct[1:]
    rng.shuffle(numbers)
    return (numbers,)


def _best_subarray(nums: list[int]) -> int:
    return max(sum(nums[i:j]) for i, j in itertools.combinations(range(len(nums) + 1), 2))


def is_balanced(text: str) -> bool:
    """Remove pairs of brackets until none is left; nothing else may remain."""
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
        text = shorter
    return text == ""


def _best_profit(prices: list[int]) -> int:
    return max((b - a for a, b in itertools.combinations(prices, 2) if b > a), default=0)


def _robbed(nums: list[int]) -> int:
    chosen = (
        c
        for c in itertools.product((0, 1), repeat=len(nums))
        if (1, 1) not in itertools.pairwise(c)
    )
    return max(sum(itertools.compress(nums, c)) for c in chosen)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="max_subarray",
        names=(
            "max_subarray",
            "max_subarray_sum",
            "kadane",
            "maximum_subarray",
            "largest_subarray_sum",
        ),
        params=("nums: list[int]",),
        returns="int",
        docs=(
            "Return the largest sum of a contiguous subarray of $nums.",
            "Find the maximum subarray sum with Kadane's algorithm.",
            "Given a list of numbers, return the maximum sum of consecutive elements.",
            "This function returns the greatest sum of any non-empty contiguous part of $nums.",
        ),
        body="""
best = $nums[0]
current = $nums[0]
for x in $nums[1:]:
    current = max(x, current + x)
    best = max(best, current)
return best
""",
        inputs=lambda rng: (draw_integers(rng, 1, 8, -9, rng.choice((-1, 7, 7))),),
        oracle=_best_subarray,
    ),
    Family(
        name="max_profit",
        names=("max_profit", "best_time_to_buy", "maximum_profit", "stock_profit", "buy_and_sell"),
        params=("prices: list[int]",),
        alternatives=(("nums",), ("values",), ("stock",), ("stocks",), ("arr",), ("stock_prices",)),
        returns="int",
        docs=(
            "Return the largest profit from buying once and selling later.",
            "Find the maximum profit of one purchase and one later sale.",
            "Given a list of daily prices, return the best profit of one trade, or 0.",
            "This function returns the highest gain from buying and then selling a stock once.",
        ),
        body="""
lowest = $prices[0]
best = 0
for x in $prices:
    lowest = min(lowest, x)
    best = max(best, x - lowest)
return best
""",
        inputs=lambda rng: (draw_integers(rng, 1, 7, 1, 20),),
        oracle=_best_profit,
    ),
    Family(
        name="rob",
        names=("rob", "house_robber", "rob_houses", "max_non_adjacent_sum", "max_nonadjacent_sum"),
        params=("nums: list[int]",),
        returns="int",
        docs=(
            "Return the largest sum of elements of $nums with no two adjacent.",
            "Find the most money one can rob from houses without robbing two neighbors.",
            "Given a list of amounts, return the maximum sum of non-adjacent elements.",
            "This function solves the house robber problem.",
        ),
        body="""
a = 0
b = 0
for x in $nums:
    a, b = b, max(b, a + x)
return b
""",
        inputs=lambda rng: (draw_integers(rng, 0, 7, 0, 9),),
        oracle=_robbed,
    ),
    Family(
        name="missing_number",
        names=(
            "missing_number",
            "find_missing",
            "find_missing_number",
            "missing_integer",
            "get_missing_number",
        ),
        params=("nums: list[int]",),
        returns="int",
        docs=(
            "Return the number from 0 to n that is missing in $nums.",
            "Find the missing number in a list of n distinct numbers from 0 to n.",
            "Given n distinct numbers taken from 0 to n, return the one that is missing.",
            "This function finds the only missing number of the range 0 to len($nums).",
        ),
        body="""
n = len($nums)
return n * (n + 1) // 2 - sum($nums)
""",
        inputs=_missing,
        oracle=lambda nums: next(i for i in range(len(nums) + 1) if i not in nums),
    ),
    Family(
        name="single_number",
        names=(
            "single_number",
            "find_single",
            "find_unique_number",
            "lonely_integer",
            "find_single_number",
        ),
        params=("nums: list[int]",),
        returns="int",
        docs=(
            "Return the number that occurs only once in $nums, where all others occur twice.",
            "Find the single number in a list where every other number appears twice.",
            "Given a list where each number but one appears twice, return that one.",
            "This function finds the element without a pair.",
        ),
        body="""
result = 0
for x in $nums:
    result ^= x
return result
""",
        inputs=_single,
        oracle=lambda nums: next(x for x in nums if nums.count(x) == 1),
    ),
    Family(
        name="is_balanced",
        names=(
            "is_balanced",
            "balanced_brackets",
            "valid_parentheses",
            "is_valid_parentheses",
            "balanced_parentheses",
            "check_brackets",
            "check_parentheses",
        ),
        params=("s: str",),
        returns="bool",
        docs=(
            "Check whether the brackets in $s are balanced.",
            "Return True if all parentheses, brackets and braces are closed in the right order.",
            "Given a string of the brackets ()[]{}, return whether it is valid.",
            "This function checks if every opening bracket has a matching closing bracket.",
        ),
        body="""
pairs = {")": "(", "]": "[", "}": "{"}
stack = []
for c in $s:
    if c in "([{":
        stack.append(c)
    elif not stack or stack.pop() != pairs[c]:
        return False
return not stack
""",
        inputs=_brackets,
        oracle=is_balanced,
    ),
)
