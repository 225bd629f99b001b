"""Families on factorials, Fibonacci numbers, primes and common divisors."""

import math
import random

from builtin_model.families.number_inputs import PAIRS, draw_medium, draw_positive, draw_small
from builtin_model.tasks import Family


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


FAMILIES: tuple[Family, ...] = (
    Family(
        name="factorial",
        names=(
            "factorial",
            "fact",
            "compute_factorial",
            "get_factorial",
            "calculate_factorial",
            "factorial_of",
        ),
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
        inputs=draw_small,
        oracle=math.factorial,
    ),
    Family(
        name="factorial_recursive",
        names=(
            "factorial_recursive",
            "recursive_factorial",
            "fact_recursive",
            "factorial_rec",
            "fact_rec",
        ),
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
        inputs=draw_small,
        oracle=math.factorial,
    ),
    Family(
        name="fibonacci",
        names=(
            "fibonacci",
            "fib",
            "nth_fibonacci",
            "fibonacci_number",
            "get_fibonacci",
            "compute_fibonacci",
        ),
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
        inputs=draw_medium,
        oracle=_fibonacci,
    ),
    Family(
        name="fibonacci_recursive",
        names=(
            "fibonacci_recursive",
            "recursive_fibonacci",
            "fib_recursive",
            "fib_rec",
            "recursive_fib",
        ),
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
        inputs=draw_medium,
        oracle=lambda n: [i for i in range(n + 1) if _is_prime(i)],
    ),
    Family(
        name="prime_factors",
        names=(
            "prime_factors",
            "get_prime_factors",
            "find_prime_factors",
            "prime_factorization",
            "factorize",
        ),
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
        inputs=draw_positive,
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
        names=(
            "lcm",
            "least_common_multiple",
            "find_lcm",
            "compute_lcm",
            "calculate_lcm",
            "lowest_common_multiple",
        ),
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
)
