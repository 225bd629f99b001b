"""`diffucoder merge-lora`: a checkpoint with an adapter added to its weights."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class MergeLora:
    """Add an adapter to the weights of its model, and write a checkpoint that needs no adapter.

    Example:
        diffucoder merge-lora --adapter out/lora/adapter --model ./DiffuCoder-7B-Instruct --out out/merged

    Attributes:
        adapter: folder that `diffucoder sft --lora-rank` wrote.
        out: folder for the checkpoint.
        model: folder or hub id of the model that the adapter was trained on; the built-in model if not given.
    """

    adapter: Path
    out: Path
    model: str | None = None

    def run(self) -> int:
        from jax_lm.checkpoints import huggingface
        from jax_lm.inference import BUILTIN_MODEL
        from jax_lm.models import lora
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.tokenizer import DiffuCoderTokenizer

        folder = huggingface.resolve(self.model or BUILTIN_MODEL)
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
        model = DreamForCausalLM.from_pretrained(folder)
        lora.load_adapter(model, self.adapter)
        lora.merge(model)
        model.save_pretrained(self.out)
        tokenizer.save_pretrained(self.out)
        print(f"wrote {self.out}")
        return 0
