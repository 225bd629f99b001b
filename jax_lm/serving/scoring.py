"""Log-probabilities of the tokens of a prompt, each given those before it.

A masked-diffusion model does not define these. They are the probabilities of decoding the text from
left to right, one of the orders over which `jax_lm.diffusion.likelihood` averages. The sum over the
last tokens of a text is their log-likelihood given the tokens before them. Knows no HTTP.
"""

import time
from collections.abc import Sequence

import numpy as np

from jax_lm.diffusion.constrained import log_softmax, most_likely
from jax_lm.diffusion.sampler import LogitsWindow
from jax_lm.serving.jobs import Commits, describe
from jax_lm.serving.worker import EngineWorker
from jax_lm.tokenizer import DiffuCoderTokenizer


def score(
    worker: EngineWorker,
    adapter: str,
    tokenizer: DiffuCoderTokenizer,
    ids: Sequence[int],
    top: int,
    deadline: float,
) -> Commits:
    """Describe the tokens of a text with their log-probabilities; the first token has none.

    It takes a forward pass per token, between the calls for the sequences that are being decoded.

    Args:
        top: number of most likely tokens to report per position.
        deadline: when the result must be ready, by the monotonic clock.

    Raises:
        TimeoutError: the deadline has passed.
    """
    tokens = np.array(ids, np.int32)
    columns = np.arange(len(ids))
    commits = [describe(tokenizer, 0, ids[0])]
    for column in range(1, len(ids)):
        if time.monotonic() > deadline:
            raise TimeoutError
        # column 2 of 4 tokens: [a b M M]
        logits, _ = worker.repairs.logits(
            adapter, tokens, columns >= column, column, LogitsWindow()
        )
        log_probs = log_softmax(logits)
        chosen = [ids[column], *most_likely(log_probs, top).tolist()]
        commits.append(
            describe(tokenizer, column, chosen[0], zip(chosen, log_probs[chosen], strict=True))
        )
    return tuple(commits)
