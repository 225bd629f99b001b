"""Generate with a checkpoint, or time its forward pass.

    python -m jax_lm.inference --model-path P --prompt "def fibonacci(n):" --max-new-tokens 128

The command `diffucoder generate` can do more.
"""

import sys

from jax_lm.host import terminal
from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import DEFAULTS, GenerationOptions


def main(
    *,
    model_path: str | None = None,
    tokenizer_path: str | None = None,
    dtype: str | None = None,
    mesh: str | None = None,
    prompt: str = "def fibonacci(n):",
    benchmark: bool = False,
    options: GenerationOptions = DEFAULTS,
    seed: int = 0,
):
    """Generate with a checkpoint, or time its forward pass.

    Args:
        model_path: folder or hub id; the built-in demonstration model if not given.
        tokenizer_path: folder with the tokenizer; the model's own if not given.
        dtype: float32, bfloat16, int8, int4 or fp8 (kernels only); chosen by the device if not given.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        prompt: what to complete.
        benchmark: time forward passes instead of generating.
        options: how to decode.
        seed: seed of the random numbers.
    """
    engine = DiffuCoderInference(model_path, tokenizer_path, dtype, mesh=mesh)
    if not benchmark:
        (text,) = engine.complete([prompt], options, seed=seed, shows_progress=True)
        sys.stdout.write(prompt + text.rstrip("\n") + "\n")
        return
    for name, figures in engine.benchmark_inference().items():
        sys.stdout.write(
            f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in figures.items())}\n"
        )


if __name__ == "__main__":
    sys.exit(terminal.run_guarded(lambda: run_main(main) or 0, debug=False))
