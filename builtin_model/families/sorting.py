"""Families on sorting algorithms, and on merging and searching sorted lists."""

import random

from builtin_model.families.list_inputs import draw_integers
from builtin_model.tasks import Family


def _ints(rng: random.Random) -> tuple[list[int]]:
    return (draw_integers(rng, rng.choice((0, 4))),)


def _sorted_search(rng: random.Random) -> tuple[list[int], int]:
    numbers = sorted(rng.sample(range(20), rng.randint(0, 8)))
    return numbers, rng.choice(numbers) if numbers and rng.random() < 0.7 else rng.randint(0, 19)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="quicksort",
        names=("quicksort", "quick_sort", "qsort", "sort_quick"),
        params=("arr: list[int]",),
        returns="list[int]",
        docs=(
            "Sort a list with the quicksort algorithm.",
            "Return $arr sorted in ascending order using quicksort.",
            "Given a list of numbers, sort it by quicksort around a pivot.",
            "This function implements quicksort.",
            "Implement quick sort and return the sorted list.",
        ),
        body="""
if len($arr) <= 1:
    return $arr
pivot = $arr[len($arr) // 2]
left = [x for x in $arr if x < pivot]
middle = [x for x in $arr if x == pivot]
right = [x for x in $arr if x > pivot]
return $f(left) + middle + $f(right)
""",
        inputs=_ints,
        oracle=sorted,
    ),
    Family(
        name="bubble_sort",
        names=("bubble_sort", "bubblesort", "sort_bubble", "bubble_sort_list"),
        params=("arr: list[int]",),
        returns="list[int]",
        docs=(
            "Sort a list with the bubble sort algorithm.",
            "Return $arr sorted in ascending order using bubble sort.",
            "Given a list of numbers, sort it by bubble sort.",
            "This function implements bubble sort.",
            "Sort $arr by repeatedly swapping adjacent elements that are out of order.",
        ),
        body="""
for i in range(len($arr)):
    for j in range(len($arr) - 1 - i):
        if $arr[j] > $arr[j + 1]:
            $arr[j], $arr[j + 1] = $arr[j + 1], $arr[j]
return $arr
""",
        inputs=_ints,
        oracle=sorted,
    ),
    Family(
        name="selection_sort",
        names=("selection_sort", "selectionsort", "sort_selection", "select_sort"),
        params=("arr: list[int]",),
        returns="list[int]",
        docs=(
            "Sort a list with the selection sort algorithm.",
            "Return $arr sorted in ascending order using selection sort.",
            "Given a list of numbers, sort it by selection sort.",
            "This function implements selection sort.",
            "Sort $arr by repeatedly selecting the smallest remaining element.",
        ),
        body="""
for i in range(len($arr)):
    smallest = i
    for j in range(i + 1, len($arr)):
        if $arr[j] < $arr[smallest]:
            smallest = j
    $arr[i], $arr[smallest] = $arr[smallest], $arr[i]
return $arr
""",
        inputs=_ints,
        oracle=sorted,
    ),
    Family(
        name="insertion_sort",
        names=("insertion_sort", "insertionsort", "sort_insertion", "insert_sort"),
        params=("arr: list[int]",),
        returns="list[int]",
        docs=(
            "Sort a list with the insertion sort algorithm.",
            "Return $arr sorted in ascending order using insertion sort.",
            "Given a list of numbers, sort it by insertion sort.",
            "This function implements insertion sort.",
            "Sort $arr by inserting each element into the sorted part before it.",
        ),
        body="""
for i in range(1, len($arr)):
    key = $arr[i]
    j = i - 1
    while j >= 0 and $arr[j] > key:
        $arr[j + 1] = $arr[j]
        j -= 1
    $arr[j + 1] = key
return $arr
""",
        inputs=_ints,
        oracle=sorted,
    ),
    Family(
        name="merge_sort",
        names=("merge_sort", "mergesort", "sort_merge", "merge_sort_list"),
        params=("arr: list[int]",),
        returns="list[int]",
        docs=(
            "Sort a list with the merge sort algorithm.",
            "Return $arr sorted in ascending order using merge sort.",
            "Given a list of numbers, sort it by merge sort.",
            "This function implements merge sort.",
            "Sort $arr by splitting it into halves, sorting both and merging them.",
        ),
        body="""
if len($arr) <= 1:
    return $arr
mid = len($arr) // 2
left = $f($arr[:mid])
right = $f($arr[mid:])
result = []
while left and right:
    if left[0] <= right[0]:
        result.append(left.pop(0))
    else:
        result.append(right.pop(0))
return result + left + right
""",
        inputs=_ints,
        oracle=sorted,
    ),
    Family(
        name="merge_sorted",
        names=("merge_sorted", "merge_sorted_lists", "merge_two_sorted", "merge_sorted_arrays"),
        params=("a: list[int]", "b: list[int]"),
        alternatives=(
            ("list1", "list2"),
            ("left", "right"),
            ("xs", "ys"),
            ("nums1", "nums2"),
            ("l1", "l2"),
            ("first", "second"),
        ),
        returns="list[int]",
        docs=(
            "Merge two sorted lists into one sorted list.",
            "Return a sorted list of the elements of the sorted lists $a and $b.",
            "Given two sorted lists, merge them in order.",
            "This function merges the sorted lists $a and $b.",
        ),
        body="""
result = []
i = 0
j = 0
while i < len($a) and j < len($b):
    if $a[i] <= $b[j]:
        result.append($a[i])
        i += 1
    else:
        result.append($b[j])
        j += 1
return result + $a[i:] + $b[j:]
""",
        inputs=lambda rng: (sorted(draw_integers(rng, 0, 5)), sorted(draw_integers(rng, 0, 5))),
        oracle=lambda a, b: sorted(a + b),
    ),
    Family(
        name="binary_search",
        names=("binary_search", "binarysearch", "bin_search", "bsearch", "search_sorted"),
        params=("arr: list[int]", "target: int"),
        alternatives=(
            ("nums", "target"),
            ("items", "target"),
            ("numbers", "target"),
            ("lst", "x"),
            ("array", "value"),
            ("arr", "x"),
            ("data", "key"),
        ),
        returns="int",
        docs=(
            "Return the index of $target in the sorted list $arr, or -1 if it is not there.",
            "Search a sorted list by binary search and return the index or -1.",
            "Given a sorted list and a target, find the index of the target with binary search.",
            "This function implements binary search and returns -1 if $target is not found.",
        ),
        body="""
low = 0
high = len($arr) - 1
while low <= high:
    mid = (low + high) // 2
    if $arr[mid] == $target:
        return mid
    if $arr[mid] < $target:
        low = mid + 1
    else:
        high = mid - 1
return -1
""",
        inputs=_sorted_search,
        oracle=lambda arr, target: arr.index(target) if target in arr else -1,
    ),
)
