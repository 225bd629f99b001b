"""Compare scores, losses and gradients of coupled-GRPO with recorded values of the reference.

The folder holds `checkpoint/`, `coupled_grpo.safetensors` (inputs and outputs of the reference) and
`coupled_grpo.json` (its settings). Entry command: `diffucoder parity check`.
"""

import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_lm.benchmark.parity import Findings, largest_difference, read_recording, relative_error
from jax_lm.checkpoints.stored import HostArrays
from jax_lm.models.dream import DreamForCausalLM, flatten
from jax_lm.models.graph import ModelGraph, split_model
from jax_lm.training.grpo_config import PolicyLoss
from jax_lm.training.policy_loss import (
    Copies,
    completion_scores,
    noisy_rows,
    policy_loss,
    selective_log_softmax,
)
from jax_lm.training.rollouts import advantages
from jax_lm.training.update import Mean

# Absolute tolerances of scores and loss, relative tolerance of gradients. Scores are of size 24:
# two weighted log-probabilities.
SCORE_TOLERANCE = 2e-5
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4

FILES = ("coupled_grpo.safetensors", "coupled_grpo.json")


def check_training_parity(folder: Path) -> Findings:
    """Compare scores, advantages, and loss, divergence and gradients of each inner iteration.

    Raises:
        CheckpointError: the folder is not complete.
    """
    golden, settings = read_recording(folder, *FILES)
    # Log-probabilities of single tokens
    names = ("logits", "labels", "weights", "mask")
    ours = selective_log_softmax(*(jnp.asarray(golden[f"selective.{name}"]) for name in names))
    yield largest_difference(
        "selective_log_softmax", ours, golden["selective.out"], SCORE_TOLERANCE
    )
    # Advantages of the groups
    size = settings["num_generations"]
    ours = advantages(golden["rewards"], size)
    yield largest_difference("leave-one-out advantages", ours, golden["advantages"], LOSS_TOLERANCE)
    # Loss, divergence and gradients of each inner iteration
    graph, params = split_model(
        DreamForCausalLM.from_pretrained(folder / "checkpoint", dtype=jnp.float32)
    )
    form = PolicyLoss(
        epsilon=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        beta=settings["beta"],
        kl_clamp=math.inf,
    )
    mask_id = settings["config"]["mask_token_id"]
    for iteration, ratio in enumerate(settings["mask_ratios"]):
        batch, copies = iteration_batch(golden, iteration, ratio, mask_id)
        (loss, (scores, kl)), gradients = loss_and_gradients(
            graph, params, batch, copies, form=form, chunk=size
        )
        name = f"iteration {iteration}"
        # [rows, iterations, tokens]: one iteration
        yield largest_difference(
            f"{name}, scores", scores, golden["per_token_logps"][:, iteration], SCORE_TOLERANCE
        )
        yield largest_difference(f"{name}, loss", loss, golden[f"loss.{iteration}"], LOSS_TOLERANCE)
        yield largest_difference(f"{name}, KL", kl, golden[f"kl.{iteration}"], LOSS_TOLERANCE)
        norm = optax.tree.norm(gradients)[None]
        yield relative_error(
            f"{name}, gradient norm", norm, golden[f"grad_norm.{iteration}"], GRADIENT_TOLERANCE
        )
        by_name = flatten(gradients)
        prefix = f"grad.{iteration}."
        for key in sorted(key for key in golden if key.startswith(prefix)):
            tensor = key.removeprefix(prefix)
            yield relative_error(
                f"{name}, gradient of {tensor}", by_name[tensor], golden[key], GRADIENT_TOLERANCE
            )


@partial(jax.jit, static_argnames=("graph", "form", "chunk"))
def loss_and_gradients(
    graph: ModelGraph, params: dict, batch: dict, copies: Copies, *, form: PolicyLoss, chunk: int
) -> tuple[tuple, dict]:
    """Compute (loss, (scores, KL)) and gradients of the recorded rows with given copies."""

    def loss_of(params):
        tokens = batch["input_ids"]
        model = graph.merge(params)
        scores = completion_scores(model, tokens, jnp.ones(tokens.shape, bool), copies, chunk)
        total, weight, metrics = policy_loss(
            scores,
            batch["old"],
            batch["reference"],
            batch["advantages"],
            batch["completion_mask"].astype(bool),
            form,
        )
        divergence = metrics["kl"]
        assert isinstance(divergence, Mean)
        return total / weight, (scores, divergence.value)

    return jax.value_and_grad(loss_of, has_aux=True)(params)


def iteration_batch(
    golden: HostArrays, iteration: int, ratio: float, mask_id: int
) -> tuple[dict[str, jax.Array], Copies]:
    """Return the recorded rows of an inner iteration, and their copies with the recorded masks."""
    batch = {
        name: jnp.asarray(golden[name]) for name in ("input_ids", "advantages", "completion_mask")
    }
    batch["old"] = jnp.asarray(golden["old_per_token_logps"][:, iteration])
    batch["reference"] = jnp.asarray(golden["ref_per_token_logps"][:, iteration])
    # First masks [rows, tokens]; the coupled copy masks the others. `masked` is [rows, 3, tokens]:
    # all masked, the first masks, their complement.
    first = golden["mask"][iteration].astype(bool)
    masked = jnp.asarray(np.stack([np.ones_like(first), first, ~first], axis=1))
    # One over the share of masked tokens: 1, ratio, 1 - ratio
    weights = jnp.broadcast_to(
        jnp.asarray([1, 1 / ratio, 1 / (1 - ratio)], jnp.float32), (len(first), 3)
    )
    # The divisor is 2: a token is scored in the copy that is all masked, and in one of the pair.
    return batch, Copies(
        noisy_rows(batch["input_ids"], masked, mask_id), masked, weights, jnp.full(len(first), 2.0)
    )
