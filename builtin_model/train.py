"""Train the built-in model: its tokenizer, its shape, a phase at a constant rate and one in which
the rate falls.

    python -m builtin_model.train --out out/builtin

rebuilds it from nothing on a CPU; `builtin_model/make.sh` also measures the result. The same
command continues a run that was ended. The first phase may end at any step: `--stable-steps` below
what it has done begins the second at once.
"""

import logging
import multiprocessing
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from flax import nnx

from builtin_model.bpe import save_tokenizer, train_bpe
from builtin_model.rows import (
    chat_row,
    completion_row,
    continuation_row,
    draw_text,
    infilling_row,
    stream_batches,
)
from jax_lm.checkpoints.description import complete
from jax_lm.data.batches import Batch
from jax_lm.host.declared import run_main
from jax_lm.host.interruption import TERMINATED
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.reports.run_folder import weights_digest
from jax_lm.tokenizer import (
    DIFFUSION_PAD,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    START_OF_TURN,
    DiffuCoderTokenizer,
)
from jax_lm.training.config import LossConfig, OptimizerConfig, TrainerConfig
from jax_lm.training.masked_diffusion import train
from jax_lm.training.trainer import State

VOCABULARY = 1536
TOKENIZER_TEXTS = 20_000
SPACED = tuple(
    word
    for line in """
        False None Python Return The True Write and are by class def elif else every for from function if import in is
        its keep not of or return returns self that the them then there to while with
    """.splitlines()
    for word in line.split()
)
"""Words that are no names and that texts are full of: a third of what stands behind a space."""

ROW_LENGTH = 384
SHARES = {completion_row: 0.56, continuation_row: 0.03, infilling_row: 0.21, chat_row: 0.2}
LONGER_SHARE = 0.25
CHUNK = 100
"""Batches that one seed gives. A run resumes by drawing a part of a chunk again."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


LOSS = LossConfig(
    weighting="plain",
    normalisation="masked",
    high_levels=True,
    confident_share=0.5,
    masks_per_query=True,
)
"""Generation starts from an empty canvas: this practises nearly empty ones, as the evidence bound hardly does, and
those on which the end of the text is decided first."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Train the built-in model, from where an interrupted run in `out` stopped.

    Attributes:
        out: folder for the checkpoint, the tokenizer and, per phase, metrics and what it resumes
            from.
        stable_steps: updates at a constant rate; a run that has done more goes on to the decay.
        decay_steps: updates over which the rate falls to 0.
        tokens_per_batch: tokens of a batch, spare canvas included.
        learning_rate, muon_learning_rate: of AdamW, and of Muon for the matrices of the layers.
        seed: of the corpus, the initial weights and the masks.
        start: folder of a trained model to start from, with its tokenizer; nothing if not given.
        workers: processes that draw batches ahead, for a device that is faster than one core draws;
            0: none. What is drawn is the same.
        save_every: updates from one checkpoint to resume from to the next.
    """

    out: Path
    stable_steps: int = 2000
    decay_steps: int = 22_000
    tokens_per_batch: int = 4096
    learning_rate: float = 2e-3
    muon_learning_rate: float = 0.01
    seed: int = 0
    start: Path | None = None
    workers: int = 0
    save_every: int = 250

    def phases(self) -> dict[str, TrainerConfig]:
        """List the phases by the names of their folders."""
        return {
            # The length of the schedule says nothing, as its floor is its peak.
            "stable": self.training(
                max_steps=10**7, stop_after=self.stable_steps, warmup=100, min_lr_ratio=1.0
            ),
            "decay": self.training(
                max_steps=self.decay_steps, stop_after=None, warmup=20, min_lr_ratio=0.0
            ),
        }

    def training(
        self, *, max_steps: int, stop_after: int | None, warmup: int, min_lr_ratio: float
    ) -> TrainerConfig:
        """Configure a phase: Muon for the matrices of the layers, AdamW for the rest."""
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate,
            muon_learning_rate=self.muon_learning_rate,
            warmup_steps=warmup,
            min_lr_ratio=min_lr_ratio,
            adam_beta2=0.98,
        )
        return TrainerConfig(
            max_steps=max_steps,
            stop_after=stop_after,
            optimizer=optimizer,
            compute_dtype="bfloat16",
            seed=self.seed,
            log_every=50,
            save_every=self.save_every,
            keep=3,
        )


class Chunks:
    """A source of seeded chunks of batches; it resumes by drawing again, and dropping, a part of
    one.

    With a pool, `ahead` chunks are drawn before they are needed; its processes must be able to take
    `chunk`.
    """

    arrays: Any = ()

    def __init__(
        self, chunk: Callable[[int], Iterator[Any]], pool: Executor | None = None, ahead: int = 1
    ) -> None:
        self.chunk, self.pool, self.ahead, self.taken = chunk, pool, ahead, 0
        self.batches = self.batches_from(0)

    def batches_from(self, taken: int) -> Generator[Any]:
        """Yield all batches behind the first `taken`."""
        number, done = divmod(taken, CHUNK)
        if self.pool is None:
            for following in count(number):
                yield from islice(self.chunk(following), done if following == number else 0, CHUNK)
        else:
            for batches in drawn_ahead(
                self.pool, partial(whole_chunk, self.chunk), number, self.ahead
            ):
                yield from batches[done:]
                done = 0

    def draw(self, state: State) -> tuple[Any, dict[str, float]]:
        """Take the next batch."""
        self.taken += 1
        return next(self.batches), {}

    def save(self) -> dict[str, Any]:
        """Return how many batches were taken."""
        return {"taken": self.taken}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on behind the batches that were taken."""
        self.taken = saved["taken"]
        self.batches = self.batches_from(self.taken)

    def close(self) -> None:
        """Draw no more: what is drawn ahead is given up."""
        self.batches.close()


def whole_chunk(chunk: Callable[[int], Iterator[Any]], number: int) -> list[Any]:
    """Draw all batches of a chunk."""
    return list(islice(chunk(number), CHUNK))


def drawn_ahead(
    pool: Executor, draw: Callable[[int], list[Any]], first: int, ahead: int
) -> Iterator[list[Any]]:
    """Yield what `draw` gives for `first`, `first + 1` and so on, `ahead` of which are drawn while
    one is used.
    """
    waiting = deque(pool.submit(draw, number) for number in range(first, first + ahead))
    try:
        for number in count(first + ahead):
            waiting.append(pool.submit(draw, number))
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def build_tokenizer(seed: int, count: int = TOKENIZER_TEXTS) -> DiffuCoderTokenizer:
    """Train a byte-level BPE on `count` texts of the training side of the corpus, with Dream's
    special tokens.
    """
    rng = random.Random(seed)
    tokens = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
    texts = (draw_text(rng) for _ in range(count))
    return train_bpe(
        texts,
        vocab_size=VOCABULARY,
        special_tokens=tokens,
        spaced=SPACED,
        chat_template=CHAT_TEMPLATE,
    )


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


def begin(recipe: Recipe) -> tuple[DreamForCausalLM, DiffuCoderTokenizer]:
    """Load the model that the run starts from, or build one and its tokenizer."""
    if recipe.start:
        model = DreamForCausalLM.from_pretrained(recipe.start, dtype="float32")
        return model, DiffuCoderTokenizer.from_pretrained(recipe.start)
    tokenizer = build_tokenizer(recipe.seed)
    return DreamForCausalLM(model_config(tokenizer), rngs=nnx.Rngs(recipe.seed)), tokenizer


def batches(
    recipe: Recipe, tokenizer: DiffuCoderTokenizer, phase: str, start: str, chunk: int
) -> Iterator[Batch]:
    """Draw the batches of a chunk of a phase; a run from other weights draws others."""
    return stream_batches(
        tokenizer,
        seed=f"{recipe.seed} {start} {phase} {chunk}",
        tokens_per_batch=recipe.tokens_per_batch,
        length=ROW_LENGTH,
        shares=SHARES,
        longer_share=LONGER_SHARE,
    )


def main(recipe: Recipe) -> None:
    """Train, and write the checkpoint in bfloat16."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    model, tokenizer = begin(recipe)
    start = weights_digest(recipe.start) if recipe.start else ""
    identity: dict[str, Any] = {
        "tokens_per_batch": recipe.tokens_per_batch,
        "seed of the recipe": recipe.seed,
        "start": start,
        "row_length": ROW_LENGTH,
        "longer_share": LONGER_SHARE,
        "shares": {kind.__name__: share for kind, share in SHARES.items()},
    }
    # Spawned, as a process that runs JAX has threads and may hold a device.
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(recipe.workers, mp_context=spawn)
        if recipe.workers
        else nullcontext() as pool
    ):
        for phase, training in recipe.phases().items():
            # A first phase that goes on after its decay began would be thrown away for what that
            # had reached.
            behind = {"stable_steps": recipe.stable_steps} if phase == "decay" else {}
            chunk = partial(batches, recipe, tokenizer, phase, start)
            with closing(Chunks(chunk, pool, 2 * recipe.workers)) as source:
                if not train(
                    model, source, LOSS, training, recipe.out / phase, identity=identity | behind
                ):
                    sys.exit(TERMINATED)
    save_tokenizer(tokenizer, recipe.out)
    model.save_pretrained(recipe.out, dtype="bfloat16")
    complete(recipe.out, model.config, tokenizer)


if __name__ == "__main__":
    main(run_main(Recipe))
