"""DiffuCoder in JAX: load, generate, evaluate and train masked-diffusion language models for code.

Start with `jax_lm.inference.DiffuCoderInference`, or `jax_lm.models.dream` and
`jax_lm.diffusion.sampler`.
"""

import os

from jax_lm.host import platforms

# Before any module imports JAX, whose plugins of absent accelerators print twenty lines.
platforms.silence_absent(os.environ)
