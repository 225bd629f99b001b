"""Draw random arguments that families on lists share."""

import random


def draw_integers(
    rng: random.Random, least: int = 0, most: int = 7, low: int = -9, high: int = 20
) -> list[int]:
    """Draw `least` to `most` numbers from `low` to `high`; every second longer list repeats one."""
    numbers = [rng.randint(low, high) for _ in range(rng.randint(least, most))]
    if len(numbers) > 2 and rng.random() < 0.5:
        numbers[rng.randrange(len(numbers))] = rng.choice(numbers)
    return numbers


def draw_list(rng: random.Random) -> tuple[list[int]]:
    """Draw a list, perhaps empty."""
    return (draw_integers(rng),)


def draw_some(rng: random.Random) -> tuple[list[int]]:
    """Draw a list of at least one number; every second one has negative numbers only."""
    return (draw_integers(rng, 1, 7, -20, rng.choice((-1, 20))),)


def draw_repeated(rng: random.Random) -> tuple[list[int]]:
    """Draw a list of few different numbers."""
    return (draw_integers(rng, 0, 8, 0, 4),)
