"""Checkpoints of a run: all that the next step depends on, written whole or not at all; and which run may go on.

Arrays by their path in the tree, the rest as JSON, in one folder per step (Orbax, which writes beside it and renames,
and then only removes older ones).
Settings are compared under one vocabulary, also those that version 0.1 wrote. Knows trees, no model and no loss.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as orbax

from jax_lm.options import LATER_OPTIONS

STATE, REST = "state", "rest"
PARTIAL = "*.orbax-checkpoint-tmp*"

FORMER_NAMES = {
    "steps": "max_steps",
    "accumulation": "gradient_accumulation_steps",
    "length": "max_length",
    "rows": "batch_size",
    "epochs": "num_train_epochs",
    "optimizer.warmup_share": "optimizer.warmup_ratio",
    "optimizer.final_share": "optimizer.min_lr_ratio",
    "optimizer.clip_norm": "optimizer.max_grad_norm",
    "optimizer.epsilon": "optimizer.adam_epsilon",
    "grpo.max_completion_length": "grpo.generation.max_new_tokens",
    "grpo.diffusion_steps": "grpo.generation.num_steps",
    "grpo.decoding": "grpo.generation.decoding.preset",
}
"""Settings of version 0.1, and what they are called now."""

FORMER_PLACES = {
    "grpo.generation": ("temperature", "top_p", "top_k", "alg"),
    "grpo.masks": ("estimator", "num_mask_pairs", "min_mask_ratio", "max_mask_ratio"),
    "grpo.loss": ("loss_type", "epsilon", "epsilon_high", "beta", "kl_clamp"),
    "optimizer": (
        "learning_rate", "warmup_ratio", "min_lr_ratio", "adam_beta1", "adam_beta2", "weight_decay", "max_grad_norm",
    ),
    "": ("gradient_accumulation_steps", "compute_dtype", "seed"),
}  # fmt: skip
"""Settings that version 0.1 had in `grpo` itself, by where they are now; those of the trainer it had there as well."""

FORMER_CONSTANTS = {"tokens_per_step": 1, "alg_temp": 0.0, "early_stop": True}
"""Settings of sampling that version 0.1 did not offer, with the values that it used."""


LATER_SETTINGS: dict[str, Any] = {
    "expand_delete": False,
    "excess_masks": "uniform",
    "grpo.dynamic_sampling": 0,
    "grpo.generation_batch_size": None,
    "grpo.masks.num_segments": 4,
    "loss.confident_share": 0.0,
} | {f"grpo.generation.{name}": value for name, value in LATER_OPTIONS.items()}
"""Settings that runs did not hold before there were any, with what they did then."""

UNKNOWN_BEFORE = ("lora.base",)
"""Settings that runs did not hold once, and of which nothing is known then: such a run is continued."""

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


def differing_setting(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Name the first setting in which two runs differ, with both values; None if they agree.

    A setting that one of them lacks counts as None.
    """
    ours, theirs = (present_names(dict(named_settings(identity))) for identity in (wanted, held))
    theirs = {name: value for name, value in LATER_SETTINGS.items() if name in ours} | theirs
    for name in sorted((ours.keys() | theirs.keys()) - UNCOMPARED):
        if name in UNKNOWN_BEFORE and name not in theirs:
            continue
        if ours.get(name) != theirs.get(name):
            return f"{name}={theirs.get(name)!r}, not {ours.get(name)!r}"
    return None


def named_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of a nested mapping, by dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from named_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under today's names; those of a present run as they are."""
    if "steps" not in settings:
        return dict(settings)
    names = FORMER_NAMES | {
        f"grpo.{name}": f"{place}.{name}".removeprefix(".") for place, inner in FORMER_PLACES.items() for name in inner
    }
    present = {names.get(name, name): value for name, value in settings.items() if name != "optimizer.betas"}
    present |= dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), settings["optimizer.betas"], strict=True))
    if "grpo.num_generations" in settings:
        present |= {f"grpo.generation.{name}": value for name, value in FORMER_CONSTANTS.items()}
    return present
