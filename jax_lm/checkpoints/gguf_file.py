"""GGUF, the one-file format of llama.cpp: reading and writing weights, configuration and tokenizer.

`as_folder` makes a folder in the Hugging Face layout for a file, with a link to the file in place
of weights. Loading then dequantizes one tensor after another from the file, so a file works
wherever a folder does. Needs the library `gguf` (extra `gguf`). Knows formats and names, but not
the model.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from jax_lm.checkpoints.gguf_tokenizer import SPECIAL, read_tokenizer, write_tokenizer
from jax_lm.checkpoints.stored import (
    GGUF_LINK,
    CheckpointError,
    StoredTensor,
    StoredTensors,
    is_kernel,
)
from jax_lm.config import DreamConfig, Fields, Ints, invert, pairs, translate
from jax_lm.host.interruption import remove_on_exit
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.tokenizer.files import write_json

# `model_type` of config.json by `general.architecture` of the file.
ARCHITECTURES = pairs("llama llama  qwen2 qwen2  qwen3 qwen3  dream Dream  llada llada")
# Architectures for which llama.cpp stores the rows of q and k in its own order (`permute_rows`).
PERMUTED = ("llama", "llada")
TENSORS = pairs("""
    token_embd.          model.embed_tokens.
    output_norm.         model.norm.
    output.              lm_head.
    blk.{}.attn_norm.    model.layers.{}.input_layernorm.
    blk.{}.ffn_norm.     model.layers.{}.post_attention_layernorm.
    blk.{}.attn_q_norm.  model.layers.{}.self_attn.q_norm.
    blk.{}.attn_k_norm.  model.layers.{}.self_attn.k_norm.
    blk.{}.attn_q.       model.layers.{}.self_attn.q_proj.
    blk.{}.attn_k.       model.layers.{}.self_attn.k_proj.
    blk.{}.attn_v.       model.layers.{}.self_attn.v_proj.
    blk.{}.attn_output.  model.layers.{}.self_attn.o_proj.
    blk.{}.ffn_gate.     model.layers.{}.mlp.gate_proj.
    blk.{}.ffn_up.       model.layers.{}.mlp.up_proj.
    blk.{}.ffn_down.     model.layers.{}.mlp.down_proj.
""")
# Fields of `DreamConfig`, and the metadata keys of the file that follow the architecture's name.
SIZES = pairs("""
    hidden_size              embedding_length
    intermediate_size        feed_forward_length
    num_hidden_layers        block_count
    num_attention_heads      attention.head_count
    num_key_value_heads      attention.head_count_kv
    max_position_embeddings  context_length
    rope_theta               rope.freq_base
    rms_norm_eps             attention.layer_norm_rms_epsilon
""")
# Field of ours, after the architecture, of a model with causal blocks. llama.cpp does not know it, and
# decodes such a model left to right.
CAUSAL_BLOCKS = "diffusion.block_size"
READABLE = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K".split()  # noqa: SIM905
# File of a folder made by `as_folder` that says where each tensor is in the GGUF file.
INDEX = "gguf_tensors.json"


def read_values(
    path: Path, kind: gguf.GGMLQuantizationType, offset: int, shape: Ints, heads: int
) -> np.ndarray:
    """Dequantize a tensor of a file to float32.

    Args:
        path: the file.
        kind: storage type of the tensor.
        offset: position of its first byte in the file.
        shape: its shape.
        heads: number of heads of a q or k kernel with permuted rows; 0 for any other tensor.
    """
    dtype = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    if dtype == np.uint8:
        # Rows of 64 numbers in Q8_0 are rows of 68 bytes: two blocks of 32 numbers and a scale.
        shape = gguf.quant_shape_to_byte_shape(shape, kind)
    values = dequantize(np.memmap(path, dtype, "r", offset, shape), kind)
    return permute_rows(values, heads, back=True) if heads else values


def permute_rows(rows: np.ndarray, heads: int, *, back: bool = False) -> np.ndarray:
    """Reorder the rows of q or k for llama.cpp, which rotates each row with its neighbour.

    We rotate it with the row that is half a head away. `back` restores our order.
    """
    # One head of 4 rows: [a, b, c, d] -> [a, c, b, d], as we rotate a with c, and b with d.
    half = len(rows) // heads // 2
    sizes = (half, 2) if back else (2, half)
    return rows.reshape(heads, *sizes, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def open_file(path: Path) -> gguf.GGUFReader:
    """Open a GGUF file.

    Raises:
        CheckpointError: the file is damaged, or its architecture is not supported.
    """
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the library raises whatever its parsing meets
        raise CheckpointError(f"{path} is damaged or not a GGUF file: {error}") from error
    architecture = value(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{path} has general.architecture {architecture!r}: must be one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return reader


def value(reader: gguf.GGUFReader, key: str) -> Any:
    """Return the value of a metadata field; None if the file lacks it."""
    field = reader.get_field(key)
    return None if field is None else field.contents()


def permuted_heads(config: DreamConfig, name: str) -> int:
    """Return the number of heads of q or k with permuted rows; 0 for other tensors."""
    # "model.layers.0.self_attn.q_proj.weight" -> "q_proj"
    layer = name.rpartition(".")[0].rpartition(".")[2]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return heads.get(layer, 0) if config.model_type in PERMUTED else 0


def list_tensors(folder: Path) -> StoredTensors:
    """Return the tensors of a GGUF file by our names, from the folder that `as_folder` made."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    path = (folder / GGUF_LINK).resolve()
    dtype = np.dtype(index["dtype"])
    tensors = {}
    for name, (shape, kind, offset, heads) in index["tensors"].items():
        view = partial(
            read_values, path, gguf.GGMLQuantizationType[kind], offset, tuple(shape), heads
        )
        tensors[translate(name, TENSORS)] = StoredTensor(path, name, tuple(shape), dtype, view)
    return tensors


def read_index(path: Path, reader: gguf.GGUFReader, config: DreamConfig) -> Fields:
    """Return the index of a file: the dtype to load as, and each tensor's entry by its name.

    An entry is shape, storage type, offset and number of permuted heads. The dtype is that of the
    matrices, or bfloat16 if they are quantized, as in the checkpoints that such files are made
    from.

    Raises:
        CheckpointError: a tensor has a storage type that is not supported.
    """
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    if unknown := sorted(kinds - set(READABLE)):
        raise CheckpointError(
            f"{path} has tensors of type {unknown[0]}: must be of {', '.join(READABLE)}"
        )
    dtypes = {("F32",): "float32", ("F16",): "float16"}
    tensors = {
        # The library lists the fastest axis first.
        tensor.name: (
            tensor.shape.tolist()[::-1],
            tensor.tensor_type.name,
            int(tensor.data_offset),
            permuted_heads(config, translate(tensor.name, TENSORS)),
        )
        for tensor in reader.tensors
    }
    # Vectors are F32 in every file, so any other type is that of the matrices.
    matrix_kinds = tuple(sorted(kinds - {"F32"})) or ("F32",)
    return {"dtype": dtypes.get(matrix_kinds, "bfloat16"), "tensors": tensors}


def model_config(path: Path, reader: gguf.GGUFReader) -> DreamConfig:
    """Read the configuration of a model from the metadata of its file.

    Raises:
        CheckpointError: a field is missing.
        ValueError: `DreamConfig` does not support one of its values.
    """
    architecture = value(reader, "general.architecture")
    scaling = value(reader, f"{architecture}.rope.scaling.type")
    if scaling not in (None, "none") or any(t.name.startswith("rope") for t in reader.tensors):
        raise CheckpointError(f"{path} scales its rotary embedding ({scaling}): not supported")
    sizes = {name: value(reader, f"{architecture}.{key}") for name, key in SIZES.items()}
    if missing := [SIZES[name] for name, size in sizes.items() if size is None]:
        raise CheckpointError(f"{path} lacks the field {architecture}.{missing[0]}")
    # The file stores 1e-6 in float32, as 9.99999997e-07: seven digits restore the decimal number.
    sizes |= {name: float(f"{sizes[name]:.7g}") for name in ("rope_theta", "rms_norm_eps")}
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    ids = {
        f"{name}_token_id": value(reader, f"tokenizer.ggml.{key}_token_id")
        for name, key in SPECIAL.items()
    }
    head_size = value(reader, f"{architecture}.attention.key_length")
    block = value(reader, f"{architecture}.{CAUSAL_BLOCKS}")
    default_size = sizes["hidden_size"] / sizes["num_attention_heads"]
    return DreamConfig(
        model_type=ARCHITECTURES[architecture],
        vocab_size=shapes["token_embd.weight"][-1],
        tie_word_embeddings="output.weight" not in shapes,
        head_size=None if head_size in (None, default_size) else head_size,
        block_size=block,
        is_causal=None if block is None else True,
        **sizes,
        **ids,
    )


def as_folder(path: Path) -> Path:
    """Return a folder through which a GGUF file is read as a checkpoint.

    It holds configuration, tokenizer, index and a link to the file. It is made once per file, in
    the user's cache (`XDG_CACHE_HOME`).

    Raises:
        CheckpointError: the file is damaged, or its architecture or a storage type is not
            supported.
    """
    path, status = path.absolute(), path.stat()
    # The last number is the version of the folder's content: raise it to have all folders remade.
    identity = f"{path} {status.st_size} {status.st_mtime_ns} 2"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffucoder" / "gguf"
    folder = cache / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with remove_on_exit(Path(tempfile.mkdtemp(dir=cache))) as unfinished:
        write_folder(path, unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            # Another process may have made the folder meanwhile.
            if not folder.is_dir():
                raise
    return folder


def write_folder(path: Path, folder: Path):
    """Write the content of `as_folder`'s folder for the GGUF file at `path`."""
    # Parsing takes seconds, as the library makes an object of every token of the vocabulary.
    reader = open_file(path)
    config = model_config(path, reader)
    index = read_index(path, reader, config)
    write_json(folder / "config.json", config.to_dict() | {"torch_dtype": index["dtype"]})
    write_json(folder / INDEX, index)
    read_tokenizer(reader, folder)
    (folder / GGUF_LINK).symlink_to(path.absolute())


def encode(
    name: str, values: np.ndarray, *, int8: bool
) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Return the bytes of a tensor, row by row, and their storage type.

    Matrices are Q8_0 or F16. Vectors are float32, as llama.cpp demands.
    """
    kind = gguf.GGMLQuantizationType.F32
    if is_kernel(name) or name == "model.embed_tokens.weight":
        # A block of Q8_0 is 32 numbers of a row, so rows of another length stay F16.
        is_q8 = int8 and values.shape[-1] % 32 == 0
        kind = gguf.GGMLQuantizationType["Q8_0" if is_q8 else "F16"]
    return quantize(values.astype(np.float32), kind), kind


def save(
    path: Path,
    config: DreamConfig,
    tensors: Iterator[tuple[str, np.ndarray, gguf.GGMLQuantizationType]],
    tokenizer: DiffuCoderTokenizer,
):
    """Write a model as a GGUF file.

    Args:
        path: where to write.
        config: configuration of the model.
        tensors: name, bytes and type of each tensor, as `encode` returns them.
        tokenizer: tokenizer of the model.

    Raises:
        CheckpointError: llama.cpp does not support the family or the tokenizer.
    """
    architecture = invert(ARCHITECTURES).get(config.model_type)
    if architecture is None or config.attention_block not in (None, 1):
        raise CheckpointError(
            f"llama.cpp has no architecture for {config.family.name}: it has those of "
            f"{', '.join(ARCHITECTURES.values())}, without blocks"
        )
    writer = gguf.GGUFWriter(path, architecture)
    for name, key in SIZES.items():
        number = getattr(config, name)
        add = writer.add_float32 if isinstance(number, float) else writer.add_uint32
        add(f"{architecture}.{key}", number)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    if config.block_size is not None:
        writer.add_uint32(f"{architecture}.{CAUSAL_BLOCKS}", config.block_size)
    if config.attention_block is None:
        writer.add_causal_attention(False)
        writer.add_diffusion_shift_logits(config.family.shifts)
    write_tokenizer(writer, tokenizer, config)
    for name, data, kind in tensors:
        if heads := permuted_heads(config, name):
            data = permute_rows(data, heads)
        writer.add_tensor(translate(name, invert(TENSORS)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
