"""Conversion of a checkpoint to another format, verified and atomic.

The new checkpoint is written to a hidden sibling folder, read back and compared with the source
(names, shapes, dtypes, checksums, and a forward pass of both), and renamed last. A run that is
killed leaves at most that sibling, which the next run removes.
"""

import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jax_lm.checkpoints import checksums, huggingface, legacy, loading, orbax
from jax_lm.checkpoints.description import complete
from jax_lm.checkpoints.loading import ORBAX_FOLDER, PICKLE, CheckpointTensors, Progress
from jax_lm.checkpoints.stored import QUANTIZATION, CheckpointError
from jax_lm.config import DreamConfig, set_dtype
from jax_lm.diffusion.sampler import run_forward
from jax_lm.host.files import require_local
from jax_lm.host.interruption import remove_on_exit
from jax_lm.models.dream import (
    DreamForCausalLM,
    load_spec,
    parameter_shapes,
    parameters,
    published_parameters,
)
from jax_lm.models.graph import split_model
from jax_lm.models.shapes import Shape
from jax_lm.options import require_one_of
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError
from jax_lm.tokenizer.files import write_json

FORMATS = ("huggingface", "orbax", "gguf")
WEIGHT_SUFFIXES = (".safetensors", ".pkl", ".bin", ".pt", ".index.json", ".gguf")
FLOAT16_MAX = 65504
# Tokens of the forward pass that compares source and copy.
PROBE_TOKENS = 8
# Shape, dtype, number of bytes and CRC-32 of a tensor.
TensorChecksum = tuple[Shape, str, int, int]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Format and precision of a new checkpoint.

    Attributes:
        format: `huggingface`, `orbax` or `gguf` (a file); None is `gguf` for a destination that
            ends in .gguf, and else the other one of the first two than the source's.
        dtype: dtype of the weights; None keeps the dtype of the source, and is float16 in a GGUF.
        int8: quantize the kernels; to Q8_0 in a GGUF, with the embedding.
        allow_missing_bias: fill in zeros if the source is a pickle without biases.
        allow_nonfinite: accept weights that hold NaN or infinity.
    """

    format: str | None = None
    dtype: str | None = None
    int8: bool = False
    allow_missing_bias: bool = False
    allow_nonfinite: bool = False

    def __post_init__(self):
        if self.format is not None:
            require_one_of("format", self.format, FORMATS)
        if self.dtype is not None:
            require_one_of("dtype", self.dtype, ("float32", "bfloat16", "float16"))


@dataclass(frozen=True)
class Converted:
    """A summary of the checkpoint that was written."""

    format: str
    tensors: int
    nbytes: int


def convert(
    source: Path, destination: Path, conversion: Conversion, *, on_progress: Progress | None = None
) -> Converted:
    """Convert a checkpoint.

    Args:
        source: folder of the checkpoint.
        destination: folder of the new checkpoint, which must not exist.
        conversion: format and precision.
        on_progress: called with bytes read and the total; half of the total is reading back.

    Raises:
        CheckpointError: the source cannot be loaded, or the copy differs from it.
        ValueError: the destination exists, or is a URL.
    """
    require_local(destination, "destination")
    if destination.exists():
        raise ValueError(f"destination {str(destination)!r} exists already")
    if (conversion.format or destination.suffix.lower()) in ("gguf", ".gguf"):
        return convert_to_gguf(source, destination, conversion, on_progress)
    config = DreamForCausalLM.read_config(source)
    int8 = DreamForCausalLM.is_int8(source)
    checkpoint = source_tensors(source, config, conversion)
    spec = load_spec(
        config,
        int8,
        dtype=conversion.dtype,
        quantization="int8" if conversion.int8 else None,
        allow_nonfinite=conversion.allow_nonfinite,
    )
    with hidden_folder(destination) as folder:
        # Everything but the weights.
        copy_other_files(source, folder)
        # The old port's config.json may lack fields that the checkpoint needs.
        is_pickle = checkpoint.format == "pickle"
        fields = config.to_dict() if is_pickle else huggingface.read_json(source, "config.json")
        if conversion.dtype:
            fields = set_dtype(fields, conversion.dtype)
        if conversion.int8:
            fields |= {"quantization_config": QUANTIZATION}
        write_json(folder / "config.json", fields)
        complete_copy(folder, config)
        # The weights, with what is needed to check them later.
        tensors = loading.load_tensors(checkpoint, spec, on_progress=report_half(on_progress, 0))
        model = DreamForCausalLM.from_tensors(config, tensors)
        del tensors
        sums = {name: tensor_checksum(value) for name, value in parameters(model).items()}
        probe = probe_logits(model)
        is_huggingface = checkpoint.format == "huggingface"
        target_format = conversion.format or ("orbax" if is_huggingface else "huggingface")
        write_weights(target_format, folder, published_parameters(model))
        # Free the model first: the copy that is read back takes as much memory.
        del model
        # Checksums of the files, and a comparison of what they hold.
        checksums.write_sums(folder)
        check_copy(folder, sums, probe, report_half(on_progress, 1))
        folder.rename(destination)
    return Converted(target_format, len(sums), sum(size for _, _, size, _ in sums.values()))


def convert_to_gguf(
    source: Path, destination: Path, conversion: Conversion, on_progress: Progress | None
) -> Converted:
    """Write a checkpoint as a GGUF file, read it back and compare. Raises as `convert` does."""
    if conversion.dtype not in (None, "float16"):
        raise ValueError(
            f"dtype={conversion.dtype!r}: must be float16 in a GGUF file; --quantize int8 is Q8_0"
        )
    if destination.suffix.lower() != ".gguf":
        raise ValueError(f"destination {str(destination)!r}: must end in .gguf")
    config = DreamForCausalLM.read_config(source)
    if DreamForCausalLM.is_int8(source):
        raise CheckpointError(f"{source} is int8: convert the checkpoint that it was made from")
    tokenizer = DiffuCoderTokenizer.from_pretrained(source)
    checkpoint = source_tensors(source, config, conversion)
    spec = load_spec(config, False, allow_nonfinite=conversion.allow_nonfinite)
    library = huggingface.require_gguf()
    sums = {}

    def encode_all():
        read = report_half(on_progress, 0)
        for name, tensor in loading.check_tensors(checkpoint, spec, on_progress=read):
            values = np.asarray(tensor)
            if np.max(np.abs(values), initial=0, where=np.isfinite(values)) > FLOAT16_MAX:
                raise ValueError(
                    f"{name!r} has values beyond {FLOAT16_MAX}, the largest of float16"
                )
            data, kind = library.encode(name, values, int8=conversion.int8)
            sums[name] = tensor_checksum(library.dequantize(data, kind).astype(np.float32))
            yield name, data, kind

    with hidden_folder(destination) as folder:
        file = folder / destination.name
        copy = folder / "copy"
        library.save(file, config, encode_all(), tokenizer)
        copy.mkdir()
        library.write_folder(file, copy)
        check_copy(copy, sums, None, report_half(on_progress, 1))
        file.rename(destination)
    return Converted("gguf", len(sums), destination.stat().st_size)


def source_tensors(source: Path, config: DreamConfig, conversion: Conversion) -> CheckpointTensors:
    """Open the source, which may also be a pickle.

    The missing biases of a pickle become zeros if `allow_missing_bias` is set.

    Raises:
        CheckpointError: the source is damaged, or a pickle lacks biases.
    """
    others = (huggingface.WEIGHTS, huggingface.INDEX, ORBAX_FOLDER)
    if not (source / PICKLE).is_file() or any((source / name).exists() for name in others):
        return loading.open_checkpoint(source, config.architecture.tensors)
    # A pickle of the old port, which may lack the biases.
    path = source / PICKLE
    stored = legacy.list_tensors(path)
    shapes = parameter_shapes(config).items()
    missing = {
        name: shape for name, shape in shapes if name.endswith(".bias") and name not in stored
    }
    if missing and not conversion.allow_missing_bias:
        raise CheckpointError(
            f"{path} lacks {len(missing)} q, k and v biases, as all files of that port do (first: "
            f"{next(iter(missing))!r}). Without them the model computes something else; "
            "--allow-missing-bias fills them with zeros"
        )
    # The zeros get the dtype of the other tensors.
    dtype = next(iter(stored.values())).dtype
    zeros = {
        name: legacy.in_memory(path, name, np.zeros(shape, dtype))
        for name, shape in missing.items()
    }
    return CheckpointTensors(source, stored | zeros, format="pickle")


@contextmanager
def hidden_folder(destination: Path) -> Iterator[Path]:
    """Create a hidden folder beside `destination`, and remove it at the end of the block.

    A complete result is renamed to `destination`, which therefore appears as a whole or not at all.
    """
    folder = destination.absolute().parent / f".{destination.name}.converting"
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed
    with remove_on_exit(folder):
        folder.mkdir()
        yield folder


def copy_other_files(source: Path, folder: Path):
    """Copy tokenizer, model card and all other files but weights and config.json, unread."""
    for path in sorted(source.iterdir()):
        rewritten = (checksums.SUMS, "config.json", "gguf_tensors.json")
        is_rewritten = path.name in rewritten or path.name.endswith(WEIGHT_SUFFIXES)
        if path.is_file() and not is_rewritten:
            shutil.copyfile(path, folder / path.name)


def complete_copy(folder: Path, config: DreamConfig):
    """Write the files that a copied tokenizer lacks; does nothing if there is no tokenizer."""
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    except TokenizerError:
        # A checkpoint without a tokenizer is converted without one.
        return
    complete(folder, config, tokenizer)


def write_weights(target_format: str, folder: Path, tensors: Mapping[str, Array]):
    """Write weights in the Hugging Face or Orbax layout."""
    if target_format == "orbax":
        orbax.save(folder / ORBAX_FOLDER, tensors)
        return
    sizes = {name: value.nbytes for name, value in tensors.items()}
    huggingface.save_shards(
        folder, sizes, ((name, np.asarray(value)) for name, value in tensors.items())
    )


def tensor_checksum(tensor: Array | np.ndarray) -> TensorChecksum:
    """Return shape, dtype, number of bytes and CRC-32 of a tensor."""
    value = np.ascontiguousarray(tensor)
    return value.shape, str(value.dtype), value.nbytes, zlib.crc32(value.tobytes())


def probe_logits(model: DreamForCausalLM) -> np.ndarray:
    """Compute the logits of the tokens 0, 1, 2 and so on, `PROBE_TOKENS` of them."""
    tokens = jnp.arange(PROBE_TOKENS, dtype=jnp.int32)[None] % model.config.vocab_size
    return np.asarray(run_forward(*split_model(model), tokens))


def check_copy(
    folder: Path,
    sums: Mapping[str, TensorChecksum],
    probe: np.ndarray | None,
    on_progress: Progress | None,
):
    """Read a converted checkpoint back and compare it.

    Without a probe, only tensors are compared, in float32.

    Raises:
        CheckpointError: a tensor or the logits differ from what was to be written.
    """
    # Values that are not finite were refused or allowed when the source was read.
    model = DreamForCausalLM.from_pretrained(
        folder,
        dtype="float32" if probe is None else None,
        on_progress=on_progress,
        allow_nonfinite=True,
    )
    read_sums = {name: tensor_checksum(value) for name, value in parameters(model).items()}
    # names on one side only, or with another shape, dtype or content
    different = sorted(
        name for name in sums.keys() | read_sums.keys() if sums.get(name) != read_sums.get(name)
    )
    if different:
        raise CheckpointError(
            f"{len(different)} tensors were not read back as they were written, "
            f"the first is {different[0]!r}"
        )
    if probe is not None and not np.array_equal(probe_logits(model), probe, equal_nan=True):
        raise CheckpointError("the converted checkpoint computes other logits than the source")


def report_half(on_progress: Progress | None, number: int) -> Progress | None:
    """Return a callback that reports the first (0) or the second half (1) of the progress."""
    # A source of 10 bytes: the first half reports 0 to 10 of 20, the second 10 to 20 of 20.
    return on_progress and (lambda done, total: on_progress(number * total + done, 2 * total))
