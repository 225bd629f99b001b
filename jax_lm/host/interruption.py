"""Handling of Ctrl-C and SIGTERM: a command ends within two seconds and leaves no partial files.

Python delivers an interrupt to the main thread between two bytecodes. It cannot do so while XLA
compiles or a compiled loop runs, and an interrupt during a callback or an import may be lost. So a
thread watches for the signals itself, through `signal.set_wakeup_fd`. If the command has not ended
`GRACE` seconds after an interrupt, the thread removes unfinished files and ends the process.

This module must be imported before all others, so it imports nothing that takes time.
"""

import ctypes
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

# Exit status after SIGTERM: 128 plus the number of the signal, the convention of shells.
TERMINATED = 143
# The signals that end a command, with the line that it prints. "Interrupt" below means either.
ENDINGS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Seconds that a command may take to end by itself after an interrupt.
GRACE = 1.2
# File name of the stack frames of a running import.
IMPORT_FILE = "<frozen importlib._bootstrap>"
SHOW_CURSOR = "\x1b[?25h"
# Byte that `mark_handled` writes. The interpreter writes the number of a signal, which is never 0.
HANDLED = b"\0"
# Seconds after which an interrupt that was raised, but not handled, is raised again.
RETRY = 2.0
# Write end of the pipe to the watching thread; the interpreter and `mark_handled` write to it.
wakeup_fd: int | None = None
# Seconds from an interrupt to the end of the process; None while there is no deadline.
grace: float | None = GRACE
# Signal of the last interrupt.
received: int = signal.SIGINT
# Whether KeyboardInterrupt was raised and `mark_handled` has not been called since.
is_raised = False
# The function that the watching thread calls for each other signal (`on_signal`).
answers: dict[int, Callable[[], None]] = {}
# Files and folders that are being written under a temporary name.
unfinished_paths: set[Path] = set()


@contextmanager
def remove_on_exit(path: Path) -> Iterator[Path]:
    """Remove a file or folder when the block ends, or when an interrupt ends the process."""
    unfinished_paths.add(path)
    try:
        yield path
    finally:
        remove(path)
        unfinished_paths.discard(path)


def remove(path: Path):
    """Remove a file or a folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # The parent may be a file, in which case nothing was written.
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def discard_unfinished():
    """Remove all unfinished files and folders, before the process is ended."""
    for path in list(unfinished_paths):
        remove(path)


class Terminated(BaseException):
    """Raised by SIGTERM."""


def exit_now(signum: int, frame: FrameType | None = None) -> NoReturn:
    """Signal handler that ends the process at once, with the status and the line of the signal."""
    discard_unfinished()
    # A progress bar may have hidden the cursor.
    os.write(2, f"{SHOW_CURSOR if os.isatty(2) else ''}{ENDINGS[signum]}\n".encode())
    os._exit(128 + signum)


def interrupt(signum: int, frame: FrameType | None):
    """Signal handler that raises KeyboardInterrupt, or Terminated after SIGTERM.

    During an import it ends the process at once, as a half-imported extension module would crash
    later.
    """
    while frame:
        if frame.f_code.co_filename == IMPORT_FILE:
            exit_now(signum)
        frame = frame.f_back
    global is_raised, received
    received = signum
    if signum == signal.SIGTERM:
        raise Terminated
    is_raised = True
    raise KeyboardInterrupt


def watch_interrupts():
    """Start the watching thread, and let interrupts end the process at once.

    Inside `interruptible` they raise an exception instead. This must be called before any slow
    import.
    """
    if signal.getsignal(signal.SIGINT) is exit_now:
        return
    global wakeup_fd
    read_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    set_handlers(exit_now)
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    threading.Thread(
        target=wait_for_interrupts, args=(read_fd,), name="interruption", daemon=True
    ).start()
    # Python would print a traceback for an interrupt inside a destructor, a callback or a thread.
    sys.unraisablehook = without_interrupts(sys.unraisablehook)
    threading.excepthook = without_interrupts(threading.excepthook)


def without_interrupts(hook: Callable) -> Callable:
    """Return a hook for exceptions that ignores interrupts."""
    return lambda a: None if a.exc_type in (KeyboardInterrupt, Terminated) else hook(a)


def set_handlers(handler: Callable[[int, FrameType | None], None]):
    """Install the handler of the signals that end a command."""
    for number in ENDINGS:
        signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let interrupts raise an exception inside the block, so that commands can clean up."""
    if signal.getsignal(signal.SIGINT) is not exit_now:
        yield
        return
    set_handlers(interrupt)
    try:
        yield
    finally:
        set_handlers(exit_now)


@contextmanager
def suspend_deadline() -> Iterator[None]:
    """Let the block handle Ctrl-C without a deadline.

    The block must call `mark_handled` when it has handled an interrupt. A second one before that
    ends the process.
    """
    global grace
    before = grace
    grace = None
    try:
        yield
    finally:
        grace = before


def mark_handled():
    """Report that an interrupt has been handled and the process continues."""
    global is_raised
    is_raised = False
    if wakeup_fd is not None:
        os.write(wakeup_fd, HANDLED)


@contextmanager
def on_signal(number: int, answer: Callable[[], None]) -> Iterator[None]:
    """Call `answer` in the watching thread when a signal arrives, whatever the main thread does.

    The signal must have a Python handler, as the interpreter reports no others.
    """
    answers[number] = answer
    try:
        yield
    finally:
        answers.pop(number, None)


def raise_again():
    """Raise KeyboardInterrupt in the main thread once more, after an earlier one was lost.

    It is lost if it is raised in Python code that a library calls and whose exceptions it ignores.
    """
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))


def wait_for_interrupts(read_fd: int) -> NoReturn:
    """Wait for signals and answer them; the function of the watching thread.

    An interrupt that the command does not handle in time ends the process.

    Args:
        read_fd: read end of the pipe that signals and `mark_handled` write to.
    """
    while True:
        signals = os.read(read_fd, 64)
        for number, answer in list(answers.items()):
            if number in signals:
                answer()
        for number in ENDINGS:
            # Servers and trainings install handlers of their own, which finish the work in
            # progress.
            if number in signals and signal.getsignal(number) in (exit_now, interrupt):
                await_end(read_fd, number)


def await_end(read_fd: int, number: int):
    """End the process unless an interrupt is handled before the deadline and before a second one.

    Without a deadline, wait for the second one, and raise KeyboardInterrupt again if it was lost.
    """
    ready = None
    while not ready:
        was_raised = is_raised
        limit = GRACE if number == signal.SIGTERM else grace
        ready, _, _ = select.select([read_fd], [], [], limit or RETRY)
        if limit is not None:
            break
        if was_raised and is_raised and not ready:
            raise_again()
    if not ready or HANDLED not in os.read(read_fd, 64):
        exit_now(number)
