"""The Dream architecture of DiffuCoder, and those of the other families in `jax_lm.config`.

Dream has Qwen2.5 blocks with bidirectional attention; `config.family` and `config.architecture` say
what others do differently.

Parameter paths equal the tensor names of the published checkpoints
(`model.layers.0.self_attn.q_proj.weight`), and kernels keep the published [out, in] layout, so a
checkpoint maps onto the model by name alone. The layers are a plain Python list, not a scan;
docs/architecture.md has the measurement behind that choice.

The model does not know about mask tokens, diffusion or sampling, and it does not shift logits.

Dimension letters, used throughout the package: b batch, t position, s attended position, d hidden,
n query heads, k key/value heads, h head dimension, f feed-forward, v vocabulary.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jax_lm import sharding
from jax_lm.checkpoints import huggingface, loading, stored
from jax_lm.checkpoints.description import write_description
from jax_lm.config import DreamConfig, Fields, invert, set_dtype, translate
from jax_lm.host.distributed import is_first
from jax_lm.host.files import require_elsewhere
from jax_lm.models.attention import KeyInts, KeyMask, KeyValues, SampleMask, limit_to_blocks
from jax_lm.models.graph import ModelGraph, split_model
from jax_lm.models.layers import (
    Batch,
    DreamDecoderLayer,
    DreamEmbedding,
    DreamLinear,
    DreamRMSNorm,
    DreamRotaryEmbedding,
    Hidden,
    Initializer,
)
from jax_lm.models.shapes import Logits, Mask, PairMask, ScalarInt, Shape, Tokens, Vectors
from jax_lm.tokenizer import DiffuCoderTokenizer, find_mask_id

# Keys and values of every layer.
LayerCaches = tuple[KeyValues, ...]
# A mask as callers pass it, Hugging Face's integers included. The layers get a `KeyMask`.
AttentionMask = Mask | Tokens | PairMask | SampleMask


class DreamModel(nnx.Module):
    """Embedding, decoder layers and final norm. On a `mesh`, hidden states are sharded by rows."""

    def __init__(self, config: DreamConfig, *, init: Initializer):
        self.mesh: Mesh | None = None
        self.embed_tokens = DreamEmbedding(config, init=init)
        self.layers = nnx.List(
            [DreamDecoderLayer(config, init=init) for _ in range(config.num_hidden_layers)]
        )
        self.norm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps, init=init)
        self.rotary_emb = DreamRotaryEmbedding(config.head_dim, config.rope_theta)
        self.attention_block = config.attention_block
        # the token whose rows adapters act on; None is all of them
        self.adapted_token: int | None = None

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of hidden states, keys and values: that of all weights that are not quantized."""
        return self.norm.weight[...].dtype

    def limit(self, mask: KeyMask, queries: Batch, keys: KeyInts) -> KeyMask:
        """Limit a mask by the attention rule of the family; `queries` and `keys` are positions."""
        if self.attention_block is None:
            return mask
        return limit_to_blocks(mask, queries, keys, self.attention_block)

    def adapted_rows(self, input_ids: Batch) -> Mask | None:
        """Return the rows that adapters act on; None is all of them."""
        return None if self.adapted_token is None else input_ids == self.adapted_token

    def hidden_states(
        self,
        input_ids: Batch,
        attention_mask: AttentionMask | None = None,
        position_ids: Batch | None = None,
        *,
        remat: bool = False,
    ) -> Iterator[Hidden]:
        """Yield the embedding output, then the output of each layer, the last after the final norm.

        Args:
            input_ids: token ids.
            attention_mask: keys that may be attended to, [b, t] for all queries or [b, t, s] for
                each query, or a `SampleMask` of packed rows. The latter two need `position_ids`.
            position_ids: positions of the tokens; None counts the unmasked tokens of each row.
            remat: recompute the activations inside a layer in the backward pass instead of
                storing them.
        """
        if attention_mask is not None and not isinstance(attention_mask, SampleMask):
            attention_mask = attention_mask.astype(bool)
        if position_ids is None:
            position_ids = default_positions(input_ids, attention_mask)
        attention_mask = self.limit(attention_mask, position_ids, position_ids)
        # cos and sin are the same for all layers.
        rotary = self.rotary_emb(position_ids)
        adapted = self.adapted_rows(input_ids)
        x = self.embed_tokens(input_ids, self.mesh).astype(self.dtype)
        for layer in self.layers:
            yield x

            # The default argument binds the layer now: a traced function may be called later.
            def outputs(x, layer=layer):
                return layer(x, rotary, attention_mask, mesh=self.mesh, adapted=adapted)[0]

            x = (jax.checkpoint(outputs) if remat else outputs)(x)
        yield self.norm(x)

    def recompute(
        self,
        input_ids: Batch,
        attention_mask: KeyMask,
        position_ids: Batch,
        cache: LayerCaches,
        start: ScalarInt,
        *,
        remat: bool = False,
    ) -> tuple[Hidden, LayerCaches]:
        """Compute the last hidden states of rows [start, start + t) only.

        Keys and values of all other positions come from the cache.

        Args:
            input_ids: tokens of the t rows that are recomputed.
            attention_mask: which of all s positions of the cache these rows may attend to. A mask
                of keys [b, s] is limited by the attention rule of the family; any other is used as
                it is.
            position_ids: positions of these rows.
            cache: keys and values per layer, of all s positions.
            start: position of the first recomputed row.
            remat: as in `hidden_states`.

        Returns:
            The hidden states of these rows, and the cache with these rows replaced.
        """
        if isinstance(attention_mask, jax.Array) and attention_mask.ndim == 2:
            # [b, s] each: the rows of the cache, not the t rows that are recomputed
            keys = default_positions(attention_mask.astype(jnp.int32), attention_mask)
            attention_mask = self.limit(attention_mask, position_ids, keys)
        rotary = self.rotary_emb(position_ids)
        adapted = self.adapted_rows(input_ids)
        x = self.embed_tokens(input_ids, self.mesh).astype(self.dtype)
        new_cache = []
        # layers: each writes its new keys and values into the cache, and attends to all of it
        for layer, past in zip(self.layers, cache, strict=True):

            def outputs(x, past, layer=layer):
                return layer(x, rotary, attention_mask, (past, start), self.mesh, adapted=adapted)

            x, key_values = (jax.checkpoint(outputs) if remat else outputs)(x, past)
            new_cache.append(key_values)
        return self.norm(x), tuple(new_cache)

    def empty_cache(self, batch: int, length: int) -> LayerCaches:
        """Return a cache of zeros.

        The first `recompute` must cover every position that will be attended to.
        """

        def zeros(layer):
            attention = layer.self_attn
            heads = attention.key_heads
            empty = jnp.zeros((batch, heads, length, attention.head_dim), self.dtype)
            # A head is never cut; if `tensor` does not divide the heads, each device has them all.
            by_heads = heads % sharding.MeshShape.of(self.mesh).tensor == 0
            return sharding.shard_rows(empty, self.mesh, "tensor" if by_heads else None)

        return tuple(KeyValues(zeros(layer), zeros(layer)) for layer in self.layers)

    def __call__(
        self,
        input_ids: Batch,
        attention_mask: AttentionMask | None = None,
        position_ids: Batch | None = None,
        *,
        remat: bool = False,
    ) -> Hidden:
        *_, last = self.hidden_states(input_ids, attention_mask, position_ids, remat=remat)
        return last


class DreamForCausalLM(nnx.Module):
    """Dream with its language-model head.

    `model(input_ids, attention_mask=None, position_ids=None)` returns float32 logits [b, t, v].
    Row p predicts the token at position p + 1, or at p (`config.family.shifts`);
    `jax_lm.diffusion.masking.align_rows` aligns rows and positions.
    """

    def __init__(
        self, config: DreamConfig, *, rngs: nnx.Rngs | None = None, dtype: DTypeLike = jnp.float32
    ):
        init = Initializer(config.initializer_range, rngs or nnx.Rngs(0), dtype)
        self.config = config
        self.model = DreamModel(config, init=init)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else DreamLinear(config.hidden_size, config.vocab_size, init=init)
        )

    def __call__(
        self,
        input_ids: Batch,
        attention_mask: AttentionMask | None = None,
        position_ids: Batch | None = None,
    ) -> Logits:
        return self.logits(self.model(input_ids, attention_mask, position_ids))

    def logits(self, hidden: Vectors) -> Float[Array, "*b v"]:
        """Compute float32 logits of some rows of the last hidden state."""
        return self.head.logits(hidden)

    @property
    def head(self) -> DreamLinear | DreamEmbedding:
        """The module that computes logits: `lm_head`, or the embedding table if they are tied."""
        return self.model.embed_tokens if self.lm_head is None else self.lm_head

    @property
    def dtype(self) -> jnp.dtype:
        return self.model.dtype

    def quantize(self, quantization: str) -> "DreamForCausalLM":
        """Quantize to int8, int4 or fp8, in place and for inference only; returns the model.

        `jax_lm.checkpoints.stored` describes the formats, and which parameters have which.
        """
        for path, module in nnx.iter_modules(self):
            own = stored.precision_of(".".join(map(str, (*path, "weight"))), quantization)
            if isinstance(module, DreamLinear | DreamEmbedding) and own:
                for kind, value in stored.quantize(module.weight[...], own).items():
                    setattr(module, kind, nnx.Param(value))
        return self

    @classmethod
    def abstract(
        cls, config: DreamConfig, dtype: DTypeLike = jnp.float32, *, quantization: str | None = None
    ) -> "DreamForCausalLM":
        """Return a model with shapes in place of arrays, which takes no memory."""
        graph, shapes = split_abstract(config, jnp.dtype(dtype), quantization)
        return graph.merge(shapes)

    def become(self, config: DreamConfig):
        """Take the configuration of another family, with the same sizes."""
        self.config = config
        self.model.attention_block = config.attention_block

    @property
    def mesh(self) -> Mesh | None:
        """The mesh over which the parameters are sharded; None is one device."""
        return self.model.mesh

    def on_mesh(self, mesh: Mesh) -> "DreamForCausalLM":
        """Return the model with its parameters sharded over a mesh.

        Raises:
            ValueError: the mesh does not split the parameters evenly.
        """
        # split into structure and arrays, move the arrays, and merge them again
        graph, params = split_model(self)
        model = graph.merge(
            jax.device_put(params, sharding.tree_shardings(params, self.config, mesh))
        )
        model.model.mesh = mesh
        return model

    @staticmethod
    def read_config(folder: Path) -> DreamConfig:
        """Read the configuration of a checkpoint folder.

        A mask token that only the tokenizer names is added to it.
        """
        fields = huggingface.read_json(folder, "config.json")
        if fields.get("quantization_config") == stored.QUANTIZATION:
            del fields["quantization_config"]
        if fields.get("mask_token_id") is None:
            fields["mask_token_id"] = find_mask_id(folder, fields.get("model_type"))
        return DreamConfig.from_dict(fields, huggingface.published_name(folder))

    @staticmethod
    def is_int8(folder: Path) -> bool:
        """Whether the kernels of a checkpoint are stored as int8."""
        return (
            huggingface.read_json(folder, "config.json").get("quantization_config")
            == stored.QUANTIZATION
        )

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: huggingface.FolderOrHubId,
        *,
        dtype: DTypeLike | None = None,
        quantization: str | None = None,
        mesh: Mesh | None = None,
        on_progress: loading.Progress | None = None,
        allow_nonfinite: bool = False,
    ) -> "DreamForCausalLM":
        """Load a checkpoint in the Hugging Face or Orbax layout, tensor by tensor.

        Code in the checkpoint is never executed.

        Args:
            path_or_hub_id: a local folder, or a repository on the hub such as
                apple/DiffuCoder-7B-Instruct.
            dtype: float dtype of the weights; None keeps the dtype of the checkpoint.
            quantization: quantize the kernels as they are read, to int8, int4 or fp8. A checkpoint
                stored as int8 stays int8.
            mesh: mesh over which the parameters are sharded; each device reads only its slices.
                None is the first device.
            on_progress: called with the bytes read so far and the total number of bytes.
            allow_nonfinite: accept weights that hold NaN or infinity.

        Raises:
            CheckpointError: a tensor or file is missing, unknown, damaged, of the wrong shape or
                not finite; the message names it.
            ValueError: config.json describes a model that this implementation does not compute, the
                mesh does not split the model evenly, or int4 does not fit the checkpoint.
        """
        # configuration
        folder = huggingface.resolve(path_or_hub_id)
        config = cls.read_config(folder)
        stored_int8 = cls.is_int8(folder)
        if stored_int8 and quantization not in (None, "int8"):
            raise ValueError(
                f"dtype={quantization!r}: {folder} is stored as int8; load the float checkpoint"
            )
        quantization = "int8" if stored_int8 else quantization
        # Refuses widths that groups do not divide before anything is read.
        parameter_shapes(config, quantization=quantization)
        # Shardings of the model as it will be, which has scales if it is quantized here.
        shardings = {}
        if mesh is not None:
            template = parameters(cls.abstract(config, quantization=quantization))
            shardings = sharding.tree_shardings(template, config, mesh)
        # weights
        spec = load_spec(
            config,
            stored_int8,
            dtype=dtype,
            quantization=quantization,
            shardings=shardings,
            allow_nonfinite=allow_nonfinite,
        )
        checkpoint = loading.open_checkpoint(folder, config.architecture.tensors)
        return cls.from_tensors(
            config, loading.load_tensors(checkpoint, spec, on_progress=on_progress), mesh=mesh
        )

    @classmethod
    def from_tensors(
        cls, config: DreamConfig, tensors: stored.Arrays, *, mesh: Mesh | None = None
    ) -> "DreamForCausalLM":
        """Build a model from tensors by checkpoint name; those of scales say how it is quantized."""
        # An abstract model has the structure, so no random parameters are ever initialized.
        kinds = {name.rpartition(".")[2] for name in tensors}
        # fp8 has the parameters of int8.
        quantization = "int4" if "group_scale" in kinds else "int8" if "scale" in kinds else None
        graph, template = split_abstract(config, jnp.dtype(jnp.float32), quantization)
        model = graph.merge(nest(tensors, template))
        model.model.mesh = mesh
        return model

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        dtype: DTypeLike | None = None,
        tokenizer: DiffuCoderTokenizer | None = None,
        source: Path | None = None,
    ):
        """Write weights, config.json and tokenizer so that `from_pretrained` and PyTorch read them.

        With several hosts, every host must call this, and the first one writes.

        Args:
            folder: where to write.
            dtype: dtype of the stored weights; None keeps the dtype of the model.
            tokenizer: tokenizer of the model; None writes none.
            source: folder that this model was derived from. Its other files and the fields of its
                config.json are carried over.

        Raises:
            ValueError: the model is quantized, or `folder` is its source.
        """
        folder = Path(folder)
        tensors = published_parameters(self)
        if any(name.endswith(".scale") for name in tensors):
            raise ValueError(
                "the model is quantized: save the float model, or use "
                "`diffucoder convert --quantize int8`"
            )
        require_elsewhere(folder, source)
        # Gathering is a collective operation, so it must run on every host.
        tensors = {
            name: sharding.gather_to_host(value.astype(dtype or value.dtype))
            for name, value in tensors.items()
        }
        if is_first():
            fields = self.config.to_dict()
            if source is not None:
                fields = self.config.update_fields(huggingface.read_json(source, "config.json"))
            huggingface.save(
                folder, tensors, set_dtype(fields, str(jnp.dtype(dtype or self.dtype)))
            )
            write_description(folder, self.config, tokenizer, source)


def default_positions(input_ids: Batch, attention_mask: KeyMask) -> KeyInts:
    """Compute positions that count the unmasked tokens, so that left padding shifts nothing.

    With a mask, the result has its columns, of which `input_ids` may be a window.

    Raises:
        ValueError: the mask differs between queries, which leaves positions undefined.
    """
    if isinstance(attention_mask, SampleMask) or (
        attention_mask is not None and attention_mask.ndim != 2
    ):
        raise ValueError("position_ids=None: an attention mask for each query needs positions")
    if attention_mask is None:
        return jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
    # mask [0, 0, 1, 1, 1] -> cumsum [0, 0, 1, 2, 3] -> positions [0, 0, 0, 1, 2]
    return jnp.maximum(jnp.cumsum(attention_mask, axis=1) - 1, 0)


def flatten(tree: dict) -> Fields:
    """Flatten nested dicts to leaves by dotted path."""
    # {"model": {"layers": {0: {"mlp": x}}}} -> {"model.layers.0.mlp": x}
    return {".".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}


def nest(leaves: Fields, template: dict) -> dict:
    """Invert `flatten`, with the keys of `template`, where layer numbers are integers, not text."""
    return unflatten_dict(
        {path: leaves[".".join(map(str, path))] for path in flatten_dict(template)}
    )


def parameters(model: DreamForCausalLM) -> Fields:
    """Return the parameters by checkpoint name: arrays, or shapes if the model is abstract."""
    return flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


# Cached: JAX traces the initialization of every layer to learn its shapes.
@functools.cache
def split_abstract(
    config: DreamConfig, dtype: jnp.dtype, quantization: str | None
) -> tuple[ModelGraph, dict]:
    """Split a model with shapes in place of arrays."""

    def make():
        model = DreamForCausalLM(config, dtype=dtype)
        return model.quantize(quantization) if quantization else model

    return split_model(nnx.eval_shape(make))


def parameter_shapes(config: DreamConfig, *, quantization: str | None = None) -> dict[str, Shape]:
    """Return the shape of every parameter by checkpoint name, without allocating any of them.

    Those of a quantized model include the scales.
    """
    _, shapes = split_abstract(config, jnp.dtype(jnp.float32), quantization)
    return {name: leaf.shape for name, leaf in flatten(shapes).items()}


def published_parameters(model: DreamForCausalLM) -> Fields:
    """Return the parameters under the names that the published code of the family uses."""
    names = invert(model.config.architecture.tensors)
    return {translate(name, names): value for name, value in parameters(model).items()}


def load_spec(config: DreamConfig, stored_int8: bool, **settings) -> loading.LoadSpec:
    """Return which tensors the checkpoint of a model must hold.

    `settings` are further fields of `LoadSpec`. With tied embeddings, an `lm_head` in the
    checkpoint must equal the embedding table, and is not loaded.
    """
    shapes = parameter_shapes(config, quantization="int8" if stored_int8 else None)
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
    return loading.LoadSpec(shapes=shapes, tied=tied, **settings)
