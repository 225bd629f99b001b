"""`diffucoder data`: prepare data sets for training."""

from jax_lm import terminal
from jax_lm.arguments.training import PrepareData
from jax_lm.data.acecode import prepare_acecode


def run(arguments: PrepareData) -> int:
    """Prepare a data set, and say what was written."""
    terminal.show_log()
    print(prepare_acecode(arguments.data, arguments.out, arguments.difficulty))
    return 0
