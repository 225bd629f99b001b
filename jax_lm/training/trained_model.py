"""The model of a training run: choosing the trained parameters, loading it, saving the result."""

from dataclasses import dataclass, replace
from pathlib import Path

from jax.experimental import multihost_utils

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.checksums import sha256
from jax_lm.checkpoints.peft import LoraConfig, NamedBase, StoredAdapter
from jax_lm.config import Fields
from jax_lm.data.expansion import Expansion
from jax_lm.diffusion.variable_length import growth_of, named_expand_id
from jax_lm.host import distributed
from jax_lm.host.files import require_elsewhere, require_new, require_writable, write_json_whole
from jax_lm.model_source import ModelSource, folder_fingerprint
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.vocabulary import add_expand_token
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer
from jax_lm.training.config import SftConfig
from jax_lm.training.run_defaults import training_mesh


@dataclass(frozen=True)
class TrainedModel:
    """Which parameters a run trains, and where they are saved; holds no weights.

    Attributes:
        out: folder of the run.
        tokenizer: tokenizer of the model.
        dtype: dtype of the saved weights.
        source: folder of the model before the training.
        adapters: settings of the adapters, if adapters are trained instead of the weights.
        base: the base model that saved adapters name.
        start: a stored adapter that is trained further.
    """

    out: Path
    tokenizer: DiffuCoderTokenizer
    dtype: str
    source: Path
    adapters: LoraConfig | None = None
    base: NamedBase | None = None
    start: StoredAdapter | None = None

    def __post_init__(self):
        # Report a folder that cannot be written before the training, not after it. Nor may the
        # result overwrite what it is made from.
        require_writable(self.out)
        # a model there is the result of a run that goes on, or not ours
        if not (self.out / "checkpoints").exists():
            require_new(self.folder)
        require_elsewhere(self.folder, self.start.folder if self.start else self.source)

    @property
    def folder(self) -> Path:
        """Where the model or its adapters are saved."""
        return self.out / ("adapter" if self.adapters else "model")

    @property
    def lora_identity(self) -> Fields | None:
        """Settings of the adapters that a resumed run must share."""
        if self.adapters is None:
            return None
        assert self.base
        sizes = {name: getattr(self.adapters, name) for name in ("rank", "alpha", "targets")}
        sizes |= {"on_masks": True} if self.adapters.on_masks else {}
        # Checksums, because a file of the same name may hold another adapter.
        start = {"start": [sha256(path) for path in self.start.files]} if self.start else {}
        return {**sizes, "base": self.base.fingerprint, **start}

    def trained(self, name: str) -> bool:
        """Whether a parameter is trained: all are, or with adapters only theirs."""
        return self.adapters is None or lora.is_lora(name)

    def save(self, model: DreamForCausalLM):
        """Save the model or its adapters."""
        if self.adapters:
            assert self.base
            lora.save_adapter(model, self.folder, self.adapters, self.base, dtype=self.dtype)
        else:
            model.save_pretrained(
                self.folder, dtype=self.dtype, tokenizer=self.tokenizer, source=self.source
            )

    def load(self, *, mesh: str | None, int8: bool, seed: int) -> DreamForCausalLM:
        """Load the model onto its devices, with its stored adapter, with new adapters, or with none.

        Args:
            mesh: devices, such as data=2,fsdp=4; all of them on fsdp if None.
            int8: quantize the kernels of the base model, to which the adapters add.
            seed: seed of new adapters.

        Raises:
            CheckpointError: the files are damaged.
            ValueError: adapters or a mesh that do not fit the model.
        """
        model = DreamForCausalLM.from_pretrained(
            self.source,
            mesh=training_mesh(DreamForCausalLM.read_config(self.source), mesh),
            quantization="int8" if int8 else None,
        )
        # A stored adapter is trained further. New ones change nothing at first: their B is zero.
        if self.start:
            lora.load_adapter(model, self.start)
        elif self.adapters:
            lora.add_lora(model, self.adapters, seed)
        return model


def choose_trained(
    found: ModelSource, adapters: LoraConfig | None, *, out: Path, save_dtype: str
) -> TrainedModel:
    """Return what a run trains of a model, whose weights are not loaded yet.

    Args:
        found: the model, and its adapter if it has one.
        adapters: settings of new adapters; ignored if the model has an adapter.
        out: folder of the run.
        save_dtype: dtype of the weights that are saved at the end.

    Raises:
        CheckpointError, TokenizerError: the files are damaged, or do not belong together.
        ValueError: a folder that cannot be written, or a model that cannot be trained.
    """
    # tokenizer and config, which must agree
    tokenizer = DiffuCoderTokenizer.from_pretrained(found.folder)
    tokenizer.require_ids(DreamForCausalLM.read_config(found.folder))
    adapters = found.adapter.config if found.adapter else adapters
    if not adapters and DreamForCausalLM.is_int8(found.folder):
        raise ValueError(
            f"model={str(found.folder)!r}: its int8 weights cannot be trained. "
            "Set --lora-rank to train adapters, or give the float model"
        )
    base = found.base if adapters else None
    return TrainedModel(out, tokenizer, save_dtype, found.folder, adapters, base, found.adapter)


def save_base(model: DreamForCausalLM, folder: Path, tokenizer: DiffuCoderTokenizer, source: Path):
    """Write the model below new adapters; a run that continues writes the same again.

    Args:
        model: derived from the model in `source`.
        folder: where to write.
        tokenizer: tokenizer of the model.
        source: folder of the model that the run is given.

    Raises:
        ValueError: something else is in the folder, and stays.
    """
    # Written first: a folder with this file may be half written, and is ours.
    mark = folder / "made_from.json"
    config = model.config
    origin = {
        "model": folder_fingerprint(source),
        "attention_block": config.attention_block,
        "block_size": config.block_size,
    }
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    is_ours = mark.is_file() and huggingface.read_json(folder, mark.name) == origin
    if not (is_empty or is_ours):
        raise ValueError(
            f"{folder} is not the model of these adapters, {source} with this attention: "
            "choose another --out"
        )
    if distributed.is_first():
        write_json_whole(mark, origin)
    model.save_pretrained(folder, tokenizer=tokenizer, source=source)
    multihost_utils.sync_global_devices("base is written")


def add_expansion(
    model: DreamForCausalLM, target: TrainedModel, settings: SftConfig, max_length: int
) -> tuple[DreamForCausalLM, TrainedModel, Expansion]:
    """Prepare a model for `expand_delete`; adds the token for expanding if it is missing.

    Returns:
        The model, where it is saved, and the `Expansion` that makes its samples.

    Raises:
        ValueError: only adapters are trained, which cannot learn a new token; or no id ends a text.
        TokenizerError: model and tokenizer name different tokens.
    """
    # Full training can teach a new token: its embedding is trained with the rest.
    if named_expand_id(model.config, target.tokenizer) is None:
        if target.adapters:
            raise ValueError(
                "expand_delete=True: the model lacks the token for expanding, which adapters cannot teach"
            )
        target = replace(target, tokenizer=target.tokenizer.with_expand())
        model = add_expand_token(model, target.tokenizer.token_id(EXPAND))
    model.config = replace(model.config, expand_token_id=target.tokenizer.expand_id)
    # The token that ends a text also deletes.
    growth = growth_of(model.config)
    assert growth
    expansion = Expansion(
        tokenizer=target.tokenizer,
        delete_id=growth.delete_id,
        max_length=max_length,
        high_levels=settings.loss.high_levels,
        excess_masks=settings.excess_masks,
    )
    return model, target, expansion
