"""DiffuCoder in JAX: load, generate, evaluate and train masked-diffusion language models for code.

Start with `jax_lm.inference.DiffuCoderInference`, or `jax_lm.models.dream` and
`jax_lm.diffusion.sampler`.
"""
