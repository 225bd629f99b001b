"""Families on lists: sums, extremes, order, duplicates, searching for an item."""

import itertools
import math
import random
import statistics
from collections import Counter

from builtin_model.families.list_inputs import draw_integers, draw_list, draw_repeated, draw_some
from builtin_model.tasks import Family

LIST_AND_TARGET = (
    ("nums", "target"),
    ("arr", "target"),
    ("lst", "value"),
    ("numbers", "value"),
    ("items", "item"),
    ("data", "element"),
    ("values", "key"),
)


def _list_and_target(rng: random.Random) -> tuple[list[int], int]:
    return draw_integers(rng, 0, 8, 0, 5), rng.randint(0, 5)


def _two_distinct(rng: random.Random) -> tuple[list[int]]:
    while True:
        numbers = draw_integers(rng, 2, 6, -9, 5)
        numbers += [max(numbers)] * rng.randint(0, 1)
        if len(set(numbers)) > 1:
            return (numbers,)


def _index(items: list, target: object) -> int:
    return items.index(target) if target in items else -1


FAMILIES: tuple[Family, ...] = (
    Family(
        name="sum_list",
        names=(
            "sum_list",
            "list_sum",
            "sum_numbers",
            "sum_of_list",
            "sum_array",
            "total_sum",
            "sum_all",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the sum of the numbers in $numbers.",
            "Compute the sum of a list of numbers.",
            "Given a list of numbers, return their sum.",
            "This function adds up all elements of $numbers.",
            "Add all numbers in the list and return the total.",
        ),
        body="return sum($numbers)",
        inputs=draw_list,
        oracle=lambda numbers: list(itertools.accumulate(numbers, initial=0))[-1],
    ),
    Family(
        name="product_list",
        names=(
            "product_list",
            "product",
            "list_product",
            "multiply_list",
            "product_of_list",
            "multiply_all",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the product of the numbers in $numbers.",
            "Multiply all numbers in the list and return the result.",
            "Given a list of numbers, return their product.",
            "This function multiplies all elements of $numbers together.",
            "Compute the product of all elements of a list.",
        ),
        body="""
result = 1
for x in $numbers:
    result *= x
return result
""",
        inputs=lambda rng: (draw_integers(rng, 0, 5, -4, 6),),
        oracle=math.prod,
    ),
    Family(
        name="average",
        names=(
            "average",
            "mean",
            "calculate_average",
            "get_average",
            "find_average",
            "list_average",
            "avg",
        ),
        params=("numbers: list[int]",),
        returns="float",
        docs=(
            "Return the average of the numbers in $numbers.",
            "Compute the mean of a list of numbers.",
            "Given a list of numbers, return their average.",
            "This function calculates the arithmetic mean of $numbers.",
            "Calculate the average of a list.",
        ),
        body="return sum($numbers) / len($numbers)",
        inputs=draw_some,
        oracle=statistics.fmean,
    ),
    Family(
        name="maximum",
        names=(
            "find_max",
            "maximum",
            "max_list",
            "get_max",
            "find_maximum",
            "find_largest",
            "largest",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the largest number in $numbers.",
            "Find the maximum of a list of numbers.",
            "Given a list of numbers, return the largest one.",
            "This function returns the maximum value in $numbers.",
            "Find the biggest element of the list.",
        ),
        body="""
result = $numbers[0]
for x in $numbers:
    if x > result:
        result = x
return result
""",
        inputs=draw_some,
        oracle=max,
    ),
    Family(
        name="minimum",
        names=(
            "find_min",
            "minimum",
            "min_list",
            "get_min",
            "find_minimum",
            "find_smallest",
            "smallest",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the smallest number in $numbers.",
            "Find the minimum of a list of numbers.",
            "Given a list of numbers, return the smallest one.",
            "This function returns the minimum value in $numbers.",
            "Find the smallest element of the list.",
        ),
        body="""
result = $numbers[0]
for x in $numbers:
    if x < result:
        result = x
return result
""",
        inputs=lambda rng: (draw_integers(rng, 1, 7, rng.choice((-20, 1)), 20),),
        oracle=min,
    ),
    Family(
        name="second_largest",
        names=(
            "second_largest",
            "find_second_largest",
            "second_max",
            "get_second_largest",
            "second_highest",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the second largest distinct number in $numbers.",
            "Find the second largest value of a list, ignoring duplicates.",
            "Given a list of numbers, return the second highest distinct one.",
            "This function returns the second biggest distinct element of $numbers.",
        ),
        body="return sorted(set($numbers))[-2]",
        inputs=_two_distinct,
        oracle=lambda numbers: max(x for x in numbers if x != max(numbers)),
    ),
    Family(
        name="reverse_list",
        names=("reverse_list", "list_reverse", "reversed_list", "reverse_array", "reverse_items"),
        params=("items: list",),
        returns="list",
        docs=(
            "Return the list in reverse order.",
            "Reverse the list $items.",
            "Given a list, return a new list with the elements reversed.",
            "This function returns the elements of $items from last to first.",
        ),
        body="return $items[::-1]",
        inputs=draw_list,
        oracle=lambda items: list(reversed(items)),
    ),
    Family(
        name="remove_duplicates",
        names=(
            "remove_duplicates",
            "unique",
            "unique_elements",
            "remove_dups",
            "dedupe",
            "unique_list",
            "deduplicate",
        ),
        params=("items: list",),
        returns="list",
        docs=(
            "Remove duplicates from $items, keeping the order.",
            "Return the unique elements of a list in their original order.",
            "Given a list, return it without duplicates.",
            "This function removes repeated elements and keeps the first occurrence of each.",
            "Return a list of the distinct elements in order of first appearance.",
        ),
        body="""
result = []
for x in $items:
    if x not in result:
        result.append(x)
return result
""",
        inputs=draw_repeated,
        oracle=lambda items: list(dict.fromkeys(items)),
    ),
    Family(
        name="unique_sorted",
        names=(
            "unique_sorted",
            "sorted_unique",
            "sort_unique",
            "sorted_distinct",
            "unique_sorted_list",
        ),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the distinct elements of $numbers in ascending order.",
            "Return a sorted list without duplicates.",
            "Given a list of numbers, remove the duplicates and sort the rest.",
            "This function returns the sorted unique values of $numbers.",
        ),
        body="return sorted(set($numbers))",
        inputs=draw_repeated,
        oracle=lambda numbers: [x for x, _ in itertools.groupby(sorted(numbers))],
    ),
    Family(
        name="sort_list",
        names=("sort_list", "sort_numbers", "sort_ascending", "sorted_list", "sort_array"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the list sorted in ascending order.",
            "Sort $numbers from smallest to largest.",
            "Given a list of numbers, return a sorted list.",
            "This function sorts a list of numbers in increasing order.",
        ),
        body="return sorted($numbers)",
        inputs=draw_list,
        oracle=lambda numbers: list(
            Counter({x: numbers.count(x) for x in sorted(numbers)}).elements()
        ),
    ),
    Family(
        name="sort_descending",
        names=("sort_descending", "sort_desc", "reverse_sort", "sort_reverse", "sorted_descending"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the list sorted in descending order.",
            "Sort $numbers from largest to smallest.",
            "Given a list of numbers, return it sorted in decreasing order.",
            "This function sorts a list of numbers in reverse order.",
        ),
        body="return sorted($numbers, reverse=True)",
        inputs=draw_list,
        oracle=lambda numbers: sorted(numbers)[::-1],
    ),
    Family(
        name="count_occurrences",
        names=(
            "count_occurrences",
            "count_item",
            "count_element",
            "occurrences",
            "count_in_list",
            "count_value",
        ),
        params=("items: list", "target: int"),
        alternatives=LIST_AND_TARGET,
        returns="int",
        docs=(
            "Count how many times $target occurs in $items.",
            "Return the number of occurrences of $target in the list.",
            "Given a list and a value, return how often the value appears.",
            "This function counts the elements of $items that equal $target.",
        ),
        body="""
result = 0
for x in $items:
    if x == $target:
        result += 1
return result
""",
        inputs=_list_and_target,
        oracle=lambda items, target: items.count(target),
    ),
    Family(
        name="find_index",
        names=(
            "linear_search",
            "find_index",
            "index_of",
            "search_list",
            "find_position",
            "sequential_search",
        ),
        params=("items: list", "target: int"),
        alternatives=LIST_AND_TARGET,
        returns="int",
        docs=(
            "Return the index of $target in $items, or -1 if it is not there.",
            "Find the first position of $target in the list, -1 if absent.",
            "Given a list and a value, return the index of the value or -1.",
            "This function does a linear search for $target and returns its index or -1.",
            "Search $items for $target and return its index, or -1.",
        ),
        body="""
for i in range(len($items)):
    if $items[i] == $target:
        return i
return -1
""",
        inputs=_list_and_target,
        oracle=_index,
    ),
    Family(
        name="contains_item",
        names=(
            "contains",
            "list_contains",
            "is_in_list",
            "contains_element",
            "in_list",
            "contains_value",
        ),
        params=("items: list", "target: int"),
        alternatives=LIST_AND_TARGET,
        returns="bool",
        docs=(
            "Check whether $target is in $items.",
            "Return True if the list contains $target.",
            "Given a list and a value, return whether the value is in the list.",
            "This function checks if $items contains $target.",
        ),
        body="return $target in $items",
        inputs=_list_and_target,
        oracle=lambda items, target: items.count(target) > 0,
    ),
    Family(
        name="remove_value",
        names=(
            "remove_value",
            "remove_all",
            "remove_element",
            "remove_item",
            "remove_occurrences",
            "delete_value",
        ),
        params=("items: list", "target: int"),
        alternatives=LIST_AND_TARGET,
        returns="list",
        docs=(
            "Return the list without the elements equal to $target.",
            "Remove all occurrences of $target from $items.",
            "Given a list and a value, return a new list without that value.",
            "This function removes every element equal to $target.",
        ),
        body="return [x for x in $items if x != $target]",
        inputs=_list_and_target,
        oracle=lambda items, target: list(filter(target.__ne__, items)),
    ),
)
