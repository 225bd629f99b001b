"""`diffucoder convert`: checkpoints from one format to another."""

from jax_lm import terminal
from jax_lm.arguments.checkpoints import Convert
from jax_lm.checkpoints import huggingface
from jax_lm.conversion.convert import Conversion, convert


def run(arguments: Convert) -> int:
    conversion = Conversion(
        format=arguments.format,
        dtype=arguments.dtype,
        int8=arguments.quantize == "int8",
        allow_missing_bias=arguments.allow_missing_bias,
    )
    source = huggingface.resolve(arguments.source)
    with terminal.progress("converting") as report:
        done = convert(source, arguments.destination, conversion, on_progress=report)
    print(
        f"wrote {done.tensors} tensors, {done.nbytes / 2**20:,.1f} MiB, to {arguments.destination} ({done.format}); "
        "read back: names, shapes, dtypes, checksums and logits are equal"
    )
    return 0
