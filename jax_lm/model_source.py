"""Resolution of the model of a command: a folder, a hub id, the built-in model or an adapter.

An adapter is only valid for the weights that it was trained on; with other weights of the same
shape, the output is nonsense. So an adapter names its base model and stores a fingerprint of it.
Both are checked here, before anything is loaded.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jax_lm.checkpoints import huggingface, peft
from jax_lm.checkpoints.fingerprint import weights_fingerprint
from jax_lm.checkpoints.huggingface import BUILTIN_MODEL, BUILTIN_NAME
from jax_lm.checkpoints.loading import open_checkpoint
from jax_lm.checkpoints.peft import NamedBase, StoredAdapter
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes
from jax_lm.tokenizer import DIFFUSION_PAD, DiffuCoderTokenizer

# Where a model or adapter is: a folder, or a hub id.
Place = str | Path
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model, and the adapter to add to it.

    Attributes:
        folder: folder of the model.
        name: the name by which an adapter refers to the model.
        adapter: the adapter; None if there is none.
    """

    folder: Path
    name: NamedBase
    adapter: StoredAdapter | None = None

    @property
    def folders(self) -> list[Path]:
        """The folder of the model, and that of the adapter."""
        return [self.folder, *([self.adapter.folder] if self.adapter else [])]

    @property
    def base(self) -> NamedBase:
        """The name of the model, with its fingerprint."""
        return replace(
            self.name, fingerprint=self.name.fingerprint or folder_fingerprint(self.folder)
        )


def is_instruct(folder: Path, tokenizer: DiffuCoderTokenizer) -> bool:
    """Return whether a model was tuned to answer messages.

    Of the published models, these are the ones with a separate padding token, and those whose name
    says so (Dream's). The built-in model has that token, too, but it completes text as well as it
    answers messages, so it counts as a base model.
    """
    name = huggingface.published_name(folder)
    has_pad = tokenizer.backend.token_to_id(DIFFUSION_PAD) is not None
    is_named = "instruct" in name.lower() and tokenizer.chat_template is not None
    return folder != BUILTIN_MODEL and (has_pad or is_named)


def find_model(
    model: Place | None, adapter: Place | None = None, *, allow_other_base: bool = False
) -> ModelSource:
    """Find a model, and optionally an adapter for it.

    Args:
        model: folder or hub id. None is the base of the adapter; without an adapter, it is the
            built-in model.
        adapter: folder or hub id of an adapter.
        allow_other_base: accept an adapter that was trained on another model.

    Raises:
        CheckpointError: one of them cannot be found or read, or the adapter belongs to another
            model.
        ValueError: no model is given, and the adapter does not identify its base by name and
            fingerprint.
    """
    # A model without an adapter.
    if adapter is None:
        folder = huggingface.resolve(BUILTIN_MODEL if model is None else model)
        if (folder / peft.CONFIG).is_file() and not (folder / "config.json").is_file():
            raise CheckpointError(
                f"model {str(model)!r} is an adapter: give it as adapter, and its base as model"
            )
        return ModelSource(folder, base_name(model))
    # An adapter, on the given model or on the base that it names.
    stored = find_adapter(adapter)
    name = base_name(model) if model is not None else stored.base
    if model is None and not (stored.base.name and stored.base.fingerprint):
        raise ValueError(
            f"adapter {str(adapter)!r} was trained on {name}, which nothing proves: "
            "name the model as well"
        )
    try:
        folder = huggingface.resolve(model) if model is not None else base_folder(name)
    except CheckpointError as error:
        if model is not None:
            raise
        raise CheckpointError(
            f"adapter {str(adapter)!r} was trained on {name}: {error}; name the model"
        ) from None
    source = ModelSource(folder, replace(name, fingerprint=None), stored)
    return source if allow_other_base else check_base(source)


def find_adapters(source: ModelSource, places: Mapping[str, Place]) -> dict[str, StoredAdapter]:
    """Find adapters for a model by their names; their tensors are not loaded.

    Raises:
        CheckpointError: an adapter cannot be found or read, or belongs to another model.
        ValueError: the model has an adapter already.
    """
    if source.adapter and places:
        raise ValueError("adapter, adapters: give one of them")
    adapters = {}
    for name, place in places.items():
        adapters[name] = find_adapter(place)
        # it computes the fingerprint of the model once, which takes long
        source = check_base(replace(source, adapter=adapters[name]))
    return adapters


def find_adapter(place: Place) -> StoredAdapter:
    return peft.read_adapter(huggingface.resolve(place, kind="adapter", files=peft.FILES))


def check_base(source: ModelSource) -> ModelSource:
    """Compare a model with the base of its adapter; returns it with its fingerprint, if compared.

    Without a fingerprint, only hub ids can be compared, and a warning is logged.

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
    # Two different hub ids are two models. A folder may hold the weights of any model.
    hub_ids = [
        name.name
        for name in (expected, source.name)
        if name.name and huggingface.HUB_ID.fullmatch(name.name)
    ]
    if len(hub_ids) == 2 and hub_ids[0].casefold() != hub_ids[1].casefold():
        advice = "if these are the same weights, name a folder that holds them"
        raise CheckpointError(
            f"{adapter} was trained on {expected}, not on {source.name}; {advice}"
        )
    logger.warning(
        "%s says that it was trained on %s; nothing proves that this is %s",
        adapter,
        expected,
        source.name,
    )
    return source


def base_name(model: Place | None) -> NamedBase:
    """Return the name by which an adapter can refer to a model: a hub id or an absolute path."""
    if model is None:
        return NamedBase(BUILTIN_NAME)
    if Path(model).expanduser().exists():
        return NamedBase(str(Path(model).expanduser().absolute()))
    hub_id = huggingface.HUB_ID.fullmatch(str(model))
    return NamedBase(hub_id["repo"], hub_id["revision"]) if hub_id else NamedBase(str(model))


def base_folder(name: NamedBase) -> Path:
    """Return the folder of the base model that an adapter names."""
    if name.name == BUILTIN_NAME:
        return BUILTIN_MODEL
    return huggingface.resolve(f"{name.name}@{name.revision}" if name.revision else str(name.name))


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
