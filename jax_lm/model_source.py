"""Which model a command means: a folder, a hub id or the built-in one; with an adapter, the base that it belongs to.

An adapter changes the weights that it was trained on, and makes nonsense of others of the same shape. So it names its
base and carries a fingerprint of it, which is compared here, before anything is loaded.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from jax_lm.checkpoints import huggingface, peft
from jax_lm.checkpoints.fingerprint import weights_fingerprint
from jax_lm.checkpoints.loading import open_checkpoint
from jax_lm.checkpoints.peft import NamedBase, StoredAdapter
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes

logger = logging.getLogger(__name__)

BUILTIN_MODEL = Path(__file__).parent / "assets" / "builtin"
BUILTIN_NAME = "builtin"
"""How an adapter names the built-in model."""


@dataclass(frozen=True)
class ModelSource:
    """The folder of a model, what an adapter of it calls it, and the adapter that goes with it, if any."""

    folder: Path
    name: NamedBase
    adapter: StoredAdapter | None = None

    @property
    def base(self) -> NamedBase:
        """The model as an adapter names it, with its fingerprint."""
        return replace(self.name, fingerprint=self.name.fingerprint or folder_fingerprint(self.folder))


def find_model(
    model: str | Path | None, adapter: str | Path | None = None, *, allow_other_base: bool = False
) -> ModelSource:
    """Find a model by folder or hub id (None is the built-in one, or the base of the adapter), and an adapter of it.

    Raises:
        CheckpointError: one of them cannot be found or read, or the adapter belongs to another model
            (`allow_other_base` takes it all the same).
        ValueError: the adapter does not say for certain what its base is, and no model is given.
    """
    if adapter is None:
        folder = huggingface.resolve(BUILTIN_MODEL if model is None else model)
        if (folder / peft.CONFIG).is_file() and not (folder / "config.json").is_file():
            raise CheckpointError(f"model {str(model)!r} is an adapter: give it as adapter, beside its base as model")
        return ModelSource(folder, base_name(model))
    stored = peft.read_adapter(huggingface.resolve(adapter, kind="adapter", files=peft.FILES))
    name = base_name(model) if model is not None else stored.base
    if model is None and not (stored.base.name and stored.base.fingerprint):
        raise ValueError(
            f"adapter {str(adapter)!r} was trained on {name}, which nothing proves: name the model as well"
        )
    try:
        folder = huggingface.resolve(model) if model is not None else base_folder(name)
    except CheckpointError as error:
        if model is not None:
            raise
        raise CheckpointError(f"adapter {str(adapter)!r} was trained on {name}: {error}; name the model") from None
    found = ModelSource(folder, replace(name, fingerprint=None), stored)
    return found if allow_other_base else check_base(found)


def check_base(found: ModelSource) -> ModelSource:
    """Compare the model with the base that its adapter names; CheckpointError if it is another one."""
    assert found.adapter is not None
    wanted, where = found.adapter.base, f"adapter {str(found.adapter.folder)!r}"
    if wanted.fingerprint is not None:
        base = found.base
        if base.fingerprint != wanted.fingerprint:
            prints = f"fingerprints {wanted.fingerprint} and {base.fingerprint}"
            raise CheckpointError(f"{where} was trained on {wanted}, and {found.name} has other weights ({prints})")
        return replace(found, name=base)
    names = [name.name for name in (wanted, found.name) if name.name and huggingface.HUB_ID.fullmatch(name.name)]
    if len(names) == 2 and names[0].casefold() != names[1].casefold():
        same = "if these are the same weights, name a folder that holds them"
        raise CheckpointError(f"{where} was trained on {wanted}, not on {found.name}; {same}")
    logger.warning("%s says that it was trained on %s; nothing proves that this is %s", where, wanted, found.name)
    return found


def base_name(model: str | Path | None) -> NamedBase:
    """Name a model so that an adapter can find it again: by hub id, or by the whole path of its folder."""
    if model is None:
        return NamedBase(BUILTIN_NAME)
    if Path(model).expanduser().is_dir():
        return NamedBase(str(Path(model).expanduser().absolute()))
    found = huggingface.HUB_ID.fullmatch(str(model))
    return NamedBase(found["repo"], found["revision"]) if found else NamedBase(str(model))


def base_folder(name: NamedBase) -> Path:
    """Find the model that an adapter of this project names."""
    if name.name == BUILTIN_NAME:
        return BUILTIN_MODEL
    return huggingface.resolve(f"{name.name}@{name.revision}" if name.revision else str(name.name))


def folder_fingerprint(folder: Path) -> str:
    """Take the fingerprint of the weights in a folder."""
    shapes = parameter_shapes(DreamForCausalLM.read_config(folder), int8=DreamForCausalLM.is_int8(folder))
    checkpoint = open_checkpoint(folder)
    if missing := sorted(shapes.keys() - checkpoint.stored.keys()):
        raise CheckpointError(f"{folder} lacks tensor {missing[0]!r}")
    return weights_fingerprint(checkpoint, shapes)
