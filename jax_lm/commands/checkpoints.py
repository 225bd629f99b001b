"""`diffucoder convert` and `verify`: checkpoints from one format to another, and whether one is whole."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_lm import terminal


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

    def run(self) -> int:
        from jax_lm.checkpoints import huggingface
        from jax_lm.checkpoints.conversion import Conversion, convert

        conversion = Conversion(
            format=self.format,
            dtype=self.dtype,
            int8=self.quantize == "int8",
            allow_missing_bias=self.allow_missing_bias,
        )
        source = huggingface.resolve(self.source)
        with terminal.progress("converting") as report:
            done = convert(source, self.destination, conversion, on_progress=report)
        print(
            f"wrote {done.tensors} tensors, {done.nbytes / 2**20:,.1f} MiB, to {self.destination} ({done.format}); "
            "read back: names, shapes, dtypes, checksums and logits are equal"
        )
        return 0


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check a checkpoint without loading it: names, shapes, dtypes, sizes, checksums; exit status 1 if it fails.

    Examples:
        diffucoder verify diffucoder-7b-orbax

    Attributes:
        path: folder or hub id.
    """

    path: tyro.conf.Positional[str]

    def run(self) -> int:
        from jax_lm.checkpoints import huggingface
        from jax_lm.checkpoints.verification import verify

        with terminal.progress("verifying") as report:
            checks = list(verify(huggingface.resolve(self.path), on_progress=report))
        for check in checks:
            print(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.found}")
        return 0 if all(check.passed for check in checks) else 1
