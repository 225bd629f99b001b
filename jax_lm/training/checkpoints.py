"""Checkpoints of a run: all that the next step depends on, written whole or not at all; and which run may go on.

Arrays by their path in the tree, the rest as JSON, in one folder per step (Orbax, which writes beside it and renames,
and then only removes older ones).
Knows trees, no model and no loss.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as orbax

STATE, REST = "state", "rest"
PARTIAL = "*.orbax-checkpoint-tmp*"

UNCOMPARED = {"mesh", "loss.remat", "grpo.remat", "grpo.score_chunk", "grpo.rollout_mesh"}
"""Settings that are recorded, but decide where and in which order something is computed, and not what."""


class RunCheckpoints(AbstractContextManager):
    """The checkpoints of one run in a folder, which is created if absent.

    Args:
        keep: so many of the newest ones stay.
        in_background: `save` returns once the state is copied, and writes it while the training goes on; what fails is
            raised by the next one, or at the end. None does so on accelerators alone.

    Attributes:
        best: step of a checkpoint that stays too.
    """

    def __init__(self, folder: Path, keep: int, *, in_background: bool | None = False) -> None:
        self.keep = keep
        self.best: int | None = None
        self.is_cpu = jax.default_backend() == "cpu"
        self.in_background = not self.is_cpu if in_background is None else in_background
        # What a killed process left half-written counts for nothing: it never got a step's name.
        for path in folder.glob(PARTIAL) if jax.process_index() == 0 else ():
            shutil.rmtree(path)
        policy: Any = self
        self.checkpointer = orbax.training.Checkpointer(str(folder.absolute()), preservation_policy=policy)

    def __exit__(self, *error: object) -> None:
        self.checkpointer.close()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Tell Orbax which checkpoints stay."""
        newest = [checkpoint.step for checkpoint in checkpoints][-self.keep :]
        return [checkpoint.step in newest or checkpoint.step == self.best for checkpoint in checkpoints]

    @property
    def latest(self) -> int | None:
        """Step of the newest whole checkpoint."""
        newest = self.checkpointer.latest
        return None if newest is None else newest.step

    def save(self, step: int, state: Any, rest: Mapping[str, Any]) -> None:
        """Write a checkpoint, and return when it is whole, or can be written in the background.

        Args:
            state: tree of arrays that `load` gets a template of.
            rest: nested dict with string keys: arrays (none of them empty), and values of JSON.
        """
        leaves = named_leaves(state)
        values, arrays = split_arrays(rest)
        description = {"leaves": {name: shape_and_dtype(leaf) for name, leaf in leaves.items()}, "values": values}
        saved = {"json": json.dumps(description), "arrays": {"step": np.array(step), **arrays}}
        self.checkpointer.wait()
        if not self.in_background:
            self.checkpointer.save_checkpointables(step, {STATE: leaves, REST: saved}, force=True)
            return
        # From an accelerator Orbax copies first; on a CPU it reads the arrays in place, which the next step overwrites.
        leaves = jax.block_until_ready(jax.tree.map(jnp.copy, leaves)) if self.is_cpu else leaves
        self.checkpointer.save_checkpointables_async(step, {STATE: leaves, REST: saved}, force=True)

    def load_rest(self) -> dict[str, Any]:
        """Load `rest` as `save` got it, of the newest checkpoint, with numpy arrays."""
        saved, description = self.read()
        arrays = {name: np.asarray(value) for name, value in saved["arrays"].items() if name != "step"}
        return merge_arrays(description["values"], arrays)

    def load_state(self, like: Any, step: int | None = None) -> Any:
        """Load the state of a checkpoint, the newest if not given, in the shape and on the devices of `like`.

        Raises:
            ValueError: the checkpoint does not hold the leaves of `like`.
        """
        self.checkpointer.wait()
        step = self.latest if step is None else step
        _, description = self.read(step)
        leaves = named_leaves(like)
        held, whole = description["leaves"], f"checkpoint {self.checkpointer.directory / str(step)}"
        for name in sorted(held.keys() ^ leaves.keys()):
            raise ValueError(f"{whole} {'lacks' if name in leaves else 'holds the unknown'} {name}: of another run")
        for name, leaf in leaves.items():
            if shape_and_dtype(leaf) != held[name]:
                raise ValueError(f"{whole} holds {name} as {held[name]}, this run has {shape_and_dtype(leaf)}")
        loaded = self.checkpointer.load_checkpointables(step, {STATE: abstract_of(leaves)})[STATE]
        return jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in leaves])

    def read(self, step: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read all but the state, and the description in it."""
        saved = self.checkpointer.load_checkpointables(step, {REST: None})[REST]
        return saved, json.loads(saved["json"])


def named_leaves(tree: Any) -> dict[str, Any]:
    """Name the leaves of a tree by the path to them."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def abstract_of(tree: Any) -> Any:
    """Keep shape, dtype and sharding of leaves alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def shape_and_dtype(leaf: Any) -> list:
    """A leaf's shape and the name of its dtype, as JSON."""
    return [list(leaf.shape), str(leaf.dtype)]


def split_arrays(tree: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Split a nested dict into JSON values and arrays; where an array was, the values say {"array": name}."""
    values: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            values[key], inner = split_arrays(value, f"{prefix}{key}/")
            arrays |= inner
        elif isinstance(value, jax.Array | np.ndarray | np.generic):
            # A copy, which may be written while the value changes.
            arrays[f"{prefix}{key}"] = np.array(value)
            values[key] = {"array": f"{prefix}{key}"}
        else:
            values[key] = [value]
    return values, arrays


def merge_arrays(values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Put back together what `split_arrays` split."""
    merged: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, list):
            merged[key] = value[0]
        elif set(value) == {"array"} and isinstance(value["array"], str):
            merged[key] = arrays[value["array"]]
        else:
            merged[key] = merge_arrays(value, arrays)
    return merged
