"""DiffuCoder in JAX: load, generate, evaluate and train masked-diffusion language models for code.

Start with `jax_lm.inference.DiffuCoderInference`, or `jax_lm.models.dream` and
`jax_lm.diffusion.sampler`.
"""

import os
import sys

try:
    from jax_lm.host import platforms

    # Before any module imports JAX, whose plugins of absent accelerators print twenty lines.
    platforms.silence_absent(os.environ)
except KeyboardInterrupt:
    # As in `__main__`. `python -m jax_lm` has no other name yet.
    if sys.argv[0].rpartition(os.sep)[2] in ("-m", "diffucoder"):
        os.write(2, b"interrupted\n")
        os._exit(130)
    raise
