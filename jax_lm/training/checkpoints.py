"""Checkpoints of a run: everything the next step depends on, written whole or not at all.

Arrays are stored by their path in the tree, the rest as JSON, in one folder per step. Orbax writes
a checkpoint to a temporary folder and renames it, and only then removes older ones.
Knows trees, no model and no loss.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as orbax

from jax_lm.config import Fields
from jax_lm.host import terminal
from jax_lm.host.distributed import is_first
from jax_lm.training.update import named_leaves

terminal.silence_orbax()

STATE = "state"
REST = "rest"
PARTIAL = "*.orbax-checkpoint-tmp*"
# In JSON, {"__array__": "3"} stands for array 3 of the checkpoint.
ARRAY = "__array__"

# Settings that are recorded but may change on resume: they affect where and in which order results
# are computed, but not the results.
UNCOMPARED = {"mesh", "loss.remat", "grpo.remat", "grpo.score_chunk", "grpo.rollout_mesh"}


class RunCheckpoints(AbstractContextManager):
    """The checkpoints of one run in a folder, which is created if absent.

    Args:
        folder: folder of the checkpoints.
        keep: number of newest checkpoints to keep.
        in_background: whether `save` only copies the state and writes it while training continues.
            A failure is then raised by the next `save`, or at the end. None does so on accelerators
            only.

    Attributes:
        best: step of another checkpoint to keep.
    """

    def __init__(self, folder: Path, keep: int, *, in_background: bool | None = False):
        self.keep = keep
        self.best: int | None = None
        self.is_cpu = jax.default_backend() == "cpu"
        self.in_background = not self.is_cpu if in_background is None else in_background
        # A killed process may leave a partial checkpoint, which never got the name of a step.
        for path in folder.glob(PARTIAL) if is_first() else ():
            shutil.rmtree(path)
        policy: Any = self
        self.checkpointer = orbax.training.Checkpointer(
            str(folder.absolute()), preservation_policy=policy
        )

    def __exit__(self, *error: object):
        self.checkpointer.close()

    def should_preserve(self, checkpoints: Sequence[Any], *, context) -> list[bool]:
        """Return which checkpoints to keep; Orbax calls this."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        return [step in steps[-self.keep :] or step == self.best for step in steps]

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint."""
        newest = self.checkpointer.latest
        return None if newest is None else newest.step

    def save(self, step: int, state, rest: Fields):
        """Write a checkpoint; returns once it is complete, or can be written in the background.

        Args:
            step: number of the checkpoint.
            state: tree of arrays, for which `load_state` gets a template.
            rest: JSON that may contain arrays, none of them empty.
        """
        leaves = named_leaves(state)
        # rest {"batches": [array]} is stored as JSON {"batches": [{"__array__": "1"}]} and arrays
        # {"step": ..., "1": array}.
        arrays = {"step": np.array(step)}

        def store(value):
            if not isinstance(value, jax.Array | np.ndarray | np.generic):
                raise TypeError(f"a checkpoint holds JSON and arrays, not {value!r:.80}")
            name = str(len(arrays))
            # Copied, because the original may change while it is written.
            arrays[name] = np.array(value)
            return {ARRAY: name}

        shapes = {name: shape_and_dtype(leaf) for name, leaf in leaves.items()}
        text = json.dumps({"leaves": shapes, REST: rest}, default=store)
        content = {"json": text, "arrays": arrays}
        self.checkpointer.wait()
        save = self.checkpointer.save_checkpointables
        if self.in_background:
            save = self.checkpointer.save_checkpointables_async
            if self.is_cpu:
                # Orbax copies arrays from an accelerator, but reads those of a CPU in place, where
                # the next step would overwrite them.
                leaves = jax.block_until_ready(jax.tree.map(jnp.copy, leaves))
        save(step, {STATE: leaves, REST: content}, force=True)

    def load_rest(self) -> Fields:
        """Load the `rest` of the newest checkpoint; arrays are numpy arrays, tuples are lists."""
        return self.read(self.latest)[REST]

    def load_state(self, like, step: int | None = None) -> Any:
        """Load the state of a checkpoint.

        Args:
            like: tree with the shapes, dtypes and shardings to load into.
            step: step of the checkpoint; None is the newest.

        Raises:
            ValueError: the checkpoint does not hold the leaves of `like`, or is damaged.
        """
        self.checkpointer.wait()
        step = self.latest if step is None else step
        # check names, shapes and dtypes before anything is loaded
        leaves = named_leaves(like)
        stored = self.read(step)["leaves"]
        checkpoint = f"checkpoint {self.checkpointer.directory / str(step)}"
        for name in sorted(stored.keys() ^ leaves.keys()):
            difference = "lacks" if name in leaves else "holds the unknown"
            raise ValueError(f"{checkpoint} {difference} {name}: of another run")
        for name, leaf in leaves.items():
            if (own := shape_and_dtype(leaf)) != stored[name]:
                raise ValueError(f"{checkpoint} holds {name} as {stored[name]}, this run has {own}")
        loaded = self.load(step, {STATE: abstract_of(leaves)})[STATE]
        return jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in leaves])

    def load(self, step: int | None, parts: Fields) -> Fields:
        """Load parts of a checkpoint. Raises ValueError if it is damaged."""
        try:
            return self.checkpointer.load_checkpointables(step, parts)
        # what TensorStore cannot read, for which Orbax may also find no handler
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"checkpoint {self.checkpointer.directory}/{step} is damaged: remove it, and the "
                "run continues from an earlier one"
            ) from error

    def read(self, step: int | None) -> Fields:
        """Read everything but the state."""
        saved = self.load(step, {REST: None})[REST]

        def restore(value):
            return np.asarray(saved["arrays"][value[ARRAY]]) if value.keys() == {ARRAY} else value

        return json.loads(saved["json"], object_hook=restore)


def abstract_of(tree) -> Any:
    """Return shape, dtype and sharding of each leaf."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def shape_and_dtype(leaf) -> list:
    """Return a leaf's shape and the name of its dtype, as JSON."""
    return [list(leaf.shape), str(leaf.dtype)]
