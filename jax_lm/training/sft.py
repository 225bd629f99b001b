"""Training on samples: fine-tuning on responses of conversations, and adaptation on plain text.

- Fine-tuning masks only the response. The pads after its end are targets too, so that the model
  learns to end.
- Adaptation makes all tokens targets. Attention opens from causal to full during training, so that
  a model that has only seen the past meets the future gradually.

Knows samples, no files.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.config import Fields, counted
from jax_lm.data.batches import Batch, Indices, Order, Row, SampleStream, Vary
from jax_lm.data.token_shards import TextRows, TokenShards, TrainingSamples
from jax_lm.host.memory import free_memory
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.planning.memory import PlannedStep, require_room
from jax_lm.sharding import MeshShape
from jax_lm.training.config import AdaptConfig, SftConfig, settings_without
from jax_lm.training.masked_diffusion import ByStep, resolve_blocks, train
from jax_lm.training.run_defaults import resolve_masks, resolve_trainer, weight_count
from jax_lm.training.update import NameTest

logger = logging.getLogger(__name__)

# Part of the random generator's seed, to differ from the generators that order the samples.
HELD_OUT_SEED = 1
# Passes over the samples after which a small model has memorised them.
MANY_PASSES = 30
# With fewer updates, a model answers as before: examples of a few lines took 80 (docs/guides).
FEW_UPDATES = 40
# If no length is set: the longest sample that is accepted, and the multiple that rows of
# conversations are rounded up to.
LONGEST = {SftConfig: 2048, AdaptConfig: 4096}
LENGTH_BUCKET = 32


def fine_tune(
    model: DreamForCausalLM,
    samples: TrainingSamples,
    config: SftConfig,
    out: Path,
    *,
    pad_id: int,
    expansion: Vary | None = None,
    trained: NameTest = lambda name: True,
    identity: Fields | None = None,
) -> bool:
    """Train `model` on samples; returns whether the run reached its end.

    Args:
        model: holds the trained weights afterwards.
        samples: open rows of at most `config.max_length` tokens, listed or tokenised.
        config: settings of the run.
        out: folder of the run; a run in it is continued.
        pad_id: id of the pad token.
        expansion: opens a hole in each sample (`jax_lm.data.expansion`), for `expand_delete`.
        trained: which parameters are trained, by name.
        identity: further settings that a resumed run must agree on.

    Raises:
        ValueError: no samples, samples longer than a row, or another run in `out`.
    """
    if config.expand_delete != (expansion is not None):
        raise ValueError(f"expand_delete={config.expand_delete}: must go with an expansion")
    config = resolve_length(config, samples, model.config.max_position_embeddings)
    config = replace(config, loss=resolve_blocks(config.loss, model))
    # samples
    spare_pads = config.spare_pads if config.packed else None
    stream, held_out = make_streams(samples, config, pad_id, spare_pads, expansion)
    # number of steps
    training = config.training
    if config.num_train_epochs is not None:
        training = replace(training, max_steps=stream().steps(config.num_train_epochs))
    report_length(len(samples), config.batch_size, training.steps, stream().steps(1.0))
    # variation of samples: at first prompts are masked, too; or holes are opened
    reveal_steps = round(config.condition_share * training.steps)
    vary = reveal_prompts(reveal_steps) if config.condition_share else expansion
    require_memory(model, config, "sft", trained)
    return train(
        model,
        by_step(stream(vary=vary)),
        resolve_masks(config.loss, config.packed),
        training,
        out,
        trained=trained,
        held_out=held_out,
        identity=settings_without(config, "loss", "training") | (identity or {}),
    )


def longest_allowed(config: SftConfig | AdaptConfig, context: int) -> int:
    """Return the longest sample that is accepted, in tokens.

    Raises:
        ValueError: `max_length` exceeds the context.
    """
    if config.max_length is not None and config.max_length > context:
        raise ValueError(
            f"max_length={config.max_length}: must be at most {context}, the model's context"
        )
    return config.max_length or min(LONGEST[type(config)], context)


def resolve_length(config: SftConfig, samples: TrainingSamples, context: int) -> SftConfig:
    """Set `max_length`, if it is None, to fit the longest sample and the pads after it.

    Raises:
        ValueError: `max_length` exceeds the context.
    """
    limit = longest_allowed(config, context)
    if config.max_length is not None:
        return config
    # longest sample 41, 16 pads: 57, so rows of 64 tokens
    needed = int(lengths_of(samples, limit, config.spare_pads).max(initial=1))
    length = min(limit, needed + -needed % LENGTH_BUCKET)
    logger.info("max_length %d, which the longest sample needs", length)
    return replace(config, max_length=length)


def report_length(samples: int, batch_size: int, steps: int, epoch_steps: int):
    """Log the number of updates, and warn if a run teaches too little or memorises its samples."""
    passes = steps / epoch_steps
    logger.info(
        "%s: %s of %s, %.1f passes over them",
        counted(samples, "sample"), counted(steps, "update"), counted(batch_size, "row"), passes,
    )  # fmt: skip
    if steps < FEW_UPDATES:
        epochs = -(-FEW_UPDATES // epoch_steps)
        logger.warning(
            "%s of %s: too few to learn from. A smaller batch_size or more num_train_epochs make more; "
            "%s make about %d",
            counted(steps, "update"), counted(batch_size, "row"),
            counted(epochs, "epoch"), epochs * epoch_steps,
        )  # fmt: skip
    if passes > MANY_PASSES:
        logger.warning(
            "the run passes %.0f times over the samples and learns them by heart: take fewer "
            "max_steps or num_train_epochs, or held_out_share with metric_for_best_model loss and "
            "early_stopping_patience",
            passes,
        )


def require_memory(
    model: DreamForCausalLM, config: SftConfig | AdaptConfig, kind: str, trained: NameTest
):
    """Raise OutOfMemoryError if an update exceeds the free memory of a device."""
    weights = parameters(model)
    mesh = MeshShape.of(model.mesh)
    training = resolve_trainer(config.training, weight_count(weights))
    is_int8 = any(leaf.dtype == jnp.int8 for leaf in weights.values())
    assert config.max_length
    planned = PlannedStep(
        model.config,
        precision="int8" if is_int8 else training.dtype,
        batch=-(-config.batch_size // training.gradient_accumulation_steps),
        canvas=config.loss.row_factor * config.max_length,
        new_tokens=config.max_length,
        kind=kind,
        # lora_a: [rank, in]
        lora_rank=next((x.shape[0] for name, x in weights.items() if "lora_a" in name), None),
        on_cpu=jax.local_devices()[0].platform == "cpu",
        mesh=mesh,
    )
    free = free_memory()
    if free is not None:
        # Frozen weights are a part of the estimate, and in memory already.
        free += sum(leaf.nbytes for name, leaf in weights.items() if not trained(name)) // mesh.size
    require_room(planned, free)


def adapt(
    model: DreamForCausalLM,
    samples: TrainingSamples,
    config: AdaptConfig,
    out: Path,
    *,
    pad_id: int,
    trained: NameTest = lambda name: True,
    identity: Fields | None = None,
) -> bool:
    """Train `model` on texts; returns whether the run reached its end.

    Args:
        model: holds the trained weights afterwards.
        samples: texts as closed rows of at most `config.max_length` tokens, which are packed; or
            tokenised texts, which are concatenated and cut into rows.
        config: settings of the run.
        out: folder of the run; a run in it is continued.
        pad_id: id of the pad token.
        trained: which parameters are trained, by name.
        identity: further settings that a resumed run must agree on.

    Raises:
        ValueError: no samples, rows that exceed the context, or another run in `out`.
    """
    length = longest_allowed(config, model.config.max_position_embeddings)
    config = replace(
        config, max_length=length, loss=resolve_blocks(config.loss, model, config.is_causal)
    )
    stream, held_out = make_streams(samples, config, pad_id, 0)
    require_memory(model, config, "adapt", trained)
    opening = partial(openness, annealing_steps=config.opening_steps)
    return train(
        model,
        by_step(stream(vary=partial(cut_or_reveal, config=config)), opening),
        resolve_masks(config.loss, is_packed=True),
        config.training,
        out,
        trained=trained,
        held_out=held_out,
        identity=settings_without(config, "loss", "training") | (identity or {}),
    )


def make_streams(
    samples: TrainingSamples,
    config: SftConfig | AdaptConfig,
    pad_id: int,
    spare_pads: int | None,
    held_out_vary: Vary | None = None,
) -> tuple[Callable[..., SampleStream], list[Batch]]:
    """Split samples into a training stream and held-out batches.

    Returns a factory of the stream and the batches. The factory takes `vary`, which changes samples
    as they are drawn.

    Args:
        samples: all samples.
        config: settings of the run.
        pad_id: id of the pad token.
        spare_pads: pads between samples that share a row; None gives each a row of its own.
        held_out_vary: `vary` of the held-out samples.
    """
    seed = config.training.seed
    share = config.held_out_share
    assert config.max_length
    # tokenised texts are concatenated and cut into rows; each other sample lies in one row, packed
    # or alone
    if isinstance(samples, TokenShards) and samples.kind == "text":
        rows: Any = TextRows.of(samples, config.max_length, seed)
        training_order, held_out = rows.split(share)
    else:
        rows = samples
        lengths = lengths_of(samples, config.max_length, spare_pads)
        capacity = None if spare_pads is None else config.max_length
        parts = split(len(samples), share, seed)
        orders = (Order(lengths[part], seed, capacity, part) for part in parts)
        training_order = next(orders)
        held_out = next(orders, None)
    # Arguments that both streams share; each adds its order.
    stream = partial(
        SampleStream,
        rows,
        max_length=config.max_length,
        batch_size=config.batch_size,
        pad_id=pad_id,
        seed=seed,
        spare_pads=spare_pads,
    )
    batches = []
    if held_out:
        evaluated = stream(held_out, vary=held_out_vary)
        batches = [evaluated.batch(number) for number in range(evaluated.steps(1.0))]
    return partial(stream, training_order), batches


def lengths_of(samples: TrainingSamples, limit: int, spare_pads: int | None) -> Indices:
    """Count the tokens of each sample, including the pads after it, up to `limit`.

    Raises:
        ValueError: a sample has more tokens than `limit`.
    """
    is_tokenised = isinstance(samples, TokenShards)
    lengths = samples.lengths if is_tokenised else np.array([len(row.ids) for row in samples])
    if lengths.max(initial=0) > limit:
        raise ValueError(f"sample of {lengths.max()} tokens: longer than max_length={limit}")
    # lengths [5, 9], 2 spare pads, limit 10 -> [7, 10]
    return np.minimum(lengths + (spare_pads or 0), limit)


def by_step(
    stream: SampleStream, openness: Callable[[int], float | None] = lambda step: None
) -> ByStep:
    """Make a source of this process's rows.

    Args:
        stream: stream of the samples.
        openness: returns the share of the future that attention sees at a step.
    """
    part = {"process": jax.process_index(), "processes": jax.process_count()}
    return ByStep(lambda step: stream.batch(step, openness=openness(step), **part))


def split(count: int, share: float, seed: int) -> tuple[Indices, ...]:
    """Split sample numbers into training and, if `share` is not 0, held-out ones, by the seed.

    Raises:
        ValueError: a part would be empty.
    """
    if not share:
        return (np.arange(count),)
    held_out = round(share * count)
    if not 0 < held_out < count:
        raise ValueError(
            f"held_out_share={share}: holds out {held_out} of {count} samples; some must be held "
            "out, and some learnt"
        )
    # 10 samples and share 0.2: the first 2 of the shuffled numbers are held out.
    order = np.random.default_rng((seed, HELD_OUT_SEED)).permutation(count)
    return order[held_out:], order[:held_out]


def reveal_prompts(steps: int) -> Vary:
    """Mask whole samples, including prompts, with a probability that falls from 1 to 0.

    It reaches 0 after `steps` steps.
    """

    def vary(sample, step, rng):
        # At step 25 of 100, three of four samples are masked whole.
        if rng.random() < step / max(steps, 1):
            return sample
        # Nothing before the first token can predict it.
        return Row.masked_after(1, sample.ids, open=sample.open)

    return vary


def openness(step: int, annealing_steps: int) -> float | None:
    """Return the share of the future that attention sees at a step: linear from 0 to 1.

    Returns None without annealing. After the annealing, the share stays 1, because None would
    compile another program.
    """
    return min(1.0, step / annealing_steps) if annealing_steps else None


def cut_or_reveal(sample: Row, step: int, rng: np.random.Generator, *, config: AdaptConfig) -> Row:
    """Cut a share of the texts to a random length, and keep a random beginning of some visible.

    The first token is always visible: nothing before it can predict it.
    """
    size = len(sample.ids)
    if rng.random() < config.cut_share:
        size = int(rng.integers(1, size + 1))
    visible = max(1, int(rng.integers(0, size)) if rng.random() < config.prefix_share else 0)
    return Row.masked_after(visible, sample.ids[:size], open=False)
