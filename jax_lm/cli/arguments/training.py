"""Arguments of the commands that train: `sft`, `grpo`, `adapt`, `merge-lora`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jax_lm.cli.arguments.data import ConversationColumns, DatasetPart, PromptColumns, TextColumn
from jax_lm.cli.arguments.hosts import Hosts
from jax_lm.config import Fields, Texts
from jax_lm.data.columns import ConversationForm
from jax_lm.options import require_sizes
from jax_lm.training.config import AdaptConfig, SftConfig
from jax_lm.training.grpo_config import GRPOConfig

# Value of `data` for the tasks of the built-in corpus.
BUILTIN = "builtin"

# float32 by default: a short training moves most weights by less than half a step of bfloat16.
SavedDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """Which model is trained, and on which devices.

    Attributes:
        model: folder or hub id; the built-in model by default.
        adapter: folder or hub id of a LoRA adapter in PEFT's layout to train further. Its base
            model is used unless `model` is given.
        lora_rank: train adapters of this rank instead of all weights.
        lora_alpha: adapters are scaled by alpha / rank; twice the rank by default.
        lora_targets: layers with adapters, of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj
            and down_proj; all of them by default.
        lora_on_masks: adapters act on masks alone, new ones or those of `adapter`: all other tokens
            are computed as without them.
        quantize: quantize the kernels below the adapters to int8, which halves the memory of the
            weights.
        save_dtype: dtype of the saved model or adapter; bfloat16 rounds small updates away.
        mesh: devices that share the training, for example data=2,fsdp=4; all on fsdp by default.
        hosts: train on several hosts as one.
    """

    model: str | None = None
    adapter: str | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: Texts | None = None
    lora_on_masks: bool = False
    quantize: Literal["int8"] | None = None
    save_dtype: SavedDtype = "float32"
    mesh: str | None = None
    hosts: Hosts

    def __post_init__(self):
        # options of new adapters; two also apply to a given adapter
        for name in ("lora_rank", "lora_alpha", "lora_targets", "lora_on_masks", "quantize"):
            if (value := getattr(self, name)) is None or value is False:
                continue
            for_any = name in ("lora_on_masks", "quantize")
            if self.adapter is not None and not for_any:
                raise ValueError(f"{name}={value}: the adapter {self.adapter!r} has its own")
            if self.adapter is None and self.lora_rank is None:
                raise ValueError(f"{name}={value}: needs lora_rank{' or adapter' * for_any}")


@dataclass(frozen=True, kw_only=True)
class MergeLora:
    """Merge an adapter into the weights of its model, and save a checkpoint that needs no adapter.

    Tokenizer, settings, licence and code of the model are copied. An adapter with the fingerprint
    of its base model is not merged into another one.

    Examples:
        diffucoder merge-lora --adapter out/lora/adapter --out out/merged
        diffucoder merge-lora --adapter me/my-lora --model ./DiffuCoder-7B-Instruct --out out/merged

    Attributes:
        adapter: folder or hub id of a LoRA adapter in PEFT's layout, as `diffucoder sft
            --lora-rank` saves it.
        out: folder for the checkpoint.
        model: folder or hub id of the model that the adapter was trained on; by default the model
            that the adapter names.
        allow_other_base: merge into another model of the same shape.
        save_dtype: dtype of the checkpoint; bfloat16 rounds small updates away.
    """

    adapter: str
    out: Path
    model: str | None = None
    allow_other_base: bool = False
    save_dtype: SavedDtype = "float32"


@dataclass(frozen=True, kw_only=True)
class Sft:
    """Fine-tune on prompts with their responses, or on conversations.

    If the command is killed, the same command resumes the run and ends with the same weights.
    SIGTERM saves a checkpoint first.

    Examples:
        diffucoder sft --data train.jsonl --out out/sft --max-steps 200 --max-length 256
        diffucoder sft --data train.jsonl --out out/sft --config recipes/sft_paper.yaml --model ./DiffuCoder-7B-Base
        diffucoder sft --data train.jsonl --out out/lora --lora-rank 16 --learning-rate 1e-4 --max-steps 500
        diffucoder sft --data train.jsonl --out out/lora --lora-rank 16 --quantize int8 --model ./DiffuCoder-7B-Instruct
        diffucoder sft --data more.jsonl --out out/more --adapter out/lora/adapter --learning-rate 1e-4 --max-steps 500

    Attributes:
        data: JSONL file, or JSON file with an array, whose rows have "messages" ([{"role": …,
            "content": …}, …]), "conversations" ([{"from": "human", "value": …}, …]), or "prompt"
            and "response" (or "completion"). Or a folder written by `data tokenize --kind
            conversations`, or with the extra `datasets` a hub id, folder or Parquet file.
        out: folder of the run: metrics.jsonl, checkpoints/ and, in the end, model/ or adapter/.
        part: which part of a data set is read.
        columns: names of the columns.
        form: what is seen and learnt of a conversation.
        model_arguments: the model, its adapters and devices.
        config: recipe, a YAML file of these options; options on the command line win.
        settings: settings of the run.
    """

    FIRST = (
        "data out model config max_steps num_train_epochs learning_rate batch_size max_length "
        "lora_rank"
    )

    # The length of a run is either steps or epochs.
    EXCLUSIVE = (("max_steps", "num_train_epochs"),)

    data: Path
    out: Path
    part: DatasetPart
    columns: ConversationColumns
    form: ConversationForm
    model_arguments: ModelArguments
    config: Path | None = None
    settings: SftConfig

    # Text of the help for defaults that depend on other options.
    IMPLIED: ClassVar = {"num_train_epochs": "3", "max_steps": ""}

    @staticmethod
    def implied(given: Fields) -> Fields:
        """Return the default length of a run: three epochs, unless a number of steps is given."""
        steps = given.get("max_steps")
        if steps is not None and given.get("num_train_epochs") is not None:
            raise ValueError(f"max_steps={steps}: must not be given with num_train_epochs")
        # the epochs will define the number of steps
        return {} if "max_steps" in given else {"max_steps": None, "num_train_epochs": 3.0}


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """Train by coupled-GRPO: sample completions, reward them, and make the better ones more likely.

    The defaults are DiffuCoder's published recipe. If the command is killed, the same command
    resumes the run and ends with the same weights. Programs run in the sandbox; the command refuses
    to run on a host without one.

    Examples:
        diffucoder grpo --model apple/DiffuCoder-7B-Instruct --data hard.jsonl --out runs/out
        diffucoder grpo --config recipes/grpo_paper.yaml --data hard.jsonl --out runs/out --learning-rate 2e-6
        diffucoder grpo --config recipes/grpo_builtin.yaml --out out/grpo
        diffucoder grpo --data owner/name --split test --prompt-column question --out runs/out
        diffucoder grpo --config recipes/grpo_paper.yaml --data hard.jsonl --out out/lora --lora-rank 16 --quantize int8

    Attributes:
        out: folder of the run: metrics.jsonl, completions/, checkpoints/ and, in the end, model/.
        data: JSONL file, or JSON file with an array, whose rows have "prompt" (text or chat
            messages) and the columns that rewards read: "test_cases", or those of LiveCodeBench,
            APPS, TACO or open-r1. Or with the extra `datasets` a hub id, folder or Parquet file. Or
            builtin, tasks of the built-in corpus.
        limit: number of prompts: the first ones of a file, all by default; of the built-in corpus at
            most 4,000, and 2,000 by default.
        template: whether a prompt that is text gets the chat template, as chat messages do: auto
            does so for instruct models, except for the built-in corpus, whose tasks are completed.
        part: which part of a data set is read.
        columns: names of the columns.
        model_arguments: the model, its adapters and devices.
        config: recipe, a YAML file of these options; options on the command line win.
        settings: settings of the run.
    """

    FIRST = (
        "out data model config reward_funcs reward_weights max_steps learning_rate "
        "num_generations lora_rank"
    )

    out: Path
    data: str = BUILTIN
    limit: int | None = None
    template: Literal["auto", "chat", "none"] = "auto"
    part: DatasetPart
    columns: PromptColumns
    model_arguments: ModelArguments
    config: Path | None = None
    settings: GRPOConfig

    def __post_init__(self):
        require_sizes(self, "limit")

    @staticmethod
    def implied(given: Fields) -> Fields:
        """Return weight 1 for a single reward; several rewards need explicit weights."""
        # a single reward needs no weight; the default weights are those of two rewards
        rewards = given.get("reward_funcs")
        return {"reward_weights": (1.0,) * (len(rewards) == 1)} if rewards else {}


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Train masked diffusion on plain text, from an autoregressive checkpoint (Qwen2, Qwen3, Llama)
    or from scratch.

    Attention opens from causal to full over the first steps, or is that of blocks from the first
    step on. If the command is killed, the same command resumes the run.

    Examples:
        diffucoder adapt --data code.jsonl --model Qwen/Qwen2.5-Coder-7B --out base --config recipes/adapt_paper.yaml
        diffucoder adapt --data code.jsonl --model Qwen/Qwen2.5-Coder-0.5B --out out/blocks --block-length 4 --lora-rank 32
        diffucoder adapt --data code.jsonl --model ./shape --from-scratch --out out/base --max-length 512

    Attributes:
        data: JSONL file, or JSON file with an array, whose rows have "text". Or a folder written by
            `data tokenize`, or with the extra `datasets` a hub id, folder or Parquet file.
        model: folder or hub id of the checkpoint; a mask token is added to a tokenizer without one.
        out: folder of the run: metrics.jsonl, checkpoints/ and, in the end, model/; or with
            `lora_rank` base/ and, in the end, adapter/.
        lora_rank: train adapters of this rank instead of all weights. The model below them, with a
            mask token and the new attention, is written to base/ before the first step.
        lora_on_masks: adapters act on masks alone: all other tokens are computed as without them.
        part: which part of a data set is read.
        columns: names of the columns.
        from_scratch: use only the shape (config.json) and the tokenizer, and initialise the
            weights.
        save_dtype: dtype of the saved model; bfloat16 rounds small updates away.
        mesh: devices that share the training, for example data=2,fsdp=4; all on fsdp by default.
        hosts: train on several hosts as one.
        config: recipe, a YAML file of these options; options on the command line win.
        settings: settings of the run.
    """

    FIRST = "data model out config max_steps learning_rate batch_size max_length from_scratch mesh"

    data: Path
    model: str
    out: Path
    part: DatasetPart
    columns: TextColumn
    lora_rank: int | None = None
    lora_on_masks: bool = False
    from_scratch: bool = False
    save_dtype: SavedDtype = "float32"
    mesh: str | None = None
    hosts: Hosts
    config: Path | None = None
    settings: AdaptConfig

    def __post_init__(self):
        if self.from_scratch and self.lora_rank is not None:
            raise ValueError(f"lora_rank={self.lora_rank}: random weights are trained whole")
        if self.lora_on_masks and self.lora_rank is None:
            raise ValueError("lora_on_masks=True: needs lora_rank")
