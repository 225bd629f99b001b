"""The interface of the two compared backends, and its implementation in JAX.

PyTorch's implementation is in `torch_reference`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jax_lm.benchmark.machine import PeakMemory
from jax_lm.benchmark.settings import Cell
from jax_lm.checkpoints.stored import QUANTIZED, Arrays, HostArrays
from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import WIDTH_BUCKET, Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.models.shapes import HostTokens
from jax_lm.options import Decoding, GenerationOptions, restrict_options
from jax_lm.results import tied_share
from jax_lm.sharding import on_mesh


def model_card_options(new_tokens: int, preset: str = "exact") -> GenerationOptions:
    """Return the published settings of DiffuCoder: temperature 0.2, one token per step.

    With a preset that commits by probability, the number of steps depends on the model.
    """
    return GenerationOptions(
        max_new_tokens=new_tokens, temperature=0.2, decoding=Decoding(preset=preset)
    )


def greedy_options(new_tokens: int, preset: str = "exact") -> GenerationOptions:
    """Return settings with which two backends must agree.

    Greedy, and without a nucleus: its border would depend on rounding.
    """
    return replace(model_card_options(new_tokens, preset), temperature=0.0, top_p=None)


def random_model(
    config: DreamConfig, dtype: DTypeLike, *, mesh: Mesh | None = None
) -> DreamForCausalLM:
    """Build a model with random weights on the device or a mesh.

    Tensors are made one by one, so that a 7B model fits wherever its weights do.
    """

    @partial(jax.jit, static_argnums=1)
    def draw_matrix(key, shape):
        return jax.random.normal(key, shape, dtype) * jnp.asarray(config.initializer_range, dtype)

    # The rbg generator draws large tensors faster than the default one on accelerators.
    root = jax.random.key(0, impl="rbg")
    tensors = {}
    for index, (name, shape) in enumerate(parameter_shapes(config).items()):
        # Biases are 0, norm weights 1; every other tensor is a matrix, drawn from a key of its own.
        if len(shape) == 1:
            tensor = jnp.full(shape, 0 if name.endswith("bias") else 1, dtype)
        else:
            tensor = draw_matrix(jax.random.fold_in(root, index), shape)
        tensors |= on_mesh({name: tensor}, config, mesh)
    return DreamForCausalLM.from_tensors(config, tensors, mesh=mesh)


def random_prompts(config: DreamConfig, batch: int, length: int, *, seed: int) -> HostTokens:
    """Draw random token ids; none is MASK."""
    ids = np.random.default_rng(seed).integers(
        0, config.vocab_size - 1, (batch, length), dtype=np.int32
    )
    # Skip MASK: drawn from one id less, ids from MASK on move up by one.
    #   mask = 2: [0, 1, 2, 3] -> [0, 1, 3, 4]
    if config.mask_token_id is not None:
        ids[ids >= config.mask_token_id] += 1
    return ids


def pad_canvas(prompts: HostTokens, new_tokens: int) -> Canvas:
    """Return a canvas of prompts of one length, each followed by a hole.

    It is padded on the left, to the width to which `inference` pads requests.
    """
    # -n % bucket is the distance to the next multiple: 70 with buckets of 64 -> 58.
    padding = ((0, 0), (-(prompts.shape[1] + new_tokens) % WIDTH_BUCKET, 0))
    return Canvas.after(
        np.pad(prompts, padding), np.pad(np.ones_like(prompts), padding), new_tokens
    )


def random_canvas(config: DreamConfig, cell: Cell, *, seed: int) -> Canvas:
    """Return a canvas of random prompts, each followed by a hole.

    Raises:
        ValueError: they do not fit the context.
    """
    cell.require_room(config.max_position_embeddings)
    return pad_canvas(
        random_prompts(config, cell.batch, cell.prompt_tokens, seed=seed), cell.new_tokens
    )


# Modules of a layer whose outputs are compared, in the order of their execution.
LAYER_OUTPUTS = (
    "input_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    "post_attention_layernorm",
    "mlp",
)


class Answers(NamedTuple):
    """New tokens [b, n], the forward passes that they took, and the share of tied commits."""

    tokens: np.ndarray
    forwards: int
    tied: float | None = None


@runtime_checkable
class Backend(Protocol):
    """Interface of both backends; prompts and ids are [b, t]."""

    config: DreamConfig

    def forward(self, ids: np.ndarray): ...

    def generate(self, prompts: np.ndarray, options: GenerationOptions) -> Answers: ...

    def module_outputs(self, ids: np.ndarray, names: Sequence[str]) -> HostArrays: ...

    def device_peak(self) -> int | None: ...


@dataclass
class Tap:
    """Stands in for a module of a model and records its output."""

    module: Any
    name: str
    outputs: Arrays

    def __call__(self, *arguments, **keywords) -> Any:
        self.outputs[self.name] = output = self.module(*arguments, **keywords)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class JaxBackend:
    """A checkpoint in JAX."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.config = sampler.config

    @classmethod
    def load(cls, folder: Path, dtype: str) -> "JaxBackend":
        """Load a checkpoint; `dtype` may be int8, int4 or fp8."""
        model = DreamForCausalLM.from_pretrained(
            folder,
            dtype=None if dtype in QUANTIZED else dtype,
            quantization=dtype if dtype in QUANTIZED else None,
        )
        sampler = Sampler(model)
        jax.block_until_ready(sampler.params)
        return cls(sampler)

    def forward(self, ids: HostTokens):
        """Run one forward pass with the logits of every position, and wait for it."""
        self.sampler.forward(jnp.asarray(ids)).block_until_ready()

    def generate(self, prompts: HostTokens, options: GenerationOptions) -> Answers:
        """Answer prompts from seed 0.

        No token ends an answer early, so the work is the same for every prompt.
        """
        options = restrict_options(options, self.config)
        state = self.sampler.generate(pad_canvas(prompts, options.max_new_tokens), options, seed=0)
        # The canvas is padded on the left, so the answer is its last columns.
        tokens, confidence = (
            np.asarray(part)[:, -options.max_new_tokens :]
            for part in (state.tokens, state.confidence)
        )
        return Answers(tokens, int(state.forwards), tied_share(confidence.ravel().tolist()))

    def module_outputs(self, ids: np.ndarray, names: Sequence[str]) -> HostArrays:
        """Return the outputs of the named modules, and the logits, in float32."""

        @jax.jit
        def compute(params, ids):
            # The taps go into a copy of the model that belongs to this trace alone.
            # One entry per tapped module, filled while the model is traced.
            model = self.sampler.graph.merge(params)
            outputs = {}
            for name in names:
                # "model.layers.0.mlp" -> owner model.layers[0], last "mlp"
                *path, last = name.split(".")
                owner: Any = model
                for part in path:
                    owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
                vars(owner)[last] = Tap(getattr(owner, last), name, outputs)
            outputs["logits"] = model(ids)
            return jax.tree.map(lambda output: output.astype(jnp.float32), outputs)

        computed = compute(self.sampler.params, jnp.asarray(ids))
        # In the order of the model: jit sorts by name.
        return {name: np.asarray(computed[name]) for name in (*names, "logits")}

    def device_peak(self) -> int | None:
        """Return the peak memory of the device in bytes; None on a CPU."""
        memory = PeakMemory()
        return memory.read() if memory.on_device else None


def output_names(config: DreamConfig) -> list[str]:
    """List the modules whose outputs are compared, by their names in the checkpoint."""
    layers = [
        f"model.layers.{i}.{name}"
        for i in range(config.num_hidden_layers)
        for name in LAYER_OUTPUTS
    ]
    return ["model.embed_tokens", *layers, "model.norm"]
