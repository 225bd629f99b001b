"""The layers of the Dream architecture, which `jax_lm.models.dream` puts together.

Attribute names follow the module names of the published checkpoints. Dimension letters: see
`jax_lm.models.dream`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jax_lm.checkpoints import stored
from jax_lm.config import DreamConfig
from jax_lm.models.attention import KeyMask, KeyValues, WindowOperands, attend
from jax_lm.models.products import lookup, product, scale_columns
from jax_lm.models.shapes import Mask, ScalarInt, Shape, Tokens, Vectors
from jax_lm.models.window_attention import Rotary, attend_to_cache, rotate

Batch = Tokens
Hidden = Float[Array, "b t d"]
LinearInput = Float[Array, "*b i"]
LinearOutput = Float[Array, "*b o"]
# Outputs of layers that have the same input.
Projections = Sequence[Float[Array, "b t _"]]
# While a layer is traced: the rows that adapters act on; None is all of them. A variable of the
# context, because only layers with adapters know of it.
ADAPTED_ROWS: ContextVar[Mask | None] = ContextVar("adapted_rows", default=None)
# The KV cache of a layer, and the position of the first row that is recomputed.
Past = tuple[KeyValues, ScalarInt] | None


@contextmanager
def adapting(rows: Mask | None) -> Iterator[None]:
    """Let adapters act on these rows alone; None is all of them."""
    token = ADAPTED_ROWS.set(rows)
    try:
        yield
    finally:
        ADAPTED_ROWS.reset(token)


@dataclass
class Initializer:
    """Draws matrices from Normal(0, std), one key per parameter; vectors get a constant."""

    std: float
    rngs: nnx.Rngs
    dtype: DTypeLike

    def __call__(self, shape: Shape, constant: float | None = None) -> Array:
        if constant is not None:
            return jnp.full(shape, constant, self.dtype)
        return (jax.random.normal(self.rngs.params(), shape) * self.std).astype(self.dtype)


class DreamLinear(nnx.Module):
    """y = x Wᵀ + b, with W stored as [out, in]. Products accumulate in float32 for every dtype.

    After `quantize`, W has integers or fp8, and one float32 `scale` per output. In int4, two are a
    byte, and a group of inputs has a further `group_scale` (`jax_lm.checkpoints.stored`).
    """

    def __init__(self, in_size: int, out_size: int, *, use_bias: bool = False, init: Initializer):
        self.weight = nnx.Param(init((out_size, in_size)))
        self.bias = nnx.Param(init((out_size,), 0.0)) if use_bias else None
        self.scale: nnx.Param | None = nnx.data(None)
        self.group_scale: nnx.Param | None = nnx.data(None)
        self.shape = (out_size, in_size)

    def __call__(self, x: LinearInput, dtype: DTypeLike | None = None) -> LinearOutput:
        dtype = dtype or x.dtype
        weight = self.weight[...]
        if self.group_scale is not None:
            # Behind a barrier, as in `int8_product`: one kernel at a time is widened to int8.
            x, weight = lax.optimization_barrier((x, weight))
            weight = stored.unpack_int4(weight, self.group_scale[...])
        if self.scale is not None:
            # A scale is constant along the contracted axis, so it can be applied to the output:
            # sum_i x_i (s_o W_oi) = s_o sum_i x_i W_oi.
            y = product(x, weight) * self.scale[...]
        else:
            y = product(x, weight, dtype if self.bias is None else jnp.float32)
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(dtype)

    def logits(self, x: LinearInput) -> LinearOutput:
        return self(x, dtype=jnp.float32)


class DreamRMSNorm(nnx.Module):
    """Root-mean-square norm in float32, cast to the input dtype before the weight, as in Qwen2."""

    def __init__(self, size: int, eps: float, *, init: Initializer):
        self.weight = nnx.Param(init((size,), 1.0))
        self.eps = eps

    def __call__(self, x: Vectors) -> Vectors:
        x32 = x.astype(jnp.float32)
        x32 = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return scale_columns(x32.astype(x.dtype), self.weight[...])


class DreamRotaryEmbedding(nnx.Module):
    """Half-split rotary position embedding ("rotate_half"); angles, cos and sin in float32."""

    def __init__(self, head_dim: int, theta: float):
        self.head_dim = head_dim
        self.theta = theta

    def __call__(self, position_ids: Tokens) -> Rotary:
        exponents = jnp.arange(0, self.head_dim, 2, dtype=jnp.float32) / self.head_dim
        # One frequency per pair of dimensions: [b, t, h / 2].
        angles = position_ids[..., None].astype(jnp.float32) * (1.0 / self.theta**exponents)
        # Dimension i is paired with i + h / 2, so both halves get the same angles: [b, t, 1, h].
        angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None, :]
        return jnp.cos(angles), jnp.sin(angles)


class DreamAttention(nnx.Module):
    """Grouped-query attention. `o_proj` has no bias; the others follow `config.architecture`."""

    def __init__(self, config: DreamConfig, *, init: Initializer):
        d = config.hidden_size
        h = config.head_dim
        self.head_dim = h
        self.key_heads = config.num_key_value_heads
        linear = partial(DreamLinear, d, use_bias=config.architecture.has_bias, init=init)
        self.q_proj = linear(config.num_attention_heads * h)
        self.k_proj = linear(self.key_heads * h)
        self.v_proj = linear(self.key_heads * h)
        # Qwen3 normalizes each head before the rotation.
        has_norms = config.architecture.has_qk_norm
        self.q_norm = DreamRMSNorm(h, config.rms_norm_eps, init=init) if has_norms else None
        self.k_norm = DreamRMSNorm(h, config.rms_norm_eps, init=init) if has_norms else None
        self.o_proj = DreamLinear(config.num_attention_heads * h, d, init=init)

    def __call__(
        self,
        x: Hidden,
        rotary: Rotary,
        attention_mask: KeyMask,
        past: Past = None,
        mesh: Mesh | None = None,
    ) -> tuple[Hidden, KeyValues]:
        """Compute attention of the rows of `x`, and the keys and values that they attended to.

        Without `past`, the rows attend to each other. With `past`, their keys and values are first
        written into the cache at its row, and they attend to the whole cache.
        """
        b, t, _ = x.shape
        # [b, t, n * h] -> [b, t, n, h]; keys and values have k <= n heads.
        q, k, v = (y.reshape(b, t, -1, self.head_dim) for y in self.project(x))
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if past is None:
            # [b, t, k, h] -> [b, k, t, h], the layout of the KV cache.
            key_values = KeyValues(rotate(k, rotary).swapaxes(1, 2), v.swapaxes(1, 2))
            attended = attend(rotate(q, rotary), *key_values, attention_mask, mesh)
        else:
            cached, start = past
            window = WindowOperands(q, k, v, *rotary, attention_mask, cached)
            attended, key_values = attend_to_cache(window, start, mesh)
        return self.o_proj(attended.reshape(b, t, -1)), key_values

    def project(self, x: Hidden) -> Projections:
        """Compute queries, keys and values, all heads of a position side by side."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class DreamMLP(nnx.Module):
    """SwiGLU feed-forward network without biases."""

    def __init__(self, config: DreamConfig, *, init: Initializer):
        d = config.hidden_size
        f = config.intermediate_size
        self.gate_proj = DreamLinear(d, f, init=init)
        self.up_proj = DreamLinear(d, f, init=init)
        self.down_proj = DreamLinear(f, d, init=init)

    def __call__(self, x: Hidden) -> Hidden:
        gate, up = self.project(x)
        return self.down_proj(jax.nn.silu(gate) * up)

    def project(self, x: Hidden) -> Projections:
        """Compute the gate and what it scales."""
        return self.gate_proj(x), self.up_proj(x)


class DreamDecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward network, each with a residual connection."""

    def __init__(self, config: DreamConfig, *, init: Initializer):
        self.input_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.self_attn = DreamAttention(config, init=init)
        self.post_attention_layernorm = DreamRMSNorm(
            config.hidden_size, config.rms_norm_eps, init=init
        )
        self.mlp = DreamMLP(config, init=init)

    def __call__(
        self,
        x: Hidden,
        rotary: Rotary,
        attention_mask: KeyMask,
        past: Past = None,
        mesh: Mesh | None = None,
        *,
        adapted: Mask | None = None,
    ) -> tuple[Hidden, KeyValues]:
        """Compute the output, and the keys and values that the rows attended to.

        `adapted` are the rows that adapters act on; None is all of them.
        """
        with adapting(adapted):
            attended, key_values = self.self_attn(
                self.input_layernorm(x), rotary, attention_mask, past, mesh
            )
            x = x + attended
            return x + self.mlp(self.post_attention_layernorm(x)), key_values


class DreamEmbedding(nnx.Module):
    """Token embedding table [v, d]; after `quantize`, int8 with one float32 `scale` per token."""

    def __init__(self, config: DreamConfig, *, init: Initializer):
        self.weight = nnx.Param(init((config.vocab_size, config.hidden_size)))
        self.scale: nnx.Param | None = nnx.data(None)

    def __call__(self, input_ids: Batch, mesh: Mesh | None = None) -> Hidden:
        rows: Array = lookup(self.weight[...], input_ids, mesh)
        if self.scale is None:
            return rows
        return rows.astype(jnp.float32) * self.scale[...][input_ids][..., None]

    def logits(self, hidden: Vectors) -> Float[Array, "*b v"]:
        logits = product(hidden, self.weight[...])
        return logits if self.scale is None else logits * self.scale[...]
