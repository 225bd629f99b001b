"""Families on recursion and enumeration: towers, triangles, permutations, subsets."""

import itertools
import math

from builtin_model.tasks import Family

FAMILIES: tuple[Family, ...] = (
    Family(
        name="hanoi",
        names=("hanoi", "tower_of_hanoi", "towers_of_hanoi", "hanoi_moves", "count_hanoi_moves"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the number of moves that solve the Tower of Hanoi with $n disks.",
            "Count the moves needed for the Towers of Hanoi.",
            "Given $n disks, return the minimum number of Hanoi moves.",
            "This function computes how many moves the Tower of Hanoi takes.",
        ),
        body="""
if $n == 0:
    return 0
return 2 * $f($n - 1) + 1
""",
        inputs=lambda rng: (rng.randint(0, 10),),
        oracle=lambda n: 2**n - 1,
    ),
    Family(
        name="pascal_triangle",
        names=(
            "pascal_triangle",
            "pascals_triangle",
            "generate_pascal",
            "pascal",
            "make_pascal_triangle",
        ),
        params=("n: int",),
        returns="list[list[int]]",
        docs=(
            "Return the first $n rows of Pascal's triangle.",
            "Generate Pascal's triangle with $n rows.",
            "Given $n, return a list of the first $n rows of Pascal's triangle.",
            "This function builds $n rows of Pascal's triangle as lists.",
        ),
        body="""
result = []
row = [1]
for i in range($n):
    result.append(row)
    row = [1] + [row[j] + row[j + 1] for j in range(i)] + [1]
return result
""",
        inputs=lambda rng: (rng.randint(0, 6),),
        oracle=lambda n: [[math.comb(i, j) for j in range(i + 1)] for i in range(n)],
    ),
    Family(
        name="permutations",
        names=(
            "permutations",
            "permute",
            "all_permutations",
            "get_permutations",
            "generate_permutations",
        ),
        params=("items: list",),
        alternatives=(("nums",), ("lst",), ("arr",), ("elements",), ("xs",), ("values",)),
        returns="list[list]",
        docs=(
            "Return a list of all permutations of $items.",
            "Generate all permutations of a list.",
            "Given a list, return every possible ordering of its elements.",
            "This function returns all orderings of $items as lists.",
        ),
        body="""
if not $items:
    return [[]]
result = []
for i in range(len($items)):
    for rest in $f($items[:i] + $items[i + 1:]):
        result.append([$items[i]] + rest)
return result
""",
        inputs=lambda rng: (rng.sample(range(1, 6), rng.choice((0, 1, 2, 2, 3, 3))),),
        oracle=lambda items: list(map(list, itertools.permutations(items))),
    ),
    Family(
        name="combinations",
        names=(
            "combinations",
            "combine",
            "all_combinations",
            "get_combinations",
            "generate_combinations",
        ),
        params=("items: list", "k: int"),
        alternatives=(
            ("nums", "k"),
            ("lst", "n"),
            ("arr", "r"),
            ("items", "r"),
            ("values", "size"),
            ("xs", "k"),
        ),
        returns="list[list]",
        docs=(
            "Return all combinations of $k elements of $items.",
            "Generate every way to choose $k elements of a list.",
            "Given a list and a size, return all combinations of that size.",
            "This function lists the $k-element combinations of $items in order.",
        ),
        body="""
if $k == 0:
    return [[]]
result = []
for i in range(len($items)):
    for rest in $f($items[i + 1:], $k - 1):
        result.append([$items[i]] + rest)
return result
""",
        inputs=lambda rng: (rng.sample(range(1, 8), rng.randint(1, 4)), rng.randint(0, 3)),
        oracle=lambda items, k: list(map(list, itertools.combinations(items, k))),
    ),
    Family(
        name="power_set",
        names=(
            "power_set",
            "subsets",
            "powerset",
            "all_subsets",
            "get_subsets",
            "generate_subsets",
        ),
        params=("items: list",),
        alternatives=(("nums",), ("lst",), ("arr",), ("elements",), ("xs",), ("s",)),
        returns="list[list]",
        docs=(
            "Return a list of all subsets of $items.",
            "Generate the power set of a list.",
            "Given a list, return all its subsets, starting with the empty one.",
            "This function returns the power set of $items as a list of lists.",
        ),
        body="""
result = [[]]
for x in $items:
    result += [subset + [x] for subset in result]
return result
""",
        inputs=lambda rng: (rng.sample(range(1, 8), rng.choice((0, 1, 2, 3, 3))),),
        oracle=lambda items: [
            [x for i, x in enumerate(items) if mask >> i & 1] for mask in range(2 ** len(items))
        ],
    ),
)
