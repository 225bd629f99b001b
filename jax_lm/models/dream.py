"""The Dream architecture of DiffuCoder: Qwen2.5 blocks with bidirectional attention.

Parameter paths equal the tensor names of the published checkpoints
(`model.layers.0.self_attn.q_proj.weight`), and kernels keep their [out, in] layout, so that a
checkpoint maps onto the model by name alone. Layers are a plain list: see docs/architecture.md for the
measurement behind it.

Knows nothing of mask tokens, diffusion or sampling; logits are not shifted here.

Dimension letters, used throughout the package: b batch, t position, s attended position, d hidden,
n query heads, k key/value heads, h head dimension, f feed-forward, v vocabulary.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jax_lm import sharding
from jax_lm.checkpoints import huggingface, loading, stored
from jax_lm.checkpoints.description import require_elsewhere, write_description
from jax_lm.config import DreamConfig, set_dtype
from jax_lm.models.attention import KeyMask, KeyValues, SampleMask, attend
from jax_lm.models.products import lookup, product, scale_columns
from jax_lm.tokenizer import DiffuCoderTokenizer

Batch = Int[Array, "b t"]
Mask = Bool[Array, "b t"] | Int[Array, "b t"] | Bool[Array, "b t s"] | SampleMask
Hidden = Float[Array, "b t d"]
Rotary = tuple[Float[Array, "b t 1 h"], Float[Array, "b t 1 h"]]
Row = Int[Array, ""]
Past = tuple[KeyValues, Row] | None


class DreamLinear(nnx.Module):
    """y = x Wᵀ + b with W kept as [out, in]; products accumulate in float32 whatever the dtype.

    After `quantize` W is int8, with one `scale` per output.
    """

    def __init__(self, in_size: int, out_size: int, *, use_bias: bool, init: "Initializer") -> None:
        self.weight = nnx.Param(init((out_size, in_size)))
        self.bias = nnx.Param(init((out_size,), 0.0)) if use_bias else None
        self.scale: nnx.Param | None = nnx.data(None)

    def quantize(self) -> None:
        weight, scale = stored.quantize(self.weight[...])
        self.weight, self.scale = nnx.Param(weight), nnx.Param(scale)

    def __call__(self, x: Float[Array, "*b i"], dtype: DTypeLike | None = None) -> Float[Array, "*b o"]:
        dtype = dtype or x.dtype
        if self.scale is None:
            y = product(x, self.weight[...])
        else:
            y = product(*stored.widen(x, self.weight[...])) * self.scale[...]
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        return y.astype(dtype)

    def logits(self, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
        return self(x, dtype=jnp.float32)


class DreamRMSNorm(nnx.Module):
    """Root-mean-square norm in float32, cast back to the input dtype before the weight (as Qwen2)."""

    def __init__(self, size: int, eps: float, *, init: "Initializer") -> None:
        self.weight = nnx.Param(init((size,), 1.0))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return scale_columns(x32.astype(x.dtype), self.weight[...])


class DreamRotaryEmbedding(nnx.Module):
    """Half-split rotary position embedding ("rotate_half"); angles, cos and sin in float32."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim = head_dim
        self.theta = theta

    def __call__(self, position_ids: Int[Array, "b t"]) -> Rotary:
        exponents = jnp.arange(0, self.head_dim, 2, dtype=jnp.float32) / self.head_dim
        angles = position_ids[..., None].astype(jnp.float32) * (1.0 / self.theta**exponents)
        angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None, :]
        return jnp.cos(angles), jnp.sin(angles)

    @staticmethod
    def rotate(x: Float[Array, "b t n h"], rotary: Rotary) -> Float[Array, "b t n h"]:
        (cos, sin), x32 = rotary, x.astype(jnp.float32)
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

    def __call__(
        self, x: Hidden, rotary: Rotary, attention_mask: KeyMask, past: Past = None, mesh: Mesh | None = None
    ) -> tuple[Hidden, KeyValues]:
        """Let the rows of `x` attend to themselves, or to all of `past` with themselves written in at its row."""
        b, t, _ = x.shape
        q = DreamRotaryEmbedding.rotate(self.q_proj(x).reshape(b, t, -1, self.head_dim), rotary)
        k = DreamRotaryEmbedding.rotate(self.k_proj(x).reshape(b, t, -1, self.head_dim), rotary)
        v = self.v_proj(x).reshape(b, t, -1, self.head_dim)
        seen = KeyValues(k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3))
        if past is not None:
            cached, start = past
            seen = cached.write(seen, start)
        return self.o_proj(attend(q, *seen, attention_mask, mesh).reshape(b, t, -1)), seen


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

    def __call__(
        self, x: Hidden, rotary: Rotary, attention_mask: KeyMask, past: Past = None, mesh: Mesh | None = None
    ) -> tuple[Hidden, KeyValues]:
        attended, seen = self.self_attn(self.input_layernorm(x), rotary, attention_mask, past, mesh)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), seen


class DreamEmbedding(nnx.Module):
    """Token embedding table [v, d]."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        self.weight = nnx.Param(init((config.vocab_size, config.hidden_size)))

    def __call__(self, input_ids: Batch, mesh: Mesh | None = None) -> Hidden:
        return lookup(self.weight[...], input_ids, mesh)

    def logits(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        return product(hidden, self.weight[...])


class DreamModel(nnx.Module):
    """Embedding, decoder layers and final norm; on a `mesh`, hidden states are split by rows."""

    def __init__(self, config: DreamConfig, *, init: "Initializer") -> None:
        self.mesh: Mesh | None = None
        self.embed_tokens = DreamEmbedding(config, init=init)
        self.layers = nnx.List([DreamDecoderLayer(config, init=init) for _ in range(config.num_hidden_layers)])
        self.norm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.rotary_emb = DreamRotaryEmbedding(config.head_dim, config.rope_theta)

    def hidden_states(
        self,
        input_ids: Batch,
        attention_mask: Mask | None = None,
        position_ids: Batch | None = None,
        *,
        remat: bool = False,
    ) -> Iterator[Hidden]:
        """Yield the embedding output, then the output of each layer, the last after the final norm.

        The mask admits keys for all queries, or for each or by samples, which needs positions. `remat` keeps nothing
        inside a layer for its gradient, but computes it again.
        """
        if attention_mask is not None and not isinstance(attention_mask, SampleMask):
            attention_mask = attention_mask.astype(bool)
        if position_ids is None:
            position_ids = default_positions(input_ids, attention_mask)
        rotary = self.rotary_emb(position_ids)
        x = self.embed_tokens(input_ids, self.mesh)
        for layer in self.layers:
            yield x

            def outputs(x: Hidden, layer: DreamDecoderLayer = layer) -> Hidden:
                return layer(x, rotary, attention_mask, mesh=self.mesh)[0]

            x = (jax.checkpoint(outputs) if remat else outputs)(x)
        yield self.norm(x)

    def recompute(
        self, input_ids: Batch, attention_mask: KeyMask, position_ids: Batch, cache: tuple[KeyValues, ...], start: Row
    ) -> tuple[Hidden, tuple[KeyValues, ...]]:
        """Compute the last hidden states of rows [start, start + t) alone; all other positions come from the cache.

        Tokens and positions are those of these rows, the mask which of all s positions each may attend to. Returns
        the cache with these rows rewritten as well.
        """
        rotary = self.rotary_emb(position_ids)
        x = self.embed_tokens(input_ids, self.mesh)
        rewritten = []
        for layer, past in zip(self.layers, cache, strict=True):
            x, seen = layer(x, rotary, attention_mask, (past, start), self.mesh)
            rewritten.append(seen)
        return self.norm(x), tuple(rewritten)

    def empty_cache(self, batch: int, length: int) -> tuple[KeyValues, ...]:
        """Fill a cache with zeros; the first `recompute` must cover every position that is attended to."""
        weight = self.embed_tokens.weight[...]

        def zeros(layer: DreamDecoderLayer) -> Array:
            attention = layer.self_attn
            heads = attention.k_proj.weight[...].shape[0] // attention.head_dim
            empty = jnp.zeros((batch, heads, length, attention.head_dim), weight.dtype)
            by_heads = self.mesh is not None and heads % self.mesh.shape["tensor"] == 0
            return sharding.shard_rows(empty, self.mesh, "tensor" if by_heads else None)

        return tuple(KeyValues(zeros(layer), zeros(layer)) for layer in self.layers)

    def __call__(
        self,
        input_ids: Batch,
        attention_mask: Mask | None = None,
        position_ids: Batch | None = None,
        *,
        remat: bool = False,
    ) -> Hidden:
        *_, last = self.hidden_states(input_ids, attention_mask, position_ids, remat=remat)
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
        d, v = config.hidden_size, config.vocab_size
        self.lm_head = None if config.tie_word_embeddings else DreamLinear(d, v, use_bias=False, init=init)

    def __call__(
        self, input_ids: Batch, attention_mask: Mask | None = None, position_ids: Batch | None = None
    ) -> Float[Array, "b t v"]:
        return self.logits(self.model(input_ids, attention_mask, position_ids))

    def logits(self, hidden: Float[Array, "*b d"]) -> Float[Array, "*b v"]:
        """Compute float32 logits of any rows of the last hidden state."""
        return self.head.logits(hidden)

    @property
    def head(self) -> "DreamLinear | DreamEmbedding":
        """What gives the logits: a layer of its own, or the embedding table."""
        return self.model.embed_tokens if self.lm_head is None else self.lm_head

    @property
    def dtype(self) -> jnp.dtype:
        return self.model.embed_tokens.weight[...].dtype

    def quantize(self) -> "DreamForCausalLM":
        """Turn the kernels of this model into int8, for inference (see `jax_lm.checkpoints.stored`)."""
        for _, module in nnx.iter_modules(self):
            if isinstance(module, DreamLinear):
                module.quantize()
        return self

    @classmethod
    def abstract(cls, config: DreamConfig, dtype: DTypeLike = jnp.float32, *, int8: bool = False) -> "DreamForCausalLM":
        """Make the model with shapes in place of arrays; takes no memory."""
        return nnx.eval_shape(lambda: cls(config, dtype=dtype).quantize() if int8 else cls(config, dtype=dtype))

    @property
    def mesh(self) -> Mesh | None:
        """Where the parameters lie; None is one device."""
        return self.model.mesh

    def on_mesh(self, mesh: Mesh) -> "DreamForCausalLM":
        """Give the model with its parameters spread over a mesh; ValueError if that does not split them evenly."""
        graph, state = nnx.split(self)
        params = nnx.to_pure_dict(state)
        model = nnx.merge(graph, jax.device_put(params, sharding.tree_shardings(params, self.config, mesh)))
        model.model.mesh = mesh
        return model

    @staticmethod
    def read_config(folder: Path) -> DreamConfig:
        """Read the configuration of a checkpoint folder."""
        fields = huggingface.read_json(folder, "config.json")
        if fields.get("quantization_config") == stored.QUANTIZATION:
            del fields["quantization_config"]
        return DreamConfig.from_dict(fields)

    @staticmethod
    def is_int8(folder: Path) -> bool:
        """Tell whether the kernels of a checkpoint are stored as int8."""
        return huggingface.read_json(folder, "config.json").get("quantization_config") == stored.QUANTIZATION

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        dtype: DTypeLike | None = None,
        int8: bool = False,
        mesh: Mesh | None = None,
        on_progress: loading.Progress | None = None,
    ) -> "DreamForCausalLM":
        """Load a checkpoint in the Hugging Face or Orbax layout, tensor by tensor; no code of it is executed.

        Args:
            path_or_hub_id: a local folder, or a repository on the hub such as apple/DiffuCoder-7B-Instruct.
            dtype: float dtype of the weights; None keeps that of the checkpoint.
            int8: quantise the kernels as they are read; a checkpoint that holds int8 stays so in any case.
            mesh: where the parameters lie; each device reads its slices. None is the first device.

        Raises:
            CheckpointError: names what is missing, unknown, misshapen or damaged.
            ValueError: config.json asks for something this implementation does not compute, or the mesh does not
                split the model evenly.
        """
        folder = huggingface.resolve(path_or_hub_id)
        config, stored_int8 = cls.read_config(folder), cls.is_int8(folder)
        shardings = {}
        if mesh is not None:
            template = parameters(cls.abstract(config, int8=int8 or stored_int8))
            shardings = sharding.tree_shardings(template, config, mesh)
        wanted = load_spec(config, stored_int8, dtype=dtype, quantize=int8, shardings=shardings)
        tensors = loading.load_tensors(loading.open_checkpoint(folder), wanted, on_progress=on_progress)
        return cls.from_tensors(config, tensors, mesh=mesh)

    @classmethod
    def from_tensors(
        cls, config: DreamConfig, tensors: dict[str, Array], *, mesh: Mesh | None = None
    ) -> "DreamForCausalLM":
        """Build the model of tensors by their checkpoint name; with scales among them its kernels are int8."""
        int8 = any(name.endswith(".scale") for name in tensors)
        graph, state = nnx.split(cls.abstract(config, int8=int8))
        model = nnx.merge(graph, nest(tensors, nnx.to_pure_dict(state)))
        model.model.mesh = mesh
        return model

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        dtype: DTypeLike | None = None,
        tokenizer: DiffuCoderTokenizer | None = None,
        source: Path | None = None,
    ) -> None:
        """Write weights, config.json and tokenizer so that `from_pretrained` and PyTorch read them back.

        Of the `source`, the folder that it was made of, files beside the weights and fields of config.json are kept. Of
        several hosts, which must all call it, the first one writes. ValueError if the model is quantised, or would be
        written over its source.
        """
        folder, tensors = Path(folder), parameters(self)
        if any(value.dtype == jnp.int8 for value in tensors.values()):
            raise ValueError("the model is int8: save the float model, or use `diffucoder convert --quantize int8`")
        require_elsewhere(folder, source)
        tensors = {name: sharding.gather_to_host(value.astype(dtype or value.dtype)) for name, value in tensors.items()}
        if jax.process_index() == 0:
            known = {} if source is None else huggingface.read_json(source, "config.json")
            fields = self.config.update_fields(known) if known else self.config.to_dict()
            huggingface.save(folder, tensors, set_dtype(fields, str(jnp.dtype(dtype or self.dtype))))
            write_description(folder, self.config, tokenizer, source)


class Initializer:
    """Normal(0, std) for matrices, a constant for vectors; one key per parameter."""

    def __init__(self, std: float, rngs: nnx.Rngs, dtype: DTypeLike) -> None:
        self.std, self.rngs, self.dtype = std, rngs, dtype

    def __call__(self, shape: tuple[int, ...], constant: float | None = None) -> Array:
        if constant is not None:
            return jnp.full(shape, constant, self.dtype)
        return (jax.random.normal(self.rngs.params(), shape) * self.std).astype(self.dtype)


def default_positions(input_ids: Batch, attention_mask: KeyMask) -> Batch:
    """Count the real tokens, so that left padding moves nothing; ValueError if queries have masks of their own."""
    if isinstance(attention_mask, SampleMask) or (attention_mask is not None and attention_mask.ndim != 2):
        raise ValueError("position_ids=None: an attention mask for each query needs positions")
    if attention_mask is None:
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
    return jnp.maximum(jnp.cumsum(attention_mask, axis=1) - 1, 0)


def flatten(tree: dict) -> dict[str, Any]:
    """Flatten nested dicts to leaves by their dotted paths, where layers are numbered: `model.layers.0.mlp`."""
    return {".".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}


def nest(leaves: dict[str, Any], template: dict) -> dict:
    """Invert `flatten`, with the keys of `template`, in which the number of a layer is no text."""
    return unflatten_dict({path: leaves[".".join(map(str, path))] for path in flatten_dict(template)})


def parameters(model: DreamForCausalLM) -> dict[str, Any]:
    """Collect parameters by their checkpoint name: arrays, or the shapes that an abstract model holds."""
    return flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


@functools.cache
def parameter_shapes(config: DreamConfig, *, int8: bool = False) -> dict[str, tuple[int, ...]]:
    """Name every parameter of a checkpoint with its shape, without allocating any; with int8, of the scales too."""
    return {name: leaf.shape for name, leaf in parameters(DreamForCausalLM.abstract(config, int8=int8)).items()}


def load_spec(config: DreamConfig, stored_int8: bool, **settings: Any) -> loading.LoadSpec:
    """Say which tensors the checkpoint of a model must hold; `settings` are further fields of `LoadSpec`."""
    shapes = parameter_shapes(config, int8=stored_int8)
    ignored = {"lm_head.weight", "lm_head.scale"} if config.tie_word_embeddings else set()
    return loading.LoadSpec(shapes=shapes, ignored=ignored, **settings)
