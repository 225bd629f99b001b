"""Finds the model that a command asks for: a folder, a hub id, the built-in model or an adapter.

An adapter is only valid for the weights that it was trained on. With other weights of the same
shape, the output is nonsense. So an adapter names its base model and stores a fingerprint of it.
Both are checked here, before anything is loaded.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jax_lm.checkpoints import huggingface, peft
from jax_lm.checkpoints.fingerprint import weights_fingerprint
from jax_lm.checkpoints.huggingface import BUILTIN_MODEL, BUILTIN_NAME, FolderOrHubId
from jax_lm.checkpoints.loading import open_checkpoint
from jax_lm.checkpoints.peft import NamedBase, StoredAdapter
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.tokenizer import DIFFUSION_PAD, DiffuCoderTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model, and an adapter to add to it.

    Attributes:
        folder: folder of the model.
        name: the name by which an adapter refers to the model.
        adapter: the adapter; None for the model alone.
    """

    folder: Path
    name: NamedBase
    adapter: StoredAdapter | None = None

    @property
    def folders(self) -> list[Path]:
        """The folder of the model, and that of the adapter if there is one."""
        return [self.folder, *([self.adapter.folder] if self.adapter else [])]

    @property
    def base(self) -> NamedBase:
        """The name of the model, with its fingerprint."""
        return replace(
            self.name, fingerprint=self.name.fingerprint or folder_fingerprint(self.folder)
        )


def is_instruct(folder: Path, tokenizer: DiffuCoderTokenizer) -> bool:
    """Return whether a model was tuned to answer messages.

    Such published models have a separate padding token, or "instruct" in their name (Dream's). The
    built-in model has that token too, but it completes text as well as it answers messages, so it
    counts as a base model.
    """
    if folder == BUILTIN_MODEL:
        return False
    is_named = "instruct" in huggingface.published_name(folder).lower()
    has_pad = tokenizer.backend.token_to_id(DIFFUSION_PAD) is not None
    return has_pad or (is_named and tokenizer.chat_template is not None)


def find_model(
    model: FolderOrHubId | None,
    adapter: FolderOrHubId | None = None,
    *,
    allow_other_base: bool = False,
) -> ModelSource:
    """Find a model, and optionally an adapter for it.

    Args:
        model: folder or hub id. None is the base of the adapter, or without an adapter the built-in
            model.
        adapter: folder or hub id of an adapter.
        allow_other_base: accept an adapter that was trained on another model.

    Raises:
        CheckpointError: one of them cannot be found or read, or the adapter belongs to another
            model.
        ValueError: no model is given, and the adapter does not identify its base by name and
            fingerprint.
    """
    # the given model, or the base that the adapter names
    stored = None if adapter is None else find_adapter(adapter)
    if stored is None or model is not None:
        folder = huggingface.resolve(model)
        name = base_name(model)
    else:
        name = stored.base
        if not (name.name and name.fingerprint):
            raise ValueError(
                f"adapter {str(adapter)!r} says that it was trained on {name}, which cannot be "
                "verified: name the model as well"
            )
        try:
            folder = huggingface.resolve(None if name.name == BUILTIN_NAME else name.place)
        except CheckpointError as error:
            raise CheckpointError(
                f"adapter {str(adapter)!r} was trained on {name}: {error}; name the model"
            ) from None
    if stored is None and peft.is_adapter(folder):
        raise CheckpointError(
            f"model {str(model)!r} is an adapter: give it as adapter, and its base as model"
        )
    source = ModelSource(folder, replace(name, fingerprint=None), stored)
    return source if stored is None or allow_other_base else check_base(source)


def find_adapters(
    source: ModelSource, places: Mapping[str, FolderOrHubId]
) -> dict[str, StoredAdapter]:
    """Find adapters for a model, without loading their tensors.

    Args:
        source: the model.
        places: folder or hub id of each adapter, by the name that the result gives it.

    Raises:
        CheckpointError: an adapter cannot be found or read, or belongs to another model.
        ValueError: the model has an adapter already.
    """
    if source.adapter and places:
        raise ValueError("adapter, adapters: give one of them")
    adapters = {name: find_adapter(place) for name, place in places.items()}
    for adapter in adapters.values():
        # The new source holds the model's fingerprint, which takes long to compute.
        source = check_base(replace(source, adapter=adapter))
    return adapters


def find_adapter(place: FolderOrHubId) -> StoredAdapter:
    return peft.read_adapter(huggingface.resolve(place, kind="adapter", files=peft.FILES))


def check_base(source: ModelSource) -> ModelSource:
    """Check that an adapter was trained on the model; returns the source with its fingerprint.

    If the adapter has no fingerprint, only hub ids can be compared. A warning is logged, and the
    source is returned as it was.

    Raises:
        CheckpointError: the adapter was trained on another model.
    """
    assert source.adapter
    expected = source.adapter.base
    adapter = f"adapter {str(source.adapter.folder)!r}"
    if expected.fingerprint is not None:
        base = source.base
        if base.fingerprint != expected.fingerprint:
            raise CheckpointError(
                f"{adapter} was trained on {expected}, and {source.name} has other weights "
                f"(fingerprints {expected.fingerprint} and {base.fingerprint})"
            )
        return replace(source, name=base)
    # Two different hub ids are two models, while a folder may hold the weights of any model.
    hub_ids = {
        base.name.casefold()
        for base in (expected, source.name)
        if base.name and huggingface.HUB_ID.fullmatch(base.name)
    }
    if len(hub_ids) == 2:
        raise CheckpointError(
            f"{adapter} was trained on {expected}, not on {source.name}; if these are the same "
            "weights, name a folder that holds them"
        )
    logger.warning(
        "%s says that it was trained on %s; it cannot be verified that this is %s",
        adapter,
        expected,
        source.name,
    )
    return source


def base_name(model: FolderOrHubId | None) -> NamedBase:
    """Return how an adapter refers to a model: by a hub id, an absolute path or `builtin`."""
    if model is None:
        return NamedBase(BUILTIN_NAME)
    path = Path(model).expanduser()
    if path.exists():
        return NamedBase(str(path.absolute()))
    hub_id = huggingface.HUB_ID.fullmatch(str(model))
    return NamedBase(hub_id["repo"], hub_id["revision"]) if hub_id else NamedBase(str(model))


def folder_fingerprint(folder: Path) -> str:
    """Compute the fingerprint of the weights in a folder."""
    config = DreamForCausalLM.read_config(folder)
    shapes = parameter_shapes(
        config, quantization="int8" if DreamForCausalLM.is_int8(folder) else None
    )
    checkpoint = open_checkpoint(folder, config.architecture.tensors)
    # Tensors that the model does not use are not part of the fingerprint.
    if missing := sorted(shapes.keys() - checkpoint.stored.keys()):
        raise CheckpointError(f"{folder} lacks tensor {missing[0]!r}")
    return weights_fingerprint(checkpoint, shapes)
