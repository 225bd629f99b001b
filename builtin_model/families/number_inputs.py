"""Draw random arguments, and list parameter names, that families on numbers share."""

import random

PAIRS = (("x", "y"), ("num1", "num2"), ("n1", "n2"), ("first", "second"), ("m", "n"), ("p", "q"))
TRIPLES = (
    ("x", "y", "z"),
    ("num1", "num2", "num3"),
    ("n1", "n2", "n3"),
    ("first", "second", "third"),
    ("p", "q", "r"),
)


def draw_small(rng: random.Random) -> tuple[int]:
    """Draw a number of one digit."""
    return (rng.randint(0, 9),)


def draw_medium(rng: random.Random) -> tuple[int]:
    """Draw a number up to 30, often 0, 1 or 2."""
    return (rng.choice((0, 1, 2, rng.randint(3, 10), rng.randint(10, 30))),)


def draw_signed(rng: random.Random) -> tuple[int]:
    """Draw a number up to 50 in size, of either sign, often 0, 1 or -1."""
    return (rng.choice((0, 1, -1, rng.randint(2, 50), rng.randint(-50, -2), rng.randint(2, 50))),)


def draw_positive(rng: random.Random) -> tuple[int]:
    """Draw a number from 1 to 100, often 1, 2, 6 or 12."""
    return (rng.choice((1, 2, 6, 12, rng.randint(3, 20), rng.randint(10, 100))),)


def draw_two(rng: random.Random) -> tuple[int, int]:
    """Draw two numbers of either sign."""
    return (rng.randint(-20, 20), rng.randint(-20, 20))
