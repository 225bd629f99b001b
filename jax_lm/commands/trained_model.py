"""The model of a training command: loads a checkpoint, all of its weights or adapters, onto devices; writes results."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
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
    lora: LoraConfig | None = None

    def trained(self, name: str) -> bool:
        """Tell whether a parameter is trained: all of them, or those of adapters."""
        return self.lora is None or is_lora(name)

    def end(self, finished: bool, model: DreamForCausalLM, out: Path) -> int:
        """Write out/model or out/adapter after the last step, else say that the run can go on; the exit status."""
        if not finished:
            print(f"stopped with a checkpoint; the same command continues the run in {out}")
            return terminal.TERMINATED
        if self.lora:
            folder = out / "adapter"
            save_adapter(model, folder, self.lora)
        else:
            folder = out / "model"
            model.save_pretrained(folder, dtype=self.dtype)
            if distributed.is_first():
                self.tokenizer.save_pretrained(folder)
        if distributed.is_first():
            print(f"wrote {folder}")
        return 0


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
    model = DreamForCausalLM.from_pretrained(folder, mesh=parse_mesh(arguments.mesh), int8=arguments.quantize == "int8")
    dtype = model.dtype
    if lora is not None:
        add_lora(model, lora, seed)
    return model, TrainedModel(tokenizer, dtype, lora)


def parse_mesh(text: str | None) -> Mesh | None:
    """Make the mesh that was asked for, if one was."""
    return MeshShape.parse(text).mesh() if text else None


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
