"""What the training commands train: a checkpoint, all of its weights or adapters, on some devices; and its writing."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import tyro

from jax_lm.distributed import ONE_HOST, Hosts

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from jax_lm.models.dream import DreamForCausalLM
    from jax_lm.models.lora import LoraConfig
    from jax_lm.tokenizer import DiffuCoderTokenizer


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """Which model is trained, and where.

    Attributes:
        model: folder or hub id; the built-in model if not given.
        lora_rank: train adapters of this rank instead of all weights.
        lora_alpha: adapters are scaled by alpha / rank; twice the rank if not given.
        quantize: int8 for the kernels below the adapters, which halves the memory of the weights.
        mesh: devices that share the training, such as data=2,fsdp=4; one device if not given.
        hosts: several hosts as one (multi_host, or coordinator, num_processes and process_id).
    """

    model: str | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    quantize: Literal["int8"] | None = None
    mesh: str | None = None
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = ONE_HOST

    def lora(self) -> "LoraConfig | None":
        """The adapters asked for.

        Raises:
            ValueError: an option that only acts on adapters, without them.
        """
        if self.lora_rank is None:
            for name, value in (("lora_alpha", self.lora_alpha), ("quantize", self.quantize)):
                if value is not None:
                    raise ValueError(f"{name}={value}: needs lora_rank")
            return None
        from jax_lm.models.lora import LoraConfig

        return LoraConfig(rank=self.lora_rank, alpha=self.lora_alpha)

    def tokenizer(self) -> "DiffuCoderTokenizer":
        """Of the model, checked against its configuration."""
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.tokenizer import DiffuCoderTokenizer

        tokenizer = DiffuCoderTokenizer.from_pretrained(self.folder())
        config = DreamForCausalLM.read_config(self.folder())
        tokenizer.require_ids(mask_token_id=config.mask_token_id, vocab_size=config.vocab_size)
        return tokenizer

    def folder(self) -> Path:
        from jax_lm.checkpoints import huggingface
        from jax_lm.inference import BUILTIN_MODEL

        return huggingface.resolve(BUILTIN_MODEL if self.model is None else self.model)

    def load(self, seed: int) -> tuple["DreamForCausalLM", "Training"]:
        """The model on its devices, with fresh adapters if they are asked for, and what of it is trained."""
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.models.lora import add_lora, is_lora
        from jax_lm.sharding import MeshShape

        lora = self.lora()
        mesh = MeshShape.parse(self.mesh).mesh() if self.mesh else None
        model = DreamForCausalLM.from_pretrained(self.folder(), mesh=mesh, int8=self.quantize == "int8")
        dtype = model.dtype
        if lora is None:
            return model, Training(dtype, None, lambda name: True)
        add_lora(model, lora, seed)
        return model, Training(dtype, lora, is_lora)

    def identity(self) -> dict[str, Any]:
        """What a resumed run must agree on."""
        lora = self.lora()
        return {"lora": asdict(lora) if lora else None, "quantize": self.quantize}


class Training(NamedTuple):
    """The dtype that a model was stored in, its adapters, and which of its parameters are trained."""

    dtype: "DTypeLike"
    lora: "LoraConfig | None"
    trained: Callable[[str], bool]

    def save(self, model: "DreamForCausalLM", tokenizer: "DiffuCoderTokenizer", out: Path) -> None:
        """Write the trained model as out/model, or its adapters as out/adapter, and say so."""
        from jax_lm.distributed import is_first
        from jax_lm.models.lora import save_adapter

        place = out / ("adapter" if self.lora else "model")
        if self.lora:
            save_adapter(model, place, self.lora)
        else:
            model.save_pretrained(place, dtype=self.dtype)
        if not is_first():
            return
        if not self.lora:
            tokenizer.save_pretrained(place)
        print(f"wrote {place}")
