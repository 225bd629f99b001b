"""Adaptation: an autoregressive model, or one from nothing, learns masked diffusion on plain text.

All tokens are targets. Attention opens from causal to full while it trains, so that a model that has only seen the
past is not confronted with the future at once. Knows texts as token rows, no files.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_lm.data.batches import Batch, Row
from jax_lm.data.stream import SampleStream
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.masked_diffusion import ByStep, train
from jax_lm.training.settings import AdaptConfig
from jax_lm.training.sft import split


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
        samples: texts as closed rows, of at most `config.length` tokens.
        out: folder of the run; a run in it is continued.
        identity: what else a resumed run must agree on.

    Raises:
        ValueError: no samples, or another run in `out`.
    """
    learnt, held_out = split(samples, config.held_out_share, config.training.seed)
    stream = partial(
        SampleStream, length=config.length, rows=config.rows, pad_id=pad_id, seed=config.training.seed, packed=True
    )
    batches = stream(learnt, vary=partial(varied, config=config))
    evaluated = stream(held_out) if held_out else None

    def batch(step: int) -> Batch:
        return batches.batch(
            step,
            openness=openness(step, config.annealing_steps),
            process=jax.process_index(),
            processes=jax.process_count(),
        )

    settings = dataclasses.asdict(config)
    return train(
        model,
        ByStep(batch),
        dataclasses.replace(config.loss, masks_per_query=True),
        config.training,
        out,
        held_out=[evaluated.batch(step) for step in range(evaluated.steps(1.0))] if evaluated else (),
        identity={name: settings[name] for name in settings if name not in ("loss", "training")} | dict(identity or {}),
    )


def openness(step: int, annealing_steps: int) -> float:
    """Share of the future that attention sees at a step (from 0): a line from 0 to 1."""
    return min(1.0, step / annealing_steps) if annealing_steps else 1.0


def varied(sample: Row, step: int, rng: np.random.Generator, *, config: AdaptConfig) -> Row:
    """A text, rarely cut to a random length, rarely with a random beginning that is never masked."""
    size = len(sample.ids)
    if rng.random() < config.cut_share:
        size = int(rng.integers(1, size + 1))
    visible = int(rng.integers(0, size)) if rng.random() < config.prefix_share else 0
    return Row(sample.ids[:size], (False,) * visible + (True,) * (size - visible), open=False)
