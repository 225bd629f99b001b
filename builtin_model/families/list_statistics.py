"""Families on frequencies, medians, positions, repetitions and order of a list."""

import itertools
import random
import statistics
from collections import Counter

from builtin_model.families.list_inputs import draw_integers, draw_list, draw_repeated, draw_some
from builtin_model.tasks import Family

WORDS = (
    "apple",
    "fig",
    "pear",
    "kiwi",
    "a",
    "to",
    "cat",
    "dog",
    "house",
    "banana",
    "",
    "sun",
    "tree",
    "no",
)


def _words(rng: random.Random) -> tuple[list[str]]:
    return ([rng.choice(WORDS) for _ in range(rng.randint(0, 6))],)


def _has_mode(rng: random.Random) -> tuple[list[int]]:
    while True:
        numbers = draw_integers(rng, 1, 8, 0, 4)
        if len(statistics.multimode(numbers)) == 1:
            return (numbers,)


def _sorted_or_not(rng: random.Random) -> tuple[list[int]]:
    numbers = draw_integers(rng, 0, 6)
    return (sorted(numbers) if rng.random() < 0.5 else numbers,)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="most_common",
        names=(
            "most_common",
            "most_frequent",
            "mode",
            "find_mode",
            "most_common_element",
            "most_frequent_element",
        ),
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
        names=(
            "count_frequencies",
            "frequency_dict",
            "count_elements",
            "element_counts",
            "frequencies",
            "count_items",
        ),
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
        inputs=draw_repeated,
        oracle=lambda items: dict(Counter(items)),
    ),
    Family(
        name="group_by_length",
        names=(
            "group_by_length",
            "group_words_by_length",
            "words_by_length",
            "group_strings_by_length",
            "by_length",
        ),
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
        oracle=lambda words: {
            size: [w for w in words if len(w) == size] for size in map(len, words)
        },
    ),
    Family(
        name="sort_by_length",
        names=(
            "sort_by_length",
            "sort_words_by_length",
            "sort_strings_by_length",
            "order_by_length",
            "length_sort",
        ),
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
        names=(
            "string_lengths",
            "word_lengths",
            "get_lengths",
            "lengths",
            "list_of_lengths",
            "lengths_of_words",
        ),
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
        names=(
            "median",
            "find_median",
            "get_median",
            "calculate_median",
            "compute_median",
            "list_median",
        ),
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
        inputs=draw_some,
        oracle=statistics.median,
    ),
    Family(
        name="max_difference",
        names=(
            "max_difference",
            "list_range",
            "max_diff",
            "spread",
            "range_of_list",
            "max_minus_min",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the difference between the largest and the smallest number in $numbers.",
            "Compute the range of a list, its maximum minus its minimum.",
            "Given a list of numbers, return the maximum minus the minimum.",
            "This function returns the largest difference between two numbers in the list.",
        ),
        body="return max($numbers) - min($numbers)",
        inputs=draw_some,
        oracle=lambda numbers: max(abs(a - b) for a in numbers for b in numbers),
    ),
    Family(
        name="min_max",
        names=(
            "min_max",
            "find_min_max",
            "get_min_max",
            "min_and_max",
            "minmax",
            "smallest_and_largest",
        ),
        params=("numbers: list[int]",),
        returns="tuple[int, int]",
        docs=(
            "Return the minimum and the maximum of $numbers as a tuple.",
            "Find the smallest and the largest number in a list.",
            "Given a list of numbers, return a tuple of the smallest and the largest.",
            "This function returns the tuple (min, max) of $numbers.",
        ),
        body="return min($numbers), max($numbers)",
        inputs=draw_some,
        oracle=lambda numbers: (sorted(numbers)[0], sorted(numbers)[-1]),
    ),
    Family(
        name="index_of_max",
        names=(
            "index_of_max",
            "argmax",
            "max_index",
            "find_max_index",
            "index_of_largest",
            "position_of_max",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the index of the largest number in $numbers.",
            "Find the position of the maximum of a list.",
            "Given a list of numbers, return the index of the first maximum.",
            "This function returns where the largest element of $numbers is.",
        ),
        body="return $numbers.index(max($numbers))",
        inputs=draw_some,
        oracle=lambda numbers: max(range(len(numbers)), key=numbers.__getitem__),
    ),
    Family(
        name="index_of_min",
        names=(
            "index_of_min",
            "argmin",
            "min_index",
            "find_min_index",
            "index_of_smallest",
            "position_of_min",
        ),
        params=("numbers: list[int]",),
        returns="int",
        docs=(
            "Return the index of the smallest number in $numbers.",
            "Find the position of the minimum of a list.",
            "Given a list of numbers, return the index of the first minimum.",
            "This function returns where the smallest element of $numbers is.",
        ),
        body="return $numbers.index(min($numbers))",
        inputs=draw_some,
        oracle=lambda numbers: min(range(len(numbers)), key=numbers.__getitem__),
    ),
    Family(
        name="is_sorted",
        names=(
            "is_sorted",
            "check_sorted",
            "is_list_sorted",
            "is_ascending",
            "is_sorted_list",
            "is_increasing",
        ),
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
        names=(
            "has_duplicates",
            "contains_duplicate",
            "contains_duplicates",
            "has_duplicate",
            "check_duplicates",
        ),
        params=("items: list",),
        returns="bool",
        docs=(
            "Check whether $items contains duplicates.",
            "Return True if any element occurs more than once in the list.",
            "Given a list, return whether it has repeated elements.",
            "This function checks if some value appears at least twice.",
        ),
        body="return len(set($items)) != len($items)",
        inputs=lambda rng: (draw_integers(rng, 0, 5, 0, 9),),
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
        inputs=lambda rng: (draw_integers(rng, 0, 5, 0, 9),),
        oracle=lambda items: all(items.count(x) == 1 for x in items),
    ),
    Family(
        name="find_duplicates",
        names=(
            "find_duplicates",
            "get_duplicates",
            "list_duplicates",
            "duplicates",
            "find_repeated",
        ),
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
        inputs=draw_repeated,
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
        inputs=lambda rng: (draw_integers(rng, 0, 8, -2, 3),),
        oracle=lambda nums: sorted(nums, key=lambda x: x == 0),
    ),
    Family(
        name="range_list",
        names=("range_list", "make_range", "list_from_range", "numbers_between", "inclusive_range"),
        params=("start: int", "end: int"),
        alternatives=(
            ("a", "b"),
            ("start", "stop"),
            ("low", "high"),
            ("first", "last"),
            ("lo", "hi"),
            ("m", "n"),
        ),
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
        names=(
            "every_other",
            "every_second",
            "take_every_other",
            "skip_every_other",
            "even_positions",
        ),
        params=("items: list",),
        returns="list",
        docs=(
            "Return every other element of $items, starting with the first.",
            "Take every second element of a list, beginning at index 0.",
            "Given a list, return the elements at even indices.",
            "This function skips every second element of $items.",
        ),
        body="return $items[::2]",
        inputs=draw_list,
        oracle=lambda items: [x for i, x in enumerate(items) if i % 2 == 0],
    ),
    Family(
        name="swap_first_last",
        names=(
            "swap_first_last",
            "swap_ends",
            "swap_first_and_last",
            "exchange_ends",
            "swap_list_ends",
        ),
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
        inputs=lambda rng: (draw_integers(rng, 1, 6),),
        oracle=lambda items: items if len(items) < 2 else [items[-1], *items[1:-1], items[0]],
    ),
)
