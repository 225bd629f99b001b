"""`diffucoder verify`: whether a checkpoint is whole."""

from jax_lm import terminal
from jax_lm.arguments.checkpoints import Verify
from jax_lm.checkpoints import huggingface
from jax_lm.conversion.verify import verify


def run(arguments: Verify) -> int:
    with terminal.progress("verifying") as report:
        checks = list(verify(huggingface.resolve(arguments.path), on_progress=report))
    for check in checks:
        print(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.found}")
    return 0 if all(check.passed for check in checks) else 1
