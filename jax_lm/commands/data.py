"""`diffucoder data`: prepare data sets for training."""

from jax_lm import terminal
from jax_lm.arguments.training import PrepareData
from jax_lm.data.acecode import prepare


def run(arguments: PrepareData) -> int:
    terminal.show_log()
    print(prepare(arguments.data, arguments.out, arguments.difficulty))
    return 0
