"""Sequences of a running batch: settings that share compiled steps, and how they are made and
finished.
"""

from dataclasses import replace

import jax
import numpy as np

from cases.generation import greedy
from jax_lm.diffusion.canvas import Block
from jax_lm.options import Decoding
from jax_lm.serving.sequence import Sequence

COLUMNS, STOP = 96, 500
FAST, TURBO = Decoding(preset="fast"), Decoding(preset="turbo")
GREEDY = greedy(40)
DRAWN = greedy(40, temperature=0.8, top_p=0.9)
DRAWN_FAST = replace(DRAWN, decoding=FAST)
# With a nucleus, as the ordinary fast one: whether there is one is compiled in.
ALL_TURBO = greedy(top_p=0.9, decoding=TURBO)
CASES = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "few steps": greedy(9, alg="topk_margin"),
    "by chance": greedy(20, alg="origin", temperature=1.0),
    "blocks": greedy(40, alg="maskgit_plus", decoding=Decoding(block_length=16)),
    "threshold": greedy(decoding=Decoding(commit="threshold", threshold=0.03)),
    "fast": DRAWN_FAST,
    "turbo": ALL_TURBO,
    "top_k": replace(DRAWN, top_k=3, temperature=1.5),
    "min_p": replace(DRAWN_FAST, min_p=0.2, temperature=1.5),
    "entropy": greedy(decoding=Decoding(commit="entropy", entropy_bound=4.0)),
    "fast, entropy": greedy(
        top_p=0.9, decoding=Decoding(preset="fast", commit="entropy", entropy_bound=6.0)
    ),
}


def prompt(number, length=7):
    return np.random.default_rng(number).integers(0, 490, length)


def make_sequence(number, options=GREEDY, *, hole=40, seed=3):
    tokens = np.concatenate([prompt(number, 5 + number % 7), np.zeros(hole, int)]).astype(np.int32)
    steps, start = options.num_steps and min(options.num_steps, hole), len(tokens) - hole
    return Sequence(
        tokens=tokens,
        hole=Block(start, start + hole),
        options=replace(options, num_steps=steps),
        stop_ids=(STOP,) if options.early_stop else (),
        key=np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0))),
    )


def finish(slots, *sequences, steps=4):
    """Take steps until those sequences are done."""
    for sequence in sequences:
        slots.join(sequence)
    for _ in range(200):
        for sequence in [
            sequence for sequence in sequences if sequence.is_done and sequence in slots.sequences
        ]:
            slots.leave(sequence)
        if not any(sequence in slots.sequences for sequence in sequences):
            return
        slots.advance(steps)
    raise AssertionError("not done after 200 calls")
