"""The commands that train: `diffucoder sft`, `grpo`, `adapt`, `merge-lora`."""

from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from flax import nnx

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.peft import LINEAR, LoraConfig
from jax_lm.cli.arguments.hosts import Hosts
from jax_lm.cli.arguments.training import BUILTIN, Adapt, Grpo, MergeLora, ModelArguments, Sft
from jax_lm.config import Fields
from jax_lm.data.prompts import builtin_prompts, open_prompts
from jax_lm.data.samples import open_samples
from jax_lm.data.sources import require_whole
from jax_lm.host import distributed, interruption, terminal
from jax_lm.host.files import require_elsewhere, require_new, require_writable, write_json_whole
from jax_lm.model_source import find_model, is_instruct
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.vocabulary import grow_vocabulary
from jax_lm.rewards import weighted_sum
from jax_lm.rewards.cases import row_tests
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer
from jax_lm.training.run_defaults import training_mesh
from jax_lm.training.sft import adapt, fine_tune, longest_allowed, resolve_length
from jax_lm.training.trained_model import TrainedModel, add_expansion, choose_trained, save_base
from untrusted.runner import choose_tier

# Rewards that run programs, as those of `jax_lm.rewards.code`.
SANDBOXED = {"code", "binary_code", "completed_code"}


def run_sft(arguments: Sft) -> int:
    """Fine-tune, or resume a run. The exit status is 0 once the last step is done."""
    terminal.show_log()
    settings = arguments.settings
    target = choose_model(arguments.model_arguments, arguments.out)
    config = DreamForCausalLM.read_config(target.source)
    # data before the weights, so that mistakes in it show early
    rows, digest, refused = open_samples(
        arguments.data,
        arguments.columns.given,
        "conversations",
        target.tokenizer,
        longest_allowed(settings, config.max_position_embeddings),
        **asdict(arguments.part),
        form=arguments.form,
    )
    settings = resolve_length(settings, rows, config.max_position_embeddings)
    if target.adapters and settings.loss.block_length not in (None, config.block_size):
        raise ValueError(
            f"block_length={settings.loss.block_length}: adapters keep the attention of their base; "
            "train all weights (`adapt` or `sft` without lora_rank), or choose a base with such blocks"
        )
    model = load_model(target, arguments.model_arguments, settings.training.seed)
    expansion = None
    if settings.expand_delete:
        # After the samples are read, because tokenised data belong to the tokenizer without the new
        # token. `resolve_length` has set the length.
        assert settings.max_length
        model, target, expansion = add_expansion(model, target, settings, settings.max_length)
    # train
    finished = fine_tune(
        model,
        rows,
        settings,
        arguments.out,
        pad_id=target.tokenizer.pad_id,
        expansion=expansion,
        trained=target.trained,
        identity={"data": digest} | model_identity(arguments.model_arguments, target),
    )
    write_refused(refused, arguments.out)
    return finish(target, model, finished=finished)


def run_grpo(arguments: Grpo) -> int:
    """Train by coupled-GRPO, or resume a run. The exit status is 0 once the last step is done."""
    terminal.show_log()
    settings = arguments.settings
    # A missing sandbox or an unknown reward should be reported before anything is loaded.
    if SANDBOXED & set(settings.reward_funcs):
        choose_tier("auto", allow_unsafe=False)
    rewards = weighted_sum(dict(zip(settings.reward_funcs, settings.reward_weights, strict=True)))
    # data before the model, so that mistakes in it show early
    rows = load_prompts(arguments)
    rewards.require_columns(rows)
    target = choose_model(arguments.model_arguments, arguments.out)
    model = load_model(target, arguments.model_arguments, settings.training.seed)
    # The built-in tasks are code to complete, whatever the model.
    if arguments.template == "chat" or (
        arguments.template == "auto"
        and arguments.data != BUILTIN
        and is_instruct(target.source, target.tokenizer)
    ):
        # A text becomes a message of the user.
        rows = [
            row | {"prompt": [{"role": "user", "content": row["prompt"]}]}
            if isinstance(row["prompt"], str)
            else row
            for row in rows
        ]
    trainer = DiffuGRPOTrainer(
        model,
        target.tokenizer,
        rows,
        settings,
        out=arguments.out,
        trained=target.trained,
        identity=model_identity(arguments.model_arguments, target),
    )
    # The trainer has float32 weights of its own.
    del model
    finished = trainer.train()
    return finish(target, trainer.model, finished=finished)


def load_prompts(arguments: Grpo) -> list[Fields]:
    """Return the prompts.

    Raises:
        ValueError: the prompts, or the tests that a reward runs, cannot be read.
    """
    part = arguments.part
    columns = arguments.columns.given
    # the built-in corpus has fixed columns and no parts, so options of data sets are errors
    if arguments.data == BUILTIN:
        require_whole(BUILTIN, part.split, part.subset)
        for name, column in columns:
            raise ValueError(
                f"{name}_column={column!r}: data={BUILTIN!r} has fixed names of columns"
            )
        return builtin_prompts(arguments.limit or 2000, arguments.settings.training.seed)
    prompts = open_prompts(arguments.data, columns, **asdict(part))
    rows = dict(islice(prompts.items(), arguments.limit))
    if SANDBOXED & set(arguments.settings.reward_funcs):
        # before training: otherwise an unreadable row would end the run in the middle
        for where, row in rows.items():
            try:
                row_tests(row)
            except ValueError as error:
                raise ValueError(f"data={arguments.data}: {where}: {error}") from None
    return [*rows.values()]


def run_adapt(arguments: Adapt) -> int:
    """Train on plain text, or resume a run. The exit status is 0 once the last step is done."""
    terminal.show_log()
    join_run(arguments.hosts, arguments.out)
    settings = arguments.settings
    # model folder and tokenizer
    folder = huggingface.resolve(arguments.model, with_weights=not arguments.from_scratch)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder, adds_mask=True)
    # a causal model becomes a diffusion model: same weights, a mask token, and embeddings for it
    config = DreamForCausalLM.read_config(folder)
    config = config.for_diffusion(tokenizer.mask_id, tokenizer.pad_id, tokenizer.vocab_size)
    if settings.loss.block_length is not None:
        config = config.with_blocks(settings.loss.block_length, settings.is_causal)
    tokenizer.require_ids(config)
    rank = arguments.lora_rank
    adapters = None if rank is None else LoraConfig(rank=rank, on_masks=arguments.lora_on_masks)
    target = TrainedModel(arguments.out, tokenizer, arguments.save_dtype, folder, adapters)
    # data
    rows, digest, refused = open_samples(
        arguments.data,
        arguments.columns.given,
        "text",
        tokenizer,
        longest_allowed(settings, config.max_position_embeddings),
        **asdict(arguments.part),
    )
    # model: random weights or those of the causal model
    mesh = training_mesh(config, arguments.mesh)
    if arguments.from_scratch:
        model = DreamForCausalLM(config, rngs=nnx.Rngs(settings.training.seed))
        model = model.on_mesh(mesh) if mesh else model
    else:
        model = DreamForCausalLM.from_pretrained(folder, mesh=mesh)
        model = grow_vocabulary(model, config.vocab_size)
        model.become(config)
    if adapters:
        # Adapters name the model below them, so that model must be in a folder.
        base = arguments.out / "base"
        save_base(model, base, tokenizer, folder)
        target = choose_trained(
            find_model(base), adapters, out=arguments.out, save_dtype=arguments.save_dtype
        )
        lora.add_lora(model, adapters, settings.training.seed)
    # train
    identity = {
        "data": digest,
        "from_scratch": arguments.from_scratch,
        "lora": target.lora_identity,
    }
    finished = adapt(
        model,
        rows,
        settings,
        arguments.out,
        pad_id=tokenizer.pad_id,
        trained=target.trained,
        identity=identity,
    )
    write_refused(refused, arguments.out)
    return finish(target, model, finished=finished)


def run_merge_lora(arguments: MergeLora) -> int:
    """Merge an adapter into the weights of its model, and save the result as a checkpoint."""
    require_writable(arguments.out)
    require_new(arguments.out)
    found = find_model(
        arguments.model, arguments.adapter, allow_other_base=arguments.allow_other_base
    )
    assert found.adapter
    lora.require_mergeable(on_masks=found.adapter.config.on_masks)
    require_elsewhere(arguments.out, found.folder)
    tokenizer = DiffuCoderTokenizer.from_pretrained(found.folder)
    # In float32, because most changes by an adapter are less than half a step of bfloat16.
    model = DreamForCausalLM.from_pretrained(found.folder, dtype="float32")
    lora.load_adapter(model, found.adapter)
    lora.merge(model)
    model.save_pretrained(
        arguments.out, dtype=arguments.save_dtype, tokenizer=tokenizer, source=found.folder
    )
    print(f"wrote {arguments.out}: {found.name} with {found.adapter.folder}")
    return 0


def join_run(hosts: Hosts, out: Path):
    """Connect to the other hosts of a run, and check that all can write to its folder."""
    distributed.start(**asdict(hosts))
    require_writable(out)
    distributed.require_shared(out)


def choose_model(arguments: ModelArguments, out: Path) -> TrainedModel:
    """Connect to the other hosts, and choose what to train."""
    join_run(arguments.hosts, out)
    found = find_model(arguments.model, arguments.adapter)
    if found.adapter and arguments.lora_on_masks:
        config = replace(found.adapter.config, on_masks=True)
        found = replace(found, adapter=replace(found.adapter, config=config))
    return choose_trained(found, lora_config(arguments), out=out, save_dtype=arguments.save_dtype)


def load_model(target: TrainedModel, arguments: ModelArguments, seed: int) -> DreamForCausalLM:
    """Load the model to train."""
    return target.load(mesh=arguments.mesh, int8=arguments.quantize == "int8", seed=seed)


def lora_config(arguments: ModelArguments) -> LoraConfig | None:
    """Return the configuration of new adapters; None if no new adapters are trained."""
    # all weights are trained, or the given adapter
    if arguments.lora_rank is None:
        return None
    return LoraConfig(
        rank=arguments.lora_rank,
        alpha=arguments.lora_alpha,
        targets=LINEAR if arguments.lora_targets is None else arguments.lora_targets,
        on_masks=arguments.lora_on_masks,
    )


def model_identity(arguments: ModelArguments, target: TrainedModel) -> Fields:
    """Return the settings of the model that a resumed run must share."""
    return {"quantize": arguments.quantize, "lora": target.lora_identity}


def finish(target: TrainedModel, model: DreamForCausalLM, *, finished: bool) -> int:
    """Save the model after the last step, or print that the run can be resumed.

    Returns:
        The exit status.
    """
    if not finished:
        print(f"stopped with a checkpoint; the same command continues the run in {target.out}")
        return interruption.TERMINATED
    target.save(model)
    if distributed.is_first():
        print(f"wrote {target.folder}")
    return 0


def write_refused(refused: list | None, out: Path):
    """Write refused.json: the lines of a data file that were not used.

    `refused` is None for tokenised data, whose refused lines were reported when it was tokenised.
    """
    if refused is not None and distributed.is_first():
        write_json_whole(out / "refused.json", refused)
