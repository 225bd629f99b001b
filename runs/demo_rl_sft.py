"""The control of runs/demo_rl.sh without rewards: fine-tuning on solutions of the prompts that the others learn from.

    python runs/demo_rl_sft.py out/demo_rl/prompts.jsonl out/demo_rl/sft-0 --seed 0

As many updates; rows are as in the training of the built-in model, a header and its masked body.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from jax_lm.checkpoints.description import complete
from jax_lm.data.batches import Batch, collate
from jax_lm.data.prompts import shipped_tasks
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import LossConfig, OptimizerConfig, TrainerConfig
from jax_lm.training.masked_diffusion import train
from recipes.builtin.bpe import save_tokenizer
from recipes.builtin.rows import split_row
from recipes.builtin.train import Chunks

ROWS = 64
"""Rows of an update, each of another prompt."""
LENGTH = 160
LOSS = LossConfig(weighting="plain", normalisation="masked", high_levels=True)
"""As the built-in model was trained."""


def main(
    prompts: Path, out: Path, /, seed: int = 0, steps: int = 50, rate: float = 1e-4, model: Path = BUILTIN_MODEL
) -> None:
    """Fine-tune, and save the model.

    Args:
        prompts: JSONL file of runs/demo_rl_prompts.py.
        out: folder of the run.
        seed: of the order of the rows and their masks.
        steps: updates.
        rate: learning rate, constant after three updates.
        model: checkpoint to start from.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    tokenizer = DiffuCoderTokenizer.from_pretrained(model)
    policy = DreamForCausalLM.from_pretrained(model, dtype="float32")
    solutions = {task.key: task.completion for task in shipped_tasks("training")}
    asked = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    rows = [split_row(row["prompt"], solutions[row["key"]], tokenizer) for row in asked]
    rows = [row for row in rows if len(row.ids) <= LENGTH]

    def batches(chunk: int) -> Iterator[Batch]:
        rng = np.random.default_rng((seed, chunk))
        while True:
            chosen = rng.choice(len(rows), ROWS, replace=False)
            yield collate([[rows[number]] for number in chosen], LENGTH, tokenizer.pad_id)

    optimizer = OptimizerConfig(
        learning_rate=rate, warmup_steps=3, min_lr_ratio=1.0, adam_beta2=0.99, max_grad_norm=1.0
    )
    training = TrainerConfig(max_steps=steps, optimizer=optimizer, compute_dtype="float32", seed=seed, save_every=25)
    train(policy, Chunks(batches), LOSS, training, out, identity={"prompts": len(rows)})
    save_tokenizer(tokenizer, out / "model")
    policy.save_pretrained(out / "model", dtype="float32")
    complete(out / "model", policy.config, tokenizer)


if __name__ == "__main__":
    tyro.cli(main)
