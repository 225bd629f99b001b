"""Arguments of the commands about checkpoints: `info`, `plan`, `convert`, `verify`, `push`. Imports no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_lm.config_file import option
from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Write a checkpoint in another format or precision, and verify it; the target appears whole or not at all.

    Examples:
        diffucoder convert apple/DiffuCoder-7B-Instruct diffucoder-7b-orbax
        diffucoder convert diffucoder-7b-orbax diffucoder-7b-hf                (and back, bit for bit)
        diffucoder convert apple/DiffuCoder-7B-Instruct diffucoder-7b-int8 --quantize int8
        diffucoder convert old-port diffucoder-7b --allow-missing-bias         (a folder with params.pkl)

    Attributes:
        source: folder or hub id, in the Hugging Face or Orbax layout, or with the params.pkl of the old port.
        destination: folder to write; must not exist.
        format: huggingface or orbax; the other one if not given.
        dtype: float32, bfloat16 or float16; that of the source if not given.
        quantize: int8 for the kernels of all linear layers.
        allow_missing_bias: put zeros where a params.pkl lacks biases.
    """

    source: tyro.conf.Positional[str]
    destination: tyro.conf.Positional[Path]
    format: str | None = None
    dtype: str | None = None
    quantize: Literal["int8"] | None = None
    allow_missing_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check a checkpoint without loading it: names, shapes, dtypes, sizes, checksums; exit status 1 if it fails.

    Examples:
        diffucoder verify diffucoder-7b-orbax

    Attributes:
        path: folder or hub id.
    """

    path: tyro.conf.Positional[str]


@dataclass(frozen=True, kw_only=True)
class Push:
    """Send weights, configuration, tokenizer and a model card to the hub; says what it would send unless told to.

    The token is read from HF_TOKEN, and nowhere else. Pickles beside the weights are never sent, and of code only the
    files that `auto_map` names, and what these import. A README.md in the folder is the card; without one, a card is
    made from the configuration.

    Examples:
        diffucoder push out/merged me/my-diffucoder                       (a dry run)
        HF_TOKEN=... diffucoder push out/merged me/my-diffucoder --confirm

    Attributes:
        folder: checkpoint in the Hugging Face layout.
        repo: where to, as owner/name.
        confirm: do it.
        public: whether everybody may see a repository that is made for it.
        license: for the card that is made, by the hub's name for it.
        message: of the commit.
        revision: branch to commit to; the main one if not given.
    """

    folder: tyro.conf.Positional[Path]
    repo: tyro.conf.Positional[str]
    confirm: bool = False
    public: bool = False
    license: str | None = None
    message: str = "Upload by diffucoder push"
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show configuration, parameter count, tokenizer, devices and expected memory of a model.

    A folder with only a config.json is enough.

    Examples:
        diffucoder info
        diffucoder info --model apple/DiffuCoder-7B-Instruct --canvas 512

    Attributes:
        model: folder or hub id; the built-in model if not given.
        batch: rows that are decoded together, for the memory estimate.
        canvas: tokens of a row, prompt and answer, for the memory estimate.
    """

    model: str | None = None
    batch: int = 1
    canvas: int = 512


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what a generation or a training step takes before a machine is rented; exit status 1 if it does not fit.

    For TPUs the real program is compiled for the named topology (extra `plan`, no TPU needed; a minute or so for 7B);
    otherwise, and for GPUs, everything is arithmetic and says so.

    Examples:
        diffucoder plan --model-config 7b --topology v5e:2x2
        diffucoder plan --model-config 7b --topology v5e:1x1 --dtype int8
        diffucoder plan --model apple/DiffuCoder-7B-Instruct --topology h100:1 --batch 16 --canvas 1024
        diffucoder plan --model-config 7b --topology v5p:2x2x2 --step sft --batch 8 --canvas 2048

    Attributes:
        step: generate, or an update of all weights: sft or grpo (coupled, max_new_tokens of a row its completion).
        topology: chips and their shape, such as v5e:2x2, v6e:1x1, v4:2x2x1 or h100:8.
        model: folder or hub id; only its config.json is read.
        model_config: a known shape in place of a model: 7b or small.
        dtype: bfloat16, float32 or int8 (kernels only).
        batch: rows decoded together.
        canvas: tokens of a row, prompt and answer.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        estimate: do arithmetic alone, compile nothing.
        generation: max_new_tokens (half of the canvas if not given), preset, temperature and so on.
    """

    topology: str
    step: str = "generate"
    model: str | None = None
    model_config: str | None = None
    dtype: str = "bfloat16"
    batch: int = 1
    canvas: int = 512
    mesh: str | None = None
    estimate: bool = False
    generation: tyro.conf.OmitArgPrefixes[GenerationOptions] = DEFAULTS

    @staticmethod
    def implied(words: Sequence[str]) -> list[str]:
        """Take half of the canvas as new, unless something else is typed."""
        canvas = option(words, "--canvas", str(Plan.canvas))
        return ["--max-new-tokens", str(max(1, int(canvas) // 2))] if canvas.isdecimal() else []
