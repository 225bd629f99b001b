"""The terminal besides results: progress bars, and errors as one line.

Bars go to standard error, and only when that is a terminal and `NO_RICH_LOGGING=1` is not set.
"""

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from jax_lm.host import interruption
from jax_lm.host.interruption import INTERRUPTED
from untrusted.printable import printable

USAGE_ERROR, TERMINATED = 2, 143


def shows_progress() -> bool:
    """Tell whether standard error is a terminal that may be drawn on."""
    return sys.stderr.isatty() and os.environ.get("NO_RICH_LOGGING") != "1"


@runtime_checkable
class Report(Protocol):
    """Tells a progress bar how far things are, and a note to show beside it."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def progress(description: str, first_note: str = "") -> Iterator[Report | None]:
    """Show a progress bar as a callback of (done, total, note); None where bars are off.

    The first note is shown until the first call. The time that is left is estimated from the calls after that one, so
    that neither a compilation nor what an earlier run has done counts.
    """
    if not shows_progress():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None, note=first_note)

        def report(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield report


def say(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


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


def run_guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command; what went wrong becomes one line on standard error and an exit status.

    Wrong input (ValueError, OSError), a full disk and a package that is not installed are 2, Ctrl-C is 130. `debug`
    shows the traceback as well. Other exceptions are defects: they keep their traceback.
    """
    try:
        with interruption.interruptible():
            return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, and flushing at exit would say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # libraries wrap what the disk says in exceptions of their own
        line = explain_failure(error)
        if line is None:
            raise
        if debug:
            traceback.print_exc()
        print(f"error: {' '.join(printable(line).split())}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR


DISK_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def explain_failure(error: BaseException) -> str | None:
    """Say what went wrong where it is the user's or the machine's doing; None for a defect."""
    chain = list(exception_chain(error))
    if found := next((reason for reason in DISK_FULL if any(reason in str(each) for each in chain)), None):
        place = next((each.filename for each in chain if isinstance(each, OSError) and each.filename), None)
        return f"{found}: {place or 'nothing more can be written'}"
    if isinstance(error, ModuleNotFoundError) and (extra := find_extra(error.name or "")):
        return f"this needs {error.name}, which is not installed: pip install 'jax-diffucoder[{extra}]'"
    if isinstance(error, ValueError | OSError):
        return str(error) or type(error).__name__
    return None


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def find_extra(module: str) -> str | None:
    """Find the extra of this distribution that brings a module; `dev` only if no other one does."""
    wanted = normalize_name(module.partition(".")[0])
    found = []
    for requirement in requires("jax-diffucoder") or ():
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name and extra and normalize_name(name[0]) == wanted:
            found.append(extra[1])
    return min(found, key=lambda extra: extra == "dev", default=None)


def normalize_name(name: str) -> str:
    """Write the name of a distribution or a module as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()
