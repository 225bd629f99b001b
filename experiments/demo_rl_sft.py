"""Fine-tune on solutions of the prompts of experiments/demo_rl.sh or pipelines_rl.sh: their control
without rewards.

    python experiments/demo_rl_sft.py out/demo_rl/prompts.jsonl out/demo_rl/sft-0 --seed 0

As many updates, from the same prompts, over the same canvas; rows are as in the training of the
built-in model, a header and its masked body. An update of theirs sees 256 completions three times
(coupled), one of these as many solutions once.
"""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from builtin_model.bpe import save_tokenizer
from builtin_model.pipelines import draw_prompts
from builtin_model.rows import split_row
from builtin_model.train import LOSS, Chunks
from jax_lm.checkpoints.description import complete
from jax_lm.data.batches import Batch, close_sample, collate
from jax_lm.data.prompts import read_shipped_tasks
from jax_lm.host.declared import Positional, run_main
from jax_lm.host.interruption import TERMINATED
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import OptimizerConfig, TrainerConfig
from jax_lm.training.masked_diffusion import train
from jax_lm.training.prompt_set import PromptSet

NEW_TOKENS = 96
"""As in recipes/grpo_builtin.yaml."""
PIPELINES = 800
"""Of four steps, in the files of experiments/pipelines."""


def main(
    prompts: Positional[Path],
    out: Positional[Path],
    seed: int = 0,
    steps: int = 20,
    rate: float = 5e-5,
    model: Path = BUILTIN_MODEL,
    row_count: int = 256,
    max_prompt: int = 64,
    held_out: int = 64,
) -> None:
    """Fine-tune, and save the model.

    Args:
        prompts: JSONL file of experiments/demo_rl_prompts.py, or of four-step pipelines.
        out: folder of the run.
        seed: of the order of the rows and their masks.
        steps: updates.
        rate: learning rate, constant after three updates.
        model: checkpoint to start from.
        row_count: rows of an update, each of another prompt.
        max_prompt: tokens of the longest prompt, as in the runs with rewards.
        held_out: number of prompts that are not learnt from, as there.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    tokenizer = DiffuCoderTokenizer.from_pretrained(model)
    policy = DreamForCausalLM.from_pretrained(model, dtype="float32")
    tasks = (*read_shipped_tasks("training"), *draw_prompts(4, PIPELINES))
    solutions = {task.key: task.completion for task in tasks}
    asked = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    learnt, _ = PromptSet.of(asked, tokenizer, max_prompt).hold_out(held_out, seed)
    rows, dropped = [], 0
    for prompt in learnt.prompts:
        row = split_row(str(prompt.content), solutions[prompt.columns["key"]], tokenizer)
        pads = len(prompt.ids) + NEW_TOKENS - len(row.ids)
        if pads >= 0:
            rows.append(close_sample(row, pads, tokenizer.pad_id))
        else:
            dropped += 1
    logging.info("%d solutions, %d more are longer than %d tokens", len(rows), dropped, NEW_TOKENS)

    def batches(chunk: int) -> Iterator[Batch]:
        rng = np.random.default_rng((seed, chunk))
        while True:
            chosen = rng.choice(len(rows), row_count, replace=len(rows) < row_count)
            yield collate(
                [[rows[number]] for number in chosen], max_prompt + NEW_TOKENS, tokenizer.pad_id
            )

    optimizer = OptimizerConfig(
        learning_rate=rate, warmup_steps=3, min_lr_ratio=1.0, adam_beta2=0.99, max_grad_norm=1.0
    )
    training = TrainerConfig(
        max_steps=steps, optimizer=optimizer, compute_dtype="float32", seed=seed, save_every=25
    )
    if not train(policy, Chunks(batches), LOSS, training, out, identity={"prompts": len(rows)}):
        sys.exit(TERMINATED)
    # The folder's name says that the run is done.
    unfinished = out / "model.unfinished"
    unfinished.mkdir(exist_ok=True)
    save_tokenizer(tokenizer, unfinished)
    policy.save_pretrained(unfinished, dtype="float32")
    complete(unfinished, policy.config, tokenizer)
    unfinished.rename(out / "model")


if __name__ == "__main__":
    run_main(main)
