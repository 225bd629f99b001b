"""Supervised fine-tuning: masked diffusion on the responses of conversations.

Only the response is masked, and the pads after its end are targets too: so the model learns to end. Knows samples,
no files.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_lm.data.batches import Batch, Row
from jax_lm.data.conversations import closed
from jax_lm.data.stream import SampleStream
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.masked_diffusion import ByStep, train
from jax_lm.training.settings import SftConfig

HELD_OUT_SEED = 1


def fine_tune(
    model: DreamForCausalLM,
    samples: Sequence[Row],
    config: SftConfig,
    out: Path,
    *,
    pad_id: int,
    trained: Callable[[str], bool] = lambda name: True,
    identity: Mapping[str, Any] | None = None,
) -> bool:
    """Train `model` on samples; whether the end was reached.

    Args:
        samples: open rows of at most `config.length` tokens.
        out: folder of the run; a run in it is continued.
        trained: which parameters are trained, by name.
        identity: what else a resumed run must agree on.

    Raises:
        ValueError: no samples, samples longer than a row, or another run in `out`.
    """
    if config.packed:
        samples = [
            closed(sample, min(config.spare_pads, config.length - len(sample.ids)), pad_id) for sample in samples
        ]
    learnt, held_out = split(samples, config.held_out_share, config.training.seed)
    stream = partial(
        SampleStream,
        length=config.length,
        rows=config.rows,
        pad_id=pad_id,
        seed=config.training.seed,
        packed=config.packed,
    )
    batches = stream(learnt)
    training = config.training
    if config.epochs is not None:
        training = dataclasses.replace(training, steps=batches.steps(config.epochs))
    if config.condition_share:
        batches.vary = revealed(round(config.condition_share * training.steps))
    settings = dataclasses.asdict(config)
    loss = dataclasses.replace(config.loss, masks_per_query=config.packed)
    evaluated = stream(held_out) if held_out else None
    return train(
        model,
        ByStep(partial(of_this_process, batches)),
        loss,
        training,
        out,
        trained=trained,
        held_out=[evaluated.batch(step) for step in range(evaluated.steps(1.0))] if evaluated else (),
        identity={name: settings[name] for name in settings if name not in ("loss", "training")} | dict(identity or {}),
    )


def of_this_process(batches: SampleStream, step: int) -> Batch:
    """The rows of a step that this process holds."""
    return batches.batch(step, process=jax.process_index(), processes=jax.process_count())


def split(samples: Sequence[Row], share: float, seed: int) -> tuple[Sequence[Row], Sequence[Row]]:
    """Samples to learn, and a share of them held out, drawn by the seed.

    Raises:
        ValueError: a part would be empty.
    """
    if not share:
        return samples, ()
    count = round(share * len(samples))
    if not 0 < count < len(samples):
        raise ValueError(f"held_out_share={share}: of {len(samples)} samples that is {count}")
    order = np.random.default_rng((seed, HELD_OUT_SEED)).permutation(len(samples))
    return [samples[i] for i in order[count:]], [samples[i] for i in order[:count]]


def revealed(steps: int) -> Callable[[Row, int, np.random.Generator], Row]:
    """Masks whole samples, prompts too, with a probability that falls from 1 to 0 over `steps`."""

    def vary(sample: Row, step: int, rng: np.random.Generator) -> Row:
        if rng.random() < step / max(steps, 1):
            return sample
        return dataclasses.replace(sample, canvas=(True,) * len(sample.ids))

    return vary
