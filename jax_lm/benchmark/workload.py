"""Random models and prompts, and the options of a generation whose speed is measured. Measures nothing."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jax_lm.benchmark.settings import Cell
from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import Canvas
from jax_lm.inference import WIDTH_BUCKET
from jax_lm.models.dream import DreamForCausalLM, nest, parameter_shapes
from jax_lm.options import Decoding, GenerationOptions


def published_options(new_tokens: int, preset: str = "exact") -> GenerationOptions:
    """Return DiffuCoder's settings: one token per step, or as many steps as a commit rule by probability needs."""
    return GenerationOptions(max_new_tokens=new_tokens, temperature=0.2, decoding=Decoding(preset=preset))


def greedy_options(new_tokens: int, preset: str = "exact") -> GenerationOptions:
    """Return settings under which two backends must agree: no draw, and no nucleus whose border rounding moves."""
    return replace(published_options(new_tokens, preset), temperature=0.0, top_p=None)


def random_model(config: DreamConfig, dtype: DTypeLike, *, seed: int = 0) -> DreamForCausalLM:
    """Make a model with random weights on the device tensor by tensor; a 7B shape fits where its weights do."""

    @partial(jax.jit, static_argnames="shape")
    def matrix(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape, dtype) * jnp.asarray(config.initializer_range, dtype)

    def tensor(index: int, name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return jnp.full(shape, 0 if name.endswith("bias") else 1, dtype)
        return matrix(jax.random.fold_in(root, index), shape)

    root = jax.random.key(seed, impl="rbg")
    tensors = {name: tensor(i, name, shape) for i, (name, shape) in enumerate(parameter_shapes(config).items())}
    graph, state = nnx.split(DreamForCausalLM.abstract(config, dtype))
    return nnx.merge(graph, nest(tensors, nnx.to_pure_dict(state)))


def random_prompts(config: DreamConfig, batch: int, length: int, *, seed: int) -> Int[np.ndarray, "b t"]:
    """Draw token ids, of which none is MASK."""
    ids = np.random.default_rng(seed).integers(0, config.vocab_size - 1, (batch, length), dtype=np.int32)
    return ids if config.mask_token_id is None else ids + (ids >= config.mask_token_id).astype(np.int32)


def padded_canvas(prompts: Int[np.ndarray, "b t"], new_tokens: int) -> Canvas:
    """Lay out prompts of one length and holes after them, left-padded to a width that `inference` pads requests to."""
    padding = ((0, 0), (-(prompts.shape[1] + new_tokens) % WIDTH_BUCKET, 0))
    return Canvas.after(np.pad(prompts, padding), np.pad(np.ones_like(prompts), padding), new_tokens)


def random_canvas(config: DreamConfig, cell: Cell, *, seed: int) -> Canvas:
    """Lay out random prompts and holes after them.

    Raises:
        ValueError: they do not fit the context.
    """
    cell.require_room(config.max_position_embeddings)
    return padded_canvas(random_prompts(config, cell.batch, cell.prompt_tokens, seed=seed), cell.new_tokens)
