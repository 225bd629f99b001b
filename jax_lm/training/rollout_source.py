"""The batches of coupled-GRPO: completions, their rewards, and their scores under masks.

A rollout is made every `num_iterations` updates. Old and reference scores are computed once, when
it is made, under the masks of each of its updates. With one update per rollout, no old scores are
needed: the update starts from the policy that sampled. On a mesh, the rows of a rollout are small
and lie whole on every device; model and scores split them.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32

from jax_lm.config import Fields
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.trace import decoded_blocks, trace_log_probs
from jax_lm.host.distributed import is_first
from jax_lm.models.graph import ModelGraph
from jax_lm.models.shapes import BatchValues, ColumnInts, Mask, Tokens
from jax_lm.options import BLOCK_LENGTH, Decoding, GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.sharding import constrain
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.metrics import Metrics
from jax_lm.training.policy_loss import (
    CompletionMask,
    TokenScores,
    completion_scores,
    forward_process,
    score_in_chunks,
)
from jax_lm.training.prompt_set import HELD_OUT, Prompts, PromptSet
from jax_lm.training.rollout_mesh import place_sampler
from jax_lm.training.rollouts import Completions, Rollout, Rollouts, sample_keys
from jax_lm.training.trainer import State
from jax_lm.training.update import Params, compute_copy, merge_params
from untrusted.printable import printable_json

logger = logging.getLogger(__name__)

# Completions of each rollout that are written for people to read.
LOGGED_COMPLETIONS = 4


class MaskedRows(NamedTuple):
    """Rows to score, and the keys and steps that determine their masks.

    Attributes:
        tokens: prompts and completions; as sampled, including what follows a stop token, if
            `commit_step` is set.
        attention_mask: as in sampling.
        completion_mask: the tokens that count.
        keys: data of the keys that draw the masks.
        commit_step: sampler step of each token, for estimators that follow an order; else None.
    """

    tokens: Tokens
    attention_mask: Mask
    completion_mask: CompletionMask
    keys: UInt32[Array, "b k"]
    commit_step: ColumnInts | None = None


class PolicyBatch(NamedTuple):
    """A rollout as one of its updates sees it.

    Attributes:
        rows: completions and masks; no token counts in rows that were not judged.
        old_scores: scores of the policy that sampled, under these masks; None if this is the
            rollout's only update.
        reference_scores: scores of the reference policy; None if beta is 0.
        advantages: one per row; None until the rewards are compared.
    """

    rows: MaskedRows
    old_scores: TokenScores | None
    reference_scores: TokenScores | None
    advantages: BatchValues | None

    @property
    def tokens(self) -> Tokens:
        """Prompts and completions; the trainer counts them."""
        return self.rows.tokens


@partial(jax.jit, static_argnames=("graph", "mask_id", "generation", "masks", "chunk", "remat"))
def policy_scores(
    graph: ModelGraph,
    params: Params,
    rows: MaskedRows,
    *,
    mask_id: int,
    generation: GenerationOptions,
    masks: Estimator,
    chunk: int,
    remat: bool = False,
) -> TokenScores:
    """Score rows under a policy."""
    model = graph.merge(params)
    tokens = rows.tokens
    settings = {
        "remat": remat,
        "temperature": generation.temperature if masks.sampling_temperature else 1.0,
    }
    if rows.commit_step is not None:
        steps = rows.commit_step
        if masks.estimator == "left_to_right":
            # Blocks limit the canvases in memory at a time: 96 tokens are 3 blocks of 32 canvases.
            length = steps.shape[1]
            blocks = Decoding(block_length=BLOCK_LENGTH)
            generation = GenerationOptions(max_new_tokens=length, decoding=blocks)
            steps = jnp.broadcast_to(jnp.arange(length), steps.shape)
        blocks = decoded_blocks(tokens.shape[1], generation, model.config)

        def score(part: tuple[Array, Array, Array]):
            return trace_log_probs(model, *part, blocks, mask_id, **settings)

        parts = tokens, rows.attention_mask, steps
        return constrain(score_in_chunks(score, parts, chunk, model.mesh), model.mesh)
    # masked copies, then their scores
    keys = jax.random.wrap_key_data(rows.keys)
    length = generation.max_new_tokens
    copies = forward_process(keys, tokens, length, mask_id, masks)
    scores = completion_scores(model, tokens, rows.attention_mask, copies, chunk, **settings)
    return constrain(scores, model.mesh)


def make_scorer(graph: ModelGraph, mask_id: int, config: GRPOConfig) -> Callable[..., Array]:
    """Return `policy_scores` with the settings of a run."""
    return partial(
        policy_scores,
        graph,
        mask_id=mask_id,
        generation=config.generation,
        masks=config.masks,
        chunk=config.score_chunk,
        remat=bool(config.remat),
    )


@partial(jax.jit, static_argnames="alpha", donate_argnums=0)
def mix(reference: Params, params: Params, alpha: float) -> Params:
    """Move the reference towards the policy: (1 - alpha) reference + alpha policy.

    The arrays of the reference are donated.
    """
    return jax.tree.map(lambda old, new: (1 - alpha) * old + alpha * new, reference, params)


def require_rewards(rollout: Rollout, number: int):
    """Check that rewards scored something.

    Raises:
        ValueError: the first rollout of a run has no reward at all; later ones are warned of, as
            a run should not be lost for one of them.
    """
    unscored = [name for name, scores in rollout.parts.items() if np.isnan(scores).all()]
    if np.isnan(rollout.rewards).all():
        message = (
            f"rollout {number}: no reward scored any of the {len(rollout.rewards)} completions "
            f"({', '.join(unscored)} returned None for each): there is nothing to learn from"
        )
        if number == 0:
            raise ValueError(message)
        logger.warning(message)
    elif unscored and number == 0:
        logger.warning("rollout 0: %s returned None for every completion", ", ".join(unscored))


def nan_to_none(reward: float) -> float | None:
    """Return a reward as JSON, which has no NaN: None for what was not judged."""
    return None if math.isnan(reward) else float(reward)


class RolloutSource:
    """Draws the batches of a run: a new rollout every `num_iterations` updates.

    Args:
        sampler: sampler of the policy; its weights are not kept.
        tokenizer: tokenizer of the policy.
        prompts: what the policy completes.
        rewards: what completions are worth.
        config: settings of the run.
        out: folder for completions/, some texts of each rollout.
        params: trained weights, all or adapters.
        frozen: the other weights, in the compute dtype.

    Attributes:
        arrays: the reference policy, a copy of `params` in float32 (bfloat16 would not follow
            small moves), hence adapters where adapters are trained; {} if beta is 0.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: DiffuCoderTokenizer,
        prompts: PromptSet,
        rewards: WeightedSum,
        config: GRPOConfig,
        out: Path,
        *,
        params: Params,
        frozen: Params,
    ):
        self.config = config
        self.out = out
        self.frozen = frozen
        self.dtype = jnp.dtype(config.training.dtype)
        self.mesh = sampler.mesh
        self.arrays = {}
        if config.loss.beta:
            # A copy: the trainer overwrites its own arrays.
            self.arrays = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)
        # The initial policy stays on the host, because only evaluations read it.
        self.start = None
        if config.held_out_prompts and jax.process_count() == 1:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
            self.start = jax.device_get(compute_copy(params, self.dtype)), shardings
        # scoring: one compiled function for the old, reference and current policy
        self.score_rows = make_scorer(sampler.graph, sampler.mask_id, config)
        # sampling: from shapes only, because the policy's compute copy does not exist yet
        sampler, shardings = place_sampler(
            sampler, config.rollout_mesh, trained=params, policy=jax.eval_shape(self.policy, params)
        )
        self.rollouts = Rollouts(sampler, shardings, tokenizer, prompts, rewards, config)
        self.batches: list[PolicyBatch] = []
        # Step at which the reference moved last. An interrupted rollout is drawn again at the same
        # step, and must not move it twice.
        self.mixed_at: int | None = None
        self.finished_at: float | None = None

    def draw(self, state: State) -> tuple[PolicyBatch, Metrics]:
        """Draw the batch of the next update, and metrics of the rollout if it begins one."""
        config = self.config
        sync = config.ref_model_sync_steps
        # With num_iterations == 2, step 5 is the second update of rollout 2.
        number, iteration = divmod(state.step, config.num_iterations)
        # move the reference
        is_due = self.arrays and sync and state.step and state.step % sync == 0
        if is_due and self.mixed_at != state.step:
            self.arrays = mix(self.arrays, state.params, config.ref_model_mixup_alpha)
            self.mixed_at = state.step
        metrics = {}
        # make a rollout
        if iteration == 0:
            # Wait for the last update, or its time would count as the rollout's.
            jax.block_until_ready(state.params)
            if self.finished_at is not None:
                # Time since the previous rollout, including the trainer's work between updates.
                metrics["update_seconds"] = monotonic() - self.finished_at
            self.batches, rollout_metrics = self.make(self.policy(state.params), number)
            metrics |= rollout_metrics
            self.finished_at = monotonic()
        return self.batches[iteration], metrics

    def make(self, policy: Params, number: int) -> tuple[list[PolicyBatch], Metrics]:
        """Make a rollout: sample completions, judge them, and score them for each update.

        Args:
            policy: all weights, in the compute dtype.
            number: number of the rollout in the run.

        Returns:
            The rollout's batch for each update, and its metrics.
        """
        # sample
        sampled = self.rollouts.sample_rollout(policy, number)
        # With dynamic sampling, rewards are known already and choose the rows.
        rollout = sampled if sampled.totals is None else self.rollouts.choose_groups(sampled)
        # score, on the devices; accelerators do so while the host judges
        updates = self.score(policy, number, rollout.completions)
        if sampled.totals is None:
            if jax.default_backend() == "cpu":
                # Programs being judged would compete with scoring for cores and miss time limits.
                jax.block_until_ready(updates)
            sampled = self.rollouts.judge_rollout(sampled)
            rollout = sampled
        require_rewards(sampled, number)
        # compare
        advantages, mask = map(self.put, self.rollouts.compare(rollout, number))
        batches = [
            batch._replace(rows=batch.rows._replace(completion_mask=mask), advantages=advantages)
            for batch in updates
        ]
        # report
        self.log(number, rollout)
        return batches, self.rollouts.rollout_metrics(sampled)

    def score(self, policy: Params, number: int, completions: Completions) -> list[PolicyBatch]:
        """Start scoring completions under the masks of each update; advantages stay None."""
        config = self.config
        rows = [
            self.make_rows(completions, number, update)
            for update in range(1, 1 + config.num_iterations)
        ]
        reference = self.policy(self.arrays) if self.arrays else None
        return [
            PolicyBatch(
                masked,
                # later iterations start from another policy than the one that sampled
                self.score_rows(policy, masked) if config.num_iterations > 1 else None,
                None if reference is None else self.score_rows(reference, masked),
                None,
            )
            for masked in rows
        ]

    def make_rows(self, completions: Completions, number: int, update: int) -> MaskedRows:
        """Place the rows of an update on the devices, with the keys of its masks."""
        reads_steps = self.config.masks.reads_steps
        keys = sample_keys(
            self.config.training.seed, number, update, jnp.arange(len(completions.tokens))
        )
        return MaskedRows(
            # In sampling, tokens after the stop token were visible, too.
            tokens=self.put(completions.sampled if reads_steps else completions.tokens),
            attention_mask=self.put(completions.attention_mask),
            completion_mask=self.put(completions.completion_mask),
            keys=self.put(jax.random.key_data(keys)),
            commit_step=self.put(completions.commit_step) if reads_steps else None,
        )

    def evaluate(self, prompts: Prompts, params: Params) -> Metrics:
        """Measure the mean reward of one completion per prompt, and the KL from the start.

        The KL is the mean log ratio of the tokens that the policy drew. On several hosts, which
        hold no copy of the start, it is not measured.
        """
        policy = self.policy(params)
        metrics, completions = self.rollouts.evaluate(policy, prompts)
        if self.start is None:
            return metrics
        rows = self.make_rows(completions, HELD_OUT, 1)
        start = merge_params(self.frozen, jax.tree.map(jax.device_put, *self.start))
        ratio = self.score_rows(policy, rows) - self.score_rows(start, rows)
        return metrics | {"kl_start": float(ratio[completions.completion_mask].mean())}

    def policy(self, params: Params) -> Params:
        """Cast trained weights to the compute dtype, and merge them with the frozen ones."""
        return merge_params(self.frozen, compute_copy(params, self.dtype))

    def put(self, x) -> Array:
        """Place an array on the device, or a copy on every device of the mesh.

        All processes hold the same array.
        """
        if self.mesh is None:
            return jnp.asarray(x)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        return jax.make_array_from_process_local_data(replicated, np.asarray(x), x.shape)

    def log(self, number: int, rollout: Rollout):
        """Write some completions for people to read; a resumed run writes the same again."""
        # All processes hold the same rollout; the first one writes it.
        if not is_first():
            return
        assert rollout.totals is not None
        lines = []
        for row in range(min(LOGGED_COMPLETIONS, len(rollout.prompts))):
            rewards = {name: nan_to_none(scores[row]) for name, scores in rollout.parts.items()}
            entry = {
                "prompt": rollout.prompts[row].content,
                "completion": rollout.completions.texts[row],
                "reward": nan_to_none(rollout.totals[row]),
                "rewards": rewards,
            }
            lines.append(printable_json(entry) + "\n")
        folder = self.out / "completions"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06}.jsonl").write_text("".join(lines), encoding="utf-8")

    def save(self) -> Fields:
        """Return the current rollout for a checkpoint."""
        return {"batches": self.batches, "mixed_at": self.mixed_at}

    def load(self, saved: Fields):
        """Restore the rollout that `save` returned."""
        self.mixed_at = saved["mixed_at"]
        batches = jax.tree.map(self.put, saved["batches"])
        self.batches = [PolicyBatch(MaskedRows(*rows), *others) for rows, *others in batches]
