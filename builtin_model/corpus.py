"""The built-in corpus: small Python tasks with docstrings and unit tests, generated, never
downloaded.

`draw_task` gives a train or a held-out task from a seeded generator. The two sides share families
and words, never a combination: what is held out are names, constants and pipelines not seen
together in training (`tasks.is_held_out`).
"""

import random

from builtin_model import compositions
from builtin_model.families import FAMILIES
from builtin_model.tasks import instantiate, is_held_out
from jax_lm.data.prompts import BuiltinTask

COMPOSITION_SHARE = 0.35


def draw_task(rng: random.Random, *, held_out: bool = False) -> BuiltinTask:
    """Draw a task of the chosen side of the split: a composition or a member of a random family."""
    is_composition = rng.random() < COMPOSITION_SHARE
    family = rng.choice(FAMILIES)
    while True:
        task = compositions.draw_composition(rng) if is_composition else instantiate(family, rng)
        if is_held_out(task.key) == held_out:
            return task
        if held_out:
            # A family with few names may have nothing on this side.
            family = rng.choice(FAMILIES)
