"""Draw random arguments, and list parameter names, that families on strings share."""

import random

WORDS = (
    "apple", "banana", "cat", "dog", "hello", "world", "python", "code", "Sky", "tree", "Ice", "Open", "level", "noon",
    "a", "I", "is", "the", "Over", "mississippi", "book", "Umbrella", "rhythm", "zoo", "egg",
)  # fmt: skip

PAIRS = (
    ("s", "t"),
    ("s1", "s2"),
    ("str1", "str2"),
    ("word1", "word2"),
    ("text1", "text2"),
    ("first", "second"),
)


def draw_word(rng: random.Random) -> tuple[str]:
    """Draw a word, perhaps empty or of random letters."""
    return (
        rng.choice(
            ("", "a", "Hello", "banana", rng.choice(WORDS), rng.choice(WORDS), draw_letters(rng))
        ),
    )


def draw_letters(rng: random.Random) -> str:
    """Draw two to eight letters."""
    return "".join(rng.choice("aabbcdeiouABEXyz") for _ in range(rng.randint(2, 8)))


def draw_phrase(rng: random.Random) -> str:
    """Draw two to five words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 5)))


def draw_text(rng: random.Random) -> tuple[str]:
    """Draw a text, perhaps empty."""
    return (
        rng.choice(
            (
                "",
                draw_phrase(rng),
                draw_phrase(rng),
                "Hello World",
                rng.choice(WORDS),
                draw_phrase(rng),
            )
        ),
    )


def draw_mixed(rng: random.Random) -> tuple[str]:
    """Draw a text, perhaps with digits and punctuation."""
    choices = (
        "",
        "Hello, World!",
        "a1B2 c3",
        "Wait... what?",
        "A-B",
        draw_phrase(rng) + "!",
        "1, " + draw_phrase(rng),
    )
    return (rng.choice(choices),)
