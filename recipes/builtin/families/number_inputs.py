"""Random arguments and parameter names that families on numbers share."""

import random

PAIRS = (("x", "y"), ("num1", "num2"), ("n1", "n2"), ("first", "second"), ("m", "n"), ("p", "q"))
TRIPLES = (("x", "y", "z"), ("num1", "num2", "num3"), ("n1", "n2", "n3"), ("first", "second", "third"), ("p", "q", "r"))


def draw_small(rng: random.Random) -> tuple[int]:
    return (rng.randint(0, 9),)


def draw_medium(rng: random.Random) -> tuple[int]:
    return (rng.choice((0, 1, 2, rng.randint(3, 10), rng.randint(10, 30))),)


def draw_signed(rng: random.Random) -> tuple[int]:
    return (rng.choice((0, 1, -1, rng.randint(2, 50), rng.randint(-50, -2), rng.randint(2, 50))),)


def draw_positive(rng: random.Random) -> tuple[int]:
    return (rng.choice((1, 2, 6, 12, rng.randint(3, 20), rng.randint(10, 100))),)


def draw_two(rng: random.Random) -> tuple[int, int]:
    return (rng.randint(-20, 20), rng.randint(-20, 20))
