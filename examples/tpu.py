"""Use every device of a TPU (or whatever JAX finds): what fits, the mesh, a batch over it, tokens
per second.

    python examples/tpu.py --model apple/DiffuCoder-7B-Instruct
    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/tpu.py      # four devices made of one CPU

The mesh is chosen so that as many devices share a layer as there are key/value heads, and the
others take rows of their own; `--mesh data=2,tensor=4` says it yourself. `diffucoder plan` answers
for a TPU that is not here.
"""

import jax

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template


def main(
    model: str | None = None,
    mesh: str | None = None,
    rows: int = 8,
    max_new_tokens: int = 64,
    preset: str = "fast",
) -> None:
    """Generate one batch twice: the first call compiles, the second one counts.

    Args:
        model: folder or hub id; the built-in model if not given.
        mesh: how to use the devices, such as data=2,tensor=4; chosen if not given.
        rows: prompts in the batch.
        max_new_tokens: length of each canvas.
        preset: exact, fast or turbo.
    """
    if jax.default_backend() != "tpu":
        print(f"no TPU here: {jax.device_count()} device(s) of {jax.default_backend()} instead")
    engine = DiffuCoderInference(model, mesh=mesh)
    options = GenerationOptions(max_new_tokens=max_new_tokens, decoding=Decoding(preset=preset))
    templates = [Template.completion("def gcd(a, b):", max_new_tokens)] * rows
    for name in ("first, with compilation", "second"):
        print(f"{name}: {engine.decode(templates, options).describe()}")


if __name__ == "__main__":
    run_main(main)
