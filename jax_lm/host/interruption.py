"""Ctrl-C ends a command within two seconds and leaves nothing half-written, whatever is running.

Python hands an interrupt to the main thread between two bytecodes: not while XLA compiles or a fused loop runs, and one
that falls into a callback or an import may be lost. So a thread is read_fd by the signal itself (`set_wakeup_fd`): what
has not ended in time by itself is ended, after what is unfinished on disk has been removed. Imports nothing that takes
time, as it has to stand before everything else.
"""

import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
GRACE = 1.2
"""Seconds that a command may take to end by itself."""

IMPORTING = "<frozen importlib._bootstrap>"
SHOW_CURSOR = "\x1b[?25h"

HANDLED = b"\0"
wakeup_fd: int | None = None
"""Where signals, and `mark_handled`, tell the thread that watches."""

grace: float | None = GRACE
unfinished_paths: set[Path] = set()
"""Files and folders that are being written under a temporary name."""


@contextmanager
def remove_on_exit(path: Path) -> Iterator[Path]:
    """Remove a file or a folder when the block ends, also if the process is ended for an interrupt."""
    unfinished_paths.add(path)
    try:
        yield path
    finally:
        remove(path)
        unfinished_paths.discard(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def discard_unfinished() -> None:
    """Remove all that is unfinished, before the process is ended."""
    for path in list(unfinished_paths):
        remove(path)


def exit_now(signum: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process at once, with status 130 and one line; a handler of signals."""
    discard_unfinished()
    # Bars hide the cursor while they are drawn.
    os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}interrupted\n".encode())
    os._exit(INTERRUPTED)


def interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or leave at once in an import, as half of an extension crashes; a handler of signals."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            exit_now()
        frame = frame.f_back
    raise KeyboardInterrupt


def watch_interrupts() -> None:
    """Make Ctrl-C leave at once, until a command runs `interruptible`; called before anything heavy is imported."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        return
    global wakeup_fd
    read_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    signal.signal(signal.SIGINT, exit_now)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    threading.Thread(target=wait_for_interrupts, args=(read_fd,), name="interruption", daemon=True).start()
    unraisable, in_thread = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda a: None if a.exc_type is KeyboardInterrupt else unraisable(a)
    threading.excepthook = lambda a: None if a.exc_type is KeyboardInterrupt else in_thread(a)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C inside the block, as commands have files and processes to end."""
    if signal.getsignal(signal.SIGINT) is not exit_now:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, exit_now)


@contextmanager
def suspend_deadline() -> Iterator[None]:
    """Let the block handle interrupts itself (`mark_handled`), however long that takes; a second one ends the process."""
    global grace
    before, grace = grace, None
    try:
        yield
    finally:
        grace = before


def mark_handled() -> None:
    """Say that an interrupt has been handled, and the process goes on."""
    if wakeup_fd is not None:
        os.write(wakeup_fd, HANDLED)


def wait_for_interrupts(read_fd: int) -> NoReturn:
    """Wait for an interrupt that is ours to handle, then for the process to end; another one ends it at once."""
    while True:
        signals = os.read(read_fd, 64)
        # A server has a handler of its own, which finishes what is in flight.
        if signal.SIGINT in signals and signal.getsignal(signal.SIGINT) in (exit_now, interrupt):
            ready, _, _ = select.select([read_fd], [], [], grace)
            if not ready or HANDLED not in os.read(read_fd, 64):
                exit_now()
