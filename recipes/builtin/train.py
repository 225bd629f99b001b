"""Train the built-in model: its tokenizer, its shape, its two phases.

    python -m recipes.builtin.train --out out/builtin

rebuilds it from nothing on a CPU; `runs/builtin_model.sh` also measures the result.
"""

import logging
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from flax import nnx

from jax_lm.data.batches import Batch
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.terminal import TERMINATED
from jax_lm.tokenizer import DIFFUSION_PAD, END_OF_TEXT, END_OF_TURN, MASK, START_OF_TURN, DiffuCoderTokenizer
from jax_lm.training.config import LossConfig, OptimizerConfig, TrainerConfig
from jax_lm.training.masked_diffusion import train
from jax_lm.training.trainer import State
from recipes.builtin.bpe import train_bpe
from recipes.builtin.corpus import draw_task
from recipes.builtin.rows import RowKind, chat_row, completion_row, continuation_row, infilling_row, stream_batches

VOCABULARY = 1536
TOKENIZER_TASKS = 20_000
CANVAS_LENGTHS = (64, 96, 128, 192, 352)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the run, with its own rows, canvases and optimizer.

    Attributes:
        loss: objective.
        training: optimizer and schedule.
        shares: weights of the kinds of rows.
        longer_share: share of rows on a canvas longer than they need.
        data_seed: added to the seed of the recipe.
    """

    loss: LossConfig
    training: TrainerConfig
    shares: Mapping[RowKind, float]
    longer_share: float
    data_seed: int


def adamw_and_muon(learning_rate: float, muon_learning_rate: float, *, warmup_steps: int) -> OptimizerConfig:
    """Choose Muon for the matrices of the layers and AdamW for the rest, with rates that fall to 0."""
    return OptimizerConfig(
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        warmup_steps=warmup_steps,
        min_lr_ratio=0.0,
        adam_beta2=0.98,
    )


PHASES = (
    # The evidence bound teaches local structure, but hardly what belongs on an empty canvas: after these steps a
    # masked token is right in 75 % of the cases when 30 % of the canvas is visible, and in 29 % when none is.
    Phase(
        loss=LossConfig(max_weight=20.0),
        training=TrainerConfig(
            max_steps=6000,
            stop_after=3000,
            optimizer=adamw_and_muon(3e-3, 0.02, warmup_steps=100),
            compute_dtype="bfloat16",
            log_every=50,
        ),
        shares={completion_row: 0.72, continuation_row: 0.1, infilling_row: 0.08, chat_row: 0.1},
        longer_share=0.08,
        data_seed=1,
    ),
    # So the rest practises nearly empty canvases, mostly on completions, and on canvases of many lengths.
    Phase(
        loss=LossConfig(weighting="plain", normalisation="masked", high_levels=True),
        training=TrainerConfig(
            max_steps=2500,
            optimizer=adamw_and_muon(1.5e-3, 0.006, warmup_steps=50),
            compute_dtype="bfloat16",
            seed=1,
            log_every=50,
        ),
        shares={completion_row: 0.85, continuation_row: 0.05, infilling_row: 0.05, chat_row: 0.05},
        longer_share=0.12,
        data_seed=2,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Train the built-in model, from where an interrupted run in `out` stopped.

    Attributes:
        out: folder for the checkpoint, the tokenizer and, per phase, metrics and what it resumes from.
        tokens_per_batch: tokens of a batch, spare canvas included.
        seed: of the corpus, the initial weights and the masks.
    """

    out: Path
    tokens_per_batch: int = 4096
    seed: int = 0


class Replayed:
    """A source from a seeded iterator; it resumes by drawing again, and dropping, what was taken."""

    arrays: Any = ()

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches, self.taken, self.behind = batches, 0, 0

    def draw(self, state: State) -> tuple[Batch, dict[str, float]]:
        """Take the next batch, after those that an earlier run took."""
        for _ in range(self.behind):
            next(self.batches)
        self.behind = 0
        self.taken += 1
        return next(self.batches), {}

    def save(self) -> dict[str, Any]:
        """Return how many batches were taken."""
        return {"taken": self.taken}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on behind the batches that were taken, on a fresh iterator."""
        self.taken = self.behind = saved["taken"]


def build_tokenizer(seed: int, count: int = TOKENIZER_TASKS) -> DiffuCoderTokenizer:
    """Train a byte-level BPE on `count` tasks of the training side of the corpus, with Dream's special tokens."""
    rng = random.Random(seed)
    tasks = (draw_task(rng) for _ in range(count))
    texts = (f"{task.prompt}{task.completion}\n{task.description}" for task in tasks)
    tokens = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
    return train_bpe(texts, vocab_size=VOCABULARY, special_tokens=tokens, chat_template=CHAT_TEMPLATE)


def model_config(tokenizer: DiffuCoderTokenizer) -> DreamConfig:
    """Return the shape of the built-in model: 4.3 million parameters."""
    return DreamConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.token_id(END_OF_TEXT),
        eos_token_id=tokenizer.token_id(END_OF_TEXT),
    )


def main(recipe: Recipe) -> None:
    """Build the tokenizer, train, and write the checkpoint in bfloat16."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    tokenizer = build_tokenizer(recipe.seed)
    model = DreamForCausalLM(model_config(tokenizer), rngs=nnx.Rngs(recipe.seed))
    for number, phase in enumerate(PHASES):
        batches = stream_batches(
            tokenizer,
            seed=recipe.seed + phase.data_seed,
            tokens_per_batch=recipe.tokens_per_batch,
            lengths=CANVAS_LENGTHS,
            shares=phase.shares,
            longer_share=phase.longer_share,
        )
        identity = {"tokens_per_batch": recipe.tokens_per_batch, "seed of the recipe": recipe.seed}
        out = recipe.out / f"phase-{number}"
        if not train(model, Replayed(batches), phase.loss, phase.training, out, identity=identity):
            sys.exit(TERMINATED)
    tokenizer.save_pretrained(recipe.out)
    model.save_pretrained(recipe.out, dtype="bfloat16")


if __name__ == "__main__":
    main(tyro.cli(Recipe))
