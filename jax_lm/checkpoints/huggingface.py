"""The Hugging Face checkpoint layout: config.json and safetensors, one file or sharded with an index.

Reads tensors one at a time into JAX arrays and writes the same layout back. Strict: anything missing,
unknown, misshapen or damaged is refused by name. Code that ships with a checkpoint is never read, let
alone executed. Knows names and shapes, but no model.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, which safetensors needs)
import numpy as np
from huggingface_hub import snapshot_download
from jax.typing import DTypeLike
from jaxtyping import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_NAME = 255
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
DESCRIPTION_FILES = ["*.json", "merges.txt", "*.jinja"]
WEIGHT_FILES = ["*.safetensors"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded as it is; the message names the file or tensor and the reason."""


def resolve(path_or_hub_id: str | Path, *, with_weights: bool = True) -> Path:
    """Local folder of a checkpoint, downloading it into the hub's cache if it is a hub id.

    `HF_HUB_OFFLINE=1` keeps to the cache. Without weights only configuration and tokenizer are fetched.

    Raises:
        CheckpointError: neither a folder here nor a repository that can be had.
    """
    try:
        path = Path(path_or_hub_id).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"model {str(path_or_hub_id)!r} is no usable path: {error}") from error
    if is_folder and str(path_or_hub_id):
        return path
    if is_file:
        raise CheckpointError(f"model {str(path)!r} is a file; expected a folder with config.json")
    if not HUB_ID.fullmatch(str(path_or_hub_id)):
        raise CheckpointError(f"model {str(path_or_hub_id)!r}: no such folder, and not a hub id (owner/name)")
    try:
        patterns = [*DESCRIPTION_FILES, *(WEIGHT_FILES if with_weights else [])]
        return Path(snapshot_download(str(path_or_hub_id), allow_patterns=patterns))
    except Exception as error:  # the hub's client lets exceptions of its HTTP library through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"model {str(path_or_hub_id)!r}: no such folder, and not to be had from the hub ({reason})"
        ) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint.

    Raises:
        CheckpointError: the file is absent or does not hold a JSON object.
    """
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
    """Which file holds each tensor, from the index or from the single file.

    Raises:
        CheckpointError: no weights, an absent shard, or an index entry that leaves the folder.
    """
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
        with opened(folder / WEIGHTS) as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    entries = read_json(folder, INDEX).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{folder / INDEX} has no weight_map")
    for shard in sorted(set(map(str, entries.values()))):
        if Path(shard).name != shard or shard in ("", ".", "..") or len(shard) > MAX_NAME:
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is not a file of this folder")
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / INDEX} names {shard!r}, which is absent")
    return {name: folder / str(shard) for name, shard in entries.items()}


def load_tensors(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    ignored: Collection[str] = (),
    dtype: DTypeLike | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Array]:
    """Read exactly the tensors named in `shapes`, shard by shard.

    Peak host memory is the arrays themselves plus one tensor.

    Args:
        ignored: tensors that may be present but are not read.
        dtype: float dtype of the result; None keeps the stored one.
        on_progress: called with bytes read so far and bytes in all.

    Raises:
        CheckpointError: a tensor is missing, unknown, misshapen, not of a float dtype, or not where the
            index says, or a file is damaged.
    """
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise CheckpointError(f"dtype={dtype!r}: must be a float dtype, or None for that of the checkpoint")
    files = tensor_files(folder)
    check_names(folder, files, shapes, ignored)
    total = sum(path.stat().st_size for path in set(files.values()))
    tensors: dict[str, Array] = {}
    read = 0
    for path in sorted(set(files.values())):
        with opened(path) as file:
            held = set(file.keys())
            unlisted = sorted(held - {name for name, place in files.items() if place == path})
            if unlisted:
                raise CheckpointError(f"{path} holds {unlisted[0]!r}, which the index does not place there")
            for name in (name for name, place in files.items() if place == path and name in shapes):
                if name not in held:
                    raise CheckpointError(f"{path} lacks {name!r}, which the index places there")
                value = read_tensor(file, path, name)
                if value.shape != tuple(shapes[name]):
                    raise CheckpointError(
                        f"{name!r} in {path} has shape {value.shape}, the config asks for {tuple(shapes[name])}"
                    )
                if not jnp.issubdtype(value.dtype, jnp.floating):
                    raise CheckpointError(f"{name!r} in {path} has dtype {value.dtype}, expected a float dtype")
                tensors[name] = jnp.asarray(value, dtype)
                read += value.nbytes
                if on_progress:
                    on_progress(read, total)
    if on_progress:
        on_progress(total, total)
    return tensors


def check_names(
    folder: Path, files: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]], ignored: Collection[str]
) -> None:
    """Raise CheckpointError unless the checkpoint holds exactly the tensors that the config asks for."""
    missing = sorted(set(shapes) - set(files))
    unknown = sorted(set(files) - set(shapes) - set(ignored))
    for kind, names in (("lacks", missing), ("holds the unknown", unknown)):
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{folder} {kind} tensor {names[0]!r}{others}")


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open safetensors file; one that is not whole becomes a CheckpointError with its path."""
    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    with file:
        yield file


def read_tensor(file: Any, path: Path, name: str) -> np.ndarray:
    """One tensor; a dtype that numpy cannot hold becomes a CheckpointError."""
    try:
        return file.get_tensor(name)
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{name!r} in {path} cannot be read: {error}") from error


def save(folder: str | Path, tensors: Mapping[str, Array], config: Mapping[str, Any]) -> None:
    """Write `config.json` and one `model.safetensors`; each file appears whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    with replacing(folder / WEIGHTS) as path:
        save_file(arrays, path, metadata={"format": "pt"})
    # An index left by a sharded checkpoint would win over the file just written.
    (folder / INDEX).unlink(missing_ok=True)
    with replacing(folder / "config.json") as path:
        path.write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that takes its place when the block ends well."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
