"""Run untrusted programs against tests: contained, and without a way to pass but solving.

    from jax_lm.sandbox import Case, Limits, run
    result = run("def double(x): return 2 * x", ["assert double(2) == 4"], Limits(seconds=2))
    result.outcome, result.share, result.tests
    run("print(int(input()) * 2)", [Case("2\\n", "4\\n")])

docs/sandbox.md says what is guaranteed. Knows nothing of models or JAX.
"""

from jax_lm.sandbox.cases import Case
from jax_lm.sandbox.results import Executor, Limits, Program, Result, TestResult
from jax_lm.sandbox.runner import Local, run
from jax_lm.sandbox.session import SandboxFailureError
from jax_lm.sandbox.tiers import SandboxUnavailableError

__all__ = [
    "Case",
    "Executor",
    "Limits",
    "Local",
    "Program",
    "Result",
    "SandboxFailureError",
    "SandboxUnavailableError",
    "TestResult",
    "run",
]
