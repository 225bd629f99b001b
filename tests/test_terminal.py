"""Errors as one line, and bars only where somebody looks."""

import io
import logging
import queue
import time
import types

import jax
import pytest

from jax_lm.host import terminal


def failing(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("steps=0: must be\n  at least 1"), 2, "error: steps=0: must be at least 1\n"),
        (
            FileNotFoundError(2, "No such file", "x.txt"),
            2,
            "error: [Errno 2] No such file: 'x.txt'\n",
        ),
        (ValueError(), 2, "error: ValueError\n"),
        (FloatingPointError("logits are nan"), 2, "error: logits are nan\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_are_one_line(capsys, error, status, line):
    assert terminal.run_guarded(failing(error), debug=False) == status
    assert capsys.readouterr().err == line


def test_debug_adds_the_traceback(capsys):
    assert terminal.run_guarded(failing(ValueError("no")), debug=True) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no\n")


def test_defects_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        terminal.run_guarded(failing(ZeroDivisionError()), debug=False)


def test_an_absent_accelerator_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert terminal.run_guarded(lambda: len(jax.devices("cuda")), debug=False) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: JAX_PLATFORMS=cuda: no such device here (")
    assert err.endswith("; unset it to use the CPU\n")
    assert len(err.splitlines()) == 1


def test_status_is_handed_on():
    assert terminal.run_guarded(lambda: 1, debug=False) == 1


@pytest.mark.parametrize(
    ("is_terminal", "setting", "shown"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_bars_only_on_a_terminal(monkeypatch, capsys, is_terminal, setting, shown):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("NO_RICH_LOGGING", setting)
    # off a terminal there are lines, not bars
    with terminal.progress("loading") as report:
        assert (report is not None) == (setting != "1")
        assert isinstance(report, types.FunctionType) or not shown
        if report:
            report(1, 2)


def test_off_a_terminal_a_line_is_written_now_and_then(monkeypatch, capsys):
    now = [0.0]
    waits = Steps()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(terminal, "Event", lambda: waits)
    with terminal.progress("evaluating", "the first call compiles") as report:
        # seconds, what is done by then, and whether a line is due
        for seconds, done, is_due in (
            (20, 0, True), (30, 10, False), (40, 12, True), (100, 24, True), (110, 25, False), (4000, 30, True),
        ):  # fmt: skip
            now[0] = seconds
            if done:
                report(done, 100, "--preset fast")
            if is_due:
                waits.take()
    # the first two calls may have compiled; 12 in 60 s since the second: 76 are left
    assert capsys.readouterr().err.splitlines() == [
        "evaluating: the first call compiles, 20 s so far",
        "evaluating: 12/100, 40 s so far",
        "evaluating: 24/100, about 6 min left  --preset fast",
        "evaluating: 30/100, about 4.3 h left  --preset fast",
    ]
    assert waits.pauses == [terminal.FIRST_LINE, *[terminal.NEXT_LINE] * 4]


class Steps:
    """An event whose pauses end when the test says so."""

    def __init__(self):
        self.pauses, self.turns, self.waiting = [], queue.Queue(), queue.Queue()

    def wait(self, pause):
        self.pauses.append(pause)
        self.waiting.put(None)
        return self.turns.get(timeout=30)

    def take(self):
        """Let one pause pass, and wait for what is written after it."""
        if len(self.pauses) < 2:
            self.waiting.get(timeout=30)
        self.turns.put(False)
        self.waiting.get(timeout=30)

    def set(self):
        self.turns.put(True)


def test_a_long_first_call_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    with terminal.progress("generating", "the first call of a size compiles"):
        time.sleep(0.2)
    said = "generating: the first call of a size compiles, 0 s so far\n"
    assert capsys.readouterr().err == said


def test_log_lines_go_where_the_bar_has_put_standard_error(monkeypatch):
    """A handler with a stream of its own would write into the bar."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    # those of pytest
    root.handlers[:] = []
    try:
        terminal.show_log()
        bar = io.StringIO()
        monkeypatch.setattr("sys.stderr", bar)
        logging.getLogger("jax_lm.x").warning("step 1")
        assert bar.getvalue() == "step 1\n"
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
