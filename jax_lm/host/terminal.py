"""Output to the terminal other than results: progress, and errors in one line.

Progress is written to standard error: as a bar if that is a terminal, else as a line now and then.
`NO_RICH_LOGGING=1` turns both off.
"""

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from importlib.metadata import requires
from pathlib import Path
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jax_lm.host import interruption
from untrusted.printable import printable

# Exit status after wrong input.
USAGE_ERROR = 2


# Seconds of silence before the first line of progress off a terminal, and between two lines.
FIRST_LINE = 20.0
NEXT_LINE = 60.0


def shows_progress() -> bool:
    """Whether progress bars are shown: standard error is a terminal, and they are not disabled."""
    return sys.stderr.isatty() and not is_quiet()


def is_quiet() -> bool:
    """Whether progress is turned off."""
    return os.environ.get("NO_RICH_LOGGING") == "1"


# Updates a progress bar: called with the steps done, their total, and maybe a note shown next to it.
Report = Callable[..., None]


@contextmanager
def progress(description: str, first_note: str = "") -> Iterator[Report | None]:
    """Show progress. Yields a callback that updates it, or None if progress is off.

    The remaining time is estimated from the calls after the first one, so neither compilation nor
    the progress of an earlier run counts. Off a terminal, a line is written now and then.

    Args:
        description: text in front of the bar.
        first_note: note shown until the first call.
    """
    if is_quiet():
        yield None
        return
    if not sys.stderr.isatty():
        with progress_lines(description, first_note) as report:
            yield report
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(description, total=None, note=first_note)

        def report(done, total, note=""):
            bar.update(task, completed=done, total=total, note=note)

        yield report


def batch_progress(report: Report | None, start: int, size: int, total: int) -> Report | None:
    """Return a callback for one batch, which reports its part that is done as so many items."""
    # 8 of 32 positions of a batch of 4 that begins at item 20: 21 items
    return report and (lambda done, steps, note: report(start + size * done // steps, total, note))


@contextmanager
def progress_lines(description: str, first_note: str) -> Iterator[Report]:
    """Write a line now and then, for pipes, notebooks and logs."""
    begun = time.monotonic()
    # Time, done, total and note of the first two calls, which may compile, and of the last one.
    calls = []
    is_over = Event()

    def report(done, total, note=""):
        calls[2:] = [(time.monotonic(), done, total, note)]

    def write():
        pause = FIRST_LINE
        while not is_over.wait(pause):
            pause = NEXT_LINE
            text = f"{calls[-1][1]}/{calls[-1][2]}" if calls else first_note or "started"
            text = f"{text}, {duration(time.monotonic() - begun)} so far"
            if len(calls) > 2 and calls[2][1] > calls[1][1]:
                (since, before, *_), (now, done, total, note) = calls[1:]
                left = duration((now - since) / (done - before) * (total - done))
                text = f"{done}/{total}, about {left} left{note and '  '}{note}"
            say(f"{description}: {text}")

    Thread(target=write, daemon=True).start()
    try:
        yield report
    finally:
        is_over.set()


def duration(seconds: float) -> str:
    """Format a duration for people: 40 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class CurrentStderr(logging.StreamHandler):
    """Writes log records to the current `sys.stderr`, which a progress bar replaces.

    A plain handler keeps the original stream, and would write into the bar.
    """

    def emit(self, record: logging.LogRecord):
        self.stream = sys.stderr
        super().emit(record)


# What is said to the user beside the results: lines on standard error; `serve` makes them records.
LINES = logging.getLogger("jax_lm.lines")
LINES.setLevel(logging.INFO)
LINES.propagate = False
LINES.addHandler(CurrentStderr())


def say(line: str):
    """Write a line to standard error."""
    LINES.info("%s", line)


def show_log():
    """Send log records of the library to standard error, and only warnings of its dependencies."""
    root = logging.getLogger()
    # absl installs a handler when Orbax is imported, and with a handler `basicConfig` does nothing.
    for handler in root.handlers[:]:
        if type(handler) in (logging.StreamHandler, CurrentStderr):
            root.removeHandler(handler)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[CurrentStderr()])
    logging.getLogger("jax").setLevel(logging.WARNING)
    silence_orbax()


def silence_orbax():
    """Keep Orbax from logging its errors: each of its threads logs a traceback of what it raises.

    Called after Orbax is imported, which makes the logger.
    """
    for name in ("orbax", "absl"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def read_text_file(path: Path, *, keep_line_ends: bool = False) -> str:
    """Read a UTF-8 text file that the user has named.

    Args:
        path: the file.
        keep_line_ends: keep the line ends of the file instead of converting them to \\n.

    Raises:
        ValueError: the file cannot be read or decoded.
    """
    try:
        with path.open(encoding="utf-8", newline="" if keep_line_ends else None) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file={str(path)!r} cannot be read: {error}") from error


def run_guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Run a command, and turn expected errors into one line on standard error and an exit status.

    Wrong input (ValueError, OSError), a full disk and a missing package exit with status 2, Ctrl-C
    with 130, SIGTERM with 143. Other exceptions are bugs, and propagate with their traceback.

    Args:
        command: returns the exit status.
        debug: also print the traceback of expected errors.
    """
    try:
        with interruption.interruptible():
            return command()
    except (KeyboardInterrupt, interruption.Terminated):
        say(interruption.ENDINGS[interruption.received])
        return 128 + interruption.received
    except BrokenPipeError:
        # The reader of our output has exited. Standard output is redirected, because flushing it at
        # exit would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # libraries wrap errors of the file system in other exceptions
        line = explain_failure(error)
        if line is None:
            raise
        if debug:
            traceback.print_exc()
        LINES.error("error: %s", " ".join(printable(line).split()))
        return USAGE_ERROR


# Messages of the operating system for a full disk, an exceeded quota and a file that is too large.
DISK_FULL = tuple(os.strerror(number) for number in (ENOSPC, EDQUOT, EFBIG))


def explain_failure(error: BaseException) -> str | None:
    """Return the message for an error caused by the user or the machine; None for a bug."""
    chain = list(exception_chain(error))
    # A full disk may be reported in the text of another exception only.
    if reason := next((text for text in DISK_FULL if any(text in str(e) for e in chain)), None):
        # of a copy that failed, the second name is the one that was written
        files = [e.filename2 or e.filename for e in chain if isinstance(e, OSError)]
        # Failed writing: "/run/checkpoints/1/state": … No space left on device
        files += re.findall(r'"(/[^"\n]*)"', "\n".join(map(str, chain)))
        return f"{reason}: {next(filter(None, files), 'nothing more can be written')}"
    if isinstance(error, ModuleNotFoundError) and (extra := find_extra(error.name or "")):
        return f"this needs {error.name}, which is not installed: pip install 'jax-diffucoder[{extra}]'"
    # A FloatingPointError is about weights or a training that are no longer finite.
    if isinstance(error, ValueError | OSError | FloatingPointError):
        return str(error) or type(error).__name__
    # JAX fails with different exceptions where the chosen platform is absent.
    frames = traceback.extract_tb(error.__traceback__)
    if frames and Path(frames[-1].filename).name == "xla_bridge.py":
        chosen = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
        reason = str(error).partition(" (set JAX_PLATFORMS")[0] or "it cannot be started"
        return f"JAX_PLATFORMS={chosen}: no such device here ({reason}); unset it to use the CPU"
    return None


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of that, and so on."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def find_extra(module: str) -> str | None:
    """Return the extra of this distribution that installs a module; `dev` only if no other does."""
    # A requirement looks like: uvicorn>=0.30; extra == "serve"
    requirements = "\n".join(requires("jax-diffucoder") or ())
    extras = re.findall(r"""^([\w.-]+).*extra == ['"]([\w-]+)['"]""", requirements, re.MULTILINE)
    wanted = normalize_name(module.partition(".")[0])
    fitting = (extra for name, extra in extras if normalize_name(name) == wanted)
    return min(fitting, key=lambda extra: extra == "dev", default=None)


def normalize_name(name: str) -> str:
    """Normalize the name of a distribution or module as package indexes do (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
