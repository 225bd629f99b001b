"""Run untrusted programs against tests: contained, and only a solution passes.

    from untrusted import Case, Limits, run
    result = run("def double(x): return 2 * x", ["assert double(2) == 4"], Limits(seconds=2))
    result.outcome, result.share, result.tests
    run("print(int(input()) * 2)", [Case("2\\n", "4\\n")])

docs/sandbox.md states the guarantees. This package knows nothing about language models or JAX, and
imports the standard library only.
"""

from untrusted.cases import Case
from untrusted.results import Limits, Program
from untrusted.runner import Local, run

__all__ = ["Case", "Limits", "Local", "Program", "run"]
