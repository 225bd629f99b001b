"""Families on classic algorithms: sorting, searching, matrices, graphs and dynamic programming."""

import bisect
import functools
import itertools
import math
import random
import re

from jax_lm.data.corpus.tasks import Family

TWO_MATRICES = (
    ("A", "B"),
    ("m1", "m2"),
    ("matrix1", "matrix2"),
    ("left", "right"),
    ("matrix_a", "matrix_b"),
    ("mat1", "mat2"),
)
TWO_STRINGS = (
    ("s1", "s2"),
    ("s", "t"),
    ("text1", "text2"),
    ("word1", "word2"),
    ("first", "second"),
    ("x", "y"),
    ("str1", "str2"),
)
GRAPH_AND_START = (
    ("graph", "root"),
    ("g", "start"),
    ("graph", "source"),
    ("adj", "start"),
    ("g", "s"),
    ("neighbors", "start"),
)
ROMAN = {1: "I", 2: "II", 3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII", 9: "IX"}


def _draw(rng: random.Random, least: int = 0, most: int = 7, low: int = -9, high: int = 20) -> list[int]:
    numbers = [rng.randint(low, high) for _ in range(rng.randint(least, most))]
    if len(numbers) > 2 and rng.random() < 0.5:
        numbers[rng.randrange(len(numbers))] = rng.choice(numbers)
    return numbers


def _ints(rng: random.Random) -> tuple[list[int]]:
    return (_draw(rng, rng.choice((0, 4))),)


def _grid(rng: random.Random, rows: int, columns: int, low: int = -5, high: int = 9) -> list[list[int]]:
    return [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]


def _matrix(rng: random.Random) -> tuple[list[list[int]]]:
    return (_grid(rng, rng.randint(1, 3), rng.randint(1, 4)),)


def _square(rng: random.Random) -> tuple[list[list[int]]]:
    size = rng.randint(1, 3)
    return (_grid(rng, size, size),)


def _maybe_symmetric(rng: random.Random) -> tuple[list[list[int]]]:
    (grid,) = _square(rng)
    size = range(len(grid))
    return ([[grid[min(i, j)][max(i, j)] for j in size] for i in size] if rng.random() < 0.5 else grid,)


def _same_shape(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    rows, columns = rng.randint(1, 3), rng.randint(1, 3)
    return _grid(rng, rows, columns), _grid(rng, rows, columns)


def _factors(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    rows, inner, columns = (rng.randint(1, 3) for _ in range(3))
    return _grid(rng, rows, inner, -3, 5), _grid(rng, inner, columns, -3, 5)


def _sorted_search(rng: random.Random) -> tuple[list[int], int]:
    numbers = sorted(rng.sample(range(20), rng.randint(0, 8)))
    return numbers, rng.choice(numbers) if numbers and rng.random() < 0.7 else rng.randint(0, 19)


def _brackets(rng: random.Random) -> tuple[str]:
    text = ""
    for _ in range(rng.randint(0, 4)):
        left, right = rng.choice(("()", "[]", "{}"))
        text = rng.choice((left + text + right, text + left + right))
    if rng.random() < 0.5:
        position = rng.randint(0, len(text))
        text = rng.choice((text[:position] + rng.choice("()[]{}") + text[position:], text[::-1], text[:position]))
    return (text,)


def _two_strings(rng: random.Random) -> tuple[str, str]:
    first, second = ("".join(rng.choice("abc") for _ in range(rng.randint(0, 5))) for _ in range(2))
    return first, second


def _graph(rng: random.Random) -> tuple[dict[str, list[str]], str]:
    nodes = "ABCDEF"[: rng.randint(1, 6)]
    return {node: rng.sample(nodes, rng.randint(0, min(3, len(nodes)))) for node in nodes}, "A"


def _graph_and_two(rng: random.Random) -> tuple[dict[str, list[str]], str, str]:
    nodes = "ABCDEF"[: rng.randint(2, 6)]
    graph = {node: rng.sample(nodes, rng.randint(0, 2)) for node in nodes}
    return graph, rng.choice(nodes), rng.choice(nodes)


def _coins(rng: random.Random) -> tuple[list[int], int]:
    return rng.choice(([1, 2, 5], [2, 5], [3, 4], [1, 3, 4], [5], [1, 5, 6], [4, 7])), rng.randint(0, 14)


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


def _knapsack_case(rng: random.Random) -> tuple[list[int], list[int], int]:
    size = rng.randint(0, 4)
    return [rng.randint(1, 6) for _ in range(size)], [rng.randint(1, 9) for _ in range(size)], rng.randint(0, 11)


def _coin_counts(coins: list[int], amount: int) -> list[int]:
    ranges = [range(amount // coin + 1) for coin in coins]
    choices = itertools.product(*ranges)
    return [sum(c) for c in choices if sum(a * b for a, b in zip(c, coins, strict=True)) == amount]


def _identity(n: int) -> list[list[int]]:
    rows = [[0] * n for _ in range(n)]
    for i in range(n):
        rows[i][i] = 1
    return rows


def _multiply(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    return [[sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))] for i in range(len(a))]


def _best_subarray(nums: list[int]) -> int:
    return max(sum(nums[i:j]) for i, j in itertools.combinations(range(len(nums) + 1), 2))


def _balanced(text: str) -> bool:
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", text)) != text:
        text = shorter
    return text == ""


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


def _breadth_first(graph: dict[str, list[str]], start: str) -> list[str]:
    order, layer = [start], [start]
    while layer:
        layer = list(dict.fromkeys(v for u in layer for v in graph[u] if v not in order))
        order += layer
    return order


def _depth_first(graph: dict[str, list[str]], start: str, order: list[str] | None = None) -> list[str]:
    order = [] if order is None else order
    order.append(start)
    for node in graph[start]:
        if node not in order:
            _depth_first(graph, node, order)
    return order


def _distances(graph: dict[str, list[str]], start: str, end: str) -> int:
    reached, steps = {start}, 0
    while end not in reached:
        grown = reached | {v for u in reached for v in graph[u]}
        if grown == reached:
            return -1
        reached, steps = grown, steps + 1
    return steps


def _knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    chosen = itertools.product((0, 1), repeat=len(weights))
    pairs = [(sum(itertools.compress(weights, c)), sum(itertools.compress(values, c))) for c in chosen]
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
    return sorted(filter(_balanced, candidates), key=_first_block_key)


def _roman(number: int) -> str:
    result = ""
    for i, digit in enumerate(reversed(str(number))):
        shift = str.maketrans("IVX", ("IVX", "XLC", "CDM", "M??")[i])
        result = ROMAN.get(int(digit), "").translate(shift) + result
    return result


def _best_profit(prices: list[int]) -> int:
    return max((b - a for a, b in itertools.combinations(prices, 2) if b > a), default=0)


def _robbed(nums: list[int]) -> int:
    chosen = (c for c in itertools.product((0, 1), repeat=len(nums)) if (1, 1) not in itertools.pairwise(c))
    return max(sum(itertools.compress(nums, c)) for c in chosen)


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
        inputs=lambda rng: (sorted(_draw(rng, 0, 5)), sorted(_draw(rng, 0, 5))),
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
    Family(
        name="matrix_multiply",
        names=("matrix_multiply", "matmul", "multiply_matrices", "matrix_multiplication", "mat_mul", "matrix_product"),
        params=("a: list[list[int]]", "b: list[list[int]]"),
        alternatives=TWO_MATRICES,
        returns="list[list[int]]",
        docs=(
            "Multiply two matrices given as lists of lists.",
            "Return the matrix product of $a and $b.",
            "Given two matrices, return their product.",
            "This function computes the product of the matrices $a and $b.",
        ),
        body="return [[sum(x * y for x, y in zip(row, col)) for col in zip(*$b)] for row in $a]",
        inputs=_factors,
        oracle=_multiply,
    ),
    Family(
        name="transpose",
        names=("transpose", "transpose_matrix", "matrix_transpose", "get_transpose", "swap_rows_columns"),
        params=("matrix: list[list[int]]",),
        returns="list[list[int]]",
        docs=(
            "Transpose a matrix.",
            "Return the transpose of $matrix.",
            "Given a matrix as a list of rows, swap its rows and columns.",
            "This function returns the transposed matrix as a list of lists.",
        ),
        body="return [list(row) for row in zip(*$matrix)]",
        inputs=_matrix,
        oracle=lambda matrix: [[row[j] for row in matrix] for j in range(len(matrix[0]))],
    ),
    Family(
        name="rotate_matrix",
        names=("rotate_matrix", "rotate_90", "rotate_clockwise", "rotate_image", "rotate_grid"),
        params=("matrix: list[list[int]]",),
        returns="list[list[int]]",
        docs=(
            "Rotate a matrix by 90 degrees clockwise.",
            "Return $matrix rotated clockwise by 90 degrees.",
            "Given a matrix as a list of rows, turn it 90 degrees to the right.",
            "This function rotates the rows of a matrix clockwise by a quarter turn.",
        ),
        body="return [list(row) for row in zip(*$matrix[::-1])]",
        inputs=_matrix,
        oracle=lambda matrix: [[row[j] for row in reversed(matrix)] for j in range(len(matrix[0]))],
    ),
    Family(
        name="identity_matrix",
        names=("identity_matrix", "make_identity", "create_identity_matrix", "eye"),
        params=("n: int",),
        returns="list[list[int]]",
        docs=(
            "Return the $n by $n identity matrix as a list of lists.",
            "Create an identity matrix of size $n.",
            "Given $n, return the square matrix with ones on the diagonal and zeros elsewhere.",
            "This function makes the identity matrix with $n rows.",
        ),
        body="return [[1 if i == j else 0 for j in range($n)] for i in range($n)]",
        inputs=lambda rng: (rng.randint(0, 4),),
        oracle=_identity,
    ),
    Family(
        name="zero_matrix",
        names=("zero_matrix", "zeros", "make_matrix", "create_matrix", "zeros_matrix", "make_grid"),
        params=("rows: int", "cols: int"),
        alternatives=(("m", "n"), ("n", "m"), ("height", "width"), ("r", "c"), ("h", "w"), ("rows", "columns")),
        returns="list[list[int]]",
        docs=(
            "Return a matrix of zeros with $rows rows and $cols columns.",
            "Create a $rows by $cols list of lists filled with zeros.",
            "Given the numbers of rows and columns, return a zero matrix.",
            "This function makes a matrix of zeros.",
        ),
        body="return [[0] * $cols for i in range($rows)]",
        inputs=lambda rng: (rng.randint(0, 4), rng.randint(1, 4)),
        oracle=lambda rows, cols: [[0 for _ in range(cols)] for _ in range(rows)],
    ),
    Family(
        name="matrix_add",
        names=("matrix_add", "add_matrices", "matrix_addition", "mat_add", "sum_matrices"),
        params=("a: list[list[int]]", "b: list[list[int]]"),
        alternatives=TWO_MATRICES,
        returns="list[list[int]]",
        docs=(
            "Add two matrices given as lists of lists.",
            "Return the matrix sum of $a and $b.",
            "Given two matrices of the same shape, return their sum.",
            "This function adds the matrices $a and $b element by element.",
        ),
        body="return [[x + y for x, y in zip(row1, row2)] for row1, row2 in zip($a, $b)]",
        inputs=_same_shape,
        oracle=lambda a, b: [[a[i][j] + b[i][j] for j in range(len(a[0]))] for i in range(len(a))],
    ),
    Family(
        name="matrix_scale",
        names=("matrix_scale", "scale_matrix", "scalar_multiply", "multiply_matrix_by_scalar", "scalar_matrix"),
        params=("matrix: list[list[int]]", "k: int"),
        alternatives=(
            ("matrix", "scalar"),
            ("m", "k"),
            ("A", "c"),
            ("grid", "factor"),
            ("mat", "k"),
            ("matrix", "factor"),
        ),
        returns="list[list[int]]",
        docs=(
            "Multiply every element of $matrix by $k.",
            "Return the matrix scaled by the number $k.",
            "Given a matrix and a number, return the matrix times that number.",
            "This function multiplies a matrix by the scalar $k.",
        ),
        body="return [[x * $k for x in row] for row in $matrix]",
        inputs=lambda rng: (*_matrix(rng), rng.randint(-3, 6)),
        oracle=lambda matrix, k: [list(map(k.__mul__, row)) for row in matrix],
    ),
    Family(
        name="diagonal_sum",
        names=("diagonal_sum", "trace", "sum_diagonal", "matrix_trace", "main_diagonal_sum"),
        params=("matrix: list[list[int]]",),
        returns="int",
        docs=(
            "Return the sum of the main diagonal of $matrix.",
            "Compute the trace of a square matrix.",
            "Given a square matrix, return the sum of its diagonal elements.",
            "This function adds up the elements on the main diagonal.",
        ),
        body="return sum($matrix[i][i] for i in range(len($matrix)))",
        inputs=_square,
        oracle=lambda matrix: sum(x for i, row in enumerate(matrix) for j, x in enumerate(row) if i == j),
    ),
    Family(
        name="sum_matrix",
        names=("sum_matrix", "matrix_sum", "sum_of_matrix", "sum_grid", "total_of_matrix"),
        params=("matrix: list[list[int]]",),
        returns="int",
        docs=(
            "Return the sum of all elements of $matrix.",
            "Compute the sum of all numbers in a matrix.",
            "Given a matrix as a list of rows, return the sum of its elements.",
            "This function adds up all numbers of a list of lists.",
        ),
        body="return sum(sum(row) for row in $matrix)",
        inputs=_matrix,
        oracle=lambda matrix: sum(itertools.chain.from_iterable(matrix)),
    ),
    Family(
        name="row_sums",
        names=("row_sums", "sum_rows", "sums_of_rows", "get_row_sums", "sum_of_rows"),
        params=("matrix: list[list[int]]",),
        returns="list[int]",
        docs=(
            "Return a list with the sum of each row of $matrix.",
            "Compute the row sums of a matrix.",
            "Given a matrix, return the sums of its rows.",
            "This function sums every row of a matrix.",
        ),
        body="return [sum(row) for row in $matrix]",
        inputs=_matrix,
        oracle=lambda matrix: list(map(sum, matrix)),
    ),
    Family(
        name="column_sums",
        names=("column_sums", "sum_columns", "col_sums", "sums_of_columns", "get_column_sums"),
        params=("matrix: list[list[int]]",),
        returns="list[int]",
        docs=(
            "Return a list with the sum of each column of $matrix.",
            "Compute the column sums of a matrix.",
            "Given a matrix, return the sums of its columns.",
            "This function sums every column of a matrix.",
        ),
        body="return [sum(col) for col in zip(*$matrix)]",
        inputs=_matrix,
        oracle=lambda matrix: [sum(row[j] for row in matrix) for j in range(len(matrix[0]))],
    ),
    Family(
        name="matrix_max",
        names=("matrix_max", "max_in_matrix", "find_max_in_matrix", "largest_in_matrix", "grid_max"),
        params=("matrix: list[list[int]]",),
        returns="int",
        docs=(
            "Return the largest element of $matrix.",
            "Find the maximum of all numbers in a matrix.",
            "Given a matrix as a list of rows, return its largest element.",
            "This function returns the biggest number in a list of lists.",
        ),
        body="return max(max(row) for row in $matrix)",
        inputs=_matrix,
        oracle=lambda matrix: sorted(itertools.chain.from_iterable(matrix))[-1],
    ),
    Family(
        name="is_symmetric",
        names=("is_symmetric", "is_symmetric_matrix", "check_symmetric", "matrix_is_symmetric", "symmetric_matrix"),
        params=("matrix: list[list[int]]",),
        returns="bool",
        docs=(
            "Check whether $matrix is symmetric.",
            "Return True if the matrix equals its transpose.",
            "Given a square matrix, return whether it is symmetric.",
            "This function checks if a matrix is equal to its own transpose.",
        ),
        body="return $matrix == [list(row) for row in zip(*$matrix)]",
        inputs=_maybe_symmetric,
        oracle=lambda matrix: all(
            matrix[i][j] == matrix[j][i] for i, j in itertools.combinations(range(len(matrix)), 2)
        ),
    ),
    Family(
        name="max_subarray",
        names=("max_subarray", "max_subarray_sum", "kadane", "maximum_subarray", "largest_subarray_sum"),
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
        inputs=lambda rng: (_draw(rng, 1, 8, -9, rng.choice((-1, 7, 7))),),
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
        inputs=lambda rng: (_draw(rng, 1, 7, 1, 20),),
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
        inputs=lambda rng: (_draw(rng, 0, 7, 0, 9),),
        oracle=_robbed,
    ),
    Family(
        name="missing_number",
        names=("missing_number", "find_missing", "find_missing_number", "missing_integer", "get_missing_number"),
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
        names=("single_number", "find_single", "find_unique_number", "lonely_integer", "find_single_number"),
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
        oracle=_balanced,
    ),
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
        alternatives=(("rows", "cols"), ("a", "b"), ("height", "width"), ("r", "c"), ("h", "w"), ("x", "y")),
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
        names=("count_change", "coin_ways", "count_coin_ways", "ways_to_make_change", "coin_combinations"),
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
        names=("longest_increasing_subsequence", "lis", "length_of_lis", "lis_length", "longest_increasing"),
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
        inputs=lambda rng: (_draw(rng, rng.choice((0, 4)), 8, -5, 9),),
        oracle=_subsequence_length,
    ),
    Family(
        name="longest_common_subsequence",
        names=("longest_common_subsequence", "lcs", "lcs_length", "common_subsequence", "length_of_lcs"),
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
        names=("edit_distance", "levenshtein", "levenshtein_distance", "min_edit_distance", "min_distance"),
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
        names=("pascal_triangle", "pascals_triangle", "generate_pascal", "pascal", "make_pascal_triangle"),
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
        names=("permutations", "permute", "all_permutations", "get_permutations", "generate_permutations"),
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
        names=("combinations", "combine", "all_combinations", "get_combinations", "generate_combinations"),
        params=("items: list", "k: int"),
        alternatives=(("nums", "k"), ("lst", "n"), ("arr", "r"), ("items", "r"), ("values", "size"), ("xs", "k")),
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
        names=("power_set", "subsets", "powerset", "all_subsets", "get_subsets", "generate_subsets"),
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
    Family(
        name="bfs",
        names=("bfs", "breadth_first_search", "bfs_traversal", "breadth_first", "bfs_order"),
        params=("graph: dict", "start: str"),
        alternatives=GRAPH_AND_START,
        returns="list",
        docs=(
            "Return the nodes of $graph in breadth-first order from $start.",
            "Traverse a graph with breadth-first search and return the visited nodes.",
            "Given a dict of neighbor lists and a start node, return the order of a breadth-first search.",
            "This function does a BFS from $start and returns the list of visited nodes.",
        ),
        body="""
visited = [$start]
queue = [$start]
while queue:
    node = queue.pop(0)
    for neighbor in $graph[node]:
        if neighbor not in visited:
            visited.append(neighbor)
            queue.append(neighbor)
return visited
""",
        inputs=_graph,
        oracle=_breadth_first,
    ),
    Family(
        name="dfs",
        names=("dfs", "depth_first_search", "dfs_traversal", "depth_first", "dfs_order"),
        params=("graph: dict", "start: str"),
        alternatives=GRAPH_AND_START,
        returns="list",
        docs=(
            "Return the nodes of $graph in depth-first order from $start.",
            "Traverse a graph with depth-first search and return the visited nodes.",
            "Given a dict of neighbor lists and a start node, return the order of a depth-first search.",
            "This function does a DFS from $start and returns the list of visited nodes.",
        ),
        body="""
visited = []
stack = [$start]
while stack:
    node = stack.pop()
    if node not in visited:
        visited.append(node)
        stack.extend(reversed($graph[node]))
return visited
""",
        inputs=_graph,
        oracle=_depth_first,
    ),
    Family(
        name="has_path",
        names=("has_path", "path_exists", "is_reachable", "can_reach"),
        params=("graph: dict", "start: str", "end: str"),
        alternatives=(
            ("graph", "source", "target"),
            ("g", "start", "end"),
            ("graph", "a", "b"),
            ("graph", "start", "goal"),
            ("adj", "u", "v"),
            ("g", "src", "dst"),
        ),
        returns="bool",
        docs=(
            "Check whether $graph has a path from $start to $end.",
            "Return True if $end can be reached from $start in the graph.",
            "Given a dict of neighbor lists and two nodes, return whether there is a path between them.",
            "This function checks if one can get from $start to $end.",
        ),
        body="""
visited = []
stack = [$start]
while stack:
    node = stack.pop()
    if node == $end:
        return True
    if node not in visited:
        visited.append(node)
        stack.extend($graph[node])
return False
""",
        inputs=_graph_and_two,
        oracle=lambda graph, start, end: _distances(graph, start, end) >= 0,
    ),
    Family(
        name="knapsack",
        names=("knapsack", "knapsack_01", "solve_knapsack", "max_knapsack_value", "zero_one_knapsack"),
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
        names=("generate_parentheses", "generate_parenthesis", "all_parentheses", "gen_parens", "make_parentheses"),
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
        names=("roman_to_int", "roman_to_integer", "roman_to_decimal", "from_roman", "roman_to_number"),
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
        names=("int_to_roman", "to_roman", "integer_to_roman", "decimal_to_roman", "number_to_roman", "roman_numeral"),
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
