"""The commands that train: `diffucoder sft`, `grpo`, `adapt`, `merge-lora`."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flax import nnx

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.checksums import sha256
from jax_lm.checkpoints.description import require_elsewhere
from jax_lm.checkpoints.peft import LINEAR, LoraConfig, NamedBase, StoredAdapter
from jax_lm.cli.arguments.data import DatasetPart
from jax_lm.cli.arguments.training import BUILTIN, Adapt, Grpo, MergeLora, ModelArguments, SavedDtype, Sft
from jax_lm.data.batches import Row
from jax_lm.data.columns import Columns
from jax_lm.data.conversations import read_samples, read_source, rows_reader
from jax_lm.data.expansion import Expansion
from jax_lm.data.prompts import builtin_prompts, open_prompts
from jax_lm.data.sources import holds_dataset, open_source, require_whole
from jax_lm.data.token_shards import Kind, TokenShards
from jax_lm.diffusion.variable_length import growth_of, named_expand_id
from jax_lm.host import distributed, terminal
from jax_lm.host.files import require_place
from jax_lm.model_source import find_model
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.vocabulary import add_expand_token
from jax_lm.rewards import weighted_sum
from jax_lm.rewards.cases import row_tests
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer
from jax_lm.training.config import SftConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer
from jax_lm.training.run_defaults import training_mesh
from jax_lm.training.sft import adapt, fine_tune
from untrusted.runner import choose_tier

logger = logging.getLogger(__name__)


def run_sft(arguments: Sft) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    model_arguments, settings = arguments.model_arguments, arguments.settings
    distributed.start(**asdict(model_arguments.hosts))
    model, target = load_for_training(model_arguments, arguments.out, settings.training.seed)
    rows, digest, refused = open_samples(
        *(arguments.data, arguments.part, arguments.columns.given),
        *("conversations", target.tokenizer, settings.max_length),
    )
    expansion = None
    if settings.expand_delete:
        # After the samples are read: tokenised ones are of the tokenizer without it.
        model, target, expansion = with_expansion(model, target, settings)
    finished = fine_tune(
        model,
        rows,
        settings,
        arguments.out,
        pad_id=target.tokenizer.pad_id,
        expansion=expansion,
        trained=target.trained,
        identity={"data": digest, "quantize": model_arguments.quantize, "lora": target.lora_identity},
    )
    write_refused(refused, arguments.out)
    return target.end(finished, model)


def with_expansion(
    model: DreamForCausalLM, target: "TrainedModel", settings: SftConfig
) -> tuple[DreamForCausalLM, "TrainedModel", Expansion]:
    """Add the token for expanding, where there is none, and show samples with holes.

    Raises:
        ValueError: adapters alone are trained, which cannot teach a new token; or no id ends a text.
        TokenizerError: model and tokenizer name different tokens.
    """
    known_id = named_expand_id(model.config, target.tokenizer)
    if known_id is None:
        if target.adapters:
            raise ValueError("expand_delete=True: the model lacks the token for expanding, which adapters cannot teach")
        target = replace(target, tokenizer=target.tokenizer.with_expand())
        model = add_expand_token(model, target.tokenizer.token_id(EXPAND))
    model.config = replace(model.config, expand_token_id=target.tokenizer.expand_id)
    growth = growth_of(model.config)
    assert growth is not None
    expansion = Expansion(
        tokenizer=target.tokenizer,
        delete_id=growth.delete_id,
        max_length=settings.max_length,
        high_levels=settings.loss.high_levels,
        excess_masks=settings.excess_masks,
    )
    return model, target, expansion


JSON_FILES = (".jsonl", ".json")
SANDBOXED = {"code", "binary_code", "completed_code"}


def run_grpo(arguments: Grpo) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    model_arguments, settings = arguments.model_arguments, arguments.settings
    if SANDBOXED & set(settings.reward_funcs):
        # A host that cannot contain programs is better told before the model has written them.
        choose_tier("auto", allow_unsafe=False)
    # So is whoever mistyped a reward.
    weighted_sum(dict(zip(settings.reward_funcs, settings.reward_weights, strict=True)))
    rows = prompts_of(arguments)
    distributed.start(**asdict(model_arguments.hosts))
    model, target = load_for_training(model_arguments, arguments.out, settings.training.seed)
    trainer = DiffuGRPOTrainer(
        model,
        target.tokenizer,
        rows,
        settings,
        out=arguments.out,
        trained=target.trained,
        identity={"quantize": model_arguments.quantize, "lora": target.lora_identity},
    )
    # The trainer has float32 weights of its own.
    del model
    finished = trainer.train()
    return target.end(finished, trainer.model)


def prompts_of(arguments: Grpo) -> list[dict[str, Any]]:
    """Read the prompts; ValueError if they cannot be, or their tests, where a reward runs these."""
    part, columns = arguments.part, arguments.columns.given
    if arguments.data == BUILTIN:
        require_whole(BUILTIN, part.split, part.subset)
        for name, column in columns:
            raise ValueError(f"{name}_column={column!r}: data={BUILTIN!r} has our names of columns")
        return builtin_prompts(arguments.limit, arguments.settings.training.seed)
    rows = open_prompts(arguments.data, columns, **asdict(part))
    if SANDBOXED & set(arguments.settings.reward_funcs):
        check_tests(rows, arguments.data)
    return rows


def check_tests(rows: Sequence[Mapping[str, Any]], data: str) -> None:
    """Read the tests of all prompts, as a mistake in one is better told before training; ValueError names it."""
    for number, row in enumerate(rows, 1):
        try:
            row_tests(row)
        except ValueError as error:
            raise ValueError(f"data={data}: prompt {number}: {error}") from None


def run_adapt(arguments: Adapt) -> int:
    """Train, or go on; the status tells whether the end was reached."""
    terminal.show_log()
    distributed.start(**asdict(arguments.hosts))
    folder = huggingface.resolve(arguments.model, with_weights=not arguments.from_scratch)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder, adds_mask=True)
    config = DreamForCausalLM.read_config(folder)
    if config.model_type != "Dream" or config.mask_token_id is None:
        ids = {"mask_token_id": tokenizer.mask_id, "pad_token_id": tokenizer.pad_id}
        config = replace(config, model_type="Dream", **ids)
    tokenizer.require_ids(mask_token_id=config.mask_token_id, vocab_size=config.vocab_size)
    target = TrainedModel(arguments.out, tokenizer, arguments.save_dtype, folder)
    rows, digest, refused = open_samples(
        *(arguments.data, arguments.part, arguments.columns.given), *("text", tokenizer, arguments.settings.max_length)
    )
    mesh = training_mesh(config, arguments.mesh)
    if arguments.from_scratch:
        model = DreamForCausalLM(config, rngs=nnx.Rngs(arguments.settings.training.seed))
        model = model.on_mesh(mesh) if mesh else model
    else:
        model = DreamForCausalLM.from_pretrained(folder, mesh=mesh)
        model.config = config
    finished = adapt(
        model,
        rows,
        arguments.settings,
        arguments.out,
        pad_id=tokenizer.pad_id,
        identity={"data": digest, "from_scratch": arguments.from_scratch},
    )
    write_refused(refused, arguments.out)
    return target.end(finished, model)


def run_merge_lora(arguments: MergeLora) -> int:
    """Load model and adapter, and write the sum as a checkpoint."""
    require_place(arguments.out)
    found = find_model(arguments.model, arguments.adapter, allow_other_base=arguments.allow_other_base)
    assert found.adapter is not None
    require_elsewhere(arguments.out, found.folder)
    tokenizer = DiffuCoderTokenizer.from_pretrained(found.folder)
    # In float32, because most of what an adapter adds is less than half a step of bfloat16.
    model = DreamForCausalLM.from_pretrained(found.folder, dtype="float32")
    lora.load_adapter(model, found.adapter)
    lora.merge(model)
    model.save_pretrained(arguments.out, dtype=arguments.save_dtype, tokenizer=tokenizer, source=found.folder)
    print(f"wrote {arguments.out}: {found.name} with {found.adapter.folder}")
    return 0


@dataclass(frozen=True)
class TrainedModel:
    """Which parameters of a model are trained, and how it is written.

    Attributes:
        out: folder of the run.
        tokenizer: of the model.
        dtype: of what is written.
        source: the folder that the model comes from.
        adapters: size of what is trained in place of the weights, if anything.
        base: the model as its adapters name it.
        start: the adapter that is trained further.
    """

    out: Path
    tokenizer: DiffuCoderTokenizer
    dtype: SavedDtype
    source: Path
    adapters: LoraConfig | None = None
    base: NamedBase | None = None
    start: StoredAdapter | None = None

    def __post_init__(self) -> None:
        # Better told before the training than after it.
        require_place(self.out)
        require_elsewhere(self.folder, self.start.folder if self.start else self.source)

    @property
    def folder(self) -> Path:
        """Where the model or its adapters are written."""
        return self.out / ("adapter" if self.adapters else "model")

    @property
    def lora_identity(self) -> dict[str, Any] | None:
        """List what a resumed run must agree on of its adapters."""
        if self.adapters is None:
            return None
        assert self.base is not None
        sizes = {name: getattr(self.adapters, name) for name in ("rank", "alpha", "targets")}
        start = {"start": [sha256(path) for path in self.start.files]} if self.start else {}
        return {**sizes, "base": self.base.fingerprint, **start}

    def trained(self, name: str) -> bool:
        """Tell whether a parameter is trained: all of them, or those of adapters."""
        return self.adapters is None or lora.is_lora(name)

    def end(self, finished: bool, model: DreamForCausalLM) -> int:
        """Write model or adapters after the last step, else say that the run can go on; the exit status."""
        if not finished:
            print(f"stopped with a checkpoint; the same command continues the run in {self.out}")
            return terminal.TERMINATED
        if self.adapters:
            assert self.base is not None
            lora.save_adapter(model, self.folder, self.adapters, self.base, dtype=self.dtype)
        else:
            model.save_pretrained(self.folder, dtype=self.dtype, tokenizer=self.tokenizer, source=self.source)
        if distributed.is_first():
            print(f"wrote {self.folder}")
        return 0


def load_for_training(arguments: ModelArguments, out: Path, seed: int) -> tuple[DreamForCausalLM, TrainedModel]:
    """Load the model to train onto its devices, with adapters, fresh or from files, if they are asked for.

    Raises:
        CheckpointError, TokenizerError: the files cannot be used, or do not belong together.
        ValueError: adapters or a mesh that do not fit.
    """
    found = find_model(arguments.model, arguments.adapter)
    tokenizer = DiffuCoderTokenizer.from_pretrained(found.folder)
    config = DreamForCausalLM.read_config(found.folder)
    tokenizer.require_ids(mask_token_id=config.mask_token_id, vocab_size=config.vocab_size)
    adapters = found.adapter.config if found.adapter else lora_config(arguments)
    of_adapters = {"adapters": adapters, "base": found.base, "start": found.adapter} if adapters else {}
    target = TrainedModel(out, tokenizer, arguments.save_dtype, found.folder, **of_adapters)
    int8 = arguments.quantize == "int8"
    model = DreamForCausalLM.from_pretrained(found.folder, mesh=training_mesh(config, arguments.mesh), int8=int8)
    if found.adapter:
        lora.load_adapter(model, found.adapter)
    elif adapters:
        lora.add_lora(model, adapters, seed)
    return model, target


def lora_config(arguments: ModelArguments) -> LoraConfig | None:
    """Describe the adapters asked for; ValueError if they cannot be."""
    if arguments.lora_rank is None:
        return None
    targets = LINEAR if arguments.lora_targets is None else arguments.lora_targets
    return LoraConfig(rank=arguments.lora_rank, alpha=arguments.lora_alpha, targets=targets)


def open_samples(
    data: Path, part: DatasetPart, columns: Columns, kind: Kind, tokenizer: DiffuCoderTokenizer, max_length: int
) -> tuple[Sequence[Row] | TokenShards, str, list | None]:
    """Read the samples of a file or data set, or open a tokenised folder; with their digest, and the refused lines.

    Raises:
        ValueError: they cannot be read, none can be used, or they have no such split or columns.
    """
    if data.is_dir() and not holds_dataset(data):
        require_whole(str(data), part.split, part.subset)
        for name, column in columns:
            raise ValueError(f"{name}_column={column!r}: data={str(data)!r} is tokenised, and has no columns")
        shards = TokenShards.open(data, kind, tokenizer.fingerprint)
        logger.info(shards.describe())
        return shards, shards.digest, None
    to_rows = rows_reader(kind, tokenizer, max_length, columns)
    # A JSONL file is read by lines, which its refusals name; everything else by the library that knows it.
    if data.suffix in JSON_FILES or (data.is_file() and data.suffix != ".parquet"):
        require_whole(str(data), part.split, part.subset)
        samples = read_samples(data, to_rows)
    else:
        source = open_source(str(data), None, **asdict(part), streaming=False)
        samples = read_source(source, data, to_rows)
    return samples.rows, samples.digest, samples.refused


def write_refused(refused: list | None, out: Path) -> None:
    """Write which lines of a file were not used; tokenised data have told."""
    if refused is not None and distributed.is_first():
        (out / "refused.json").write_text(json.dumps(refused, indent=1) + "\n", encoding="utf-8")
