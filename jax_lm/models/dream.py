"""The Dream architecture of DiffuCoder: Qwen2.5 blocks with bidirectional attention.

Parameter paths equal the tensor names of the published checkpoints
(`model.layers.0.self_attn.q_proj.weight`), and kernels keep their [out, in] layout, so that a
checkpoint maps onto the model by name alone. Layers are a plain list: see docs/architecture.md for the
measurement behind it.

Knows nothing of masks tokens, diffusion or sampling; logits are not shifted here.

Dimension letters, used throughout the package: b batch, t position, s attended position, d hidden,
n query heads, k key/value heads, h head dimension, f feed-forward, v vocabulary.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jax_lm.checkpoints import huggingface

Batch = Int[Array, "b t"]
Mask = Bool[Array, "b t"] | Int[Array, "b t"]
Hidden = Float[Array, "b t d"]

MODEL_TYPES = ("Dream", "qwen2")
FIXED_FIELDS: dict[str, tuple] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "attention_dropout": (0, 0.0),
    "attention_bias": (True,),
    "mlp_bias": (False,),
    "quantization_config": (None,),
}
"""Fields of config.json that change the function, and the only values this implementation computes."""

INERT_FIELDS = frozenset(
    (
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "full_attn_mask_ratio",
        "id2label",
        "label2id",
        "max_window_layers",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "unsloth_version",
        "use_cache",
        "_attn_implementation",
        "_attn_implementation_autoset",
    )
)
"""Fields of config.json that leave the function as it is."""


@dataclass(frozen=True, kw_only=True)
class DreamConfig:
    """Shape of a Dream model, read from a checkpoint's config.json.

    There are no defaults for sizes: the class defaults of the published code are not the values of the
    published models.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    mask_token_id: int | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    initializer_range: float = 0.02
    model_type: str = "Dream"

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        for name in (*sizes, "num_key_value_heads", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"config {name}={value!r}: must be a positive integer")
        if self.hidden_size % self.num_attention_heads or self.head_dim % 2:
            raise ValueError(
                f"config hidden_size={self.hidden_size}: must be num_attention_heads={self.num_attention_heads} "
                "times an even head dimension"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"config num_key_value_heads={self.num_key_value_heads}: must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"config mask_token_id={self.mask_token_id}: must lie in [0, {self.vocab_size})")
        if self.model_type not in MODEL_TYPES:
            raise ValueError(f"config model_type={self.model_type!r}: must be one of {', '.join(MODEL_TYPES)}")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "DreamConfig":
        """Read the fields of a config.json.

        Raises:
            ValueError: a size is missing, or a field asks for a function that is not computed here.
        """
        fields = dict(fields)
        rope = fields.pop("rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"config rope_parameters={rope!r}: only rope_type 'default' is supported")
        if "rope_theta" in rope:
            fields.setdefault("rope_theta", rope["rope_theta"])
        if set(fields.pop("layer_types", None) or ()) - {"full_attention"}:
            raise ValueError("config layer_types: only full_attention is supported")
        for name, allowed in FIXED_FIELDS.items():
            if name in fields and (value := fields.pop(name)) not in allowed:
                raise ValueError(f"config {name}={value!r}: only {' or '.join(map(repr, allowed))} is supported")
        head_dim = fields.pop("head_dim", None)
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(fields) - known - INERT_FIELDS)
        if unknown:
            raise ValueError(f"config field {unknown[0]!r} is not known and may change the model; not loading it")
        try:
            config = cls(**{name: value for name, value in fields.items() if name in known})
        except TypeError as error:
            raise ValueError(f"config.json is incomplete: {str(error).partition('() ')[2]}") from None
        if head_dim not in (None, config.head_dim):
            raise ValueError(f"config head_dim={head_dim}: only hidden_size / num_attention_heads is supported")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Fields for a config.json that `from_dict` and the PyTorch implementation both read."""
        published = {
            "architectures": ["DreamModel"],
            "auto_map": {
                "AutoConfig": "configuration_dream.DreamConfig",
                "AutoModel": "modeling_dream.DreamModel",
            },
        }
        fixed = {name: FIXED_FIELDS[name][0] for name in ("hidden_act", "rope_scaling", "use_sliding_window")}
        return (published if self.model_type == "Dream" else {}) | fixed | asdict(self)


class DreamLinear(nnx.Module):
    """y = x Wᵀ + b with W kept as [out, in]; products accumulate in float32 whatever the dtype."""

    def __init__(self, in_size: int, out_size: int, *, use_bias: bool, init: "Initializer") -> None:
        self.weight = nnx.Param(init((out_size, in_size)))
        self.bias = nnx.Param(init((out_size,), 0.0)) if use_bias else None

    def __call__(self, x: Float[Array, "*b i"], dtype: DTypeLike | None = None) -> Float[Array, "*b o"]:
        y = product(x, self.weight[...])
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(dtype or x.dtype)


class DreamRMSNorm(nnx.Module):
    """Root-mean-square norm in float32, cast back to the input dtype before the weight (as Qwen2)."""

    def __init__(self, size: int, eps: float, *, init: "Initializer") -> None:
        self.weight = nnx.Param(init((size,), 1.0))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return self.weight[...] * x32.astype(x.dtype)


class DreamRotaryEmbedding(nnx.Module):
    """Half-split rotary position embedding ("rotate_half"); angles, cos and sin in float32."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim = head_dim
        self.theta = theta

    def __call__(self, position_ids: Int[Array, "b t"]) -> tuple[Float[Array, "b t 1 h"], Float[Array, "b t 1 h"]]:
        exponents = jnp.arange(0, self.head_dim, 2, dtype=jnp.float32) / self.head_dim
        angles = position_ids[..., None].astype(jnp.float32) * (1.0 / self.theta**exponents)
        angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None, :]
        return jnp.cos(angles), jnp.sin(angles)

    @staticmethod
    def rotate(
        x: Float[Array, "b t n h"], cos: Float[Array, "b t 1 h"], sin: Float[Array, "b t 1 h"]
    ) -> Float[Array, "b t n h"]:
        x32 = x.astype(jnp.float32)
        first, second = jnp.split(x32, 2, axis=-1)
        return (x32 * cos + jnp.concatenate([-second, first], axis=-1) * sin).astype(x.dtype)


class DreamAttention(nnx.Module):
    """Grouped-query attention without a causal mask; q, k and v have biases, o has none."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        d, h = config.hidden_size, config.head_dim
        self.head_dim = h
        self.q_proj = DreamLinear(d, config.num_attention_heads * h, use_bias=True, init=init)
        self.k_proj = DreamLinear(d, config.num_key_value_heads * h, use_bias=True, init=init)
        self.v_proj = DreamLinear(d, config.num_key_value_heads * h, use_bias=True, init=init)
        self.o_proj = DreamLinear(config.num_attention_heads * h, d, use_bias=False, init=init)

    def __call__(self, x: Hidden, rotary: tuple[Array, Array], attention_mask: Bool[Array, "b t"] | None) -> Hidden:
        b, t, _ = x.shape
        q = DreamRotaryEmbedding.rotate(self.q_proj(x).reshape(b, t, -1, self.head_dim), *rotary)
        k = DreamRotaryEmbedding.rotate(self.k_proj(x).reshape(b, t, -1, self.head_dim), *rotary)
        v = self.v_proj(x).reshape(b, t, -1, self.head_dim)
        return self.o_proj(attend(q, k, v, attention_mask).reshape(b, t, -1))


class DreamMLP(nnx.Module):
    """SwiGLU feed-forward without biases."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        d, f = config.hidden_size, config.intermediate_size
        self.gate_proj = DreamLinear(d, f, use_bias=False, init=init)
        self.up_proj = DreamLinear(d, f, use_bias=False, init=init)
        self.down_proj = DreamLinear(f, d, use_bias=False, init=init)

    def __call__(self, x: Hidden) -> Hidden:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DreamDecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward, each with a residual."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        self.input_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.self_attn = DreamAttention(config, init=init)
        self.post_attention_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.mlp = DreamMLP(config, init=init)

    def __call__(self, x: Hidden, rotary: tuple[Array, Array], attention_mask: Bool[Array, "b t"] | None) -> Hidden:
        x = x + self.self_attn(self.input_layernorm(x), rotary, attention_mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamEmbedding(nnx.Module):
    """Token embedding table [v, d]."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        self.weight = nnx.Param(init((config.vocab_size, config.hidden_size)))

    def __call__(self, input_ids: Batch) -> Hidden:
        return self.weight[...][input_ids]


class DreamModel(nnx.Module):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        self.embed_tokens = DreamEmbedding(config, init=init)
        self.layers = nnx.List([DreamDecoderLayer(config, init=init) for _ in range(config.num_hidden_layers)])
        self.norm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.rotary_emb = DreamRotaryEmbedding(config.head_dim, config.rope_theta)

    def hidden_states(
        self, input_ids: Batch, attention_mask: Mask | None = None, position_ids: Batch | None = None
    ) -> Iterator[Hidden]:
        """Yield the embedding output, then the output of each layer, the last after the final norm."""
        if attention_mask is not None:
            attention_mask = attention_mask.astype(bool)
        if position_ids is None:
            position_ids = default_positions(input_ids, attention_mask)
        rotary = self.rotary_emb(position_ids)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            yield x
            x = layer(x, rotary, attention_mask)
        yield self.norm(x)

    def __call__(
        self, input_ids: Batch, attention_mask: Mask | None = None, position_ids: Batch | None = None
    ) -> Hidden:
        *_, last = self.hidden_states(input_ids, attention_mask, position_ids)
        return last


class DreamForCausalLM(nnx.Module):
    """Dream with its language-model head.

    `model(input_ids, attention_mask=None, position_ids=None)` gives float32 logits [b, t, v], where row p
    predicts the token at p + 1; `jax_lm.diffusion.masking.shift_right` aligns them.
    """

    def __init__(self, config: DreamConfig, *, rngs: nnx.Rngs | None = None, dtype: DTypeLike = jnp.float32) -> None:
        init = Initializer(config.initializer_range, rngs or nnx.Rngs(0), dtype)
        self.config = config
        self.model = DreamModel(config, init=init)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else DreamLinear(config.hidden_size, config.vocab_size, use_bias=False, init=init)
        )

    def __call__(
        self, input_ids: Batch, attention_mask: Mask | None = None, position_ids: Batch | None = None
    ) -> Float[Array, "b t v"]:
        return self.logits(self.model(input_ids, attention_mask, position_ids))

    def logits(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """Float32 logits of any rows of the last hidden state."""
        if self.lm_head is None:
            return product(hidden, self.model.embed_tokens.weight[...])
        return self.lm_head(hidden, dtype=jnp.float32)

    @property
    def dtype(self) -> jnp.dtype:
        return self.model.embed_tokens.weight[...].dtype

    @classmethod
    def abstract(cls, config: DreamConfig, dtype: DTypeLike = jnp.float32) -> "DreamForCausalLM":
        """The model with shapes in place of arrays; takes no memory."""
        return nnx.eval_shape(lambda: cls(config, dtype=dtype))

    @staticmethod
    def read_config(folder: Path) -> DreamConfig:
        """The configuration of a checkpoint folder."""
        return DreamConfig.from_dict(huggingface.read_json(folder, "config.json"))

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        dtype: DTypeLike | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> "DreamForCausalLM":
        """Load a checkpoint in the Hugging Face layout, tensor by tensor; no code of it is executed.

        Args:
            path_or_hub_id: a local folder, or a repository on the hub such as apple/DiffuCoder-7B-Instruct.
            dtype: float dtype of the weights; None keeps that of the checkpoint.
            on_progress: called with bytes read so far and bytes in all.

        Raises:
            CheckpointError: names what is missing, unknown, misshapen or damaged.
            ValueError: config.json asks for something this implementation does not compute.
        """
        folder = huggingface.resolve(path_or_hub_id)
        config = cls.read_config(folder)
        shapes = parameter_shapes(config)
        optional = {"lm_head.weight"} if config.tie_word_embeddings else set()
        tensors = huggingface.load_tensors(folder, shapes, ignored=optional, dtype=dtype, on_progress=on_progress)
        graph, state = nnx.split(cls.abstract(config))
        return nnx.merge(graph, nest(tensors, nnx.to_pure_dict(state)))

    def save_pretrained(self, folder: str | Path, *, dtype: DTypeLike | None = None) -> None:
        """Write config.json and model.safetensors so that `from_pretrained` and PyTorch read them back."""
        tensors = {name: value.astype(dtype or value.dtype) for name, value in parameters(self).items()}
        huggingface.save(folder, tensors, self.config.to_dict() | {"torch_dtype": str(jnp.dtype(dtype or self.dtype))})


class Initializer:
    """Normal(0, std) for matrices, a constant for vectors; one key per parameter."""

    def __init__(self, std: float, rngs: nnx.Rngs, dtype: DTypeLike) -> None:
        self.std, self.rngs, self.dtype = std, rngs, dtype

    def __call__(self, shape: tuple[int, ...], constant: float | None = None) -> Array:
        if constant is not None:
            return jnp.full(shape, constant, self.dtype)
        return (jax.random.normal(self.rngs.params(), shape) * self.std).astype(self.dtype)


@jax.custom_vjp
def product(a: Float[Array, "*z m i"], b: Float[Array, "*y n i"]) -> Float[Array, "*z m n"]:
    """a bᵀ, accumulated in float32; `b` is one matrix, or has the leading dimensions of `a`.

    On CPUs with bfloat16 units this is also 4-5 times faster than a bfloat16 `@`. The gradient rounds the
    cotangent to the dtype of the operands: JAX's own rule would multiply float32 by bfloat16, which has
    no fast kernel anywhere.
    """
    return contract(a, b, (a.ndim - 1,), (b.ndim - 1,), b.ndim - 2)


def product_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(a, b), (a, b)


def product_backward(operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    a, b = operands
    g = cotangent.astype(a.dtype)
    batch = b.ndim - 2
    rows = tuple(range(batch, a.ndim - 1))
    da = contract(g, b, (g.ndim - 1,), (batch,), batch)
    return da.astype(a.dtype), contract(g, a, rows, rows, batch).astype(b.dtype)


product.defvjp(product_forward, product_backward)


def contract(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], batch: int) -> Array:
    """Sum of products over the given axes in float32, batched over the first `batch` axes."""
    axes = tuple(range(batch))
    with full_precision(a.dtype):
        return jax.lax.dot_general(a, b, ((a_axes, b_axes), (axes, axes)), preferred_element_type=jnp.float32)


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    attention_mask: Bool[Array, "b s"] | None,
) -> Float[Array, "b t n h"]:
    """Grouped-query attention over all keys that the mask admits; softmax in float32.

    The query heads of a group become further rows of their key head, so that keys are never repeated.
    """
    b, t, n, h = q.shape
    groups = n // k.shape[2]
    q = q.reshape(b, t, -1, groups, h).transpose(0, 2, 3, 1, 4).reshape(b, -1, groups * t, h)
    scores = product(q, k.transpose(0, 2, 1, 3)) / h**0.5
    if attention_mask is not None:
        # Only keys are masked: a padded query sees the real keys, so that no row is empty.
        scores = jnp.where(attention_mask[:, None, None, :], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    y = product(weights, v.transpose(0, 2, 3, 1)).astype(q.dtype)
    return y.reshape(b, -1, groups, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def full_precision(dtype: DTypeLike) -> AbstractContextManager:
    """Float32 products at full precision: accelerators would otherwise round their inputs to 10 bits or fewer."""
    return jax.default_matmul_precision("highest" if dtype == jnp.float32 else "default")


def default_positions(input_ids: Batch, attention_mask: Bool[Array, "b t"] | None) -> Batch:
    """Positions count the real tokens, so that left padding moves nothing."""
    if attention_mask is None:
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
    return jnp.maximum(jnp.cumsum(attention_mask, axis=1) - 1, 0)


def flatten(tree: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts with their dotted paths."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        yield from flatten(value, f"{path}.") if isinstance(value, dict) else [(path, value)]


def nest(leaves: dict[str, Any], template: dict, prefix: str = "") -> dict:
    """The inverse of `flatten`, in the shape of `template`."""
    return {
        key: nest(leaves, value, f"{prefix}{key}.") if isinstance(value, dict) else leaves[f"{prefix}{key}"]
        for key, value in template.items()
    }


def parameters(model: DreamForCausalLM) -> dict[str, Array]:
    """Parameters by their checkpoint name."""
    return dict(flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param))))


@functools.cache
def parameter_shapes(config: DreamConfig) -> dict[str, tuple[int, ...]]:
    """Checkpoint name and shape of every parameter, without allocating any."""
    return {name: leaf.shape for name, leaf in parameters(DreamForCausalLM.abstract(config)).items()}
