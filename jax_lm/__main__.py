"""`python -m jax_lm` and the console command; handles Ctrl-C before anything else is imported."""

import os
import sys

try:
    from typing import NoReturn

    from jax_lm.host import interruption
except KeyboardInterrupt:
    os.write(2, b"interrupted\n")
    os._exit(130)


def start_command() -> NoReturn:
    """Run the command that was typed."""
    # A pipe or file that is opened later would take the number of a closed stream, and libraries
    # would write their messages into it.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    interruption.watch_interrupts()
    # Imported after that, because it takes a tenth of a second or more.
    from jax_lm.cli.main import entry

    entry()


if __name__ == "__main__":
    start_command()
