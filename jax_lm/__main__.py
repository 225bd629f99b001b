"""`python -m jax_lm` and the console command: Ctrl-C is looked after before anything else is
imported.
"""

import os

try:
    from typing import NoReturn

    from jax_lm.host import interruption
except KeyboardInterrupt:
    os.write(2, b"interrupted\n")
    os._exit(130)


def start_command() -> NoReturn:
    """Run the command that was typed."""
    interruption.watch_interrupts()
    # After that, as it takes a tenth of a second and more.
    from jax_lm.cli.main import entry

    entry()


if __name__ == "__main__":
    start_command()
