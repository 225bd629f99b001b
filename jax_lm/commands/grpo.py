"""`diffucoder grpo`: train on rewards of the model's own completions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jax_lm import terminal
from jax_lm.commands.trainee import Trainee
from jax_lm.training.grpo_config import GRPOConfig

BUILTIN = "builtin"
SANDBOXED = {"code", "binary_code", "completed_code"}


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """Train by coupled-GRPO: sample completions, reward them, and make the better ones likelier.

    The defaults are DiffuCoder's published recipe. Killed at any moment, the same command continues the run to the
    same weights. Programs run in the sandbox; where this host has none, the command refuses.

    Examples:
        diffucoder grpo --preset paper --model apple/DiffuCoder-7B-Instruct --data hard.jsonl --out runs/out
        diffucoder grpo --config runs/grpo_paper.yaml --data hard.jsonl --out runs/out --learning-rate 2e-6
        diffucoder grpo --config runs/grpo_builtin.yaml --out out/grpo
        diffucoder grpo --config runs/grpo_paper.yaml --data hard.jsonl --out runs/lora --lora-rank 16 --quantize int8

    Attributes:
        out: folder of the run: metrics.jsonl, completions/, checkpoints/, and at its end model/.
        data: JSONL file whose rows have "prompt" (text, or chat messages) and the columns that rewards read, such as
            "test_cases"; or builtin, tasks of the built-in corpus.
        prompts: how many tasks of the built-in corpus.
        trainee: the model, its adapters and devices.
        preset: paper is the published recipe, which the defaults are.
        config: recipe, a YAML file of these options; what is typed wins.
        settings: of the run.
    """

    out: Path
    data: str = BUILTIN
    prompts: int = 2000
    trainee: Trainee = field(default_factory=Trainee)
    preset: Literal["paper"] = "paper"
    config: Path | None = None
    settings: GRPOConfig = field(default_factory=GRPOConfig)

    def run(self) -> int:
        terminal.show_log()
        self.trainee.lora()
        from jax_lm.sandbox.runner import choose

        if SANDBOXED & set(self.settings.reward_funcs):
            # A host that cannot contain programs is better told before the model has written them.
            choose("auto", allow_unsafe=False)
        rows = self.rows()
        self.trainee.hosts.start()
        return self.train(rows)

    def rows(self) -> list[dict[str, Any]]:
        from jax_lm.data.prompts import corpus_prompts, read_prompts

        if self.data == BUILTIN:
            return corpus_prompts(self.prompts, self.settings.seed)
        return read_prompts(Path(self.data))

    def train(self, rows: list[dict[str, Any]]) -> int:
        from jax_lm.training.coupled_grpo import DiffuGRPOTrainer

        tokenizer = self.trainee.tokenizer()
        model, training = self.trainee.load(self.settings.seed)
        trainer = DiffuGRPOTrainer(
            model,
            tokenizer,
            rows,
            self.settings,
            out=self.out,
            trained=training.trained,
        )
        trainer.identity |= self.trainee.identity()
        # The trainer has float32 weights of its own.
        del model
        if not trainer.train():
            print(f"stopped with a checkpoint; the same command continues the run in {self.out}")
            return terminal.TERMINATED
        training.save(trainer.model, tokenizer, self.out)
        return 0
