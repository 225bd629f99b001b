"""`diffucoder sft`: fine-tune on conversations, or on prompts and responses."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jax_lm import terminal
from jax_lm.training.settings import SftConfig

if TYPE_CHECKING:
    from jax_lm.models.lora import LoraConfig


@dataclass(frozen=True, kw_only=True)
class Sft:
    """Fine-tune on conversations: the last answer of each is learnt.

    Killed at any moment, the same command continues the run to the same weights. SIGTERM ends it with a checkpoint.

    Examples:
        diffucoder sft --data train.jsonl --out out/sft --steps 200 --length 256
        diffucoder sft --data train.jsonl --out out/sft --config runs/sft_paper.yaml --model ./DiffuCoder-7B-Base
        diffucoder sft --data train.jsonl --out out/lora --lora-rank 16 --learning-rate 1e-4 --steps 500

    Attributes:
        data: JSONL file; a row has "messages" ([{"role": …, "content": …}, …]), or "prompt" and "response".
        out: folder of the run: metrics.jsonl, checkpoints/, and at its end model/ or adapter/.
        model: folder or hub id; the built-in model if not given.
        lora_rank: train adapters of this rank instead of all weights.
        lora_alpha: adapters are scaled by alpha / rank; twice the rank if not given.
        mesh: devices that share the training, such as data=2,fsdp=4; one device if not given.
        config: recipe, a YAML file of these options; what is typed wins.
        settings: of the run.
    """

    data: Path
    out: Path
    model: str | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    mesh: str | None = None
    config: Path | None = None
    settings: SftConfig = field(default_factory=SftConfig)

    def run(self) -> int:
        terminal.show_log()
        from jax_lm.checkpoints import huggingface
        from jax_lm.data.conversations import conversation_rows, read_samples
        from jax_lm.inference import BUILTIN_MODEL
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.models.lora import add_lora, is_lora
        from jax_lm.sharding import MeshShape
        from jax_lm.tokenizer import DiffuCoderTokenizer
        from jax_lm.training.sft import fine_tune

        lora = self.lora()
        folder = huggingface.resolve(self.model or BUILTIN_MODEL)
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
        config = DreamForCausalLM.read_config(folder)
        tokenizer.require_ids(mask_token_id=config.mask_token_id, vocab_size=config.vocab_size)
        samples = read_samples(self.data, conversation_rows(tokenizer, self.settings.length))
        mesh = MeshShape.parse(self.mesh).mesh() if self.mesh else None
        model = DreamForCausalLM.from_pretrained(folder, mesh=mesh)
        dtype = model.dtype
        if lora:
            add_lora(model, lora, self.settings.training.seed)
        finished = fine_tune(
            model,
            samples.rows,
            self.settings,
            self.out,
            pad_id=tokenizer.pad_id,
            trained=is_lora if lora else lambda name: True,
            identity={"data": samples.digest, "lora": asdict(lora) if lora else None},
        )
        (self.out / "refused.json").write_text(json.dumps(samples.refused, indent=1) + "\n", encoding="utf-8")
        if not finished:
            print(f"stopped with a checkpoint; the same command continues the run in {self.out}")
            return terminal.TERMINATED
        if lora:
            from jax_lm.models.lora import save_adapter

            save_adapter(model, self.out / "adapter", lora)
        else:
            model.save_pretrained(self.out / "model", dtype=dtype)
            tokenizer.save_pretrained(self.out / "model")
        print(f"wrote {self.out / ('adapter' if lora else 'model')}")
        return 0

    def lora(self) -> "LoraConfig | None":
        """The adapters asked for."""
        if self.lora_rank is None:
            if self.lora_alpha is not None:
                raise ValueError(f"lora_alpha={self.lora_alpha}: needs lora_rank")
            return None
        from jax_lm.models.lora import LoraConfig

        return LoraConfig(rank=self.lora_rank, alpha=self.lora_alpha)
