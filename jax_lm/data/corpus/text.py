"""Families on strings: counting, searching and rewriting text."""

import collections
import itertools
import os
import random
import re
import string

from jax_lm.data.corpus.tasks import Family

WORDS = (
    "apple", "banana", "cat", "dog", "hello", "world", "python", "code", "Sky", "tree", "Ice", "Open", "level", "noon",
    "a", "I", "is", "the", "Over", "mississippi", "book", "Umbrella", "rhythm", "zoo", "egg",
)  # fmt: skip

PAIRS = (("s", "t"), ("s1", "s2"), ("str1", "str2"), ("word1", "word2"), ("text1", "text2"), ("first", "second"))
CHARACTERS = (("s", "c"), ("s", "char"), ("text", "ch"), ("string", "char"), ("word", "letter"), ("s", "ch"))
CONTAINED = (("s", "sub"), ("text", "sub"), ("string", "substring"), ("s", "t"), ("text", "word"), ("text", "pattern"))
TIMES = (("s", "n"), ("text", "times"), ("string", "n"), ("s", "k"), ("s", "times"), ("word", "n"), ("text", "count"))
LENGTHS = (("text", "n"), ("s", "n"), ("s", "length"), ("string", "length"), ("text", "max_length"), ("s", "k"))
WIDTHS = (("s", "width"), ("text", "n"), ("s", "n"), ("string", "width"), ("text", "length"), ("s", "length"))
SHIFTS = (("s", "shift"), ("text", "key"), ("message", "shift"), ("text", "k"), ("s", "k"), ("plaintext", "shift"))
LETTERS = (("c",), ("ch",), ("letter",), ("character",), ("x",), ("s",))


def _word(rng: random.Random) -> tuple[str]:
    return (rng.choice(("", "a", "Hello", "banana", rng.choice(WORDS), rng.choice(WORDS), _letters(rng))),)


def _letters(rng: random.Random) -> str:
    return "".join(rng.choice("aabbcdeiouABEXyz") for _ in range(rng.randint(2, 8)))


def _phrase(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 5)))


def _words(rng: random.Random) -> tuple[str]:
    """At least one word."""
    return (rng.choice((rng.choice(WORDS), _phrase(rng), _phrase(rng), _phrase(rng))),)


def _text(rng: random.Random) -> tuple[str]:
    """A text, perhaps empty."""
    return (rng.choice(("", _phrase(rng), _phrase(rng), "Hello World", rng.choice(WORDS), _phrase(rng))),)


def _mixed(rng: random.Random) -> tuple[str]:
    """A text with digits and punctuation."""
    choices = ("", "Hello, World!", "a1B2 c3", "Wait... what?", "A-B", _phrase(rng) + "!", "1, " + _phrase(rng))
    return (rng.choice(choices),)


def _equal_length(rng: random.Random) -> tuple[str, str]:
    size = rng.randint(0, 6)
    return ("".join(rng.choice("ab") for _ in range(size)), "".join(rng.choice("ab") for _ in range(size)))


def _anagrams(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(("listen", "aab", "", "night", rng.choice(WORDS)))
    other = "".join(rng.sample(word, len(word)))
    return (word, rng.choice((other, other, other + "a", "abb", "silent")))


def _caesar(text: str, shift: int) -> str:
    upper, lower = string.ascii_uppercase, string.ascii_lowercase
    shift %= 26
    return text.translate(str.maketrans(upper + lower, upper[shift:] + upper[:shift] + lower[shift:] + lower[:shift]))


def _counts(items) -> dict:
    return dict(collections.Counter(items))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="hello_world",
        names=("hello_world", "helloworld", "get_hello_world", "say_hello_world", "return_hello_world"),
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
        names=("greet", "hello", "say_hello", "greeting", "greet_user", "get_greeting", "greet_person"),
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
        names=("reverse_string", "reverse_str", "reverse_text", "string_reverse", "get_reversed_string"),
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
        inputs=_text,
        oracle=lambda text: "".join(reversed(text)),
    ),
    Family(
        name="is_palindrome",
        names=("is_palindrome", "ispalindrome", "palindrome", "check_palindrome", "is_palindrome_string"),
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
        inputs=lambda rng: (rng.choice(("", "a", "noon", "level", "abca", "ab", "racecar", rng.choice(WORDS))),),
        oracle=lambda text: all(text[i] == text[-1 - i] for i in range(len(text))),
    ),
    Family(
        name="count_vowels",
        names=("count_vowels", "vowel_count", "number_of_vowels", "countvowels", "num_vowels", "get_vowel_count"),
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
        inputs=_text,
        oracle=lambda text: len(re.findall("[aeiou]", text.lower())),
    ),
    Family(
        name="count_consonants",
        names=("count_consonants", "consonant_count", "number_of_consonants", "num_consonants", "get_consonant_count"),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of consonants in $text.",
            "Count the consonants in a string.",
            "Given a string, return how many consonants it contains.",
            "This function counts the letters of $text that are not vowels.",
        ),
        body='return sum(1 for c in $text if c.isalpha() and c not in "aeiouAEIOU")',
        inputs=_mixed,
        oracle=lambda text: len(re.findall("[bcdfghjklmnpqrstvwxyz]", text.lower())),
    ),
    Family(
        name="remove_vowels",
        names=("remove_vowels", "strip_vowels", "delete_vowels", "without_vowels", "drop_vowels", "disemvowel"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without its vowels.",
            "Remove all vowels from a string.",
            "Given a string, return it with every vowel deleted.",
            "This function removes the vowels from $text.",
        ),
        body='return "".join(c for c in $text if c not in "aeiouAEIOU")',
        inputs=_text,
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
        names=("starts_with_vowel", "begins_with_vowel", "first_letter_is_vowel", "check_starts_with_vowel"),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text starts with a vowel.",
            "Check whether the first letter of a string is a vowel.",
            "Given a word, return True if it begins with a vowel.",
            "This function tests if $text begins with a, e, i, o or u.",
        ),
        body='return $text != "" and $text[0] in "aeiouAEIOU"',
        inputs=_word,
        oracle=lambda text: bool(re.match("(?i)[aeiou]", text)),
    ),
    Family(
        name="count_words",
        names=("count_words", "number_of_words", "word_counter", "num_words", "countwords", "get_word_count"),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of words in $text.",
            "Count the words in a string.",
            "Given a sentence, return how many words it contains.",
            "This function counts the words of $text.",
        ),
        body="return len($text.split())",
        inputs=lambda rng: (rng.choice(("", "one", " two  words ", _phrase(rng), _phrase(rng))),),
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
        inputs=lambda rng: (rng.choice(("", "one", "\n".join(WORDS[: rng.randint(2, 5)]), "a\n\nb", "a b\nc")),),
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
            rng.choice(("", "a b a", " ".join(rng.choices(("to", "be", "or", "not"), k=5)), _phrase(rng))),
        ),
        oracle=lambda text: _counts(text.split()),
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
        inputs=_word,
        oracle=_counts,
    ),
    Family(
        name="count_char",
        names=("count_char", "count_character", "count_letter", "count_char_in_string", "letter_count"),
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
        inputs=lambda rng: (rng.choice(("", "banana", "mississippi", _phrase(rng))), rng.choice("aabeisn")),
        oracle=lambda text, char: sum(c == char for c in text),
    ),
    Family(
        name="count_upper",
        names=("count_upper", "count_uppercase", "uppercase_count", "count_capital_letters", "count_uppercase_letters"),
        params=("text: str",),
        returns="int",
        docs=(
            "Return the number of uppercase letters in $text.",
            "Count the capital letters in a string.",
            "Given a string, return how many uppercase characters it contains.",
            "This function counts the uppercase letters of $text.",
        ),
        body="return sum(1 for c in $text if c.isupper())",
        inputs=lambda rng: (rng.choice(("", "ABC", "Hello World", "a1B2 c3", _letters(rng), _phrase(rng))),),
        oracle=lambda text: len(re.findall("[A-Z]", text)),
    ),
    Family(
        name="count_digits_in_text",
        names=("count_digits_in_string", "count_numeric_chars", "digits_in_string", "count_string_digits"),
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
            rng.choice(("", "123", "a1B2 c3", "no digits", f"{rng.choice(WORDS)}{rng.randint(0, 999)}")),
        ),
        oracle=lambda text: len(re.findall("[0-9]", text)),
    ),
    Family(
        name="capitalize_words",
        names=("capitalize_words", "capitalize_each_word", "capitalize_all_words", "capitalize_sentence", "title_case"),
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
        inputs=_text,
        oracle=lambda text: text.title(),
    ),
    Family(
        name="to_uppercase",
        names=("to_uppercase", "to_upper", "uppercase", "make_uppercase", "convert_to_uppercase", "upper_case"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text in uppercase.",
            "Convert a string to uppercase.",
            "Given a string, return it with all letters in upper case.",
            "This function makes $text uppercase.",
        ),
        body="return $text.upper()",
        inputs=_mixed,
        oracle=lambda text: "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text),
    ),
    Family(
        name="to_lowercase",
        names=("to_lowercase", "to_lower", "lowercase", "make_lowercase", "convert_to_lowercase", "lower_case"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text in lowercase.",
            "Convert a string to lowercase.",
            "Given a string, return it with all letters in lower case.",
            "This function makes $text lowercase.",
        ),
        body="return $text.lower()",
        inputs=_mixed,
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
        inputs=_mixed,
        oracle=lambda text: "".join(c.lower() if c.isupper() else c.upper() for c in text),
    ),
    Family(
        name="longest_word",
        names=("longest_word", "find_longest_word", "get_longest_word", "longest_word_in_sentence"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the longest word in $text.",
            "Find the longest word of a sentence.",
            "Given a sentence, return its longest word.",
            "This function returns the word of $text with the most characters.",
        ),
        body="return max($text.split(), key=len)",
        inputs=_words,
        oracle=lambda text: sorted(text.split(), key=lambda word: -len(word))[0],
    ),
    Family(
        name="shortest_word",
        names=("shortest_word", "find_shortest_word", "get_shortest_word", "shortest_word_in_sentence"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the shortest word in $text.",
            "Find the shortest word of a sentence.",
            "Given a sentence, return its shortest word.",
            "This function returns the word of $text with the fewest characters.",
        ),
        body="return min($text.split(), key=len)",
        inputs=_words,
        oracle=lambda text: sorted(text.split(), key=lambda word: len(word))[0],
    ),
    Family(
        name="reverse_words",
        names=("reverse_words", "reverse_word_order", "reverse_words_in_string", "reverse_sentence", "flip_words"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with its words in reverse order.",
            "Reverse the order of the words in a string.",
            "Given a sentence, return it with the last word first and the first word last.",
            "This function reverses the word order of $text.",
        ),
        body='return " ".join($text.split()[::-1])',
        inputs=_text,
        oracle=lambda text: " ".join(reversed(text.split(" "))),
    ),
    Family(
        name="acronym",
        names=("acronym", "initials", "get_initials", "make_acronym", "get_acronym", "create_acronym", "abbreviate"),
        params=("text: str",),
        alternatives=(("phrase",), ("name",), ("s",), ("sentence",), ("full_name",), ("string",)),
        returns="str",
        docs=(
            "Return the acronym of $text.",
            "Return the initials of the words in $text in uppercase.",
            "Given a phrase, return the uppercase first letters of its words.",
            "This function builds an acronym from a phrase.",
        ),
        body='return "".join(word[0].upper() for word in $text.split())',
        inputs=lambda rng: (rng.choice(("", "Ada Lovelace", "as soon as possible", _phrase(rng), _phrase(rng))),),
        oracle=lambda text: "".join(re.findall(r"\b\w", text)).upper(),
    ),
    Family(
        name="is_anagram",
        names=("is_anagram", "are_anagrams", "isanagram", "check_anagram", "check_anagrams", "isAnagram"),
        params=("a: str", "b: str"),
        alternatives=PAIRS,
        returns="bool",
        docs=(
            "Return True if $a and $b are anagrams.",
            "Check whether two strings are anagrams of each other.",
            "Given two words, return True if they have the same letters in any order.",
            "This function tests if $a is an anagram of $b.",
        ),
        body="return sorted($a) == sorted($b)",
        inputs=_anagrams,
        oracle=lambda a, b: _counts(a) == _counts(b),
    ),
    Family(
        name="is_pangram",
        names=("is_pangram", "ispangram", "check_pangram", "pangram", "is_sentence_pangram"),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text is a pangram.",
            "Check whether a sentence contains every letter of the alphabet.",
            "Given a string, return True if all letters from a to z appear in it.",
            "This function tests if $text is a pangram.",
        ),
        body='return all(c in $text.lower() for c in "abcdefghijklmnopqrstuvwxyz")',
        inputs=lambda rng: (
            rng.choice(
                (
                    "The quick brown fox jumps over the lazy dog",
                    "Pack my box with five dozen liquor jugs",
                    "The quick brown fox jumps over the dog",
                    "abcdefghijklmnopqrstuvwxy",
                    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                    _phrase(rng),
                    "",
                )
            ),
        ),
        oracle=lambda text: len(set(re.findall("[a-z]", text.lower()))) == 26,
    ),
    Family(
        name="remove_spaces",
        names=("remove_spaces", "strip_spaces", "delete_spaces", "remove_all_spaces", "without_spaces"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without spaces.",
            "Remove all spaces from a string.",
            "Given a string, return it with every space deleted.",
            "This function removes the spaces from $text.",
        ),
        body='return $text.replace(" ", "")',
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", _phrase(rng), _phrase(rng))),),
        oracle=lambda text: "".join(text.split(" ")),
    ),
    Family(
        name="spaces_to_underscores",
        names=(
            "spaces_to_underscores",
            "replace_spaces_with_underscores",
            "replace_spaces",
            "underscore_spaces",
            "convert_spaces_to_underscores",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with spaces replaced by underscores.",
            "Replace every space in a string with an underscore.",
            "Given a string, return it with underscores instead of spaces.",
            "This function replaces the spaces of $text with underscores.",
        ),
        body='return $text.replace(" ", "_")',
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", _phrase(rng), _phrase(rng))),),
        oracle=lambda text: "_".join(text.split(" ")),
    ),
    Family(
        name="spaces_to_hyphens",
        names=(
            "spaces_to_hyphens",
            "replace_spaces_with_hyphens",
            "replace_spaces_with_dashes",
            "spaces_to_dashes",
            "hyphenate",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with spaces replaced by hyphens.",
            "Replace every space in a string with a dash.",
            "Given a string, return it with hyphens instead of spaces.",
            "This function replaces the spaces of $text with dashes.",
        ),
        body='return $text.replace(" ", "-")',
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", _phrase(rng), _phrase(rng))),),
        oracle=lambda text: "-".join(text.split(" ")),
    ),
    Family(
        name="slugify",
        names=("slugify", "make_slug", "to_slug", "create_slug", "get_slug"),
        params=("text: str",),
        alternatives=(("title",), ("s",), ("string",), ("name",), ("sentence",), ("phrase",)),
        returns="str",
        docs=(
            "Return the slug of $text: lowercase words joined by hyphens.",
            "Convert a title to a slug.",
            "Given a string, return its words in lowercase, separated by dashes.",
            "This function makes a url slug from $text.",
        ),
        body='return "-".join($text.lower().split())',
        inputs=lambda rng: (rng.choice(("", "Hello World", " My  Title ", _phrase(rng), _phrase(rng))),),
        oracle=lambda text: re.sub(" +", "-", text.strip()).lower(),
    ),
    Family(
        name="remove_punctuation",
        names=("remove_punctuation", "strip_punctuation", "delete_punctuation", "clean_text", "without_punctuation"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without punctuation.",
            "Remove all punctuation from a string.",
            "Given a string, keep only letters, digits and spaces.",
            "This function removes the punctuation marks from $text.",
        ),
        body='return "".join(c for c in $text if c.isalnum() or c.isspace())',
        inputs=_mixed,
        oracle=lambda text: text.translate(str.maketrans("", "", string.punctuation)),
    ),
    Family(
        name="remove_duplicate_chars",
        names=(
            "remove_duplicate_chars",
            "remove_duplicate_characters",
            "remove_duplicate_letters",
            "unique_chars",
            "unique_characters",
            "remove_repeated_chars",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with only the first occurrence of each character.",
            "Remove duplicate characters from a string.",
            "Given a string, return it without repeated characters, keeping the order.",
            "This function drops the characters of $text that have appeared before.",
        ),
        body="""
result = ""
for c in $text:
    if c not in result:
        result += c
return result
""",
        inputs=_word,
        oracle=lambda text: "".join(dict.fromkeys(text)),
    ),
    Family(
        name="first_unique_char",
        names=(
            "first_unique_char",
            "first_unique_character",
            "first_non_repeating_char",
            "first_non_repeating_character",
            "find_first_unique_char",
            "get_first_unique_char",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the first character of $text that occurs only once, or None.",
            "Find the first non-repeating character in a string.",
            "Given a string, return its first unique character, or None if there is none.",
            "This function returns the first character that is not repeated in $text.",
        ),
        body="""
for c in $text:
    if $text.count(c) == 1:
        return c
return None
""",
        inputs=lambda rng: (rng.choice(("", "aabb", "aabcb", "swiss", _letters(rng), rng.choice(WORDS))),),
        oracle=lambda text: next((c for c, times in collections.Counter(text).items() if times < 2), None),
    ),
    Family(
        name="has_unique_chars",
        names=("has_unique_chars", "all_unique_chars", "has_unique_characters", "is_isogram"),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if all characters of $text are different.",
            "Check whether a string has only unique characters.",
            "Given a string, return True if no character is repeated.",
            "This function tests if $text contains no duplicate characters.",
        ),
        body="return len(set($text)) == len($text)",
        inputs=lambda rng: (rng.choice(("", "a", "abc", "aa", "abca", "world", _letters(rng), rng.choice(WORDS))),),
        oracle=lambda text: all(text.count(c) == 1 for c in text),
    ),
    Family(
        name="most_common_char",
        names=("most_common_char", "most_frequent_char", "most_common_character", "most_common_letter", "max_char"),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the most common character in $text.",
            "Find the character that occurs most often in a string.",
            "Given a string, return its most frequent character.",
            "This function returns the character of $text with the highest count.",
        ),
        body="return max($text, key=$text.count)",
        inputs=lambda rng: (rng.choice(("a", "banana", "abb", "mississippi", _letters(rng), rng.choice(WORDS))),),
        oracle=lambda text: collections.Counter(text).most_common(1)[0][0],
    ),
    Family(
        name="caesar_cipher",
        names=("caesar_cipher", "caesar", "caesar_encrypt", "encrypt_caesar", "caesar_shift", "shift_cipher"),
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
            rng.choice(("", "abc xyz", "Hello, World!", _phrase(rng))),
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
            rng.choice(("", "a", "aab", "".join(c * rng.randint(1, 4) for c in "abca"), "bookkeeper")),
        ),
        oracle=lambda text: "".join(c + str(len(list(run))) for c, run in itertools.groupby(text)),
    ),
    Family(
        name="hamming_distance",
        names=("hamming_distance", "hamming", "hamming_dist", "compute_hamming_distance", "count_differences"),
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
                    [rng.choice(("inter", "in", "int")) + rng.choice(("view", "net", "")) for _ in range(3)],
                )
            ),
        ),
        oracle=lambda words: os.path.commonprefix(words) or "",
    ),
    Family(
        name="contains_substring",
        names=("contains_substring", "is_substring", "has_substring", "contains_text", "check_substring"),
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
            rng.choice(("hello world", "banana", _phrase(rng))),
            rng.choice(("", "an", "lo w", "xyz", "e")),
        ),
        oracle=lambda text, substring: text.find(substring) >= 0,
    ),
    Family(
        name="repeat_string",
        names=("repeat_string", "repeat_text", "repeat_str", "string_times", "multiply_string", "repeat"),
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
        names=("repeat_${k}_times", "repeat_string_${k}_times", "repeat_text_${k}_times", "say_${k}_times"),
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
        names=("truncate", "truncate_string", "truncate_text", "shorten", "shorten_text", "cut_text"),
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
        inputs=lambda rng: (rng.choice(("", "hello", _phrase(rng))), rng.randint(0, 8)),
        oracle=lambda text, length: "".join(itertools.islice(text, length)),
    ),
    Family(
        name="truncate_to_constant",
        names=("first_${k}_chars", "truncate_to_$k", "first_${k}_characters", "get_first_${k}_chars"),
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
        inputs=lambda rng: (rng.choice(("", "ab", "abcdefghijkl", _phrase(rng), _phrase(rng))),),
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
        names=("is_digits", "is_numeric", "all_digits", "only_digits", "is_all_digits", "contains_only_digits"),
        params=("text: str",),
        returns="bool",
        docs=(
            "Return True if $text consists only of digits.",
            "Check whether a string contains only digits.",
            "Given a string, return True if it is not empty and every character is a digit.",
            "This function tests if $text is numeric.",
        ),
        body="return $text.isdigit()",
        inputs=lambda rng: (rng.choice(("", "0", "007", "12a", "-5", "3.5", " 1", "abc", str(rng.randint(10, 9999)))),),
        oracle=lambda text: bool(re.fullmatch("[0-9]+", text)),
    ),
    Family(
        name="camel_to_snake",
        names=("camel_to_snake", "to_snake_case", "snake_case", "camel_case_to_snake_case", "convert_to_snake_case"),
        params=("text: str",),
        alternatives=(("name",), ("s",), ("string",), ("camel",), ("word",), ("identifier",), ("txt",)),
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
            rng.choice(("", "name", "camelCase", "MyClass", "getUserName", "aB", "parseJsonFile", "someX")),
        ),
        oracle=lambda text: re.sub("(?<!^)(?=[A-Z])", "_", text).lower(),
    ),
    Family(
        name="snake_to_camel",
        names=("snake_to_camel", "to_camel_case", "camel_case", "snake_case_to_camel_case", "convert_to_camel_case"),
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
            rng.choice(("", "name", "snake_case", "my_class", "get_user_name", "a_b", "some_long_name")),
        ),
        oracle=lambda text: re.sub("_([a-z])", lambda match: match.group(1).upper(), text),
    ),
)
