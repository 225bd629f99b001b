"""The Hugging Face checkpoint layout: config.json and safetensors, one file or sharded with an index.

Reads tensors one at a time, each device its slices, and writes the same layout back. Strict: anything missing,
unknown, misshapen or damaged is refused by name. Code that ships with a checkpoint is never read, let
alone executed. Knows names and shapes, but no model.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from huggingface_hub import snapshot_download
from jaxtyping import Array
from safetensors import SafetensorError, safe_open

from jax_lm.checkpoints.stored import CheckpointError, ViewedTensor, first_line, group_by_size, save_tensors
from jax_lm.host.files import atomic_write, output_folder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_NAME = 255
SHARD_BYTES = 5 * 10**9
HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
"""owner/name, or owner/name@revision."""
DESCRIPTION_FILES = ["*.json", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]
CODE_FILES, LICENCE_FILES = ["*.py"], ["LICENSE*", "NOTICE*"]
"""What a model made of this one needs as well: for PyTorch, and for those who get it. Copied, never executed."""

DTYPES = {
    "BOOL": np.dtype(bool),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind in "IU" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Names of dtypes in safetensors."""


@dataclass(frozen=True)
class MappedTensor(ViewedTensor):
    """A tensor in a safetensors file: `start` is the offset of its first byte."""

    start: int

    def view(self) -> np.ndarray:
        """Map the file into memory; its pages go when the view does."""
        if not self.nbytes:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.start, self.shape)


def resolve(
    path_or_hub_id: str | Path, *, with_weights: bool = True, kind: str = "model", files: Collection[str] = ()
) -> Path:
    """Find the local folder of a checkpoint, downloading it into the hub's cache if it is a hub id.

    A hub id is owner/name, or owner/name@revision for a branch, tag or commit. Downloads show their progress and go on
    where they were broken off; `HF_HUB_OFFLINE=1` keeps to the cache; `HF_TOKEN` opens private repositories. Without
    weights only configuration and tokenizer are fetched; of another kind of repository than a model, its `files`.
    CheckpointError if there is neither folder nor repository.
    """
    try:
        path = Path(path_or_hub_id).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{kind} {str(path_or_hub_id)!r} is no usable path: {error}") from error
    if is_folder and str(path_or_hub_id):
        return path
    if is_file:
        raise CheckpointError(f"{kind} {str(path)!r} is a file; expected a folder")
    found = HUB_ID.fullmatch(str(path_or_hub_id))
    if not found:
        raise CheckpointError(f"{kind} {str(path_or_hub_id)!r}: no such folder, and not a hub id (owner/name)")
    try:
        described = [*DESCRIPTION_FILES, *CODE_FILES, *LICENCE_FILES]
        patterns = list(files) or [*described, *(WEIGHT_FILES if with_weights else [])]
        # Without a token in the environment none is sent, also where the hub's client keeps one in a file.
        token = os.environ.get("HF_TOKEN") or False
        return Path(snapshot_download(found["repo"], revision=found["revision"], allow_patterns=patterns, token=token))
    except Exception as error:  # the hub's client lets exceptions of its HTTP library through
        raise CheckpointError(
            f"{kind} {str(path_or_hub_id)!r}: no such folder, and not to be had from the hub ({first_line(error)})"
        ) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from a file of the checkpoint; CheckpointError if it is absent or holds something else."""
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {name}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(fields).__name__}")
    return fields


def tensor_files(folder: Path) -> dict[str, Path]:
    """Find the file of each tensor; CheckpointError if there is none, or the index names what is not in the folder."""
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
        return dict.fromkeys(read_header(folder / WEIGHTS)[0], folder / WEIGHTS)
    entries = read_json(folder, INDEX).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{folder / INDEX} has no weight_map")
    for shard in sorted(set(map(str, entries.values()))):
        if Path(shard).name != shard or shard in ("", ".", "..") or len(shard) > MAX_NAME:
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is not a file of this folder")
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is absent")
    return {name: folder / str(shard) for name, shard in entries.items()}


def list_tensors(folder: Path) -> dict[str, MappedTensor]:
    """List the tensors of a checkpoint; CheckpointError if a file is damaged, or a tensor not where the index says."""
    files = tensor_files(folder)
    tensors: dict[str, MappedTensor] = {}
    for path in sorted(set(files.values())):
        held = {tensor.name: tensor for tensor in headers(path)}
        listed = {name for name, file in files.items() if file == path}
        if unlisted := sorted(held.keys() - listed):
            raise CheckpointError(f"{path} holds {unlisted[0]!r}, which the index does not place there")
        if absent := sorted(listed - held.keys()):
            raise CheckpointError(f"{path} lacks {absent[0]!r}, which the index places there")
        tensors |= held
    return tensors


def headers(path: Path) -> Iterator[MappedTensor]:
    """List the tensors of one file in the order in which they lie there."""
    entries, end = read_header(path)
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(f"{name!r} in {path} has dtype {entry['dtype']}, which is not supported")
        start = end + entry["data_offsets"][0]
        yield MappedTensor(path, name, tuple(entry["shape"]), DTYPES[entry["dtype"]], start)


def read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Read the entries of a safetensors file, and where its header ends; CheckpointError if the file is not whole."""
    try:
        with safe_open(path, framework="numpy"):  # checks that sizes and offsets agree with the file
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, 8 + length


def read_metadata(path: Path) -> dict[str, str]:
    """Read what the header of a safetensors file says beside its tensors."""
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error


def save(folder: str | Path, tensors: Mapping[str, Array | np.ndarray], config: Mapping[str, Any]) -> None:
    """Write `config.json` and one `model.safetensors`; each file appears whole or not at all."""
    folder = Path(folder)
    output_folder(folder)
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    with atomic_write(folder / WEIGHTS) as path:
        save_tensors(path, arrays, {"format": "pt"})
    # An index left by a sharded checkpoint would win over the file just written.
    (folder / INDEX).unlink(missing_ok=True)
    with atomic_write(folder / "config.json") as path:
        path.write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


def save_shards(folder: Path, sizes: Mapping[str, int], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write tensors that come one after the other, as one file, or as several of `SHARD_BYTES` and their index.

    `sizes` are their bytes, in that order. Memory holds one file. Meant for a folder that nobody reads yet.
    """
    shards = group_by_size(sizes, SHARD_BYTES)
    count = len(shards)
    files = [WEIGHTS] if count == 1 else [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    coming = iter(arrays)
    for file, names in zip(files, shards, strict=True):
        held = dict(next(coming) for _ in names)
        assert list(held) == names
        save_tensors(folder / file, held, {"format": "pt"})
    if count > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
