"""`python -m jax_lm` and the console command; handles Ctrl-C before anything else is imported."""

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
    # Imported after that, because it takes a tenth of a second or more.
    from jax_lm.cli.main import entry

    entry()


if __name__ == "__main__":
    start_command()
