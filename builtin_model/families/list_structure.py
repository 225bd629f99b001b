"""Families on nested and rotated lists, and on pairs of lists."""

import itertools
import math
import random

from builtin_model.families.list_inputs import draw_integers
from builtin_model.tasks import Family

TWO_LISTS = (
    ("list1", "list2"),
    ("xs", "ys"),
    ("first", "second"),
    ("nums1", "nums2"),
    ("lst1", "lst2"),
    ("l1", "l2"),
    ("arr1", "arr2"),
)


def _two_lists(rng: random.Random) -> tuple[list[int], list[int]]:
    return draw_integers(rng, 0, 6, 0, 6), draw_integers(rng, 0, 6, 0, 6)


def _equal_lists(rng: random.Random) -> tuple[list[int], list[int]]:
    size = rng.randint(0, 5)
    return [rng.randint(-5, 9) for _ in range(size)], [rng.randint(-5, 9) for _ in range(size)]


def _list_and_shift(rng: random.Random) -> tuple[list[int], int]:
    numbers = draw_integers(rng, 2, 6)
    return numbers, rng.randint(0, 2 * len(numbers))


def _pair_case(rng: random.Random) -> tuple[list[int], int]:
    while True:
        numbers, target = draw_integers(rng, 2, 6, -5, 12), rng.randint(-3, 18)
        pairs = sum(a + b == target for a, b in itertools.combinations(numbers, 2))
        if pairs == 1 or (pairs == 0 and rng.random() < 0.02):
            return numbers, target


def _nested(rng: random.Random) -> tuple[list[list[int]]]:
    return ([draw_integers(rng, 0, 3) for _ in range(rng.randint(0, 4))],)


def _rotate(items: list, shift: int) -> list:
    for _ in range(shift):
        items = [*items[1:], items[0]]
    return items


def _two_sum(nums: list[int], target: int) -> list[int]:
    pairs = itertools.combinations(range(len(nums)), 2)
    return next((list(pair) for pair in pairs if sum(nums[i] for i in pair) == target), [])


FAMILIES: tuple[Family, ...] = (
    Family(
        name="flatten",
        names=(
            "flatten",
            "flatten_list",
            "flatten_lists",
            "flat_list",
            "concat_lists",
            "flatten_nested",
        ),
        params=("nested: list[list]",),
        alternatives=(
            ("lists",),
            ("items",),
            ("nested_list",),
            ("lst",),
            ("groups",),
            ("list_of_lists",),
        ),
        returns="list",
        docs=(
            "Flatten a list of lists into one list.",
            "Return one list with the elements of all inner lists.",
            "Given a list of lists, return a flat list.",
            "This function flattens the nested list $nested by one level.",
        ),
        body="return [x for row in $nested for x in row]",
        inputs=_nested,
        oracle=lambda nested: list(itertools.chain.from_iterable(nested)),
    ),
    Family(
        name="sum_nested",
        names=("sum_nested", "nested_sum", "sum_of_lists", "sum_nested_list", "sum_each"),
        params=("nested: list[list]",),
        alternatives=(
            ("lists",),
            ("items",),
            ("nested_list",),
            ("lst",),
            ("groups",),
            ("list_of_lists",),
        ),
        returns="list[int]",
        docs=(
            "Return a list with the sum of each inner list.",
            "Compute the sum of every list in $nested.",
            "Given a list of lists of numbers, return the sums of the inner lists.",
            "This function sums each inner list of $nested.",
        ),
        body="return [sum(row) for row in $nested]",
        inputs=_nested,
        oracle=lambda nested: [int(math.fsum(row)) for row in nested],
    ),
    Family(
        name="chunk",
        names=("chunk", "chunk_list", "split_into_chunks", "chunks", "split_list", "make_chunks"),
        params=("items: list", "size: int"),
        alternatives=(
            ("lst", "n"),
            ("items", "n"),
            ("data", "size"),
            ("arr", "k"),
            ("lst", "size"),
        ),
        returns="list[list]",
        docs=(
            "Split $items into chunks of length $size.",
            "Return a list of consecutive chunks with $size elements each.",
            "Given a list and a size, split the list into chunks of that size.",
            "This function divides $items into pieces of $size elements, the last may be shorter.",
        ),
        body="return [$items[i:i + $size] for i in range(0, len($items), $size)]",
        inputs=lambda rng: (draw_integers(rng, 0, 9), rng.randint(1, 4)),
        oracle=lambda items, size: [
            [x for _, x in group]
            for _, group in itertools.groupby(enumerate(items), lambda pair: pair[0] // size)
        ],
    ),
    Family(
        name="rotate_left",
        names=("rotate_left", "left_rotate", "rotate_list", "shift_left", "rotate_list_left"),
        params=("items: list", "k: int"),
        alternatives=(
            ("nums", "k"),
            ("lst", "n"),
            ("arr", "k"),
            ("items", "n"),
            ("data", "steps"),
            ("lst", "shift"),
        ),
        returns="list",
        docs=(
            "Rotate $items to the left by $k positions.",
            "Return the list rotated left by $k.",
            "Given a list and a number $k, move the first $k elements to the end.",
            "This function rotates a list $k steps to the left.",
        ),
        body="""
i = $k % len($items)
return $items[i:] + $items[:i]
""",
        inputs=_list_and_shift,
        oracle=_rotate,
    ),
    Family(
        name="rotate_right",
        names=("rotate_right", "right_rotate", "rotate_array", "shift_right", "rotate_list_right"),
        params=("items: list", "k: int"),
        alternatives=(
            ("nums", "k"),
            ("lst", "n"),
            ("arr", "k"),
            ("items", "n"),
            ("data", "steps"),
            ("lst", "shift"),
        ),
        returns="list",
        docs=(
            "Rotate $items to the right by $k positions.",
            "Return the list rotated right by $k.",
            "Given a list and a number $k, move the last $k elements to the front.",
            "This function rotates a list $k steps to the right.",
        ),
        body="""
i = $k % len($items)
return $items[-i:] + $items[:-i]
""",
        inputs=_list_and_shift,
        oracle=lambda items, k: _rotate(items[::-1], k)[::-1],
    ),
    Family(
        name="interleave",
        names=(
            "interleave",
            "interleave_lists",
            "alternate_lists",
            "weave_lists",
            "merge_alternating",
        ),
        params=("a: list", "b: list"),
        alternatives=TWO_LISTS,
        returns="list",
        docs=(
            "Interleave two lists of the same length.",
            "Return a list that alternates the elements of $a and $b.",
            "Given two lists of equal length, return their elements in turn.",
            "This function takes elements from $a and $b alternately.",
        ),
        body="""
result = []
for x, y in zip($a, $b):
    result.append(x)
    result.append(y)
return result
""",
        inputs=_equal_lists,
        oracle=lambda a, b: [(a, b)[i % 2][i // 2] for i in range(2 * len(a))],
    ),
    Family(
        name="zip_lists",
        names=("zip_lists", "pair_lists", "pair_up", "make_pairs", "zip_two_lists"),
        params=("a: list", "b: list"),
        alternatives=TWO_LISTS,
        returns="list[tuple]",
        docs=(
            "Return a list of pairs of the elements of $a and $b.",
            "Zip two lists into a list of tuples.",
            "Given two lists, return the pairs of elements at the same index.",
            "This function pairs the elements of $a with those of $b.",
        ),
        body="return list(zip($a, $b))",
        inputs=_two_lists,
        oracle=lambda a, b: [(a[i], b[i]) for i in range(min(len(a), len(b)))],
    ),
    Family(
        name="add_lists",
        names=(
            "add_lists",
            "add_vectors",
            "vector_add",
            "elementwise_sum",
            "sum_lists",
            "add_arrays",
        ),
        params=("a: list[int]", "b: list[int]"),
        alternatives=TWO_LISTS,
        returns="list[int]",
        docs=(
            "Add two lists element by element.",
            "Return the elementwise sum of $a and $b.",
            "Given two lists of equal length, return the sums of their elements.",
            "This function adds the corresponding elements of $a and $b.",
        ),
        body="return [x + y for x, y in zip($a, $b)]",
        inputs=_equal_lists,
        oracle=lambda a, b: [a[i] + b[i] for i in range(len(a))],
    ),
    Family(
        name="dot_product",
        names=(
            "dot_product",
            "dot",
            "inner_product",
            "scalar_product",
            "vector_dot",
            "compute_dot_product",
        ),
        params=("a: list[int]", "b: list[int]"),
        alternatives=(*TWO_LISTS, ("u", "v"), ("v1", "v2")),
        returns="int",
        docs=(
            "Return the dot product of $a and $b.",
            "Compute the inner product of two vectors.",
            "Given two lists of equal length, return the sum of the products of their elements.",
            "This function calculates the scalar product of two lists of numbers.",
        ),
        body="return sum(x * y for x, y in zip($a, $b))",
        inputs=_equal_lists,
        oracle=lambda a, b: sum(a[i] * b[i] for i in range(len(a))),
    ),
    Family(
        name="intersection",
        names=("intersection", "common_elements", "list_intersection", "find_common", "intersect"),
        params=("a: list", "b: list"),
        alternatives=TWO_LISTS,
        returns="list",
        docs=(
            "Return the elements of $a that are also in $b.",
            "Find the common elements of two lists, in the order of the first.",
            "Given two lists, return the elements that occur in both.",
            "This function returns the intersection of two lists.",
        ),
        body="return [x for x in $a if x in $b]",
        inputs=lambda rng: (
            rng.sample(range(9), rng.randint(0, 6)),
            rng.sample(range(9), rng.randint(0, 6)),
        ),
        oracle=lambda a, b: sorted(set(a) & set(b), key=a.index),
    ),
    Family(
        name="union",
        names=("union", "list_union", "union_lists", "get_union", "union_of_lists"),
        params=("a: list", "b: list"),
        alternatives=TWO_LISTS,
        returns="list",
        docs=(
            "Return the sorted union of $a and $b without duplicates.",
            "Find the union of two lists as a sorted list.",
            "Given two lists, return the sorted distinct elements that occur in either.",
            "This function returns all distinct elements of both lists in ascending order.",
        ),
        body="return sorted(set($a) | set($b))",
        inputs=_two_lists,
        oracle=lambda a, b: [x for x, _ in itertools.groupby(sorted(a + b))],
    ),
    Family(
        name="list_difference",
        names=(
            "list_difference",
            "list_diff",
            "difference_of_lists",
            "subtract_lists",
            "elements_not_in",
        ),
        params=("a: list", "b: list"),
        alternatives=TWO_LISTS,
        returns="list",
        docs=(
            "Return the elements of $a that are not in $b.",
            "Find the difference of two lists, in the order of the first.",
            "Given two lists, return what is in the first but not in the second.",
            "This function removes all elements of $b from $a.",
        ),
        body="return [x for x in $a if x not in $b]",
        inputs=_two_lists,
        oracle=lambda a, b: list(itertools.filterfalse(set(b).__contains__, a)),
    ),
    Family(
        name="two_sum",
        names=("two_sum", "pair_with_sum", "find_pair", "twosum", "find_two_sum", "pairs_with_sum"),
        params=("nums: list[int]", "target: int"),
        alternatives=(
            ("numbers", "target"),
            ("arr", "target"),
            ("lst", "total"),
            ("values", "target"),
            ("array", "k"),
            ("nums", "goal"),
        ),
        returns="list[int]",
        docs=(
            "Return the indices of the two numbers in $nums that add up to $target.",
            "Find two indices i < j with $nums[i] + $nums[j] == $target, or return an empty list.",
            "Given a list of numbers and a target, return the indices of two numbers whose sum is the target.",
            "This function finds the pair of positions whose numbers sum to $target.",
        ),
        body="""
for i in range(len($nums)):
    for j in range(i + 1, len($nums)):
        if $nums[i] + $nums[j] == $target:
            return [i, j]
return []
""",
        inputs=_pair_case,
        oracle=_two_sum,
    ),
)
