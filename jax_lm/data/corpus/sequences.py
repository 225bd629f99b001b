"""Families on lists and dicts: the collections part of an introductory course."""

import itertools
import math
import random
import statistics
from collections import Counter

from jax_lm.data.corpus.tasks import Family

WORDS = ("apple", "fig", "pear", "kiwi", "a", "to", "cat", "dog", "house", "banana", "", "sun", "tree", "no")
TWO_LISTS = (
    ("list1", "list2"),
    ("xs", "ys"),
    ("first", "second"),
    ("nums1", "nums2"),
    ("lst1", "lst2"),
    ("l1", "l2"),
    ("arr1", "arr2"),
)
LIST_AND_TARGET = (
    ("nums", "target"),
    ("arr", "target"),
    ("lst", "value"),
    ("numbers", "value"),
    ("items", "item"),
    ("data", "element"),
    ("values", "key"),
)


def _draw(rng: random.Random, least: int = 0, most: int = 7, low: int = -9, high: int = 20) -> list[int]:
    numbers = [rng.randint(low, high) for _ in range(rng.randint(least, most))]
    if len(numbers) > 2 and rng.random() < 0.5:
        numbers[rng.randrange(len(numbers))] = rng.choice(numbers)
    return numbers


def _ints(rng: random.Random) -> tuple[list[int]]:
    return (_draw(rng),)


def _some_ints(rng: random.Random) -> tuple[list[int]]:
    return (_draw(rng, 1, 7, -20, rng.choice((-1, 20))),)


def _wide_ints(rng: random.Random) -> tuple[list[int]]:
    return (_draw(rng, rng.choice((0, 6)), 9, -5, 26),)


def _repeated_ints(rng: random.Random) -> tuple[list[int]]:
    return (_draw(rng, 0, 8, 0, 4),)


def _words(rng: random.Random) -> tuple[list[str]]:
    return ([rng.choice(WORDS) for _ in range(rng.randint(0, 6))],)


def _two_lists(rng: random.Random) -> tuple[list[int], list[int]]:
    return _draw(rng, 0, 6, 0, 6), _draw(rng, 0, 6, 0, 6)


def _equal_lists(rng: random.Random) -> tuple[list[int], list[int]]:
    size = rng.randint(0, 5)
    return [rng.randint(-5, 9) for _ in range(size)], [rng.randint(-5, 9) for _ in range(size)]


def _list_and_target(rng: random.Random) -> tuple[list[int], int]:
    return _draw(rng, 0, 8, 0, 5), rng.randint(0, 5)


def _list_and_shift(rng: random.Random) -> tuple[list[int], int]:
    numbers = _draw(rng, 2, 6)
    return numbers, rng.randint(0, 2 * len(numbers))


def _scores(rng: random.Random, least: int = 0) -> dict[str, int]:
    keys = rng.sample("abcdefgh", rng.randint(least, 5))
    return dict(zip(keys, rng.sample(range(-5, 26), len(keys)), strict=True))


def _pair_case(rng: random.Random) -> tuple[list[int], int]:
    while True:
        numbers, target = _draw(rng, 2, 6, -5, 12), rng.randint(-3, 18)
        pairs = sum(a + b == target for a, b in itertools.combinations(numbers, 2))
        if pairs == 1 or (pairs == 0 and rng.random() < 0.02):
            return numbers, target


def _has_mode(rng: random.Random) -> tuple[list[int]]:
    while True:
        numbers = _draw(rng, 1, 8, 0, 4)
        if len(statistics.multimode(numbers)) == 1:
            return (numbers,)


def _two_distinct(rng: random.Random) -> tuple[list[int]]:
    while True:
        numbers = _draw(rng, 2, 6, -9, 5)
        numbers += [max(numbers)] * rng.randint(0, 1)
        if len(set(numbers)) > 1:
            return (numbers,)


def _sorted_or_not(rng: random.Random) -> tuple[list[int]]:
    numbers = _draw(rng, 0, 6)
    return (sorted(numbers) if rng.random() < 0.5 else numbers,)


def _nested(rng: random.Random) -> tuple[list[list[int]]]:
    return ([_draw(rng, 0, 3) for _ in range(rng.randint(0, 4))],)


def _multiples(rng: random.Random) -> tuple[list[int]]:
    numbers = _draw(rng, 0, 6, -12, 40)
    return (numbers + rng.sample(range(0, 61, 2), 3) + rng.sample(range(0, 61, 5), 2),)


def _rotate(items: list, shift: int) -> list:
    for _ in range(shift):
        items = [*items[1:], items[0]]
    return items


def _index(items: list, target: object) -> int:
    return items.index(target) if target in items else -1


def _two_sum(nums: list[int], target: int) -> list[int]:
    pairs = itertools.combinations(range(len(nums)), 2)
    return next((list(pair) for pair in pairs if sum(nums[i] for i in pair) == target), [])


FAMILIES: tuple[Family, ...] = (
    Family(
        name="sum_list",
        names=("sum_list", "list_sum", "sum_numbers", "sum_of_list", "sum_array", "total_sum", "sum_all"),
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
        inputs=_ints,
        oracle=lambda numbers: list(itertools.accumulate(numbers, initial=0))[-1],
    ),
    Family(
        name="product_list",
        names=("product_list", "product", "list_product", "multiply_list", "product_of_list", "multiply_all"),
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
        inputs=lambda rng: (_draw(rng, 0, 5, -4, 6),),
        oracle=math.prod,
    ),
    Family(
        name="average",
        names=("average", "mean", "calculate_average", "get_average", "find_average", "list_average", "avg"),
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
        inputs=_some_ints,
        oracle=statistics.fmean,
    ),
    Family(
        name="maximum",
        names=("find_max", "maximum", "max_list", "get_max", "find_maximum", "find_largest", "largest"),
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
        inputs=_some_ints,
        oracle=max,
    ),
    Family(
        name="minimum",
        names=("find_min", "minimum", "min_list", "get_min", "find_minimum", "find_smallest", "smallest"),
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
        inputs=lambda rng: (_draw(rng, 1, 7, rng.choice((-20, 1)), 20),),
        oracle=min,
    ),
    Family(
        name="second_largest",
        names=("second_largest", "find_second_largest", "second_max", "get_second_largest", "second_highest"),
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
        inputs=_ints,
        oracle=lambda items: list(reversed(items)),
    ),
    Family(
        name="remove_duplicates",
        names=("remove_duplicates", "unique", "unique_elements", "remove_dups", "dedupe", "unique_list", "deduplicate"),
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
        inputs=_repeated_ints,
        oracle=lambda items: list(dict.fromkeys(items)),
    ),
    Family(
        name="unique_sorted",
        names=("unique_sorted", "sorted_unique", "sort_unique", "sorted_distinct", "unique_sorted_list"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the distinct elements of $numbers in ascending order.",
            "Return a sorted list without duplicates.",
            "Given a list of numbers, remove the duplicates and sort the rest.",
            "This function returns the sorted unique values of $numbers.",
        ),
        body="return sorted(set($numbers))",
        inputs=_repeated_ints,
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
        inputs=_ints,
        oracle=lambda numbers: list(Counter({x: numbers.count(x) for x in sorted(numbers)}).elements()),
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
        inputs=_ints,
        oracle=lambda numbers: sorted(numbers)[::-1],
    ),
    Family(
        name="count_occurrences",
        names=("count_occurrences", "count_item", "count_element", "occurrences", "count_in_list", "count_value"),
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
        names=("linear_search", "find_index", "index_of", "search_list", "find_position", "sequential_search"),
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
        names=("contains", "list_contains", "is_in_list", "contains_element", "in_list", "contains_value"),
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
        names=("remove_value", "remove_all", "remove_element", "remove_item", "remove_occurrences", "delete_value"),
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
    Family(
        name="running_sum",
        names=("running_sum", "cumulative_sum", "prefix_sums", "prefix_sum", "cumsum", "running_total"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the list of running sums of $numbers.",
            "Compute the cumulative sums of a list of numbers.",
            "Given a list of numbers, return its prefix sums.",
            "This function returns a list whose element i is the sum of the numbers up to i.",
        ),
        body="""
result = []
total = 0
for x in $numbers:
    total += x
    result.append(total)
return result
""",
        inputs=_ints,
        oracle=lambda numbers: list(itertools.accumulate(numbers)),
    ),
    Family(
        name="even_numbers",
        names=("even_numbers", "filter_even", "get_evens", "filter_evens", "get_even_numbers", "only_even"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the even numbers in $numbers.",
            "Filter a list and keep only the even numbers.",
            "Given a list of numbers, return the even ones.",
            "This function returns a list of the even elements of $numbers.",
        ),
        body="return [x for x in $numbers if x % 2 == 0]",
        inputs=_ints,
        oracle=lambda numbers: list(itertools.filterfalse(lambda x: x & 1, numbers)),
    ),
    Family(
        name="odd_numbers",
        names=("odd_numbers", "filter_odd", "get_odds", "filter_odds", "get_odd_numbers", "only_odd", "find_odds"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the odd numbers in $numbers.",
            "Filter a list and keep only the odd numbers.",
            "Given a list of numbers, return the odd ones.",
            "This function returns a list of the odd elements of $numbers.",
        ),
        body="return [x for x in $numbers if x % 2 != 0]",
        inputs=_ints,
        oracle=lambda numbers: list(filter(lambda x: x & 1, numbers)),
    ),
    Family(
        name="count_evens",
        names=("count_evens", "count_even", "count_even_numbers", "number_of_evens", "num_evens"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Count the even numbers in $numbers.",
            "Return how many numbers in the list are even.",
            "Given a list of numbers, return the number of even ones.",
            "This function counts the even elements of a list.",
        ),
        body="return sum(1 for x in $numbers if x % 2 == 0)",
        inputs=_ints,
        oracle=lambda numbers: [x & 1 for x in numbers].count(0),
    ),
    Family(
        name="count_odds",
        names=("count_odds", "count_odd", "count_odd_numbers", "number_of_odds", "num_odds"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Count the odd numbers in $numbers.",
            "Return how many numbers in the list are odd.",
            "Given a list of numbers, return the number of odd ones.",
            "This function counts the odd elements of a list.",
        ),
        body="return sum(1 for x in $numbers if x % 2 != 0)",
        inputs=_ints,
        oracle=lambda numbers: [x & 1 for x in numbers].count(1),
    ),
    Family(
        name="sum_of_evens",
        names=("sum_of_evens", "sum_even", "sum_evens", "sum_even_numbers", "add_evens", "sum_of_even_numbers"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the sum of the even numbers in $numbers.",
            "Add up only the even numbers of a list.",
            "Given a list of numbers, return the sum of the even ones.",
            "This function sums the even elements of $numbers.",
        ),
        body="return sum(x for x in $numbers if x % 2 == 0)",
        inputs=_ints,
        oracle=lambda numbers: sum(numbers) - sum(x for x in numbers if x & 1),
    ),
    Family(
        name="sum_of_odds",
        names=("sum_of_odds", "sum_odd", "sum_odds", "sum_odd_numbers", "add_odds", "sum_of_odd_numbers"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the sum of the odd numbers in $numbers.",
            "Add up only the odd numbers of a list.",
            "Given a list of numbers, return the sum of the odd ones.",
            "This function sums the odd elements of $numbers.",
        ),
        body="return sum(x for x in $numbers if x % 2 != 0)",
        inputs=_ints,
        oracle=lambda numbers: sum(filter(lambda x: x & 1, numbers)),
    ),
    Family(
        name="count_positive",
        names=("count_positive", "count_positives", "count_positive_numbers", "number_of_positives", "num_positive"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Count the positive numbers in $numbers.",
            "Return how many numbers in the list are greater than zero.",
            "Given a list of numbers, return the number of positive ones.",
            "This function counts the positive elements of a list.",
        ),
        body="return sum(1 for x in $numbers if x > 0)",
        inputs=lambda rng: (_draw(rng, 0, 8, -3, 3),),
        oracle=lambda numbers: len([x for x in numbers if not x <= 0]),
    ),
    Family(
        name="positive_numbers",
        names=("positive_numbers", "filter_positive", "get_positives", "only_positive", "remove_negatives"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return the positive numbers in $numbers.",
            "Filter a list and keep only the numbers greater than zero.",
            "Given a list of numbers, return the positive ones.",
            "This function returns a list of the positive elements of $numbers.",
        ),
        body="return [x for x in $numbers if x > 0]",
        inputs=lambda rng: (_draw(rng, 0, 8, -5, 5),),
        oracle=lambda numbers: list(itertools.filterfalse(lambda x: x <= 0, numbers)),
    ),
    Family(
        name="square_all",
        names=("square_all", "squares", "square_list", "square_numbers", "square_each", "list_of_squares"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return a list with the square of each number in $numbers.",
            "Square every element of a list.",
            "Given a list of numbers, return their squares.",
            "This function squares all numbers in $numbers.",
        ),
        body="return [x ** 2 for x in $numbers]",
        inputs=_ints,
        oracle=lambda numbers: list(map(lambda x: x * x, numbers)),
    ),
    Family(
        name="double_all",
        names=("double_all", "double_list", "double_numbers", "double_each", "double_elements", "double_values"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return a list with each number in $numbers doubled.",
            "Double every element of a list.",
            "Given a list of numbers, return a list of twice each number.",
            "This function doubles all numbers in $numbers.",
        ),
        body="return [x * 2 for x in $numbers]",
        inputs=_ints,
        oracle=lambda numbers: [x + x for x in numbers],
    ),
    Family(
        name="absolute_values",
        names=("absolute_values", "abs_list", "abs_all", "absolute_all", "get_absolute_values"),
        params=("numbers: list[int]",),
        returns="list[int]",
        docs=(
            "Return a list of the absolute values of $numbers.",
            "Replace each number of a list by its absolute value.",
            "Given a list of numbers, return their absolute values.",
            "This function takes the absolute value of every element of $numbers.",
        ),
        body="return [abs(x) for x in $numbers]",
        inputs=lambda rng: (_draw(rng, 0, 7, -9, 9),),
        oracle=lambda numbers: [max(x, -x) for x in numbers],
    ),
    Family(
        name="add_k_to_all",
        names=("add_${k}_to_all", "add_${k}_to_each", "increase_all_by_$k", "increment_all_by_$k"),
        params=("numbers: list[int]",),
        constants={"k": (2, 1, *range(3, 16), 20, 50, 100)},
        returns="list[int]",
        docs=(
            "Return a list with $k added to each number.",
            "Add $k to every element of $numbers.",
            "Given a list of numbers, return each number plus $k.",
            "This function adds $k to all numbers in the list.",
        ),
        body="return [x + $k for x in $numbers]",
        inputs=_ints,
        oracle=lambda numbers, k: list(map(k.__add__, numbers)),
    ),
    Family(
        name="multiply_all_by_k",
        names=("multiply_all_by_$k", "multiply_each_by_$k", "multiply_list_by_$k", "scale_list_by_$k"),
        params=("numbers: list[int]",),
        constants={"k": (3, *range(4, 16), 20, 50, 100)},
        returns="list[int]",
        docs=(
            "Return a list with each number multiplied by $k.",
            "Multiply every element of $numbers by $k.",
            "Given a list of numbers, return each number times $k.",
            "This function multiplies all numbers in the list by $k.",
        ),
        body="return [x * $k for x in $numbers]",
        inputs=_ints,
        oracle=lambda numbers, k: list(map(k.__mul__, numbers)),
    ),
    Family(
        name="count_greater_than_k",
        names=("count_greater_than_$k", "count_above_$k", "count_over_$k", "count_larger_than_$k"),
        params=("numbers: list[int]",),
        constants={"k": (5, *range(1, 5), *range(6, 21))},
        returns="int",
        docs=(
            "Count the numbers in $numbers that are greater than $k.",
            "Return how many numbers in the list are above $k.",
            "Given a list of numbers, return how many exceed $k.",
            "This function counts the elements greater than $k.",
        ),
        body="return sum(1 for x in $numbers if x > $k)",
        inputs=_wide_ints,
        oracle=lambda numbers, k: [x <= k for x in numbers].count(False),
    ),
    Family(
        name="count_less_than_k",
        names=("count_less_than_$k", "count_below_$k", "count_under_$k", "count_smaller_than_$k"),
        params=("numbers: list[int]",),
        constants={"k": (5, *range(1, 5), *range(6, 21))},
        returns="int",
        docs=(
            "Count the numbers in $numbers that are less than $k.",
            "Return how many numbers in the list are below $k.",
            "Given a list of numbers, return how many are smaller than $k.",
            "This function counts the elements less than $k.",
        ),
        body="return sum(1 for x in $numbers if x < $k)",
        inputs=_wide_ints,
        oracle=lambda numbers, k: [x >= k for x in numbers].count(False),
    ),
    Family(
        name="filter_greater_than_k",
        names=("filter_greater_than_$k", "filter_above_$k", "greater_than_$k", "keep_greater_than_$k"),
        params=("numbers: list[int]",),
        constants={"k": (5, *range(1, 5), *range(6, 21))},
        returns="list[int]",
        docs=(
            "Return the numbers in $numbers that are greater than $k.",
            "Filter a list and keep only the numbers above $k.",
            "Given a list of numbers, return those greater than $k.",
            "This function returns the elements that exceed $k.",
        ),
        body="return [x for x in $numbers if x > $k]",
        inputs=_wide_ints,
        oracle=lambda numbers, k: list(filter(k.__lt__, numbers)),
    ),
    Family(
        name="filter_less_than_k",
        names=("filter_less_than_$k", "filter_below_$k", "less_than_$k", "keep_less_than_$k", "numbers_below_$k"),
        params=("numbers: list[int]",),
        constants={"k": (5, *range(1, 5), *range(6, 21))},
        returns="list[int]",
        docs=(
            "Return the numbers in $numbers that are less than $k.",
            "Filter a list and keep only the numbers below $k.",
            "Given a list of numbers, return those less than $k.",
            "This function returns the elements smaller than $k.",
        ),
        body="return [x for x in $numbers if x < $k]",
        inputs=_wide_ints,
        oracle=lambda numbers, k: list(filter(k.__gt__, numbers)),
    ),
    Family(
        name="filter_divisible_by_k",
        names=("filter_divisible_by_$k", "get_multiples_of_$k", "filter_multiples_of_$k", "keep_divisible_by_$k"),
        params=("numbers: list[int]",),
        constants={"k": (3, *range(4, 13))},
        returns="list[int]",
        docs=(
            "Return the numbers in $numbers that are divisible by $k.",
            "Filter a list and keep only the multiples of $k.",
            "Given a list of numbers, return those divisible by $k.",
            "This function returns the elements that are multiples of $k.",
        ),
        body="return [x for x in $numbers if x % $k == 0]",
        inputs=_multiples,
        oracle=lambda numbers, k: list(itertools.filterfalse(k.__rmod__, numbers)),
    ),
    Family(
        name="take_first_k",
        names=("take_first_$k", "first_${k}_items", "get_first_$k", "first_${k}_elements", "take_$k"),
        params=("items: list",),
        constants={"k": (3, 2, *range(4, 11))},
        returns="list",
        docs=(
            "Return the first $k elements of $items.",
            "Take the first $k items of a list.",
            "Given a list, return a list of its first $k elements.",
            "This function returns the first $k elements.",
        ),
        body="return $items[:$k]",
        inputs=lambda rng: (_draw(rng, 0, 14),),
        oracle=lambda items, k: list(itertools.islice(items, k)),
    ),
    Family(
        name="take_last_k",
        names=("take_last_$k", "last_${k}_items", "get_last_$k", "last_${k}_elements"),
        params=("items: list",),
        constants={"k": (3, 2, *range(4, 11))},
        returns="list",
        docs=(
            "Return the last $k elements of $items.",
            "Take the last $k items of a list.",
            "Given a list, return a list of its last $k elements.",
            "This function returns the last $k elements.",
        ),
        body="return $items[-$k:]",
        inputs=lambda rng: (_draw(rng, 0, 14),),
        oracle=lambda items, k: [x for i, x in enumerate(items) if i >= len(items) - k],
    ),
    Family(
        name="flatten",
        names=("flatten", "flatten_list", "flatten_lists", "flat_list", "concat_lists", "flatten_nested"),
        params=("nested: list[list]",),
        alternatives=(("lists",), ("items",), ("nested_list",), ("lst",), ("groups",), ("list_of_lists",)),
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
        alternatives=(("lists",), ("items",), ("nested_list",), ("lst",), ("groups",), ("list_of_lists",)),
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
        alternatives=(("lst", "n"), ("items", "n"), ("data", "size"), ("arr", "k"), ("lst", "size")),
        returns="list[list]",
        docs=(
            "Split $items into chunks of length $size.",
            "Return a list of consecutive chunks with $size elements each.",
            "Given a list and a size, split the list into chunks of that size.",
            "This function divides $items into pieces of $size elements, the last may be shorter.",
        ),
        body="return [$items[i:i + $size] for i in range(0, len($items), $size)]",
        inputs=lambda rng: (_draw(rng, 0, 9), rng.randint(1, 4)),
        oracle=lambda items, size: [
            [x for _, x in group] for _, group in itertools.groupby(enumerate(items), lambda pair: pair[0] // size)
        ],
    ),
    Family(
        name="rotate_left",
        names=("rotate_left", "left_rotate", "rotate_list", "shift_left", "rotate_list_left"),
        params=("items: list", "k: int"),
        alternatives=(("nums", "k"), ("lst", "n"), ("arr", "k"), ("items", "n"), ("data", "steps"), ("lst", "shift")),
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
        alternatives=(("nums", "k"), ("lst", "n"), ("arr", "k"), ("items", "n"), ("data", "steps"), ("lst", "shift")),
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
        names=("interleave", "interleave_lists", "alternate_lists", "weave_lists", "merge_alternating"),
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
        names=("add_lists", "add_vectors", "vector_add", "elementwise_sum", "sum_lists", "add_arrays"),
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
        names=("dot_product", "dot", "inner_product", "scalar_product", "vector_dot", "compute_dot_product"),
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
        inputs=lambda rng: (rng.sample(range(9), rng.randint(0, 6)), rng.sample(range(9), rng.randint(0, 6))),
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
        names=("list_difference", "list_diff", "difference_of_lists", "subtract_lists", "elements_not_in"),
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
    Family(
        name="most_common",
        names=("most_common", "most_frequent", "mode", "find_mode", "most_common_element", "most_frequent_element"),
        params=("items: list",),
        returns="int",
        docs=(
            "Return the most common element of $items.",
            "Find the element that occurs most often in the list.",
            "Given a list, return its most frequent element.",
            "This function returns the mode of $items.",
        ),
        body="return max($items, key=$items.count)",
        inputs=_has_mode,
        oracle=lambda items: Counter(items).most_common(1)[0][0],
    ),
    Family(
        name="count_frequencies",
        names=("count_frequencies", "frequency_dict", "count_elements", "element_counts", "frequencies", "count_items"),
        params=("items: list",),
        returns="dict",
        docs=(
            "Return a dictionary that counts each element of $items.",
            "Count how often each element occurs in the list.",
            "Given a list, return a dict from element to number of occurrences.",
            "This function maps every element of $items to its frequency.",
        ),
        body="""
result = {}
for x in $items:
    result[x] = result.get(x, 0) + 1
return result
""",
        inputs=_repeated_ints,
        oracle=lambda items: dict(Counter(items)),
    ),
    Family(
        name="group_by_length",
        names=("group_by_length", "group_words_by_length", "words_by_length", "group_strings_by_length", "by_length"),
        params=("words: list[str]",),
        returns="dict[int, list[str]]",
        docs=(
            "Group the strings in $words by their length.",
            "Return a dictionary from length to the list of words of that length.",
            "Given a list of words, return a dict that groups them by length.",
            "This function groups words with the same number of letters.",
        ),
        body="""
result = {}
for word in $words:
    result.setdefault(len(word), []).append(word)
return result
""",
        inputs=_words,
        oracle=lambda words: {size: [w for w in words if len(w) == size] for size in map(len, words)},
    ),
    Family(
        name="sort_by_length",
        names=("sort_by_length", "sort_words_by_length", "sort_strings_by_length", "order_by_length", "length_sort"),
        params=("words: list[str]",),
        returns="list[str]",
        docs=(
            "Sort the strings in $words by their length.",
            "Return the words ordered from shortest to longest.",
            "Given a list of words, return them sorted by length.",
            "This function sorts a list of strings by length.",
        ),
        body="return sorted($words, key=len)",
        inputs=_words,
        oracle=lambda words: [w for size in range(10) for w in words if len(w) == size],
    ),
    Family(
        name="string_lengths",
        names=("string_lengths", "word_lengths", "get_lengths", "lengths", "list_of_lengths", "lengths_of_words"),
        params=("words: list[str]",),
        returns="list[int]",
        docs=(
            "Return a list with the length of each string in $words.",
            "Compute the lengths of all words in a list.",
            "Given a list of strings, return their lengths.",
            "This function returns how long each string is.",
        ),
        body="return [len(word) for word in $words]",
        inputs=_words,
        oracle=lambda words: list(map(len, words)),
    ),
    Family(
        name="median",
        names=("median", "find_median", "get_median", "calculate_median", "compute_median", "list_median"),
        params=("numbers: list[int]",),
        returns="float",
        docs=(
            "Return the median of $numbers.",
            "Compute the median of a list of numbers.",
            "Given a list of numbers, return the middle value of the sorted list.",
            "This function finds the median, the mean of the two middle numbers for even lengths.",
        ),
        body="""
result = sorted($numbers)
mid = len(result) // 2
if len(result) % 2 == 1:
    return result[mid]
return (result[mid - 1] + result[mid]) / 2
""",
        inputs=_some_ints,
        oracle=statistics.median,
    ),
    Family(
        name="max_difference",
        names=("max_difference", "list_range", "max_diff", "spread", "range_of_list", "max_minus_min"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the difference between the largest and the smallest number in $numbers.",
            "Compute the range of a list, its maximum minus its minimum.",
            "Given a list of numbers, return the maximum minus the minimum.",
            "This function returns the largest difference between two numbers in the list.",
        ),
        body="return max($numbers) - min($numbers)",
        inputs=_some_ints,
        oracle=lambda numbers: max(abs(a - b) for a in numbers for b in numbers),
    ),
    Family(
        name="min_max",
        names=("min_max", "find_min_max", "get_min_max", "min_and_max", "minmax", "smallest_and_largest"),
        params=("numbers: list[int]",),
        returns="tuple[int, int]",
        docs=(
            "Return the minimum and the maximum of $numbers as a tuple.",
            "Find the smallest and the largest number in a list.",
            "Given a list of numbers, return a tuple of the smallest and the largest.",
            "This function returns the tuple (min, max) of $numbers.",
        ),
        body="return min($numbers), max($numbers)",
        inputs=_some_ints,
        oracle=lambda numbers: (sorted(numbers)[0], sorted(numbers)[-1]),
    ),
    Family(
        name="index_of_max",
        names=("index_of_max", "argmax", "max_index", "find_max_index", "index_of_largest", "position_of_max"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the index of the largest number in $numbers.",
            "Find the position of the maximum of a list.",
            "Given a list of numbers, return the index of the first maximum.",
            "This function returns where the largest element of $numbers is.",
        ),
        body="return $numbers.index(max($numbers))",
        inputs=_some_ints,
        oracle=lambda numbers: max(range(len(numbers)), key=numbers.__getitem__),
    ),
    Family(
        name="index_of_min",
        names=("index_of_min", "argmin", "min_index", "find_min_index", "index_of_smallest", "position_of_min"),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the index of the smallest number in $numbers.",
            "Find the position of the minimum of a list.",
            "Given a list of numbers, return the index of the first minimum.",
            "This function returns where the smallest element of $numbers is.",
        ),
        body="return $numbers.index(min($numbers))",
        inputs=_some_ints,
        oracle=lambda numbers: min(range(len(numbers)), key=numbers.__getitem__),
    ),
    Family(
        name="is_sorted",
        names=("is_sorted", "check_sorted", "is_list_sorted", "is_ascending", "is_sorted_list", "is_increasing"),
        params=("numbers: list[int]",),
        returns="bool",
        docs=(
            "Check whether $numbers is sorted in ascending order.",
            "Return True if the list is sorted.",
            "Given a list of numbers, return whether it is in non-decreasing order.",
            "This function checks if the elements of $numbers are sorted.",
        ),
        body="return $numbers == sorted($numbers)",
        inputs=_sorted_or_not,
        oracle=lambda numbers: all(a <= b for a, b in itertools.pairwise(numbers)),
    ),
    Family(
        name="has_duplicates",
        names=("has_duplicates", "contains_duplicate", "contains_duplicates", "has_duplicate", "check_duplicates"),
        params=("items: list",),
        returns="bool",
        docs=(
            "Check whether $items contains duplicates.",
            "Return True if any element occurs more than once in the list.",
            "Given a list, return whether it has repeated elements.",
            "This function checks if some value appears at least twice.",
        ),
        body="return len(set($items)) != len($items)",
        inputs=lambda rng: (_draw(rng, 0, 5, 0, 9),),
        oracle=lambda items: any(items.count(x) > 1 for x in items),
    ),
    Family(
        name="all_unique",
        names=("all_unique", "all_distinct", "are_unique", "no_duplicates", "all_different"),
        params=("items: list",),
        returns="bool",
        docs=(
            "Check whether all elements of $items are distinct.",
            "Return True if no element occurs more than once in the list.",
            "Given a list, return whether all its elements are different.",
            "This function checks if every element of $items is unique.",
        ),
        body="return len(set($items)) == len($items)",
        inputs=lambda rng: (_draw(rng, 0, 5, 0, 9),),
        oracle=lambda items: all(items.count(x) == 1 for x in items),
    ),
    Family(
        name="find_duplicates",
        names=("find_duplicates", "get_duplicates", "list_duplicates", "duplicates", "find_repeated"),
        params=("items: list",),
        returns="list",
        docs=(
            "Return a list of the elements that occur more than once in $items.",
            "Find the duplicated elements of a list, each once.",
            "Given a list, return the elements that appear at least twice.",
            "This function lists every repeated element of $items once.",
        ),
        body="""
result = []
for x in $items:
    if $items.count(x) > 1 and x not in result:
        result.append(x)
return result
""",
        inputs=_repeated_ints,
        oracle=lambda items: [x for x, times in Counter(items).items() if times > 1],
    ),
    Family(
        name="move_zeros",
        names=("move_zeros", "move_zeroes", "zeros_to_end", "move_zeros_to_end", "push_zeros"),
        params=("nums: list[int]",),
        returns="list[int]",
        docs=(
            "Move all zeros in $nums to the end, keeping the order of the other numbers.",
            "Return the list with its zeros moved to the end.",
            "Given a list of numbers, put the zeros last and keep the rest in order.",
            "This function moves every zero to the end of the list.",
        ),
        body="""
result = [x for x in $nums if x != 0]
return result + [0] * (len($nums) - len(result))
""",
        inputs=lambda rng: (_draw(rng, 0, 8, -2, 3),),
        oracle=lambda nums: sorted(nums, key=lambda x: x == 0),
    ),
    Family(
        name="range_list",
        names=("range_list", "make_range", "list_from_range", "numbers_between", "inclusive_range"),
        params=("start: int", "end: int"),
        alternatives=(("a", "b"), ("start", "stop"), ("low", "high"), ("first", "last"), ("lo", "hi"), ("m", "n")),
        returns="list[int]",
        docs=(
            "Return the list of integers from $start to $end inclusive.",
            "Make a list of all integers from $start up to and including $end.",
            "Given two integers, return the list of integers between them, both included.",
            "This function lists the numbers from $start to $end, including both.",
        ),
        body="return list(range($start, $end + 1))",
        inputs=lambda rng: (rng.randint(-4, 4), rng.randint(-4, 9)),
        oracle=lambda start, end: [i for i in range(-20, 20) if start <= i <= end],
    ),
    Family(
        name="every_other",
        names=("every_other", "every_second", "take_every_other", "skip_every_other", "even_positions"),
        params=("items: list",),
        returns="list",
        docs=(
            "Return every other element of $items, starting with the first.",
            "Take every second element of a list, beginning at index 0.",
            "Given a list, return the elements at even indices.",
            "This function skips every second element of $items.",
        ),
        body="return $items[::2]",
        inputs=_ints,
        oracle=lambda items: [x for i, x in enumerate(items) if i % 2 == 0],
    ),
    Family(
        name="swap_first_last",
        names=("swap_first_last", "swap_ends", "swap_first_and_last", "exchange_ends", "swap_list_ends"),
        params=("items: list",),
        returns="list",
        docs=(
            "Swap the first and the last element of $items and return the list.",
            "Return the list with its first and last elements exchanged.",
            "Given a list, swap the elements at its two ends.",
            "This function exchanges the first and the last item of $items.",
        ),
        body="""
$items[0], $items[-1] = $items[-1], $items[0]
return $items
""",
        inputs=lambda rng: (_draw(rng, 1, 6),),
        oracle=lambda items: items if len(items) < 2 else [items[-1], *items[1:-1], items[0]],
    ),
    Family(
        name="merge_dicts",
        names=("merge_dicts", "combine_dicts", "merge_dictionaries", "dict_merge", "join_dicts", "update_dict"),
        params=("a: dict", "b: dict"),
        alternatives=(
            ("d1", "d2"),
            ("dict1", "dict2"),
            ("first", "second"),
            ("x", "y"),
            ("left", "right"),
            ("dict_a", "dict_b"),
        ),
        returns="dict",
        docs=(
            "Merge two dictionaries, where $b wins on common keys.",
            "Return a new dict with the entries of $a and $b, the second taking precedence.",
            "Given two dictionaries, combine them into one.",
            "This function merges $b into a copy of $a.",
        ),
        body="return {**$a, **$b}",
        inputs=lambda rng: (_scores(rng), _scores(rng)),
        oracle=lambda a, b: {key: b[key] if key in b else a[key] for key in list(a) + [k for k in b if k not in a]},
    ),
    Family(
        name="invert_dict",
        names=("invert_dict", "reverse_dict", "swap_keys_values", "flip_dict", "invert_dictionary", "swap_dict"),
        params=("d: dict",),
        returns="dict",
        docs=(
            "Swap the keys and values of a dictionary.",
            "Return a dict that maps the values of $d to its keys.",
            "Given a dictionary, return its inverse.",
            "This function inverts the dictionary $d.",
        ),
        body="return {value: key for key, value in $d.items()}",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: dict(zip(d.values(), d.keys(), strict=True)),
    ),
    Family(
        name="dict_from_lists",
        names=("dict_from_lists", "lists_to_dict", "make_dict", "zip_dict", "zip_to_dict", "create_dict"),
        params=("keys: list", "values: list"),
        alternatives=(
            ("names", "values"),
            ("a", "b"),
            ("list1", "list2"),
            ("keys", "vals"),
            ("xs", "ys"),
            ("names", "scores"),
        ),
        returns="dict",
        docs=(
            "Return a dictionary with the given $keys and $values.",
            "Make a dict from a list of keys and a list of values.",
            "Given two lists, return a dictionary that maps the first to the second.",
            "This function builds a dictionary from $keys and $values.",
        ),
        body="return dict(zip($keys, $values))",
        inputs=lambda rng: tuple(map(list, (lambda d: (d.keys(), d.values()))(_scores(rng)))),
        oracle=lambda keys, values: {keys[i]: values[i] for i in range(len(keys))},
    ),
    Family(
        name="sum_dict_values",
        names=("sum_dict_values", "sum_values", "sum_dict", "total_values", "dict_sum", "sum_of_values"),
        params=("d: dict[str, int]",),
        alternatives=(("data",), ("scores",), ("dictionary",), ("mapping",), ("my_dict",), ("prices",)),
        returns="int",
        docs=(
            "Return the sum of the values of a dictionary.",
            "Add up all values of $d.",
            "Given a dictionary with numbers as values, return the sum of the values.",
            "This function sums the values of the dictionary $d.",
        ),
        body="return sum($d.values())",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: sum(d[key] for key in d),
    ),
    Family(
        name="key_of_max",
        names=("key_of_max", "max_key", "key_with_max_value", "best_key", "get_max_key", "key_with_highest_value"),
        params=("d: dict[str, int]",),
        alternatives=(("data",), ("scores",), ("dictionary",), ("mapping",), ("my_dict",), ("counts",)),
        returns="str",
        docs=(
            "Return the key with the largest value in $d.",
            "Find the key of the maximum value of a dictionary.",
            "Given a dictionary, return the key whose value is the highest.",
            "This function returns the key that has the biggest value.",
        ),
        body="return max($d, key=$d.get)",
        inputs=lambda rng: (_scores(rng, 1),),
        oracle=lambda d: sorted(d.items(), key=lambda pair: pair[1])[-1][0],
    ),
    Family(
        name="sort_dict_by_value",
        names=("sort_dict_by_value", "sort_by_value", "sort_by_values", "order_by_value", "sort_dict_by_values"),
        params=("d: dict[str, int]",),
        alternatives=(("data",), ("scores",), ("dictionary",), ("mapping",), ("my_dict",), ("counts",)),
        returns="list[str]",
        docs=(
            "Return the keys of $d sorted by their values.",
            "Sort the keys of a dictionary by value in ascending order.",
            "Given a dictionary, return its keys ordered from the smallest to the largest value.",
            "This function lists the keys of $d by increasing value.",
        ),
        body="return sorted($d, key=$d.get)",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d: [key for _, key in sorted((value, key) for key, value in d.items())],
    ),
    Family(
        name="filter_dict_above_k",
        names=("filter_dict_above_$k", "dict_values_above_$k", "keep_values_above_$k", "entries_above_$k"),
        params=("d: dict[str, int]",),
        alternatives=(("data",), ("scores",), ("dictionary",), ("mapping",), ("my_dict",), ("counts",)),
        constants={"k": (10, *range(1, 10), *range(11, 21))},
        returns="dict[str, int]",
        docs=(
            "Return a dictionary of the entries of $d whose value is greater than $k.",
            "Keep only the entries of a dictionary with a value above $k.",
            "Given a dictionary, return the entries with values greater than $k.",
            "This function drops all entries of $d whose value is $k or less.",
        ),
        body="return {key: value for key, value in $d.items() if value > $k}",
        inputs=lambda rng: (_scores(rng),),
        oracle=lambda d, k: dict(filter(lambda pair: pair[1] > k, d.items())),
    ),
)
