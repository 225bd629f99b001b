"""Coupled-GRPO in a page: the built-in model, its own corpus, and a reward of yours.

    python examples/grpo_training.py --out out/grpo-example

Runs on a laptop. The same with a checkpoint of your own: load it in place of the built-in model,
and give rows with "prompt" and whatever columns your rewards read. `diffucoder grpo` is the command
around the same trainer.
"""

import logging
from pathlib import Path

from jax_lm.data.prompts import builtin_prompts
from jax_lm.host.declared import run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.rewards import WeightedSum, completed_code_reward
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import OptimizerConfig, TrainerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer, GRPOConfig


def brevity(prompts: list, completions: list[str], **columns: object) -> list[float]:
    """A reward is a function: one number per completion, or None where it does not apply."""
    return [-len(completion) / 1000 for completion in completions]


def main(
    out: Path, steps: int = 20, prompts: int = 4, generations: int = 4, length: int = 96
) -> None:
    """Train for some updates.

    Args:
        out: folder of the run; started again, the example continues there.
        steps: updates.
        prompts: prompts per update.
        generations: completions of each prompt, which are compared with each other.
        length: of a completion, in tokens.
    """
    # `force`: JAX has already given the root logger a handler, which shows warnings alone
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    trainer = DiffuGRPOTrainer(
        DreamForCausalLM.from_pretrained(BUILTIN_MODEL),
        tokenizer,
        builtin_prompts(100),
        GRPOConfig(
            num_generations=generations,
            prompts_per_step=prompts,
            max_prompt_length=96,
            score_chunk=generations,
            generation=GenerationOptions(
                max_new_tokens=length, num_steps=length // 2, temperature=1.0
            ),
            training=TrainerConfig(
                max_steps=steps,
                optimizer=OptimizerConfig(learning_rate=2e-5, adam_beta2=0.99, max_grad_norm=1.0),
                log_every=1,
                save_every=50,
            ),
        ),
        out=out,
        rewards=WeightedSum(
            {"tests": completed_code_reward, "brevity": brevity}, {"tests": 1.0, "brevity": 0.1}
        ),
    )
    if trainer.train():
        trainer.model.save_pretrained(out / "model", tokenizer=tokenizer, source=BUILTIN_MODEL)
        print(f"wrote {out / 'model'}: python examples/grpo_inference.py --model {out / 'model'}")


if __name__ == "__main__":
    run_main(main)
