"""Families on strings: greetings, vowels, counts of words and characters, letter case."""

import collections
import re
import string

from builtin_model.families.text_inputs import (
    WORDS,
    draw_letters,
    draw_mixed,
    draw_phrase,
    draw_text,
    draw_word,
)
from builtin_model.tasks import Family

CHARACTERS = (
    ("s", "c"),
    ("s", "char"),
    ("text", "ch"),
    ("string", "char"),
    ("word", "letter"),
    ("s", "ch"),
)
LETTERS = (("c",), ("ch",), ("letter",), ("character",), ("x",), ("s",))


def count_each(items) -> dict:
    """Count how often each item occurs."""
    return dict(collections.Counter(items))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="hello_world",
        names=(
            "hello_world",
            "helloworld",
            "get_hello_world",
            "say_hello_world",
            "return_hello_world",
        ),
        returns="str",
        docs=(
            "Return the string Hello, World! as a greeting.",
            "Return a greeting to the world.",
            "This function returns the text Hello, World! and takes no arguments.",
            "Say hello to the world.",
        ),
        body='return "Hello, World!"',
        inputs=lambda rng: (),
        oracle=lambda: ", ".join(("Hello", "World!")),
    ),
    Family(
        name="greet",
        names=(
            "greet",
            "hello",
            "say_hello",
            "greeting",
            "greet_user",
            "get_greeting",
            "greet_person",
        ),
        params=("name: str",),
        alternatives=(("person",), ("user",), ("username",), ("who",), ("n",), ("first_name",)),
        returns="str",
        docs=(
            "Return a greeting for $name.",
            "Greet a person by name.",
            "Given a name, return Hello, followed by the name and an exclamation mark.",
            "This function says hello to $name.",
        ),
        body='return f"Hello, {$name}!"',
        inputs=lambda rng: (rng.choice(("Alice", "Bob", "World", "Eve", "Ada", "")),),
        oracle=lambda name: "Hello, " + name + "!",
    ),
    Family(
        name="reverse_string",
        names=(
            "reverse_string",
            "reverse_str",
            "reverse_text",
            "string_reverse",
            "get_reversed_string",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text reversed.",
            "Reverse a string.",
            "Given a string, return it with the characters in reverse order.",
            "This function returns $text backwards.",
            "Return the characters of $text from last to first.",
        ),
        body="return $text[::-1]",
        inputs=draw_text,
        oracle=lambda text: "".join(reversed(text)),
    ),
    Family(
        name="is_palindrome",
        names=(
            "is_palindrome",
            "ispalindrome",
            "palindrome",
            "check_palindrome",
            "is_palindrome_string",
        ),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text is a palindrome.",
            "Check whether a string is a palindrome.",
            "Given a string, return True if it reads the same forwards and backwards.",
            "This function tests if $text is equal to its reverse.",
            "Check if $text is a palindrome.",
        ),
        body="return $text == $text[::-1]",
        inputs=lambda rng: (
            rng.choice(("", "a", "noon", "level", "abca", "ab", "racecar", rng.choice(WORDS))),
        ),
        oracle=lambda text: all(text[i] == text[-1 - i] for i in range(len(text))),
    ),
    Family(
        name="count_vowels",
        names=(
            "count_vowels",
            "vowel_count",
            "number_of_vowels",
            "countvowels",
            "num_vowels",
            "get_vowel_count",
        ),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of vowels in $text.",
            "Count the vowels in a string.",
            "Given a string, return how many vowels it contains.",
            "This function counts the letters a, e, i, o and u in $text.",
            "Count vowels in $text, ignoring case.",
        ),
        body='return sum(1 for c in $text if c in "aeiouAEIOU")',
        inputs=draw_text,
        oracle=lambda text: len(re.findall("[aeiou]", text.lower())),
    ),
    Family(
        name="count_consonants",
        names=(
            "count_consonants",
            "consonant_count",
            "number_of_consonants",
            "num_consonants",
            "get_consonant_count",
        ),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of consonants in $text.",
            "Count the consonants in a string.",
            "Given a string, return how many consonants it contains.",
            "This function counts the letters of $text that are not vowels.",
        ),
        body='return sum(1 for c in $text if c.isalpha() and c not in "aeiouAEIOU")',
        inputs=draw_mixed,
        oracle=lambda text: len(re.findall("[bcdfghjklmnpqrstvwxyz]", text.lower())),
    ),
    Family(
        name="remove_vowels",
        names=(
            "remove_vowels",
            "strip_vowels",
            "delete_vowels",
            "without_vowels",
            "drop_vowels",
            "disemvowel",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without its vowels.",
            "Remove all vowels from a string.",
            "Given a string, return it with every vowel deleted.",
            "This function removes the vowels from $text.",
        ),
        body='return "".join(c for c in $text if c not in "aeiouAEIOU")',
        inputs=draw_text,
        oracle=lambda text: re.sub("(?i)[aeiou]", "", text),
    ),
    Family(
        name="is_vowel",
        names=("is_vowel", "isvowel", "check_vowel", "vowel", "is_letter_vowel", "is_a_vowel"),
        params=("char: str",),
        alternatives=LETTERS,
        returns="bool",
        docs=(
            "Return True if $char is a vowel.",
            "Check whether a character is a vowel.",
            "Given a letter, return True if it is one of a, e, i, o, u.",
            "This function tests if $char is a vowel.",
        ),
        body='return $char in "aeiouAEIOU"',
        inputs=lambda rng: (rng.choice(string.ascii_letters + "aeiouAEIOU" * 4),),
        oracle=lambda char: char.lower() in set("aeiou"),
    ),
    Family(
        name="starts_with_vowel",
        names=(
            "starts_with_vowel",
            "begins_with_vowel",
            "first_letter_is_vowel",
            "check_starts_with_vowel",
        ),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text starts with a vowel.",
            "Check whether the first letter of a string is a vowel.",
            "Given a word, return True if it begins with a vowel.",
            "This function tests if $text begins with a, e, i, o or u.",
        ),
        body='return $text != "" and $text[0] in "aeiouAEIOU"',
        inputs=draw_word,
        oracle=lambda text: bool(re.match("(?i)[aeiou]", text)),
    ),
    Family(
        name="count_words",
        names=(
            "count_words",
            "number_of_words",
            "word_counter",
            "num_words",
            "countwords",
            "get_word_count",
        ),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of words in $text.",
            "Count the words in a string.",
            "Given a sentence, return how many words it contains.",
            "This function counts the words of $text.",
        ),
        body="return len($text.split())",
        inputs=lambda rng: (
            rng.choice(("", "one", " two  words ", draw_phrase(rng), draw_phrase(rng))),
        ),
        oracle=lambda text: len(re.findall(r"\S+", text)),
    ),
    Family(
        name="count_lines",
        names=("count_lines", "number_of_lines", "line_count", "num_lines", "get_line_count"),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of lines in $text.",
            "Count the lines of a text.",
            "Given a text, return how many lines it has.",
            "This function counts the lines in a string.",
        ),
        body="return len($text.splitlines())",
        inputs=lambda rng: (
            rng.choice(("", "one", "\n".join(WORDS[: rng.randint(2, 5)]), "a\n\nb", "a b\nc")),
        ),
        oracle=lambda text: text.count("\n") + 1 if text else 0,
    ),
    Family(
        name="word_frequencies",
        names=(
            "word_frequencies",
            "word_count",
            "word_frequency",
            "word_counts",
            "count_word_frequency",
            "get_word_frequencies",
            "count_each_word",
        ),
        params=("text: str",),
        returns="dict[str, int]",
        docs=(
            "Return a dictionary with the number of occurrences of each word in $text.",
            "Count how often each word appears in a string.",
            "Given a text, return a dict that maps each word to its frequency.",
            "This function computes the word frequencies of $text.",
        ),
        body="""
result = {}
for word in $text.split():
    result[word] = result.get(word, 0) + 1
return result
""",
        inputs=lambda rng: (
            rng.choice(
                (
                    "",
                    "a b a",
                    " ".join(rng.choices(("to", "be", "or", "not"), k=5)),
                    draw_phrase(rng),
                )
            ),
        ),
        oracle=lambda text: count_each(text.split()),
    ),
    Family(
        name="char_frequencies",
        names=(
            "char_frequency",
            "char_frequencies",
            "character_frequency",
            "letter_frequency",
            "count_characters",
            "count_letters",
            "get_char_counts",
        ),
        params=("text: str",),
        returns="dict[str, int]",
        docs=(
            "Return a dictionary with the number of occurrences of each character in $text.",
            "Count how often each character appears in a string.",
            "Given a string, return a dict that maps each character to its frequency.",
            "This function computes the character frequencies of $text.",
        ),
        body="""
result = {}
for c in $text:
    result[c] = result.get(c, 0) + 1
return result
""",
        inputs=draw_word,
        oracle=count_each,
    ),
    Family(
        name="count_char",
        names=(
            "count_char",
            "count_character",
            "count_letter",
            "count_char_in_string",
            "letter_count",
        ),
        params=("text: str", "char: str"),
        alternatives=CHARACTERS,
        returns="int",
        docs=(
            "Return how many times $char occurs in $text.",
            "Count the occurrences of a character in a string.",
            "Given a string and a letter, return the number of times the letter appears.",
            "This function counts the character $char in $text.",
        ),
        body="return $text.count($char)",
        inputs=lambda rng: (
            rng.choice(("", "banana", "mississippi", draw_phrase(rng))),
            rng.choice("aabeisn"),
        ),
        oracle=lambda text, char: sum(c == char for c in text),
    ),
    Family(
        name="count_upper",
        names=(
            "count_upper",
            "count_uppercase",
            "uppercase_count",
            "count_capital_letters",
            "count_uppercase_letters",
        ),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of uppercase letters in $text.",
            "Count the capital letters in a string.",
            "Given a string, return how many uppercase characters it contains.",
            "This function counts the uppercase letters of $text.",
        ),
        body="return sum(1 for c in $text if c.isupper())",
        inputs=lambda rng: (
            rng.choice(("", "ABC", "Hello World", "a1B2 c3", draw_letters(rng), draw_phrase(rng))),
        ),
        oracle=lambda text: len(re.findall("[A-Z]", text)),
    ),
    Family(
        name="count_digits_in_text",
        names=(
            "count_digits_in_string",
            "count_numeric_chars",
            "digits_in_string",
            "count_string_digits",
        ),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of digits in the string $text.",
            "Count the digit characters in a string.",
            "Given a string, return how many of its characters are digits.",
            "This function counts the characters of $text that are digits.",
        ),
        body="return sum(1 for c in $text if c.isdigit())",
        inputs=lambda rng: (
            rng.choice(
                ("", "123", "a1B2 c3", "no digits", f"{rng.choice(WORDS)}{rng.randint(0, 999)}")
            ),
        ),
        oracle=lambda text: len(re.findall("[0-9]", text)),
    ),
    Family(
        name="capitalize_words",
        names=(
            "capitalize_words",
            "capitalize_each_word",
            "capitalize_all_words",
            "capitalize_sentence",
            "title_case",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with each word capitalized.",
            "Capitalize the first letter of every word in a string.",
            "Given a sentence, return it with all words capitalized.",
            "This function capitalizes each word of $text.",
            "Convert $text to title case.",
        ),
        body='return " ".join(word.capitalize() for word in $text.split())',
        inputs=draw_text,
        oracle=lambda text: text.title(),
    ),
    Family(
        name="to_uppercase",
        names=(
            "to_uppercase",
            "to_upper",
            "uppercase",
            "make_uppercase",
            "convert_to_uppercase",
            "upper_case",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text in uppercase.",
            "Convert a string to uppercase.",
            "Given a string, return it with all letters in upper case.",
            "This function makes $text uppercase.",
        ),
        body="return $text.upper()",
        inputs=draw_mixed,
        oracle=lambda text: "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text),
    ),
    Family(
        name="to_lowercase",
        names=(
            "to_lowercase",
            "to_lower",
            "lowercase",
            "make_lowercase",
            "convert_to_lowercase",
            "lower_case",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text in lowercase.",
            "Convert a string to lowercase.",
            "Given a string, return it with all letters in lower case.",
            "This function makes $text lowercase.",
        ),
        body="return $text.lower()",
        inputs=draw_mixed,
        oracle=lambda text: "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text),
    ),
    Family(
        name="swap_case",
        names=("swap_case", "swapcase", "invert_case", "toggle_case", "flip_case", "change_case"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with upper and lower case swapped.",
            "Swap the case of every letter in a string.",
            "Given a string, return it with uppercase letters made lowercase and vice versa.",
            "This function inverts the case of $text.",
        ),
        body="return $text.swapcase()",
        inputs=draw_mixed,
        oracle=lambda text: "".join(c.lower() if c.isupper() else c.upper() for c in text),
    ),
)
