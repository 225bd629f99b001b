"""Families that apply a rule to a number: FizzBuzz, leap years, conversions, ranges and signs."""

import calendar

from builtin_model.families.number_inputs import draw_signed, draw_small
from builtin_model.tasks import Family


def _collatz_steps(n: int) -> int:
    return 0 if n == 1 else 1 + _collatz_steps(3 * n + 1 if n % 2 else n // 2)


def _fizzbuzz(n: int) -> str:
    return "Fizz" * (n % 3 == 0) + "Buzz" * (n % 5 == 0) or str(n)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="collatz_steps",
        names=(
            "collatz_steps",
            "collatz",
            "count_collatz_steps",
            "collatz_length",
            "collatz_count",
        ),
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
        names=(
            "fizzbuzz",
            "fizz_buzz",
            "fizzbuzz_list",
            "get_fizzbuzz_list",
            "play_fizzbuzz",
            "FizzBuzz",
        ),
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
        names=(
            "fizzbuzz_value",
            "fizzbuzz_number",
            "fizz_buzz_value",
            "get_fizzbuzz",
            "fizzbuzz_single",
        ),
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
        inputs=lambda rng: (
            rng.choice((3, 5, 15, 30, 1, 7, rng.randint(1, 100), 3 * rng.randint(1, 30))),
        ),
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
        alternatives=(
            ("c",),
            ("temp",),
            ("temperature",),
            ("degrees",),
            ("value",),
            ("x",),
            ("temp_c",),
        ),
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
        alternatives=(
            ("f",),
            ("temp",),
            ("temperature",),
            ("degrees",),
            ("value",),
            ("x",),
            ("temp_f",),
        ),
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
        names=(
            "decimal_to_binary",
            "to_binary",
            "int_to_binary",
            "convert_to_binary",
            "dec_to_bin",
        ),
        params=("n: int",),
        returns="str",
        docs=(
            "Return the binary representation of $n as a string.",
            "Convert a decimal number to a binary string.",
            "Given a non-negative integer, return its binary digits as a string.",
            "This function converts $n from decimal to binary.",
        ),
        body="return bin($n)[2:]",
        inputs=lambda rng: (
            rng.choice((0, 1, 2, 8, 255, rng.randint(3, 64), rng.randint(3, 500))),
        ),
        oracle=lambda n: format(n, "b"),
    ),
    Family(
        name="binary_to_decimal",
        names=(
            "binary_to_decimal",
            "from_binary",
            "binary_to_int",
            "convert_binary_to_decimal",
            "bin_to_dec",
        ),
        params=("binary: str",),
        alternatives=(
            ("s",),
            ("binary_string",),
            ("bits",),
            ("b",),
            ("text",),
            ("string",),
            ("binary_str",),
        ),
        returns="int",
        docs=(
            "Return the integer value of the binary string $binary.",
            "Convert a binary string to a decimal number.",
            "Given a string of binary digits, return its decimal value.",
            "This function converts $binary from binary to decimal.",
        ),
        body="return int($binary, 2)",
        inputs=lambda rng: (
            rng.choice(("0", "1", "10", "0011", format(rng.randint(2, 200), "b"))),
        ),
        oracle=lambda bits: sum(2**i for i, bit in enumerate(reversed(bits)) if bit == "1"),
    ),
    Family(
        name="is_power_of_two",
        names=(
            "is_power_of_two",
            "is_power_of_2",
            "power_of_two",
            "check_power_of_two",
            "isPowerOfTwo",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is a power of two.",
            "Check whether a number is a power of 2.",
            "Given an integer, return True if it is 1, 2, 4, 8 and so on.",
            "This function tests if $n is a power of two.",
        ),
        body="return $n > 0 and $n & ($n - 1) == 0",
        inputs=lambda rng: (
            rng.choice((0, 1, 2, -4, 6, 12, 2 ** rng.randint(2, 10), rng.randint(1, 100))),
        ),
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
            (
                (3, 3, 7),
                (7, 3, 7),
                (rng.randint(-9, 9), -3, 4),
                (rng.randint(-9, 9), 0, rng.randint(1, 9)),
            )
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
        inputs=draw_signed,
        oracle=lambda n: (n > 0) - (n < 0),
    ),
    Family(
        name="is_positive",
        names=(
            "is_positive",
            "ispositive",
            "check_positive",
            "is_positive_number",
            "is_greater_than_zero",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is positive.",
            "Check whether a number is greater than zero.",
            "Given a number, return True if it is positive and False otherwise.",
            "This function tests if $n is a positive number.",
        ),
        body="return $n > 0",
        inputs=draw_signed,
        oracle=lambda n: not n <= 0,
    ),
    Family(
        name="is_negative",
        names=(
            "is_negative",
            "isnegative",
            "check_negative",
            "is_negative_number",
            "is_less_than_zero",
        ),
        params=("n: int",),
        returns="bool",
        docs=(
            "Return True if $n is negative.",
            "Check whether a number is less than zero.",
            "Given a number, return True if it is negative and False otherwise.",
            "This function tests if $n is a negative number.",
        ),
        body="return $n < 0",
        inputs=draw_signed,
        oracle=lambda n: not n >= 0,
    ),
    Family(
        name="multiplication_table",
        names=(
            "multiplication_table",
            "times_table",
            "get_multiplication_table",
            "mult_table",
            "print_times_table",
        ),
        params=("n: int",),
        returns="list[int]",
        docs=(
            "Return the multiplication table of $n from 1 to 10 as a list.",
            "Return the first ten multiples of $n.",
            "Given a number, return a list of its products with 1 to 10.",
            "This function builds the times table of $n.",
        ),
        body="return [$n * i for i in range(1, 11)]",
        inputs=draw_small,
        oracle=lambda n: [sum([n] * i) for i in range(1, 11)],
    ),
)
