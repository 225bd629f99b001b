"""Families that encode, compare, cut, pad and recase strings."""

import itertools
import os
import random
import re
import string

from builtin_model.families.text_inputs import PAIRS, WORDS, draw_phrase
from builtin_model.tasks import Family

CONTAINED = (
    ("s", "sub"),
    ("text", "sub"),
    ("string", "substring"),
    ("s", "t"),
    ("text", "word"),
    ("text", "pattern"),
)
TIMES = (
    ("s", "n"),
    ("text", "times"),
    ("string", "n"),
    ("s", "k"),
    ("s", "times"),
    ("word", "n"),
    ("text", "count"),
)
LENGTHS = (
    ("text", "n"),
    ("s", "n"),
    ("s", "length"),
    ("string", "length"),
    ("text", "max_length"),
    ("s", "k"),
)
WIDTHS = (
    ("s", "width"),
    ("text", "n"),
    ("s", "n"),
    ("string", "width"),
    ("text", "length"),
    ("s", "length"),
)
SHIFTS = (
    ("s", "shift"),
    ("text", "key"),
    ("message", "shift"),
    ("text", "k"),
    ("s", "k"),
    ("plaintext", "shift"),
)


def _equal_length(rng: random.Random) -> tuple[str, str]:
    size = rng.randint(0, 6)
    return (
        "".join(rng.choice("ab") for _ in range(size)),
        "".join(rng.choice("ab") for _ in range(size)),
    )


def _caesar(text: str, shift: int) -> str:
    upper, lower = string.ascii_uppercase, string.ascii_lowercase
    shift %= 26
    return text.translate(
        str.maketrans(upper + lower, upper[shift:] + upper[:shift] + lower[shift:] + lower[:shift])
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="caesar_cipher",
        names=(
            "caesar_cipher",
            "caesar",
            "caesar_encrypt",
            "encrypt_caesar",
            "caesar_shift",
            "shift_cipher",
        ),
        params=("text: str", "shift: int"),
        alternatives=SHIFTS,
        returns="str",
        docs=(
            "Return $text encrypted with a Caesar cipher of the given $shift.",
            "Shift every letter of $text by $shift places in the alphabet.",
            "Given a text and a shift, apply the Caesar cipher and leave other characters unchanged.",
            "This function encrypts a message with the Caesar cipher.",
        ),
        body="""
result = ""
for c in $text:
    if c.isalpha():
        base = ord("A") if c.isupper() else ord("a")
        c = chr((ord(c) - base + $shift) % 26 + base)
    result += c
return result
""",
        inputs=lambda rng: (
            rng.choice(("", "abc xyz", "Hello, World!", draw_phrase(rng))),
            rng.choice((0, 1, 3, 13, 25, -1, 29)),
        ),
        oracle=_caesar,
    ),
    Family(
        name="run_length_encode",
        names=(
            "run_length_encode",
            "run_length_encoding",
            "rle",
            "rle_encode",
            "compress_string",
            "string_compression",
            "compress",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the run-length encoding of $text.",
            "Compress a string by replacing each run with the character and its count.",
            "Given a string such as aaab, return its run-length encoding a3b1.",
            "This function encodes $text with run-length encoding.",
        ),
        body="""
result = ""
i = 0
for j in range(1, len($text) + 1):
    if j == len($text) or $text[j] != $text[i]:
        result += $text[i] + str(j - i)
        i = j
return result
""",
        inputs=lambda rng: (
            rng.choice(
                ("", "a", "aab", "".join(c * rng.randint(1, 4) for c in "abca"), "bookkeeper")
            ),
        ),
        oracle=lambda text: "".join(c + str(len(list(run))) for c, run in itertools.groupby(text)),
    ),
    Family(
        name="hamming_distance",
        names=(
            "hamming_distance",
            "hamming",
            "hamming_dist",
            "compute_hamming_distance",
            "count_differences",
        ),
        params=("a: str", "b: str"),
        alternatives=PAIRS,
        returns="int",
        docs=(
            "Return the Hamming distance between $a and $b.",
            "Count the positions at which two strings differ.",
            "Given two strings of equal length, return the number of different characters.",
            "This function computes the Hamming distance of two strings.",
        ),
        body="return sum(1 for i in range(len($a)) if $a[i] != $b[i])",
        inputs=_equal_length,
        oracle=lambda a, b: len([1 for x, y in zip(a, b, strict=True) if x != y]),
    ),
    Family(
        name="common_prefix",
        names=(
            "longest_common_prefix",
            "common_prefix",
            "find_common_prefix",
            "find_longest_common_prefix",
            "get_common_prefix",
        ),
        params=("words: list[str]",),
        returns="str",
        docs=(
            "Return the longest common prefix of $words.",
            "Find the longest prefix shared by all strings in a list.",
            "Given a list of strings, return their longest common prefix.",
            "This function returns the beginning that all of $words have in common.",
        ),
        body="""
result = ""
for chars in zip(*$words):
    if len(set(chars)) > 1:
        break
    result += chars[0]
return result
""",
        inputs=lambda rng: (
            rng.choice(
                (
                    [],
                    ["flower", "flow", "flight"],
                    ["dog", "car"],
                    ["same"],
                    ["abxc", "abyc"],
                    [
                        rng.choice(("inter", "in", "int")) + rng.choice(("view", "net", ""))
                        for _ in range(3)
                    ],
                )
            ),
        ),
        oracle=lambda words: os.path.commonprefix(words) or "",  # noqa: RUF071 - letters are what it should compare
    ),
    Family(
        name="contains_substring",
        names=(
            "contains_substring",
            "is_substring",
            "has_substring",
            "contains_text",
            "check_substring",
        ),
        params=("text: str", "substring: str"),
        alternatives=CONTAINED,
        returns="bool",
        docs=(
            "Return True if $text contains $substring.",
            "Check whether $substring occurs in $text.",
            "Given two strings, return True if the second is part of the first.",
            "This function tests if $substring is a substring of $text.",
        ),
        body="return $substring in $text",
        inputs=lambda rng: (
            rng.choice(("hello world", "banana", draw_phrase(rng))),
            rng.choice(("", "an", "lo w", "xyz", "e")),
        ),
        oracle=lambda text, substring: text.find(substring) >= 0,
    ),
    Family(
        name="repeat_string",
        names=(
            "repeat_string",
            "repeat_text",
            "repeat_str",
            "string_times",
            "multiply_string",
            "repeat",
        ),
        params=("text: str", "n: int"),
        alternatives=TIMES,
        returns="str",
        docs=(
            "Return $text repeated $n times.",
            "Repeat a string $n times.",
            "Given a string and a number, return the string repeated that many times.",
            "This function concatenates $n copies of $text.",
        ),
        body="return $text * $n",
        inputs=lambda rng: (rng.choice(("", "ab", "x", rng.choice(WORDS))), rng.randint(0, 4)),
        oracle=lambda text, n: "".join([text] * n),
    ),
    Family(
        name="repeat_constant_times",
        names=(
            "repeat_${k}_times",
            "repeat_string_${k}_times",
            "repeat_text_${k}_times",
            "say_${k}_times",
        ),
        params=("text: str",),
        constants={"k": (3, 2, 4, 5, 6, 7, 8, 10)},
        returns="str",
        docs=(
            "Return $text repeated $k times.",
            "Repeat a string $k times.",
            "Given a string, return $k copies of it joined together.",
            "This function concatenates $text with itself so that it appears $k times.",
        ),
        body="return $text * $k",
        inputs=lambda rng: (rng.choice(("", "ab", "x", "Ha", rng.choice(WORDS))),),
        oracle=lambda text, k: "".join([text] * k),
    ),
    Family(
        name="truncate",
        names=(
            "truncate",
            "truncate_string",
            "truncate_text",
            "shorten",
            "shorten_text",
            "cut_text",
        ),
        params=("text: str", "length: int"),
        alternatives=LENGTHS,
        returns="str",
        docs=(
            "Return $text cut to at most $length characters.",
            "Truncate a string to a maximum length.",
            "Given a string and a length, return the string shortened to that length.",
            "This function keeps only the first $length characters of $text.",
        ),
        body="return $text[:$length]",
        inputs=lambda rng: (rng.choice(("", "hello", draw_phrase(rng))), rng.randint(0, 8)),
        oracle=lambda text, length: "".join(itertools.islice(text, length)),
    ),
    Family(
        name="truncate_to_constant",
        names=(
            "first_${k}_chars",
            "truncate_to_$k",
            "first_${k}_characters",
            "get_first_${k}_chars",
        ),
        params=("text: str",),
        constants={"k": (3, 2, 4, 5, 6, 7, 8, 10)},
        returns="str",
        docs=(
            "Return the first $k characters of $text.",
            "Truncate a string to $k characters.",
            "Given a string, return at most its first $k letters.",
            "This function cuts $text after $k characters.",
        ),
        body="return $text[:$k]",
        inputs=lambda rng: (
            rng.choice(("", "ab", "abcdefghijkl", draw_phrase(rng), draw_phrase(rng))),
        ),
        oracle=lambda text, k: "".join(itertools.islice(text, k)),
    ),
    Family(
        name="pad_left",
        names=("pad_left", "left_pad", "pad_string", "leftpad", "right_align", "pad_with_spaces"),
        params=("text: str", "width: int"),
        alternatives=WIDTHS,
        returns="str",
        docs=(
            "Return $text padded with spaces on the left to $width characters.",
            "Pad a string on the left with spaces.",
            "Given a string and a width, return the string aligned to the right.",
            "This function adds spaces before $text until it is $width characters long.",
        ),
        body="return $text.rjust($width)",
        inputs=lambda rng: (rng.choice(("", "ab", "hello", rng.choice(WORDS))), rng.randint(0, 9)),
        oracle=lambda text, width: f"{text:>{width}}" if width else text,
    ),
    Family(
        name="is_digits",
        names=(
            "is_digits",
            "is_numeric",
            "all_digits",
            "only_digits",
            "is_all_digits",
            "contains_only_digits",
        ),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text consists only of digits.",
            "Check whether a string contains only digits.",
            "Given a string, return True if it is not empty and every character is a digit.",
            "This function tests if $text is numeric.",
        ),
        body="return $text.isdigit()",
        inputs=lambda rng: (
            rng.choice(
                ("", "0", "007", "12a", "-5", "3.5", " 1", "abc", str(rng.randint(10, 9999)))
            ),
        ),
        oracle=lambda text: bool(re.fullmatch("[0-9]+", text)),
    ),
    Family(
        name="camel_to_snake",
        names=(
            "camel_to_snake",
            "to_snake_case",
            "snake_case",
            "camel_case_to_snake_case",
            "convert_to_snake_case",
        ),
        params=("text: str",),
        alternatives=(
            ("name",),
            ("s",),
            ("string",),
            ("camel",),
            ("word",),
            ("identifier",),
            ("txt",),
        ),
        returns="str",
        docs=(
            "Convert $text from camel case to snake case.",
            "Return the snake_case form of a camelCase name.",
            "Given a camelCase string, return it in snake_case.",
            "This function puts an underscore before each capital letter of $text and makes it lowercase.",
        ),
        body="""
result = ""
for c in $text:
    if c.isupper() and result:
        result += "_"
    result += c.lower()
return result
""",
        inputs=lambda rng: (
            rng.choice(
                ("", "name", "camelCase", "MyClass", "getUserName", "aB", "parseJsonFile", "someX")
            ),
        ),
        oracle=lambda text: re.sub("(?<!^)(?=[A-Z])", "_", text).lower(),
    ),
    Family(
        name="snake_to_camel",
        names=(
            "snake_to_camel",
            "to_camel_case",
            "camel_case",
            "snake_case_to_camel_case",
            "convert_to_camel_case",
        ),
        params=("text: str",),
        alternatives=(("name",), ("s",), ("string",), ("snake",), ("identifier",), ("txt",)),
        returns="str",
        docs=(
            "Convert $text from snake case to camel case.",
            "Return the camelCase form of a snake_case name.",
            "Given a snake_case string, return it in camelCase.",
            "This function removes the underscores of $text and capitalizes the words after the first.",
        ),
        body="""
words = $text.split("_")
return words[0] + "".join(word.capitalize() for word in words[1:])
""",
        inputs=lambda rng: (
            rng.choice(
                ("", "name", "snake_case", "my_class", "get_user_name", "a_b", "some_long_name")
            ),
        ),
        oracle=lambda text: re.sub("_([a-z])", lambda match: match.group(1).upper(), text),
    ),
)
