"""Arguments that several commands share: which model is used, and on which devices.

Imports no JAX.
"""

from dataclasses import dataclass

from jax_lm.config import Fields


@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """Which model is used, and on which devices.

    Attributes:
        model: folder or hub id; by default the built-in model, which only knows small Python
            functions.
        adapter: folder or hub id of a LoRA adapter in PEFT's layout. Its base model is used unless
            `model` is given.
        tokenizer: folder of the tokenizer; the model's own by default.
        dtype: float32, bfloat16, int8, int4 or fp8 (kernels only); depends on the device by default.
        mesh: how to use several devices, for example data=2,tensor=4; automatic by default.
    """

    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    mesh: str | None = None

    @property
    def name(self) -> str:
        """Names of the model and of its adapter, as they were given."""
        adapter = self.adapter and f"adapter {self.adapter}"
        return ", ".join(filter(None, (self.model, adapter))) or "built-in model"

    @property
    def settings(self) -> Fields:
        """Arguments of `jax_lm.inference.DiffuCoderInference`."""
        names = {"model": "model_path", "tokenizer": "tokenizer_path"}
        return {names.get(name, name): value for name, value in vars(self).items()}
