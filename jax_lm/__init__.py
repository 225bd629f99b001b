"""DiffuCoder in JAX: load, generate, evaluate and train masked-diffusion language models for code.

Start with `jax_lm.inference.DiffuCoderInference`, or `jax_lm.models.dream` and
`jax_lm.diffusion.sampler`.
"""

import os
import sys


class BeforeJax:
    """Finds no module, but silences the plugins of absent accelerators before JAX is imported.

    The search for plugins takes a tenth of a second, which commands without JAX need not wait.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "jax":
            sys.meta_path.remove(BeforeJax)
            from jax_lm.host import platforms

            platforms.silence_absent(os.environ)


sys.meta_path.insert(0, BeforeJax)
if "jax" in sys.modules:
    # it loads its plugins later
    BeforeJax.find_spec("jax")
