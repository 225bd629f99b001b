"""Parity of coupled-GRPO with the reference: scores, loss, divergence and gradients of two inner iterations.

A folder holds, beside what `parity` reads, `coupled_grpo.safetensors` (rows, masks, and what the reference made of
them) and `coupled_grpo.json` (settings and mask ratios).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jax_lm.benchmark.parity import ParityFinding, at_most, largest_difference, read_recording
from jax_lm.models.dream import DreamForCausalLM, flatten
from jax_lm.training.config import PolicyLoss
from jax_lm.training.policy_loss import (
    Copies,
    advantages,
    completion_scores,
    noisy_rows,
    policy_loss,
    selective_log_softmax,
)

SCORE_TOLERANCE, LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-5, 1e-4
"""Absolute for scores (their size is 24, two weighted log-probabilities) and loss; relative for gradients."""

FILES = ("coupled_grpo.safetensors", "coupled_grpo.json")


def check_training_parity(folder: Path) -> Iterator[ParityFinding]:
    """Compare scores, advantages, and loss, divergence and gradients of each inner iteration.

    Raises:
        CheckpointError: the folder is not complete.
    """
    golden, settings = read_recording(folder, *FILES)
    selective = (jnp.asarray(golden[f"selective.{name}"]) for name in ("logits", "labels", "weights", "mask"))
    ours = selective_log_softmax(*selective)
    yield largest_difference("selective_log_softmax", ours, golden["selective.out"], SCORE_TOLERANCE)
    made = advantages(golden["rewards"], settings["num_generations"])
    yield largest_difference("leave-one-out advantages", made, golden["advantages"], LOSS_TOLERANCE)
    graph, state = nnx.split(DreamForCausalLM.from_pretrained(folder / "checkpoint", dtype=jnp.float32))
    params, size = nnx.to_pure_dict(state), settings["num_generations"]
    form = PolicyLoss(epsilon=settings["epsilon_low"], epsilon_high=settings["epsilon_high"], beta=settings["beta"])
    for iteration, ratio in enumerate(settings["mask_ratios"]):
        batch, copies = recorded_batch(golden, iteration, ratio, settings["config"]["mask_token_id"])
        (loss, (scores, metrics)), gradients = differentiated(graph, params, batch, copies, form=form, chunk=size)
        name = f"iteration {iteration}"
        theirs = golden["per_token_logps"][:, iteration]
        yield largest_difference(f"{name}, scores", scores, theirs, SCORE_TOLERANCE)
        yield largest_difference(f"{name}, loss", loss, golden[f"loss.{iteration}"], LOSS_TOLERANCE)
        yield largest_difference(f"{name}, KL", metrics["kl"], golden[f"kl.{iteration}"], LOSS_TOLERANCE)
        norm, expected = float(optax.tree.norm(gradients)), float(golden[f"grad_norm.{iteration}"][0])
        yield at_most(f"{name}, gradient norm", abs(norm - expected) / expected, GRADIENT_TOLERANCE)
        by_name, prefix = dict(flatten(gradients)), f"grad.{iteration}."
        for key in sorted(key for key in golden if key.startswith(prefix)):
            ours, theirs = np.asarray(by_name[key.removeprefix(prefix)]), golden[key]
            error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
            yield at_most(f"{name}, gradient of {key.removeprefix(prefix)}", float(error), GRADIENT_TOLERANCE)


@partial(jax.jit, static_argnames=("graph", "form", "chunk"))
def differentiated(
    graph: nnx.GraphDef, params: dict, batch: dict, copies: Copies, *, form: PolicyLoss, chunk: int
) -> tuple[tuple, dict]:
    """Compute (loss, (scores, metrics)) and gradients of the recorded rows under given copies."""

    def loss_of(params: dict) -> tuple:
        tokens = batch["input_ids"]
        model = nnx.merge(graph, params)
        scores = completion_scores(model, tokens, jnp.ones(tokens.shape, bool), copies, chunk)
        total, weight, metrics = policy_loss(
            scores, batch["old"], batch["reference"], batch["advantages"], batch["completion_mask"].astype(bool), form
        )
        return total / weight, (scores, metrics)

    return jax.value_and_grad(loss_of, has_aux=True)(params)


def recorded_batch(
    golden: Mapping[str, np.ndarray], iteration: int, ratio: float, mask_id: int
) -> tuple[dict[str, jax.Array], Copies]:
    """Collect the recorded rows of an inner iteration, and their copies under the recorded masks."""
    batch = {name: jnp.asarray(golden[name]) for name in ("input_ids", "advantages", "completion_mask")}
    batch["old"] = jnp.asarray(golden["old_per_token_logps"][:, iteration])
    batch["reference"] = jnp.asarray(golden["ref_per_token_logps"][:, iteration])
    first = golden["mask"][iteration].astype(bool)
    masked = jnp.asarray(np.stack([np.ones_like(first), first, ~first], axis=1))
    weights = jnp.broadcast_to(jnp.asarray([1, 1 / ratio, 1 / (1 - ratio)], jnp.float32), (len(first), 3))
    return batch, Copies(noisy_rows(batch["input_ids"], masked, mask_id), masked, weights)
