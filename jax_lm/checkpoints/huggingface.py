"""The Hugging Face layout: config.json, and safetensors in one file or in shards with an index.

Tensors are read one at a time, and each device reads its own slices. Loading is strict: an error
names anything that is missing, unknown, damaged or of the wrong shape. Code that ships with a
checkpoint is never read, let alone executed. Knows names and shapes, but not the model.
"""

import itertools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np
from huggingface_hub import snapshot_download
from jaxtyping import Array
from safetensors import SafetensorError, safe_open

from jax_lm.checkpoints.stored import (
    CheckpointError,
    StoredTensor,
    StoredTensors,
    first_line,
    group_by_size,
    save_tensors,
)
from jax_lm.config import Fields, Ints, Names, pairs
from jax_lm.host.files import atomic_write, write_json_whole
from jax_lm.tokenizer.files import TokenizerError, read_optional, write_json

# Where a model or an adapter is.
FolderOrHubId = str | Path
# The model that comes with the package, and its name.
BUILTIN_MODEL = Path(__file__).parents[1] / "assets" / "builtin"
BUILTIN_NAME = "builtin"

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Longest file name that common file systems allow.
MAX_NAME = 255
# Largest size of a shard, 5 GB.
SHARD_BYTES = 5 * 10**9
# owner/name, or owner/name@revision.
HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
DESCRIPTION_FILES = ["*.json", "merges.txt", "*.jinja"]
LICENCE_FILES = ["LICENSE*", "NOTICE*"]
# A derived model needs the code for PyTorch, and the licence for whoever receives it. Both are
# copied; code is never executed.
MODEL_FILES = [*DESCRIPTION_FILES, "*.py", *LICENCE_FILES]
WEIGHT_FILES = ["*.safetensors"]

# Dtypes by their name in safetensors.
DTYPES = {
    name: jnp.dtype(dtype)
    for name, dtype in pairs("""
    BOOL bool  BF16 bfloat16  F16 float16  F32 float32  F64 float64
    I8 int8  I16 int16  I32 int32  I64 int64  U8 uint8  U16 uint16  U32 uint32  U64 uint64
""").items()
}


def resolve(
    path_or_hub_id: FolderOrHubId | None,
    *,
    with_weights: bool = True,
    kind: str = "model",
    files: Collection[str] = (),
) -> Path:
    """Return the local folder of a checkpoint, downloading it into the hub's cache if necessary.

    Downloads show their progress and resume after an interruption. `HF_HUB_OFFLINE=1` restricts
    lookups to the cache; `HF_TOKEN` gives access to private repositories.

    Args:
        path_or_hub_id: a folder, a GGUF file or a hub id, which is owner/name, or
            owner/name@revision for a branch, tag or commit. None is the built-in model.
        with_weights: whether to download weights, or only configuration and tokenizer.
        kind: what is looked for, for error messages.
        files: patterns of the files to download; if empty, the files of a model.

    Raises:
        CheckpointError: there is neither such a folder nor such a repository.
    """
    if path_or_hub_id is None:
        return BUILTIN_MODEL
    try:
        path = Path(path_or_hub_id).expanduser()
        is_folder = path.is_dir()
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{kind} {str(path_or_hub_id)!r} is not a usable path: {error}"
        ) from error
    if is_folder and str(path_or_hub_id):
        return path
    if is_file and path.suffix.lower() == ".gguf":
        return require_gguf().as_folder(path)
    if kind == "model" and str(path_or_hub_id) == BUILTIN_NAME:
        return BUILTIN_MODEL
    if is_file:
        raise CheckpointError(f"{kind} {str(path)!r} is a file; expected a folder or a .gguf file")
    hub_id = HUB_ID.fullmatch(str(path_or_hub_id))
    if not hub_id:
        raise CheckpointError(
            f"{kind} {str(path_or_hub_id)!r}: no such folder, and not a hub id (owner/name)"
        )
    try:
        patterns = list(files) or MODEL_FILES + (WEIGHT_FILES if with_weights else [])
        # Without HF_TOKEN no token is sent, even if the hub's client has one stored in a file.
        token = os.environ.get("HF_TOKEN") or False
        return Path(
            snapshot_download(
                hub_id["repo"], revision=hub_id["revision"], allow_patterns=patterns, token=token
            )
        )
    except Exception as error:  # the hub's client also raises exceptions of its HTTP library
        raise CheckpointError(
            f"{kind} {str(path_or_hub_id)!r}: no such folder, and not available from the hub "
            f"({first_line(error)})"
        ) from error


def require_gguf() -> ModuleType:
    """Return the module that reads GGUF files.

    Raises:
        CheckpointError: the library that it needs is not installed.
    """
    try:
        from jax_lm.checkpoints import gguf_file  # an optional library
    except ImportError as error:
        raise CheckpointError(
            f"GGUF files need the library gguf: pip install 'jax-diffucoder[gguf]' ({error})"
        ) from error
    return gguf_file


def published_name(folder: Path) -> str:
    """Return the name of a checkpoint: of its repository on the hub, or of its folder.

    Behind a link, the name of the link and that of its target, with a blank between them.
    """
    # In the hub's cache: models--owner--name/snapshots/1a2b3c
    places = {Path(os.path.abspath(folder)): None, folder.resolve(): None}
    cached = (part for place in places for part in place.parts if part.startswith("models--"))
    return next(cached, " ".join(place.name for place in places))


def read_json(folder: Path, name: str) -> Fields:
    """Read a JSON object from a file of a checkpoint.

    Raises:
        CheckpointError: the file is absent or does not hold a JSON object.
    """
    if not (folder / name).is_file():
        # a run folder: its model or adapter is in a folder of its own
        inner = [f" (perhaps {path.parent})" for path in folder.glob(f"*/{name}")]
        raise CheckpointError(f"{folder} has no {name}{min(inner, default='')}")
    try:
        return read_optional(folder / name)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from None


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor.

    Raises:
        CheckpointError: there are no weights, or the index names a file that is not in the folder.
    """
    whole = folder / WEIGHTS
    if not (folder / INDEX).is_file():
        if not whole.is_file():
            raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
        return dict.fromkeys(read_header(whole)[0], whole)
    # {"model.norm.weight": "model-00002-of-00002.safetensors", ...}
    entries = read_json(folder, INDEX).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{folder / INDEX} has no weight_map")
    # A shard must be a plain file name: "../other" would lead out of the folder.
    for shard in sorted(set(map(str, entries.values()))):
        if Path(shard).name != shard or shard in ("", ".", "..") or len(shard) > MAX_NAME:
            raise CheckpointError(
                f"{folder / INDEX} names {shard!r}, which is not a file of this folder"
            )
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is absent")
    return {name: folder / str(shard) for name, shard in entries.items()}


def list_tensors(folder: Path) -> StoredTensors:
    """Return the tensors of a checkpoint by name.

    Raises:
        CheckpointError: a file is damaged, or index and shards disagree.
    """
    files = tensor_files(folder)
    tensors = {}
    for path in sorted(set(files.values())):
        # Index and headers must agree in both directions.
        stored = {tensor.name: tensor for tensor in headers(path)}
        listed = {name for name, file in files.items() if file == path}
        if unlisted := sorted(stored.keys() - listed):
            raise CheckpointError(
                f"{path} holds {unlisted[0]!r}, which the index does not place there"
            )
        if absent := sorted(listed - stored.keys()):
            raise CheckpointError(f"{path} lacks {absent[0]!r}, which the index places there")
        tensors |= stored
    whole = folder / WEIGHTS
    if whole.is_file() and whole not in files.values():
        require_same_tensors(whole, tensors)
    return tensors


def require_same_tensors(whole: Path, shards: StoredTensors):
    """Raise CheckpointError if a single file holds other tensors than the shards next to it.

    Some programs would load the file and others the shards.
    """
    single = {tensor.name: tensor for tensor in headers(whole)}
    for name in sorted(single.keys() | shards.keys()):
        own = single.get(name)
        other = shards.get(name)
        if own is None or other is None or not np.array_equal(raw_bytes(own), raw_bytes(other)):
            raise CheckpointError(
                f"{whole} and {whole.parent / INDEX} are two models: {name!r} differs; remove one"
            )


def raw_bytes(tensor: StoredTensor) -> np.ndarray:
    assert tensor.view
    return np.ascontiguousarray(tensor.view()).reshape(-1).view(np.uint8)


def headers(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of one file, in the order of their offsets."""
    entries, _, end = read_header(path)
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(
                f"{name!r} in {path} has dtype {entry['dtype']}, which is not supported"
            )
        shape = tuple(entry["shape"])
        dtype = DTYPES[entry["dtype"]]
        view = partial(map_values, path, dtype, end + entry["data_offsets"][0], shape)
        yield StoredTensor(path, name, shape, dtype, view)


def map_values(path: Path, dtype: np.dtype, start: int, shape: Ints) -> np.ndarray:
    """Map a tensor of a file into memory; its pages are released together with the array."""
    # An empty range cannot be mapped.
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape)


def read_header(path: Path) -> tuple[dict[str, Fields], Names, int]:
    """Read the header of a safetensors file: entries by tensor name, metadata, offset of the data.

    Raises:
        CheckpointError: the file is damaged or incomplete.
    """
    try:
        # Opening checks that sizes and offsets agree with the length of the file.
        with safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    # A file is the length of the header in 8 bytes, the header as JSON, and the data.
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, metadata, 8 + length


def save(folder: Path, tensors: Mapping[str, Array | np.ndarray], config: Fields):
    """Write `config.json` and one `model.safetensors`, each atomically."""
    with atomic_write(folder / WEIGHTS) as path:
        save_tensors(
            path, {name: np.asarray(value) for name, value in tensors.items()}, {"format": "pt"}
        )
    # An index left by a sharded checkpoint would take precedence over the file just written.
    (folder / INDEX).unlink(missing_ok=True)
    write_json_whole(folder / "config.json", config, 2)


def save_shards(folder: Path, sizes: Mapping[str, int], arrays: Iterable[tuple[str, np.ndarray]]):
    """Write tensors from an iterator to one file, or to shards of `SHARD_BYTES` with an index.

    Memory holds the tensors of one shard. Files are not written atomically, so nobody may read the
    folder yet.

    Args:
        folder: where to write.
        sizes: number of bytes of each tensor, in the order of `arrays`.
        arrays: names and values of the tensors.
    """
    shards = group_by_size(sizes, SHARD_BYTES)
    count = len(shards)
    # 12 GB in 3 shards: model-00001-of-00003.safetensors and so on
    files = (
        [WEIGHTS]
        if count == 1
        else [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    )
    remaining = iter(arrays)
    weight_map = {}
    for file, names in zip(files, shards, strict=True):
        tensors = dict(itertools.islice(remaining, len(names)))
        assert list(tensors) == names
        save_tensors(folder / file, tensors, {"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if count > 1:
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": dict(sorted(weight_map.items())),
        }
        write_json(folder / INDEX, index)
