"""Explain what the compiler makes of a planned step: kernels, bytes, copies, sorts, communication,
large buffers.

    pip install '.[plan-gpu]'
    python experiments/explain_plan.py --model-config 7b --topology h200:1 --preset fast --out step.json

Takes the options of `diffucoder plan`. Compiles every program of the step (a preset with a cache
has two) for the named machine, which need not be present, and reads the compiled text. Nothing
runs. `--out` writes all of it as JSON; the printed tables have the largest groups of each kind.
"""

import os
import sys

from jax_lm.cli import main as cli
from jax_lm.host import platforms


def main() -> None:
    # Before JAX is imported: compilers without their device would print warnings.
    platforms.silence_absent(os.environ)
    from experiments.compiled.passes import explain_plan

    explain_plan(cli.parse(["plan", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
