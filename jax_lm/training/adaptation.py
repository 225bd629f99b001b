"""Adaptation: an autoregressive model, or one from nothing, learns masked diffusion on plain text.

All tokens are targets. Attention opens from causal to full while it trains, so that a model that has only seen the
past is not confronted with the future at once. Knows texts as token rows, no files.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jax_lm.data.batches import Row
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.config import AdaptConfig, settings_without
from jax_lm.training.masked_diffusion import train
from jax_lm.training.sft import by_step, streams


def adapt(
    model: DreamForCausalLM,
    samples: Sequence[Row],
    config: AdaptConfig,
    out: Path,
    *,
    pad_id: int,
    identity: Mapping[str, Any] | None = None,
) -> bool:
    """Train `model` on texts; whether the end was reached.

    Args:
        samples: texts as closed rows, of at most `config.max_length` tokens.
        out: folder of the run; a run in it is continued.
        identity: what else a resumed run must agree on.

    Raises:
        ValueError: no samples, or another run in `out`.
    """
    stream, held_out = streams(samples, config, pad_id, packed=True)
    return train(
        model,
        by_step(stream(vary=partial(varied, config=config)), partial(openness, annealing_steps=config.annealing_steps)),
        dataclasses.replace(config.loss, masks_per_query=True),
        config.training,
        out,
        held_out=held_out,
        identity=settings_without(config, "loss", "training") | dict(identity or {}),
    )


def openness(step: int, annealing_steps: int) -> float:
    """Open attention along a line: the share of the future that it sees at a step (from 0), from 0 to 1."""
    return min(1.0, step / annealing_steps) if annealing_steps else 1.0


def varied(sample: Row, step: int, rng: np.random.Generator, *, config: AdaptConfig) -> Row:
    """Cut a text, rarely, to a random length; rarely keep a random beginning of it from ever being masked."""
    size = len(sample.ids)
    if rng.random() < config.cut_share:
        size = int(rng.integers(1, size + 1))
    visible = int(rng.integers(0, size)) if rng.random() < config.prefix_share else 0
    return Row(sample.ids[:size], (False,) * visible + (True,) * (size - visible), open=False)
