"""Finds the rows of a batch that need no continuation, by their text so far."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.state import SamplerState
from jax_lm.tokenizer import DiffuCoderTokenizer

# For each row, whether the beginning of its text needs no continuation.
Ends = Sequence[Callable[[str], bool]]


def rows_over(
    canvas: Canvas, tokenizer: DiffuCoderTokenizer, ends: Ends, state: SamplerState
) -> Bool[np.ndarray, "b"]:
    """Return which rows are over, by the text of their first hole up to its first mask.

    Args:
        canvas: the rows before the first step.
        tokenizer: decodes the text.
        ends: for each row, whether a text needs no continuation.
        state: the current state.
    """
    # The hole [a, b, M, c] has the text of a and b.
    masked = np.asarray(state.masked)
    tokens = np.asarray(state.tokens)
    is_over = np.zeros(len(tokens), bool)
    for row in np.flatnonzero(masked.any(axis=1)).tolist():
        start = np.argmax(canvas.holes[row])
        end = np.argmax(masked[row])
        is_over[row] = ends[row](tokenizer.decode(tokens[row, start:end].tolist()))
    return is_over
