"""Arguments of the commands about checkpoints: `info`, `convert`, `verify`, `push`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.host.declared import Positional
from jax_lm.options import require_sizes


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert a checkpoint to another format or precision, and verify the result.

    The destination appears only when it is complete.

    Examples:
        diffucoder convert builtin out/int8 --quantize int8
        diffucoder convert apple/DiffuCoder-7B-Instruct diffucoder-7b-orbax
        diffucoder convert diffucoder-7b-orbax diffucoder-7b-hf             # and back, bit for bit
        diffucoder convert apple/DiffuCoder-7B-Instruct diffucoder-7b-int8 --quantize int8
        diffucoder convert old-port diffucoder-7b --allow-missing-bias      # a folder with params.pkl
        diffucoder convert diffucoder-7b diffucoder-7b.gguf                 # for llama.cpp

    Attributes:
        source: folder or hub id in the Hugging Face or Orbax layout, a folder with params.pkl, or a
            GGUF file.
        destination: output folder, or a file that ends in .gguf; must not exist.
        format: huggingface, orbax or gguf; by default gguf for a file, and else the one of the first
            two that the source does not have.
        dtype: float32, bfloat16 or float16; the source's by default, and float16 in a GGUF file.
        quantize: quantize the kernels of all linear layers to int8; in a GGUF file to Q8_0.
        allow_missing_bias: use zeros for biases that a params.pkl lacks.
        allow_nonfinite: convert weights that hold NaN or infinity.
    """

    source: Positional[str]
    destination: Positional[Path]
    format: str | None = None
    dtype: str | None = None
    quantize: Literal["int8"] | None = None
    allow_missing_bias: bool = False
    allow_nonfinite: bool = False


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check names, shapes, dtypes, sizes and checksums of a checkpoint without loading it.

    The exit status is 1 if a check fails.

    Examples:
        diffucoder verify builtin
        diffucoder verify apple/DiffuCoder-7B-Instruct

    Attributes:
        path: folder or hub id.
        json: print JSON instead of text.
    """

    path: Positional[str]
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Push:
    """Upload weights, configuration, tokenizer and a model card to the hub.

    Without `--yes`, only lists what would be uploaded. The token is read from HF_TOKEN alone.
    Pickles are never uploaded; code is limited to the files that `auto_map` names and what they
    import. The model card is the README.md of the folder, or else made from the configuration.

    Examples:
        diffucoder push out/merged me/my-diffucoder                      # a dry run
        HF_TOKEN=... diffucoder push out/merged me/my-diffucoder --yes

    Attributes:
        folder: checkpoint in the Hugging Face layout.
        repo: target repository, as owner/name.
        yes: upload instead of a dry run.
        public: make a new repository public.
        license: license of the generated model card, by its name on the hub.
        message: commit message.
        revision: branch to commit to; main by default.
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

    A folder that only has a config.json is enough.

    Examples:
        diffucoder info
        diffucoder info --model apple/DiffuCoder-7B-Instruct --max-length 512

    Attributes:
        model: folder or hub id; the built-in model by default.
        batch_size: number of rows decoded together, for the memory estimate.
        max_length: tokens per row, prompt and answer together, for the memory estimate; 512 by default,
            or the context if that is shorter.
        json: print a JSON object instead of a table.
    """

    model: str | None = None
    batch_size: int = 1
    max_length: int | None = None
    json: bool = False

    def __post_init__(self):
        require_sizes(self, "batch_size", "max_length")
