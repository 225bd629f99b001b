"""Families on single numbers: the arithmetic of an introductory course."""

import calendar
import math
import random
from fractions import Fraction

from jax_lm.data.corpus.tasks import Family

PAIRS = (("x", "y"), ("num1", "num2"), ("n1", "n2"), ("first", "second"), ("m", "n"), ("p", "q"))
TRIPLES = (("x", "y", "z"), ("num1", "num2", "num3"), ("n1", "n2", "n3"), ("first", "second", "third"), ("p", "q", "r"))
SIDES = (("length", "width"), ("w", "h"), ("l", "w"), ("a", "b"), ("base", "height"), ("height", "width"))
LEGS = (("x", "y"), ("side1", "side2"), ("base", "height"), ("leg1", "leg2"), ("opposite", "adjacent"))


def _small(rng: random.Random) -> tuple[int]:
    return (rng.randint(0, 9),)


def _medium(rng: random.Random) -> tuple[int]:
    return (rng.choice((0, 1, 2, rng.randint(3, 10), rng.randint(10, 30))),)


def _signed(rng: random.Random) -> tuple[int]:
    return (rng.choice((0, 1, -1, rng.randint(2, 50), rng.randint(-50, -2), rng.randint(2, 50))),)


def _positive(rng: random.Random) -> tuple[int]:
    return (rng.choice((1, 2, 6, 12, rng.randint(3, 20), rng.randint(10, 100))),)


def _digits(rng: random.Random) -> tuple[int]:
    return (rng.choice((0, 7, 10, 100, rng.randint(10, 99), rng.randint(100, 999), rng.randint(1000, 99999))),)


def _two(rng: random.Random) -> tuple[int, int]:
    return (rng.randint(-20, 20), rng.randint(-20, 20))


def _three(rng: random.Random) -> tuple[int, int, int]:
    return (rng.randint(-20, 20), rng.randint(-20, 20), rng.randint(-20, 20))


def _two_positive(rng: random.Random) -> tuple[int, int]:
    factor = rng.choice((1, 1, 2, 3, 5, 6))
    return (factor * rng.randint(1, 12), factor * rng.randint(1, 12))


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % i for i in range(2, n))


def _fibonacci(n: int) -> int:
    values = [0, 1]
    while len(values) <= n:
        values.append(values[-1] + values[-2])
    return values[n]


def _prime_factors(n: int) -> list[int]:
    for i in range(2, n + 1):
        if n % i == 0:
            return [i, *_prime_factors(n // i)]
    return []


def _collatz_steps(n: int) -> int:
    return 0 if n == 1 else 1 + _collatz_steps(3 * n + 1 if n % 2 else n // 2)


def _fizzbuzz(n: int) -> str:
    return "Fizz" * (n % 3 == 0) + "Buzz" * (n % 5 == 0) or str(n)


def _triangle(rng: random.Random) -> tuple[int, int, int]:
    a, b = rng.randint(5, 9), rng.randint(5, 9)
    return rng.choice(((a, a, a), (a, a, b), (a, b, a), (b, a, a), (a, b, rng.randint(5, 9)), (3, 4, 5)))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="factorial",
        names=("factorial", "fact", "compute_factorial", "get_factorial", "calculate_factorial", "factorial_of"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the factorial of $n.",
            "Compute $n factorial.",
            "Return the product of the integers from 1 to $n.",
            "Given a non-negative integer $n, return its factorial.",
            "This function calculates the factorial of a number.",
        ),
        body="""
result = 1
for i in range(2, $n + 1):
    result *= i
return result
""",
        inputs=_small,
        oracle=math.factorial,
    ),
    Family(
        name="factorial_recursive",
        names=("factorial_recursive", "recursive_factorial", "fact_recursive", "factorial_rec", "fact_rec"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the factorial of $n using recursion.",
            "Compute $n factorial recursively.",
            "Recursively calculate the factorial of $n.",
            "This function calls itself to compute the factorial of a number.",
        ),
        body="""
if $n <= 1:
    return 1
return $n * $f($n - 1)
""",
        inputs=_small,
        oracle=math.factorial,
    ),
    Family(
        name="fibonacci",
        names=("fibonacci", "fib", "nth_fibonacci", "fibonacci_number", "get_fibonacci", "compute_fibonacci"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the n-th Fibonacci number.",
            "Return the Fibonacci number at position $n.",
            "Compute the n-th number of the Fibonacci sequence, starting with 0 and 1.",
            "Given $n, return the n-th Fibonacci number.",
            "This function calculates the n-th Fibonacci number.",
        ),
        body="""
a, b = 0, 1
for _ in range($n):
    a, b = b, a + b
return a
""",
        inputs=_medium,
        oracle=_fibonacci,
    ),
    Family(
        name="fibonacci_recursive",
        names=("fibonacci_recursive", "recursive_fibonacci", "fib_recursive", "fib_rec", "recursive_fib"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the n-th Fibonacci number using recursion.",
            "Compute the n-th Fibonacci number recursively.",
            "Recursively calculate the Fibonacci number at position $n.",
            "This function calls itself to compute the n-th Fibonacci number.",
        ),
        body="""
if $n <= 1:
    return $n
return $f($n - 1) + $f($n - 2)
""",
        inputs=lambda rng: (rng.randint(0, 12),),
        oracle=_fibonacci,
    ),
    Family(
        name="fibonacci_sequence",
        names=(
            "fibonacci_sequence",
            "fibonacci_list",
            "fib_sequence",
            "fibonacci_series",
            "generate_fibonacci",
            "first_n_fibonacci",
            "fib_list",
        ),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of the first $n Fibonacci numbers.",
            "Generate the Fibonacci sequence up to $n terms.",
            "Given $n, return the first $n numbers of the Fibonacci sequence.",
            "This function returns the Fibonacci series with $n terms as a list.",
        ),
        body="""
result = []
a, b = 0, 1
for _ in range($n):
    result.append(a)
    a, b = b, a + b
return result
""",
        inputs=lambda rng: (rng.randint(0, 12),),
        oracle=lambda n: [_fibonacci(i) for i in range(n)],
    ),
    Family(
        name="is_prime",
        names=("is_prime", "isprime", "check_prime", "prime_check", "is_prime_number", "isPrime"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is prime.",
            "Check whether $n is a prime number.",
            "Check if a number is prime.",
            "Given an integer $n, return True if it is prime and False otherwise.",
            "Determine whether $n has no divisors other than 1 and itself.",
            "This function tests if $n is a prime number.",
        ),
        body="""
if $n < 2:
    return False
for i in range(2, int($n ** 0.5) + 1):
    if $n % i == 0:
        return False
return True
""",
        inputs=lambda rng: (rng.choice((0, 1, 2, 4, 9, 25, 49, 7, 13, 97, rng.randint(2, 100))),),
        oracle=_is_prime,
    ),
    Family(
        name="primes_up_to",
        names=(
            "primes_up_to",
            "sieve_of_eratosthenes",
            "sieve",
            "get_primes",
            "find_primes",
            "list_primes",
            "generate_primes",
            "prime_numbers",
        ),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of all prime numbers up to $n.",
            "Find all primes less than or equal to $n with the sieve of Eratosthenes.",
            "Given $n, return the list of primes from 2 to $n.",
            "Generate the prime numbers up to and including $n.",
            "This function returns all primes not greater than $n.",
        ),
        body="""
result = []
composite = [False] * ($n + 1)
for i in range(2, $n + 1):
    if not composite[i]:
        result.append(i)
        for j in range(i * i, $n + 1, i):
            composite[j] = True
return result
""",
        inputs=_medium,
        oracle=lambda n: [i for i in range(n + 1) if _is_prime(i)],
    ),
    Family(
        name="prime_factors",
        names=("prime_factors", "get_prime_factors", "find_prime_factors", "prime_factorization", "factorize"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return the prime factors of $n as a list.",
            "Find the prime factorization of $n.",
            "Given a positive integer $n, return its prime factors in ascending order.",
            "This function decomposes $n into prime factors.",
        ),
        body="""
result = []
i = 2
while $n > 1:
    while $n % i == 0:
        result.append(i)
        $n //= i
    i += 1
return result
""",
        inputs=_positive,
        oracle=_prime_factors,
    ),
    Family(
        name="gcd",
        names=("gcd", "greatest_common_divisor", "find_gcd", "compute_gcd", "calculate_gcd", "hcf"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the greatest common divisor of $a and $b.",
            "Compute the gcd of two numbers.",
            "Find the largest integer that divides both $a and $b.",
            "Given two integers, return their greatest common divisor.",
            "This function calculates the GCD of $a and $b with the Euclidean algorithm.",
        ),
        body="""
while $b:
    $a, $b = $b, $a % $b
return $a
""",
        inputs=_two_positive,
        oracle=math.gcd,
    ),
    Family(
        name="lcm",
        names=("lcm", "least_common_multiple", "find_lcm", "compute_lcm", "calculate_lcm", "lowest_common_multiple"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the least common multiple of $a and $b.",
            "Compute the lcm of two numbers.",
            "Find the smallest positive integer that is a multiple of both $a and $b.",
            "Given two integers, return their least common multiple.",
        ),
        body="""
result = $a
while result % $b != 0:
    result += $a
return result
""",
        inputs=_two_positive,
        oracle=math.lcm,
    ),
    Family(
        name="is_even",
        names=("is_even", "iseven", "check_even", "even", "is_even_number", "is_number_even"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is even.",
            "Check whether $n is an even number.",
            "Given an integer, return True if it is even and False otherwise.",
            "This function tests if a number is even.",
            "Determine if $n is divisible by two.",
        ),
        body="return $n % 2 == 0",
        inputs=_signed,
        oracle=lambda n: str(n)[-1] in "02468",
    ),
    Family(
        name="is_odd",
        names=("is_odd", "isodd", "check_odd", "odd", "is_odd_number", "is_number_odd"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is odd.",
            "Check whether $n is an odd number.",
            "Given an integer, return True if it is odd and False otherwise.",
            "This function tests if a number is odd.",
            "Determine if $n is not divisible by two.",
        ),
        body="return $n % 2 != 0",
        inputs=_signed,
        oracle=lambda n: str(n)[-1] in "13579",
    ),
    Family(
        name="sum_digits",
        names=("sum_digits", "sum_of_digits", "digit_sum", "add_digits", "get_digit_sum", "digits_sum"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the digits of $n.",
            "Compute the digit sum of a number.",
            "Add up all digits of $n.",
            "Given a non-negative integer, return the sum of its digits.",
            "This function adds the digits of $n.",
        ),
        body="return sum(int(d) for d in str($n))",
        inputs=_digits,
        oracle=lambda n: sum(n // 10**i % 10 for i in range(10)),
    ),
    Family(
        name="count_digits",
        names=("count_digits", "number_of_digits", "digit_count", "num_digits", "get_digit_count", "how_many_digits"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the number of digits of $n.",
            "Count the digits in a number.",
            "Given a non-negative integer, return how many digits it has.",
            "This function counts the digits of $n.",
        ),
        body="return len(str($n))",
        inputs=_digits,
        oracle=lambda n: next(i for i in range(1, 20) if n < 10**i),
    ),
    Family(
        name="reverse_number",
        names=("reverse_number", "reverse_int", "reverse_integer", "reverse_digits", "get_reversed_number"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return $n with its digits reversed.",
            "Reverse the digits of a number.",
            "Given a non-negative integer, return the integer with the digits in reverse order.",
            "This function reverses the digits of $n.",
        ),
        body="return int(str($n)[::-1])",
        inputs=_digits,
        oracle=lambda n: sum(int(d) * 10**i for i, d in enumerate(str(n))),
    ),
    Family(
        name="get_digits",
        names=("get_digits", "digits", "digits_list", "list_digits", "to_digits", "split_digits", "number_to_digits"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of the digits of $n.",
            "Split a number into its digits.",
            "Given a non-negative integer, return its digits as a list of integers.",
            "This function returns the digits of $n from left to right.",
        ),
        body="return [int(d) for d in str($n)]",
        inputs=_digits,
        oracle=lambda n: [n // 10**i % 10 for i in reversed(range(len(str(n))))],
    ),
    Family(
        name="is_palindrome_number",
        names=(
            "is_palindrome_number",
            "is_palindromic_number",
            "is_number_palindrome",
            "check_palindrome_number",
            "is_numeric_palindrome",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if the number $n is a palindrome.",
            "Check whether an integer reads the same forwards and backwards.",
            "Given an integer $n, return True if its digits form a palindrome.",
            "This function tests if a number is a palindrome.",
        ),
        body="return str($n) == str($n)[::-1]",
        inputs=lambda rng: (rng.choice((0, 7, 10, 11, 121, 1221, 12321, 123, 1231, rng.randint(10, 999))),),
        oracle=lambda n: list(str(n)) == list(reversed(str(n))),
    ),
    Family(
        name="is_armstrong",
        names=("is_armstrong", "is_armstrong_number", "check_armstrong", "armstrong_number", "is_narcissistic"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is an Armstrong number.",
            "Check whether a number is an Armstrong number.",
            "Given $n, return True if it equals the sum of its digits raised to the number of digits.",
            "This function tests if $n is a narcissistic number.",
        ),
        body="""
digits = str($n)
return $n == sum(int(d) ** len(digits) for d in digits)
""",
        inputs=lambda rng: (rng.choice((0, 1, 9, 10, 153, 370, 371, 407, 1634, 100, 123, rng.randint(10, 999))),),
        oracle=lambda n: n in (*range(10), 153, 370, 371, 407, 1634),
    ),
    Family(
        name="is_perfect_number",
        names=("is_perfect_number", "is_perfect", "check_perfect_number", "perfect_number", "is_number_perfect"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a perfect number.",
            "Check whether a number is perfect.",
            "Given a positive integer, return True if it equals the sum of its proper divisors.",
            "This function tests if $n is a perfect number.",
        ),
        body="return sum(i for i in range(1, $n) if $n % i == 0) == $n",
        inputs=lambda rng: (rng.choice((1, 2, 6, 28, 496, 12, 24, rng.randint(1, 60))),),
        oracle=lambda n: n in (6, 28, 496),
    ),
    Family(
        name="is_perfect_square",
        names=("is_perfect_square", "is_square", "check_perfect_square", "perfect_square", "is_square_number"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a perfect square.",
            "Check whether a number is a perfect square.",
            "Given a non-negative integer, return True if it is the square of an integer.",
            "This function tests if $n is a square number.",
        ),
        body="return int($n ** 0.5) ** 2 == $n",
        inputs=lambda rng: (rng.choice((0, 1, 2, 3, 8, 15, rng.randint(2, 20) ** 2, rng.randint(2, 100))),),
        oracle=lambda n: any(i * i == n for i in range(n + 1)),
    ),
    Family(
        name="divisors",
        names=("divisors", "get_divisors", "find_divisors", "list_divisors", "factors", "get_factors", "find_factors"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of all divisors of $n.",
            "Find all positive divisors of a number.",
            "Given a positive integer $n, return all integers that divide it evenly.",
            "This function returns the factors of $n in ascending order.",
        ),
        body="return [i for i in range(1, $n + 1) if $n % i == 0]",
        inputs=_positive,
        oracle=lambda n: sorted({d for i in range(1, n + 1) for d in range(1, n + 1) if d * i == n}),
    ),
    Family(
        name="power",
        names=("power", "pow_number", "exponentiate", "raise_to_power", "compute_power", "calculate_power"),
        params=("base: int", "exponent: int"),
        alternatives=(("x", "n"), ("a", "b"), ("base", "exp"), ("x", "y"), ("number", "power"), ("b", "e")),
        returns="int",
        docs=(
            "Return $base raised to the power of $exponent.",
            "Compute $base to the power $exponent.",
            "Given a base and an exponent, return the power.",
            "This function raises $base to $exponent.",
        ),
        body="return $base ** $exponent",
        inputs=lambda rng: (rng.randint(-3, 7), rng.randint(0, 5)),
        oracle=lambda base, exponent: math.prod([base] * exponent),
    ),
    Family(
        name="square_number",
        names=("square", "square_number", "squared", "get_square", "compute_square", "calculate_square"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the square of $n.",
            "Square a number.",
            "Given a number, return it multiplied by itself.",
            "This function returns $n squared.",
            "Compute the square of a number.",
        ),
        body="return $n ** 2",
        inputs=_signed,
        oracle=lambda n: n * n,
    ),
    Family(
        name="cube",
        names=("cube", "cube_number", "cubed", "get_cube", "compute_cube", "calculate_cube"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the cube of $n.",
            "Cube a number.",
            "Given a number, return its third power.",
            "This function returns $n cubed.",
            "Compute the cube of a number.",
        ),
        body="return $n ** 3",
        inputs=_signed,
        oracle=lambda n: n * n * n,
    ),
    Family(
        name="add",
        names=("add", "add_numbers", "add_two_numbers", "sum_two_numbers", "addition", "sum_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the sum of $a and $b.",
            "Add two numbers.",
            "Given two numbers, return their sum.",
            "This function adds $a and $b.",
            "Compute $a plus $b.",
        ),
        body="return $a + $b",
        inputs=_two,
        oracle=lambda a, b: sum((a, b)),
    ),
    Family(
        name="subtract",
        names=("subtract", "subtract_numbers", "subtract_two_numbers", "minus", "subtraction", "difference_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the difference of $a and $b.",
            "Subtract $b from $a.",
            "Given two numbers, return the first minus the second.",
            "This function subtracts the second number from the first.",
        ),
        body="return $a - $b",
        inputs=_two,
        oracle=lambda a, b: sum((a, -b)),
    ),
    Family(
        name="multiply",
        names=("multiply", "multiply_numbers", "multiply_two_numbers", "mul", "multiplication", "product_of_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the product of $a and $b.",
            "Multiply two numbers.",
            "Given two numbers, return their product.",
            "This function multiplies $a by $b.",
        ),
        body="return $a * $b",
        inputs=_two,
        oracle=lambda a, b: math.prod((a, b)),
    ),
    Family(
        name="divide",
        names=("divide", "divide_numbers", "divide_two_numbers", "division", "quotient"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="float",
        docs=(
            "Return $a divided by $b.",
            "Divide $a by $b.",
            "Given two numbers, return their quotient.",
            "This function divides the first number by the second.",
        ),
        body="return $a / $b",
        inputs=lambda rng: (rng.randint(-40, 40), rng.choice((1, 2, 4, 5, -2, 8, 10))),
        oracle=lambda a, b: float(Fraction(a, b)),
    ),
    Family(
        name="absolute_value",
        names=("absolute_value", "absolute", "abs_value", "my_abs", "get_absolute_value", "compute_absolute_value"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the absolute value of $n.",
            "Compute the absolute value of a number.",
            "Given a number, return it without its sign.",
            "This function returns the magnitude of $n.",
        ),
        body="""
if $n < 0:
    return -$n
return $n
""",
        inputs=_signed,
        oracle=abs,
    ),
    Family(
        name="absolute_difference",
        names=("absolute_difference", "abs_difference", "abs_diff", "distance_between", "get_absolute_difference"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the absolute difference of $a and $b.",
            "Compute the absolute difference between two numbers.",
            "Given two numbers, return the distance between them.",
            "This function returns how far $a is from $b.",
        ),
        body="return abs($a - $b)",
        inputs=_two,
        oracle=lambda a, b: max(a, b) - min(a, b),
    ),
    Family(
        name="max_of_two",
        names=("max_of_two", "maximum_of_two", "larger", "get_larger", "larger_of_two", "bigger_number", "max_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the larger of $a and $b.",
            "Return the maximum of two numbers.",
            "Given two numbers, return the bigger one.",
            "This function finds the larger of two numbers.",
        ),
        body="""
if $a > $b:
    return $a
return $b
""",
        inputs=_two,
        oracle=max,
    ),
    Family(
        name="min_of_two",
        names=("min_of_two", "minimum_of_two", "smaller", "get_smaller", "smaller_of_two", "smaller_number", "min_two"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the smaller of $a and $b.",
            "Return the minimum of two numbers.",
            "Given two numbers, return the smaller one.",
            "This function finds the smaller of two numbers.",
        ),
        body="""
if $a < $b:
    return $a
return $b
""",
        inputs=_two,
        oracle=min,
    ),
    Family(
        name="max_of_three",
        names=("max_of_three", "maximum_of_three", "largest_of_three", "max_three", "find_max_of_three", "max3"),
        params=("a: int", "b: int", "c: int"),
        alternatives=TRIPLES,
        returns="int",
        docs=(
            "Return the largest of $a, $b and $c.",
            "Return the maximum of three numbers.",
            "Given three numbers, return the biggest one.",
            "This function finds the largest of three numbers.",
        ),
        body="return max($a, $b, $c)",
        inputs=_three,
        oracle=lambda a, b, c: sorted((a, b, c))[-1],
    ),
    Family(
        name="average_of_two",
        names=("average_of_two", "mean_of_two", "average_two_numbers", "avg_of_two", "midpoint"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="float",
        docs=(
            "Return the average of $a and $b.",
            "Compute the mean of two numbers.",
            "Given two numbers, return their average.",
            "This function calculates the arithmetic mean of $a and $b.",
        ),
        body="return ($a + $b) / 2",
        inputs=_two,
        oracle=lambda a, b: float(Fraction(a + b, 2)),
    ),
    Family(
        name="sum_to_n",
        names=("sum_to_n", "sum_up_to", "sum_of_n", "sum_n", "sum_first_n", "sum_natural_numbers", "sum_1_to_n"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the integers from 1 to $n.",
            "Compute 1 + 2 + ... + $n.",
            "Sum the first $n natural numbers.",
            "Given $n, return the sum of all numbers from 1 up to $n.",
            "This function adds all integers between 1 and $n.",
        ),
        body="return sum(range(1, $n + 1))",
        inputs=_medium,
        oracle=lambda n: n * (n + 1) // 2,
    ),
    Family(
        name="sum_of_squares",
        names=("sum_of_squares", "sum_squares", "squares_sum", "sum_of_squares_up_to", "sum_of_first_squares"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sum of the squares from 1 to $n.",
            "Compute the sum of the first $n squares.",
            "Given $n, return 1 ** 2 + 2 ** 2 + ... + $n ** 2.",
            "This function adds the squares of the integers from 1 to $n.",
        ),
        body="return sum(i ** 2 for i in range(1, $n + 1))",
        inputs=_medium,
        oracle=lambda n: n * (n + 1) * (2 * n + 1) // 6,
    ),
    Family(
        name="even_numbers_up_to",
        names=("even_numbers_up_to", "evens_up_to", "list_even_numbers", "get_evens_up_to", "even_numbers_to_n"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return a list of the even numbers from 1 to $n.",
            "List all even integers between 1 and $n.",
            "Given $n, return the positive even numbers up to $n.",
            "This function lists the even numbers from 1 up to and including $n.",
        ),
        body="return [i for i in range(1, $n + 1) if i % 2 == 0]",
        inputs=_medium,
        oracle=lambda n: list(range(2, n + 1, 2)),
    ),
    Family(
        name="countdown",
        names=("countdown", "count_down", "countdown_list", "count_down_from", "get_countdown"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return the list of numbers from $n down to 1.",
            "Count down from $n to 1.",
            "Given $n, return a list that counts down to 1.",
            "This function lists the integers from $n to 1 in descending order.",
        ),
        body="return list(range($n, 0, -1))",
        inputs=_small,
        oracle=lambda n: [n - i for i in range(n)],
    ),
    Family(
        name="collatz_steps",
        names=("collatz_steps", "collatz", "count_collatz_steps", "collatz_length", "collatz_count"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the number of Collatz steps from $n to 1.",
            "Count how many steps the Collatz sequence of $n needs to reach 1.",
            "Given a positive integer $n, return the number of Collatz steps until it becomes 1.",
            "This function counts halving and 3n + 1 steps until $n is 1.",
        ),
        body="""
result = 0
while $n != 1:
    if $n % 2 == 0:
        $n //= 2
    else:
        $n = 3 * $n + 1
    result += 1
return result
""",
        inputs=lambda rng: (rng.randint(1, 20),),
        oracle=_collatz_steps,
    ),
    Family(
        name="fizzbuzz",
        names=("fizzbuzz", "fizz_buzz", "fizzbuzz_list", "get_fizzbuzz_list", "play_fizzbuzz", "FizzBuzz"),
        params=("n: int",),
        returns="list[str]",
        docs=(
            "Return the FizzBuzz list for the numbers from 1 to $n.",
            "Play FizzBuzz from 1 to $n and return a list of strings.",
            "Given $n, return a list with Fizz, Buzz, FizzBuzz or the number for each integer up to $n.",
            "This function returns the FizzBuzz sequence up to $n.",
        ),
        body="""
result = []
for i in range(1, $n + 1):
    if i % 15 == 0:
        result.append("FizzBuzz")
    elif i % 3 == 0:
        result.append("Fizz")
    elif i % 5 == 0:
        result.append("Buzz")
    else:
        result.append(str(i))
return result
""",
        inputs=lambda rng: (rng.choice((0, 1, 3, 5, 15, 16, rng.randint(2, 16))),),
        oracle=lambda n: [_fizzbuzz(i) for i in range(1, n + 1)],
    ),
    Family(
        name="fizzbuzz_value",
        names=("fizzbuzz_value", "fizzbuzz_number", "fizz_buzz_value", "get_fizzbuzz", "fizzbuzz_single"),
        params=("n: int",),
        returns="str",
        docs=(
            "Return the FizzBuzz value of the single number $n as a string.",
            "Return Fizz if $n is divisible by 3, Buzz if by 5, FizzBuzz if by both, else $n as a string.",
            "Given one number, return Fizz, Buzz, FizzBuzz or the number as a string.",
            "This function returns the FizzBuzz word for one number.",
        ),
        body="""
if $n % 15 == 0:
    return "FizzBuzz"
if $n % 3 == 0:
    return "Fizz"
if $n % 5 == 0:
    return "Buzz"
return str($n)
""",
        inputs=lambda rng: (rng.choice((3, 5, 15, 30, 1, 7, rng.randint(1, 100), 3 * rng.randint(1, 30))),),
        oracle=_fizzbuzz,
    ),
    Family(
        name="is_leap_year",
        names=("is_leap_year", "leap_year", "is_leap", "check_leap_year", "isleap", "is_year_leap"),
        params=("year: int",),
        alternatives=(("y",), ("n",), ("yr",), ("number",), ("value",), ("input_year",)),
        returns="bool",
        docs=(
            "Return True if $year is a leap year.",
            "Check whether a year is a leap year.",
            "Given a year, return True if it is a leap year and False otherwise.",
            "This function tests if $year is a leap year.",
            "Determine if the year has 366 days.",
        ),
        body="return $year % 4 == 0 and ($year % 100 != 0 or $year % 400 == 0)",
        inputs=lambda rng: (rng.choice((1900, 2000, 2100, 2400, 2024, rng.randint(1800, 2100))),),
        oracle=calendar.isleap,
    ),
    Family(
        name="celsius_to_fahrenheit",
        names=(
            "celsius_to_fahrenheit",
            "c_to_f",
            "convert_celsius_to_fahrenheit",
            "to_fahrenheit",
            "celsius_to_f",
            "celsius2fahrenheit",
        ),
        params=("celsius: float",),
        alternatives=(("c",), ("temp",), ("temperature",), ("degrees",), ("value",), ("x",), ("temp_c",)),
        returns="float",
        docs=(
            "Convert $celsius degrees Celsius to Fahrenheit.",
            "Return the temperature in Fahrenheit for a temperature in Celsius.",
            "Given a temperature in Celsius, return it in Fahrenheit.",
            "This function converts Celsius to Fahrenheit.",
        ),
        body="return $celsius * 9 / 5 + 32",
        inputs=lambda rng: (rng.choice((0, 100, -40, 5 * rng.randint(-10, 30))),),
        oracle=lambda celsius: float(celsius // 5 * 9 + 32),
    ),
    Family(
        name="fahrenheit_to_celsius",
        names=(
            "fahrenheit_to_celsius",
            "f_to_c",
            "convert_fahrenheit_to_celsius",
            "to_celsius",
            "fahrenheit_to_c",
            "fahrenheit2celsius",
        ),
        params=("fahrenheit: float",),
        alternatives=(("f",), ("temp",), ("temperature",), ("degrees",), ("value",), ("x",), ("temp_f",)),
        returns="float",
        docs=(
            "Convert $fahrenheit degrees Fahrenheit to Celsius.",
            "Return the temperature in Celsius for a temperature in Fahrenheit.",
            "Given a temperature in Fahrenheit, return it in Celsius.",
            "This function converts Fahrenheit to Celsius.",
        ),
        body="return ($fahrenheit - 32) * 5 / 9",
        inputs=lambda rng: (rng.choice((32, 212, -40, 9 * rng.randint(-10, 20) + 32)),),
        oracle=lambda f: float((f - 32) // 9 * 5),
    ),
    Family(
        name="decimal_to_binary",
        names=("decimal_to_binary", "to_binary", "int_to_binary", "convert_to_binary", "dec_to_bin"),
        params=("n: int",),
        returns="str",
        docs=(
            "Return the binary representation of $n as a string.",
            "Convert a decimal number to a binary string.",
            "Given a non-negative integer, return its binary digits as a string.",
            "This function converts $n from decimal to binary.",
        ),
        body="return bin($n)[2:]",
        inputs=lambda rng: (rng.choice((0, 1, 2, 8, 255, rng.randint(3, 64), rng.randint(3, 500))),),
        oracle=lambda n: format(n, "b"),
    ),
    Family(
        name="binary_to_decimal",
        names=("binary_to_decimal", "from_binary", "binary_to_int", "convert_binary_to_decimal", "bin_to_dec"),
        params=("binary: str",),
        alternatives=(("s",), ("binary_string",), ("bits",), ("b",), ("text",), ("string",), ("binary_str",)),
        returns="int",
        docs=(
            "Return the integer value of the binary string $binary.",
            "Convert a binary string to a decimal number.",
            "Given a string of binary digits, return its decimal value.",
            "This function converts $binary from binary to decimal.",
        ),
        body="return int($binary, 2)",
        inputs=lambda rng: (rng.choice(("0", "1", "10", "0011", format(rng.randint(2, 200), "b"))),),
        oracle=lambda bits: sum(2**i for i, bit in enumerate(reversed(bits)) if bit == "1"),
    ),
    Family(
        name="is_power_of_two",
        names=("is_power_of_two", "is_power_of_2", "power_of_two", "check_power_of_two", "isPowerOfTwo"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a power of two.",
            "Check whether a number is a power of 2.",
            "Given an integer, return True if it is 1, 2, 4, 8 and so on.",
            "This function tests if $n is a power of two.",
        ),
        body="return $n > 0 and $n & ($n - 1) == 0",
        inputs=lambda rng: (rng.choice((0, 1, 2, -4, 6, 12, 2 ** rng.randint(2, 10), rng.randint(1, 100))),),
        oracle=lambda n: n in [2**i for i in range(12)],
    ),
    Family(
        name="clamp",
        names=("clamp", "clip", "clamp_value", "limit_value", "restrict_to_range", "clip_value"),
        params=("value: int", "low: int", "high: int"),
        alternatives=(
            ("x", "low", "high"),
            ("n", "low", "high"),
            ("x", "lo", "hi"),
            ("value", "minimum", "maximum"),
            ("x", "a", "b"),
            ("value", "min_value", "max_value"),
        ),
        returns="int",
        docs=(
            "Return $value limited to the range from $low to $high.",
            "Clamp $value between $low and $high.",
            "Given a number and two bounds, return the number restricted to the bounds.",
            "This function forces $value to lie between $low and $high.",
        ),
        body="return max($low, min($value, $high))",
        inputs=lambda rng: (rng.randint(-20, 20), rng.randint(-10, 0), rng.randint(1, 10)),
        oracle=lambda value, low, high: sorted((value, low, high))[1],
    ),
    Family(
        name="is_between",
        names=("is_between", "in_range", "is_in_range", "within_range", "is_within", "check_range"),
        params=("value: int", "low: int", "high: int"),
        alternatives=(
            ("x", "low", "high"),
            ("n", "low", "high"),
            ("x", "lo", "hi"),
            ("n", "start", "end"),
            ("x", "a", "b"),
            ("value", "min_value", "max_value"),
        ),
        returns="bool",
        docs=(
            "Return True if $value is between $low and $high, inclusive.",
            "Check whether $value lies in the range from $low to $high.",
            "Given a number and two bounds, return True if the number is within the bounds.",
            "This function tests if $value is at least $low and at most $high.",
        ),
        body="return $low <= $value <= $high",
        inputs=lambda rng: rng.choice(
            ((3, 3, 7), (7, 3, 7), (rng.randint(-9, 9), -3, 4), (rng.randint(-9, 9), 0, rng.randint(1, 9)))
        ),
        oracle=lambda value, low, high: value in range(low, high + 1),
    ),
    Family(
        name="sign",
        names=("sign", "get_sign", "sign_of", "signum", "sgn", "find_sign"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the sign of $n as 1, -1 or 0.",
            "Return 1 if $n is positive, -1 if it is negative and 0 if it is zero.",
            "Given a number, return its sign.",
            "This function computes the signum of $n.",
        ),
        body="""
if $n > 0:
    return 1
if $n < 0:
    return -1
return 0
""",
        inputs=_signed,
        oracle=lambda n: (n > 0) - (n < 0),
    ),
    Family(
        name="is_positive",
        names=("is_positive", "ispositive", "check_positive", "is_positive_number", "is_greater_than_zero"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is positive.",
            "Check whether a number is greater than zero.",
            "Given a number, return True if it is positive and False otherwise.",
            "This function tests if $n is a positive number.",
        ),
        body="return $n > 0",
        inputs=_signed,
        oracle=lambda n: not n <= 0,
    ),
    Family(
        name="is_negative",
        names=("is_negative", "isnegative", "check_negative", "is_negative_number", "is_less_than_zero"),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is negative.",
            "Check whether a number is less than zero.",
            "Given a number, return True if it is negative and False otherwise.",
            "This function tests if $n is a negative number.",
        ),
        body="return $n < 0",
        inputs=_signed,
        oracle=lambda n: not n >= 0,
    ),
    Family(
        name="multiplication_table",
        names=("multiplication_table", "times_table", "get_multiplication_table", "mult_table", "print_times_table"),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return the multiplication table of $n from 1 to 10 as a list.",
            "Return the first ten multiples of $n.",
            "Given a number, return a list of its products with 1 to 10.",
            "This function builds the times table of $n.",
        ),
        body="return [$n * i for i in range(1, 11)]",
        inputs=_small,
        oracle=lambda n: [sum([n] * i) for i in range(1, 11)],
    ),
    Family(
        name="hypotenuse",
        names=("hypotenuse", "get_hypotenuse", "find_hypotenuse", "calculate_hypotenuse", "pythagoras", "pythagorean"),
        params=("a: float", "b: float"),
        alternatives=LEGS,
        returns="float",
        docs=(
            "Return the hypotenuse of a right triangle with legs $a and $b.",
            "Compute the length of the hypotenuse from the two other sides.",
            "Given the legs of a right triangle, return the hypotenuse.",
            "This function applies the Pythagorean theorem to $a and $b.",
        ),
        body="return ($a ** 2 + $b ** 2) ** 0.5",
        inputs=lambda rng: rng.choice(((3, 4), (4, 3), (6, 8), (5, 12), (8, 15), (7, 24), (20, 21), (0, 5), (12, 9))),
        oracle=math.hypot,
    ),
    Family(
        name="circle_area",
        names=("circle_area", "area_of_circle", "calculate_circle_area", "get_circle_area", "area_circle"),
        params=("radius: float",),
        alternatives=(("r",), ("rad",), ("x",), ("n",), ("value",), ("circle_radius",)),
        returns="float",
        docs=(
            "Return the area of a circle with radius $radius.",
            "Compute the area of a circle.",
            "Given the radius of a circle, return its area.",
            "This function calculates the area of a circle from its radius.",
        ),
        body="""
import math
return math.pi * $radius ** 2
""",
        inputs=_small,
        oracle=lambda radius: radius * radius * math.pi,
    ),
    Family(
        name="rectangle_area",
        names=("rectangle_area", "area_of_rectangle", "calculate_rectangle_area", "get_rectangle_area", "rect_area"),
        params=("width: int", "height: int"),
        alternatives=SIDES,
        returns="int",
        docs=(
            "Return the area of a rectangle with sides $width and $height.",
            "Compute the area of a rectangle.",
            "Given the two sides of a rectangle, return its area.",
            "This function calculates the area of a rectangle.",
        ),
        body="return $width * $height",
        inputs=lambda rng: (rng.randint(0, 20), rng.randint(1, 20)),
        oracle=lambda width, height: sum([width] * height),
    ),
    Family(
        name="rectangle_perimeter",
        names=("rectangle_perimeter", "perimeter_of_rectangle", "calculate_perimeter", "get_perimeter", "perimeter"),
        params=("width: int", "height: int"),
        alternatives=SIDES,
        returns="int",
        docs=(
            "Return the perimeter of a rectangle with sides $width and $height.",
            "Compute the perimeter of a rectangle.",
            "Given the two sides of a rectangle, return its perimeter.",
            "This function calculates the perimeter of a rectangle.",
        ),
        body="return 2 * ($width + $height)",
        inputs=lambda rng: (rng.randint(1, 20), rng.randint(1, 20)),
        oracle=lambda width, height: width + height + width + height,
    ),
    Family(
        name="triangle_area",
        names=("triangle_area", "area_of_triangle", "calculate_triangle_area", "get_triangle_area", "area_triangle"),
        params=("base: float", "height: float"),
        alternatives=(("b", "h"), ("a", "b"), ("width", "height"), ("base_length", "height"), ("x", "y"), ("a", "h")),
        returns="float",
        docs=(
            "Return the area of a triangle with base $base and height $height.",
            "Compute the area of a triangle from its base and height.",
            "Given the base and the height of a triangle, return its area.",
            "This function calculates the area of a triangle.",
        ),
        body="return $base * $height / 2",
        inputs=lambda rng: (rng.randint(1, 20), rng.randint(1, 20)),
        oracle=lambda base, height: float(Fraction(base * height, 2)),
    ),
    Family(
        name="is_multiple_of_constant",
        names=(
            "is_multiple_of_$k",
            "is_divisible_by_$k",
            "divisible_by_$k",
            "multiple_of_$k",
            "check_divisible_by_$k",
        ),
        params=("n: int",),
        constants={"k": (3, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
        returns="bool",
        docs=(
            "Return True if $n is a multiple of $k.",
            "Check whether $n is divisible by $k.",
            "Given a number, return True if $k divides it evenly.",
            "This function tests if $n is divisible by $k.",
        ),
        body="return $n % $k == 0",
        inputs=lambda rng: (rng.choice((0, 12, 30, 60, 77, 72, rng.randint(1, 40), rng.randint(-20, 100))),),
        oracle=lambda n, k: abs(n) in range(0, abs(n) + 1, k),
    ),
    Family(
        name="is_divisible",
        names=("is_divisible", "is_divisible_by", "is_multiple", "check_divisible", "is_multiple_of", "divides_evenly"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="bool",
        docs=(
            "Return True if $a is divisible by $b.",
            "Check whether $a is a multiple of $b.",
            "Given two integers, return True if the second divides the first evenly.",
            "This function tests if $a divided by $b leaves no remainder.",
        ),
        body="return $a % $b == 0",
        inputs=lambda rng: rng.choice(((12, 4), (4, 12), (0, 3), (rng.randint(1, 40), rng.randint(1, 6)), (15, 5))),
        oracle=lambda a, b: a // b * b == a,
    ),
    Family(
        name="add_constant",
        names=("add_$k", "plus_$k", "increase_by_$k", "add_${k}_to_number"),
        params=("n: int",),
        constants={"k": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100)},
        returns="int",
        docs=(
            "Return $n plus $k.",
            "Add $k to a number.",
            "Given a number, return it increased by $k.",
            "This function adds $k to $n.",
        ),
        body="return $n + $k",
        inputs=_signed,
        oracle=lambda n, k: sum((k, n)),
    ),
    Family(
        name="multiply_by_constant",
        names=("multiply_by_$k", "mul_by_$k", "multiply_number_by_$k", "multiplied_by_$k"),
        params=("n: int",),
        constants={"k": (2, 3, 4, 5, 6, 7, 8, 9, 10, 100)},
        returns="int",
        docs=(
            "Return $n times $k.",
            "Multiply a number by $k.",
            "Given a number, return it multiplied by $k.",
            "This function multiplies $n by $k.",
        ),
        body="return $n * $k",
        inputs=_signed,
        oracle=lambda n, k: sum([n] * k),
    ),
    Family(
        name="double",
        names=("double", "double_number", "double_value", "get_double", "twice", "doubled"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return twice the value of $n.",
            "Double a number.",
            "Given a number, return its double.",
            "This function doubles $n.",
        ),
        body="return $n * 2",
        inputs=_signed,
        oracle=lambda n: n + n,
    ),
    Family(
        name="integer_sqrt",
        names=("integer_sqrt", "int_sqrt", "isqrt", "integer_square_root", "floor_sqrt", "my_sqrt"),
        params=("n: int",),
        returns="int",
        docs=(
            "Return the integer square root of $n.",
            "Compute the square root of $n rounded down.",
            "Given a non-negative integer, return the largest integer whose square is at most $n.",
            "This function returns the floor of the square root of $n.",
        ),
        body="return int($n ** 0.5)",
        inputs=lambda rng: (rng.choice((0, 1, 3, 8, 15, rng.randint(2, 20) ** 2, rng.randint(2, 200))),),
        oracle=math.isqrt,
    ),
    Family(
        name="swap",
        names=("swap", "swap_values", "swap_numbers", "swap_two", "swap_two_numbers", "exchange"),
        params=("a: int", "b: int"),
        alternatives=PAIRS,
        returns="tuple[int, int]",
        docs=(
            "Return $b and $a in swapped order.",
            "Swap two values.",
            "Given two values, return them in the opposite order.",
            "This function swaps $a and $b.",
        ),
        body="return $b, $a",
        inputs=_two,
        oracle=lambda a, b: tuple(reversed((a, b))),
    ),
    Family(
        name="grade",
        names=("grade", "get_grade", "letter_grade", "calculate_grade", "score_to_grade", "assign_grade"),
        params=("score: int",),
        alternatives=(("points",), ("marks",), ("mark",), ("n",), ("x",), ("value",), ("percentage",)),
        returns="str",
        docs=(
            "Return the letter grade for $score.",
            "Convert a score from 0 to 100 to a letter grade from A to F.",
            "Given a score, return A from 90, B from 80, C from 70, D from 60 and F below.",
            "This function maps a score to a letter grade.",
        ),
        body="""
if $score >= 90:
    return "A"
if $score >= 80:
    return "B"
if $score >= 70:
    return "C"
if $score >= 60:
    return "D"
return "F"
""",
        inputs=lambda rng: (rng.choice((0, 59, 60, 70, 79, 80, 89, 90, 100, rng.randint(0, 100))),),
        oracle=lambda score: "FFFFFFDCBAA"[score // 10],
    ),
    Family(
        name="triangle_type",
        names=("triangle_type", "classify_triangle", "type_of_triangle", "get_triangle_type", "triangle_kind"),
        params=("a: int", "b: int", "c: int"),
        alternatives=(*TRIPLES, ("side1", "side2", "side3")),
        returns="str",
        docs=(
            "Return whether the triangle with sides $a, $b and $c is equilateral, isosceles or scalene.",
            "Classify a triangle by its three sides.",
            "Given three sides, return equilateral, isosceles or scalene.",
            "This function returns the type of the triangle with the given sides.",
        ),
        body="""
if $a == $b == $c:
    return "equilateral"
if $a == $b or $b == $c or $a == $c:
    return "isosceles"
return "scalene"
""",
        inputs=_triangle,
        oracle=lambda a, b, c: ("", "equilateral", "isosceles", "scalene")[len({a, b, c})],
    ),
)
