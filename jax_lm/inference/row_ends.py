"""Which rows of a batch need no continuation, judged by their text so far."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.state import SamplerState
from jax_lm.tokenizer import DiffuCoderTokenizer


def rows_over(
    canvas: Canvas,
    tokenizer: DiffuCoderTokenizer,
    ends: Sequence[Callable[[str], bool]],
    state: SamplerState,
) -> Bool[np.ndarray, "b"]:
    """Return which rows have ended, judged by the text of the first hole up to its first mask."""
    # hole [a, b, M, c]: the text is that of a and b
    masked = np.asarray(state.masked)
    tokens = np.asarray(state.tokens)
    is_over = np.zeros(len(tokens), bool)
    for row in np.flatnonzero(masked.any(axis=1)).tolist():
        start = np.argmax(canvas.holes[row])
        end = np.argmax(masked[row])
        is_over[row] = ends[row](tokenizer.decode(tokens[row, start:end].tolist()))
    return is_over
