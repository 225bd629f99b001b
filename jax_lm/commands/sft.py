"""`diffucoder sft`: fine-tune on conversations, or on prompts and responses."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from jax_lm import terminal
from jax_lm.commands.trainee import Trainee
from jax_lm.distributed import is_first
from jax_lm.training.settings import SftConfig


@dataclass(frozen=True, kw_only=True)
class Sft:
    """Fine-tune on conversations: the last answer of each is learnt.

    Killed at any moment, the same command continues the run to the same weights. SIGTERM ends it with a checkpoint.

    Examples:
        diffucoder sft --data train.jsonl --out out/sft --steps 200 --length 256
        diffucoder sft --data train.jsonl --out out/sft --config runs/sft_paper.yaml --model ./DiffuCoder-7B-Base
        diffucoder sft --data train.jsonl --out out/lora --lora-rank 16 --learning-rate 1e-4 --steps 500
        diffucoder sft --data train.jsonl --out out/lora --lora-rank 16 --quantize int8 --model ./DiffuCoder-7B-Instruct

    Attributes:
        data: JSONL file; a row has "messages" ([{"role": …, "content": …}, …]), or "prompt" and "response".
        out: folder of the run: metrics.jsonl, checkpoints/, and at its end model/ or adapter/.
        trainee: the model, its adapters and devices.
        config: recipe, a YAML file of these options; what is typed wins.
        settings: of the run.
    """

    data: Path
    out: Path
    trainee: Trainee = field(default_factory=Trainee)
    config: Path | None = None
    settings: SftConfig = field(default_factory=SftConfig)

    def run(self) -> int:
        terminal.show_log()
        self.trainee.lora()
        self.trainee.hosts.start()
        from jax_lm.data.conversations import conversation_rows, read_samples
        from jax_lm.training.sft import fine_tune

        tokenizer = self.trainee.tokenizer()
        samples = read_samples(self.data, conversation_rows(tokenizer, self.settings.length))
        model, training = self.trainee.load(self.settings.training.seed)
        finished = fine_tune(
            model,
            samples.rows,
            self.settings,
            self.out,
            pad_id=tokenizer.pad_id,
            trained=training.trained,
            identity={"data": samples.digest} | self.trainee.identity(),
        )
        if is_first():
            (self.out / "refused.json").write_text(json.dumps(samples.refused, indent=1) + "\n", encoding="utf-8")
        if not finished:
            print(f"stopped with a checkpoint; the same command continues the run in {self.out}")
            return terminal.TERMINATED
        training.save(model, tokenizer, self.out)
        return 0
