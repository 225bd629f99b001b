"""The terminal besides results: progress bars, and errors as one line.

Bars go to standard error, and only when that is a terminal and `NO_RICH_LOGGING=1` is not set.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from jax_lm.printing import printable

USAGE_ERROR, INTERRUPTED, TERMINATED = 2, 130, 143


def shows_progress() -> bool:
    """Tell whether standard error is a terminal that may be drawn on."""
    return sys.stderr.isatty() and os.environ.get("NO_RICH_LOGGING") != "1"


@runtime_checkable
class Report(Protocol):
    """Tells a progress bar how far things are, and a note to show beside it."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def progress(description: str) -> Iterator[Report | None]:
    """Show a progress bar as a callback of (done, total, note); None where bars are off."""
    if not shows_progress():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None, note="")

        def report(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield report


def show_log() -> None:
    """Send what the library logs to standard error; of the libraries below it, warnings alone."""
    root = logging.getLogger()
    # absl adds one as soon as Orbax is imported, and `basicConfig` would then do nothing.
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("jax", "orbax", "absl"):
        logging.getLogger(name).setLevel(logging.WARNING)


def read_text_file(path: Path, *, keep_line_ends: bool = False) -> str:
    """Read a UTF-8 text file that the user names, line ends as they are or as \\n; ValueError if it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="" if keep_line_ends else None) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file={str(path)!r} cannot be read: {error}") from error


def guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command; what went wrong becomes one line on standard error and an exit status.

    Wrong input (ValueError, OSError) is 2, Ctrl-C is 130. `debug` shows the traceback as well. Other
    exceptions are defects: they keep their traceback.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, and flushing at exit would say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if debug:
            traceback.print_exc()
        line = " ".join(printable(str(error)).split())
        print(f"error: {line or type(error).__name__}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR
