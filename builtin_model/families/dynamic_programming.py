"""Families on counting and optimizing: paths, coins, subsequences, edit distance."""

import bisect
import itertools
import math
import random

from builtin_model.families.list_inputs import draw_integers
from builtin_model.tasks import Family

TWO_STRINGS = (
    ("s1", "s2"),
    ("s", "t"),
    ("text1", "text2"),
    ("word1", "word2"),
    ("first", "second"),
    ("x", "y"),
    ("str1", "str2"),
)


def _two_strings(rng: random.Random) -> tuple[str, str]:
    first, second = ("".join(rng.choice("abc") for _ in range(rng.randint(0, 5))) for _ in range(2))
    return first, second


def _coins(rng: random.Random) -> tuple[list[int], int]:
    return rng.choice(([1, 2, 5], [2, 5], [3, 4], [1, 3, 4], [5], [1, 5, 6], [4, 7])), rng.randint(
        0, 14
    )


def _coin_counts(coins: list[int], amount: int) -> list[int]:
    ranges = [range(amount // coin + 1) for coin in coins]
    choices = itertools.product(*ranges)
    return [sum(c) for c in choices if sum(a * b for a, b in zip(c, coins, strict=True)) == amount]


def _subsequence_length(nums: list[int]) -> int:
    tails: list[int] = []
    for x in nums:
        position = bisect.bisect_left(tails, x)
        tails[position : position + 1] = [x]
    return len(tails)


def _subsequences(text: str) -> set[tuple[str, ...]]:
    return {c for size in range(len(text) + 1) for c in itertools.combinations(text, size)}


def _edit_distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    change = _edit_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(change, _edit_distance(a[1:], b) + 1, _edit_distance(a, b[1:]) + 1)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="climbing_stairs",
        names=("climbing_stairs", "climb_stairs", "count_stairs", "stair_ways", "ways_to_climb"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the number of ways to climb $n stairs with steps of 1 or 2.",
            "Count the ways to climb a staircase of $n steps, taking one or two at a time.",
            "Given $n stairs, return in how many ways one can climb them by 1 or 2 steps.",
            "This function solves the climbing stairs problem for $n steps.",
        ),
        body="""
a, b = 1, 1
for i in range($n):
    a, b = b, a + b
return a
""",
        inputs=lambda rng: (rng.randint(0, 12),),
        oracle=lambda n: sum(math.comb(n - twos, twos) for twos in range(n // 2 + 1)),
    ),
    Family(
        name="unique_paths",
        names=("unique_paths", "count_paths", "grid_paths", "num_paths", "lattice_paths"),
        params=("m: int", "n: int"),
        alternatives=(
            ("rows", "cols"),
            ("a", "b"),
            ("height", "width"),
            ("r", "c"),
            ("h", "w"),
            ("x", "y"),
        ),
        returns="int",
        docs=(
            "Return the number of paths through a $m by $n grid that move only right or down.",
            "Count the paths from the top left to the bottom right cell of a $m by $n grid.",
            "Given the size of a grid, count the ways through it with moves right and down.",
            "This function counts the unique paths in a grid with $m rows and $n columns.",
        ),
        body="""
if $m == 1 or $n == 1:
    return 1
return $f($m - 1, $n) + $f($m, $n - 1)
""",
        inputs=lambda rng: (rng.randint(1, 6), rng.randint(1, 6)),
        oracle=lambda m, n: math.comb(m + n - 2, m - 1),
    ),
    Family(
        name="coin_change",
        names=("coin_change", "min_coins", "minimum_coins", "fewest_coins", "make_change"),
        params=("coins: list[int]", "amount: int"),
        alternatives=(
            ("coins", "target"),
            ("coins", "total"),
            ("denominations", "amount"),
            ("values", "amount"),
            ("nums", "target"),
            ("coins", "n"),
        ),
        returns="int",
        docs=(
            "Return the smallest number of coins that make up $amount, or -1.",
            "Find the minimum number of coins from $coins with sum $amount, -1 if impossible.",
            "Given coin values and an amount, return the fewest coins needed or -1.",
            "This function solves the coin change problem for the minimum number of coins.",
        ),
        body="""
best = [0] + [float("inf")] * $amount
for i in range(1, $amount + 1):
    for coin in $coins:
        if coin <= i:
            best[i] = min(best[i], best[i - coin] + 1)
return best[-1] if best[-1] < float("inf") else -1
""",
        inputs=_coins,
        oracle=lambda coins, amount: min(_coin_counts(coins, amount), default=-1),
    ),
    Family(
        name="count_change",
        names=(
            "count_change",
            "coin_ways",
            "count_coin_ways",
            "ways_to_make_change",
            "coin_combinations",
        ),
        params=("coins: list[int]", "amount: int"),
        alternatives=(
            ("coins", "target"),
            ("coins", "total"),
            ("denominations", "amount"),
            ("values", "amount"),
            ("nums", "target"),
            ("coins", "n"),
        ),
        returns="int",
        docs=(
            "Return the number of ways to make $amount with the given $coins.",
            "Count the combinations of coins with sum $amount.",
            "Given coin values and an amount, count the ways to pay it.",
            "This function counts in how many ways $coins can make up $amount.",
        ),
        body="""
ways = [1] + [0] * $amount
for coin in $coins:
    for i in range(coin, $amount + 1):
        ways[i] += ways[i - coin]
return ways[-1]
""",
        inputs=_coins,
        oracle=lambda coins, amount: len(_coin_counts(coins, amount)),
    ),
    Family(
        name="longest_increasing_subsequence",
        names=(
            "longest_increasing_subsequence",
            "lis",
            "length_of_lis",
            "lis_length",
            "longest_increasing",
        ),
        params=("nums: list[int]",),
        returns="int",
        docs=(
            "Return the length of the longest increasing subsequence of $nums.",
            "Find how long the longest strictly increasing subsequence is.",
            "Given a list of numbers, return the length of its longest increasing subsequence.",
            "This function computes the LIS length of $nums.",
        ),
        body="""
best = [1] * len($nums)
for i in range(len($nums)):
    for j in range(i):
        if $nums[j] < $nums[i]:
            best[i] = max(best[i], best[j] + 1)
return max(best, default=0)
""",
        inputs=lambda rng: (draw_integers(rng, rng.choice((0, 4)), 8, -5, 9),),
        oracle=_subsequence_length,
    ),
    Family(
        name="longest_common_subsequence",
        names=(
            "longest_common_subsequence",
            "lcs",
            "lcs_length",
            "common_subsequence",
            "length_of_lcs",
        ),
        params=("a: str", "b: str"),
        alternatives=TWO_STRINGS,
        returns="int",
        docs=(
            "Return the length of the longest common subsequence of $a and $b.",
            "Find how long the longest common subsequence of two strings is.",
            "Given two strings, return the length of their longest common subsequence.",
            "This function computes the LCS length of $a and $b.",
        ),
        body="""
if not $a or not $b:
    return 0
if $a[0] == $b[0]:
    return 1 + $f($a[1:], $b[1:])
return max($f($a[1:], $b), $f($a, $b[1:]))
""",
        inputs=_two_strings,
        oracle=lambda a, b: max(map(len, _subsequences(a) & _subsequences(b))),
    ),
    Family(
        name="edit_distance",
        names=(
            "edit_distance",
            "levenshtein",
            "levenshtein_distance",
            "min_edit_distance",
            "min_distance",
        ),
        params=("a: str", "b: str"),
        alternatives=TWO_STRINGS,
        returns="int",
        docs=(
            "Return the edit distance between $a and $b.",
            "Compute the Levenshtein distance of two strings.",
            "Given two strings, return the least number of insertions, deletions and replacements between them.",
            "This function counts the edits needed to turn $a into $b.",
        ),
        body="""
row = list(range(len($b) + 1))
for i in range(len($a)):
    old, row = row, [i + 1]
    for j in range(len($b)):
        change = old[j] + ($a[i] != $b[j])
        row.append(min(change, old[j + 1] + 1, row[j] + 1))
return row[-1]
""",
        inputs=_two_strings,
        oracle=_edit_distance,
    ),
)
