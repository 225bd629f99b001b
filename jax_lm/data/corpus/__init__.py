"""The built-in corpus: small Python tasks with docstrings and unit tests, generated, never downloaded.

`draw_task` gives a train or a held-out task from a seeded generator. The two sides share families and
words, never a combination: what is held out are names, constants and pipelines not seen together in
training (`tasks.is_held_out`).
"""

import itertools
import random

from jax_lm.data.corpus import compositions
from jax_lm.data.corpus.families import FAMILIES
from jax_lm.data.corpus.tasks import Family, Task, instantiate

COMPOSITION_SHARE = 0.35
CLASSICS = frozenset({
    "add", "binary_search", "binary_tree", "bubble_sort", "char_frequencies", "count_vowels", "count_words",
    "factorial", "fibonacci", "fizzbuzz", "flatten", "gcd", "greet", "hello_world", "insertion_sort", "is_anagram",
    "is_even", "is_palindrome", "is_prime", "linked_list", "matrix_multiply", "maximum", "merge_sort",
    "prime_factors", "primes_up_to", "queue", "quicksort", "remove_duplicates", "reverse_list", "reverse_string",
    "running_sum", "stack", "sum_digits", "sum_list", "transpose", "two_sum", "word_frequencies",
})  # fmt: skip
"""Families that people type first: training draws each `CLASSIC_WEIGHT` times as often, the held-out side does not."""
CLASSIC_WEIGHT = 3
TRAINING_WEIGHTS = tuple(itertools.accumulate(CLASSIC_WEIGHT if family.name in CLASSICS else 1 for family in FAMILIES))


def draw_task(rng: random.Random, *, held_out: bool = False) -> Task:
    """One task of the chosen side of the split: a composition or a member of a random family."""
    is_composition = rng.random() < COMPOSITION_SHARE
    family = rng.choice(FAMILIES) if held_out else rng.choices(FAMILIES, cum_weights=TRAINING_WEIGHTS)[0]
    while True:
        task = compositions.draw_composition(rng) if is_composition else instantiate(family, rng)
        if task.held_out == held_out:
            return task
        if held_out:
            # A family with few names may have nothing on this side.
            family = rng.choice(FAMILIES)


__all__ = ["COMPOSITION_SHARE", "FAMILIES", "Family", "Task", "draw_task"]
