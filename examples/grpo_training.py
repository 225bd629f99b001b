"""Coupled-GRPO in a page: the built-in model, its own corpus, and a reward of yours.

    python examples/grpo_training.py --out out/grpo-example

Runs on a laptop. The same with a checkpoint of your own: load it in place of the built-in model, and give rows with
"prompt" and whatever columns your rewards read. `diffucoder grpo` is the command around the same trainer.
"""

import logging
from pathlib import Path

import tyro

from jax_lm.data.prompts import corpus_prompts
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.rewards import WeightedSum, completed_code_reward
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer, GRPOConfig


def brevity(prompts: list, completions: list[str], **columns: object) -> list[float]:
    """A reward is a function: one number per completion, or None where it does not apply."""
    return [-len(completion) / 1000 for completion in completions]


def main(out: Path, steps: int = 20) -> None:
    """Train for some updates.

    Args:
        out: folder of the run; started again, the example continues there.
        steps: updates.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    trainer = DiffuGRPOTrainer(
        DreamForCausalLM.from_pretrained(BUILTIN_MODEL),
        DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL),
        corpus_prompts(100),
        GRPOConfig(
            num_generations=4,
            prompts_per_step=4,
            max_steps=steps,
            max_prompt_length=96,
            max_completion_length=96,
            diffusion_steps=48,
            learning_rate=2e-5,
            max_grad_norm=1.0,
            compute_dtype="float32",
            score_chunk=4,
        ),
        out=out,
        rewards=WeightedSum({"tests": completed_code_reward, "brevity": brevity}, {"tests": 1.0, "brevity": 0.1}),
    )
    if trainer.train():
        trainer.model.save_pretrained(out / "model")
        DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL).save_pretrained(out / "model")
        print(f"wrote {out / 'model'}: python examples/grpo_inference.py --model {out / 'model'}")


if __name__ == "__main__":
    tyro.cli(main)
