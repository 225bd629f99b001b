"""The model of a training command: loads a checkpoint, all of its weights or adapters, onto devices; writes results."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

from jax_lm import distributed, terminal
from jax_lm.arguments.training import ModelArguments
from jax_lm.checkpoints import huggingface
from jax_lm.data.conversations import Samples
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import LoraConfig, add_lora, is_lora, save_adapter
from jax_lm.sharding import MeshShape
from jax_lm.tokenizer import DiffuCoderTokenizer


@dataclass(frozen=True)
class TrainedModel:
    """Which parameters of a model are trained, and how it is written: tokenizer, stored dtype, adapters."""

    tokenizer: DiffuCoderTokenizer
    dtype: DTypeLike
    lora: LoraConfig | None
    trained: Callable[[str], bool]

    def save(self, model: DreamForCausalLM, out: Path) -> None:
        """Write the trained model as out/model, or its adapters as out/adapter, and say so."""
        folder = out / ("adapter" if self.lora else "model")
        if self.lora:
            save_adapter(model, folder, self.lora)
        else:
            model.save_pretrained(folder, dtype=self.dtype)
        if distributed.is_first():
            if not self.lora:
                self.tokenizer.save_pretrained(folder)
            print(f"wrote {folder}")


def load_for_training(arguments: ModelArguments, seed: int) -> tuple[DreamForCausalLM, TrainedModel]:
    """Load the model to train onto its devices, with fresh adapters if they are asked for.

    Raises:
        CheckpointError, TokenizerError: the files cannot be used, or do not belong together.
        ValueError: adapters or a mesh that do not fit.
    """
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    config = DreamForCausalLM.read_config(folder)
    tokenizer.require_ids(mask_token_id=config.mask_token_id, vocab_size=config.vocab_size)
    lora = lora_config(arguments)
    mesh = MeshShape.parse(arguments.mesh).mesh() if arguments.mesh else None
    model = DreamForCausalLM.from_pretrained(folder, mesh=mesh, int8=arguments.quantize == "int8")
    dtype = model.dtype
    if lora is not None:
        add_lora(model, lora, seed)
    return model, TrainedModel(tokenizer, dtype, lora, (lambda name: True) if lora is None else is_lora)


def lora_config(arguments: ModelArguments) -> LoraConfig | None:
    """Describe the adapters asked for; ValueError if they cannot be."""
    if arguments.lora_rank is None:
        return None
    return LoraConfig(rank=arguments.lora_rank, alpha=arguments.lora_alpha)


def model_identity(arguments: ModelArguments) -> dict[str, Any]:
    """List what a resumed run must agree on of its model."""
    lora = lora_config(arguments)
    return {"lora": asdict(lora) if lora else None, "quantize": arguments.quantize}


def write_refused(samples: Samples, out: Path) -> None:
    """Write which lines of the data were not used."""
    if distributed.is_first():
        (out / "refused.json").write_text(json.dumps(samples.refused, indent=1) + "\n", encoding="utf-8")


def unfinished(out: Path) -> int:
    """Say that the run can go on; returns the exit status."""
    print(f"stopped with a checkpoint; the same command continues the run in {out}")
    return terminal.TERMINATED
