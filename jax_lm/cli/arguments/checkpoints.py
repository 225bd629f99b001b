"""Arguments of the commands about checkpoints: `info`, `convert`, `verify`, `push`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.benchmark.settings import require_at_least_one
from jax_lm.cli.declared import Positional


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

    source: Positional[str]
    destination: Positional[Path]
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
        json: print a JSON object instead of lines.
    """

    path: Positional[str]
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Push:
    """Send weights, configuration, tokenizer and a model card to the hub; says what it would send unless told to.

    The token is read from HF_TOKEN, and nowhere else. Pickles beside the weights are never sent, and of code only the
    files that `auto_map` names, and what these import. A README.md in the folder is the card; without one, a card is
    made from the configuration.

    Examples:
        diffucoder push out/merged me/my-diffucoder                       (a dry run)
        HF_TOKEN=... diffucoder push out/merged me/my-diffucoder --yes

    Attributes:
        folder: checkpoint in the Hugging Face layout.
        repo: where to, as owner/name.
        yes: do send it.
        public: whether everybody may see a repository that is made for it.
        license: for the card that is made, by the hub's name for it.
        message: of the commit.
        revision: branch to commit to; the main one if not given.
    """

    folder: Positional[Path]
    repo: Positional[str]
    yes: bool = False
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
        diffucoder info --model apple/DiffuCoder-7B-Instruct --max-length 512

    Attributes:
        model: folder or hub id; the built-in model if not given.
        batch_size: rows that are decoded together, for the memory estimate.
        max_length: tokens of a row, prompt and answer, for the memory estimate.
        json: print a JSON object instead of a table.
    """

    model: str | None = None
    batch_size: int = 1
    max_length: int = 512
    json: bool = False

    def __post_init__(self) -> None:
        require_at_least_one(self, "batch_size", "max_length")
