"""Families on the words of a text and the letters of a word."""

import collections
import random
import re
import string

from builtin_model.families.text import count_each
from builtin_model.families.text_inputs import (
    PAIRS,
    WORDS,
    draw_letters,
    draw_mixed,
    draw_phrase,
    draw_text,
    draw_word,
)
from builtin_model.tasks import Family


def _words(rng: random.Random) -> tuple[str]:
    """Draw at least one word."""
    return (rng.choice((rng.choice(WORDS), draw_phrase(rng), draw_phrase(rng), draw_phrase(rng))),)


def _anagrams(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(("listen", "aab", "", "night", rng.choice(WORDS)))
    other = "".join(rng.sample(word, len(word)))
    return (word, rng.choice((other, other, other + "a", "abb", "silent")))


FAMILIES: tuple[Family, ...] = (
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
        names=(
            "shortest_word",
            "find_shortest_word",
            "get_shortest_word",
            "shortest_word_in_sentence",
        ),
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
        names=(
            "reverse_words",
            "reverse_word_order",
            "reverse_words_in_string",
            "reverse_sentence",
            "flip_words",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text with its words in reverse order.",
            "Reverse the order of the words in a string.",
            "Given a sentence, return it with the last word first and the first word last.",
            "This function reverses the word order of $text.",
        ),
        body='return " ".join($text.split()[::-1])',
        inputs=draw_text,
        oracle=lambda text: " ".join(reversed(text.split(" "))),
    ),
    Family(
        name="acronym",
        names=(
            "acronym",
            "initials",
            "get_initials",
            "make_acronym",
            "get_acronym",
            "create_acronym",
            "abbreviate",
        ),
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
        inputs=lambda rng: (
            rng.choice(
                ("", "Ada Lovelace", "as soon as possible", draw_phrase(rng), draw_phrase(rng))
            ),
        ),
        oracle=lambda text: "".join(re.findall(r"\b\w", text)).upper(),
    ),
    Family(
        name="is_anagram",
        names=(
            "is_anagram",
            "are_anagrams",
            "isanagram",
            "check_anagram",
            "check_anagrams",
            "isAnagram",
        ),
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
        oracle=lambda a, b: count_each(a) == count_each(b),
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
                    draw_phrase(rng),
                    "",
                )
            ),
        ),
        oracle=lambda text: len(set(re.findall("[a-z]", text.lower()))) == 26,
    ),
    Family(
        name="remove_spaces",
        names=(
            "remove_spaces",
            "strip_spaces",
            "delete_spaces",
            "remove_all_spaces",
            "without_spaces",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without spaces.",
            "Remove all spaces from a string.",
            "Given a string, return it with every space deleted.",
            "This function removes the spaces from $text.",
        ),
        body='return $text.replace(" ", "")',
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", draw_phrase(rng), draw_phrase(rng))),),
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
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", draw_phrase(rng), draw_phrase(rng))),),
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
        inputs=lambda rng: (rng.choice(("", "a", " a  b ", draw_phrase(rng), draw_phrase(rng))),),
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
        inputs=lambda rng: (
            rng.choice(("", "Hello World", " My  Title ", draw_phrase(rng), draw_phrase(rng))),
        ),
        oracle=lambda text: re.sub(" +", "-", text.strip()).lower(),
    ),
    Family(
        name="remove_punctuation",
        names=(
            "remove_punctuation",
            "strip_punctuation",
            "delete_punctuation",
            "clean_text",
            "without_punctuation",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return $text without punctuation.",
            "Remove all punctuation from a string.",
            "Given a string, keep only letters, digits and spaces.",
            "This function removes the punctuation marks from $text.",
        ),
        body='return "".join(c for c in $text if c.isalnum() or c.isspace())',
        inputs=draw_mixed,
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
        inputs=draw_word,
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
        inputs=lambda rng: (
            rng.choice(("", "aabb", "aabcb", "swiss", draw_letters(rng), rng.choice(WORDS))),
        ),
        oracle=lambda text: next(
            (c for c, times in collections.Counter(text).items() if times < 2), None
        ),
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
        inputs=lambda rng: (
            rng.choice(
                ("", "a", "abc", "aa", "abca", "world", draw_letters(rng), rng.choice(WORDS))
            ),
        ),
        oracle=lambda text: all(text.count(c) == 1 for c in text),
    ),
    Family(
        name="most_common_char",
        names=(
            "most_common_char",
            "most_frequent_char",
            "most_common_character",
            "most_common_letter",
            "max_char",
        ),
        params=("text: str",),
        returns="str",
        docs=(
            "Return the most common character in $text.",
            "Find the character that occurs most often in a string.",
            "Given a string, return its most frequent character.",
            "This function returns the character of $text with the highest count.",
        ),
        body="return max($text, key=$text.count)",
        inputs=lambda rng: (
            rng.choice(("a", "banana", "abb", "mississippi", draw_letters(rng), rng.choice(WORDS))),
        ),
        oracle=lambda text: collections.Counter(text).most_common(1)[0][0],
    ),
)
