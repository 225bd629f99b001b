"""Families on matrices as lists of rows."""

import itertools
import random

from builtin_model.tasks import Family

TWO_MATRICES = (
    ("A", "B"),
    ("m1", "m2"),
    ("matrix1", "matrix2"),
    ("left", "right"),
    ("matrix_a", "matrix_b"),
    ("mat1", "mat2"),
)


def _grid(
    rng: random.Random, rows: int, columns: int, low: int = -5, high: int = 9
) -> list[list[int]]:
    return [[rng.randint(low, high) for _ in range(columns)] for _ in range(rows)]


def _matrix(rng: random.Random) -> tuple[list[list[int]]]:
    return (_grid(rng, rng.randint(1, 3), rng.randint(1, 4)),)


def _square(rng: random.Random) -> tuple[list[list[int]]]:
    size = rng.randint(1, 3)
    return (_grid(rng, size, size),)


def _maybe_symmetric(rng: random.Random) -> tuple[list[list[int]]]:
    (grid,) = _square(rng)
    size = range(len(grid))
    return (
        [[grid[min(i, j)][max(i, j)] for j in size] for i in size] if rng.random() < 0.5 else grid,
    )


def _same_shape(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    rows, columns = rng.randint(1, 3), rng.randint(1, 3)
    return _grid(rng, rows, columns), _grid(rng, rows, columns)


def _factors(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    rows, inner, columns = (rng.randint(1, 3) for _ in range(3))
    return _grid(rng, rows, inner, -3, 5), _grid(rng, inner, columns, -3, 5)


def _identity(n: int) -> list[list[int]]:
    rows = [[0] * n for _ in range(n)]
    for i in range(n):
        rows[i][i] = 1
    return rows


def _multiply(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    return [
        [sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
        for i in range(len(a))
    ]


FAMILIES: tuple[Family, ...] = (
    Family(
        name="matrix_multiply",
        names=(
            "matrix_multiply",
            "matmul",
            "multiply_matrices",
            "matrix_multiplication",
            "mat_mul",
            "matrix_product",
        ),
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
        names=(
            "transpose",
            "transpose_matrix",
            "matrix_transpose",
            "get_transpose",
            "swap_rows_columns",
        ),
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
        alternatives=(
            ("m", "n"),
            ("n", "m"),
            ("height", "width"),
            ("r", "c"),
            ("h", "w"),
            ("rows", "columns"),
        ),
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
        names=(
            "matrix_scale",
            "scale_matrix",
            "scalar_multiply",
            "multiply_matrix_by_scalar",
            "scalar_matrix",
        ),
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
        oracle=lambda matrix: sum(
            x for i, row in enumerate(matrix) for j, x in enumerate(row) if i == j
        ),
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
        names=(
            "matrix_max",
            "max_in_matrix",
            "find_max_in_matrix",
            "largest_in_matrix",
            "grid_max",
        ),
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
        names=(
            "is_symmetric",
            "is_symmetric_matrix",
            "check_symmetric",
            "matrix_is_symmetric",
            "symmetric_matrix",
        ),
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
)
