"""Errors as one line, and bars only where somebody looks."""

import io
import logging
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
    clock = iter([0.0, 30.0, 40.0, 100.0, 110.0, 4000.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with terminal.progress("evaluating", "the first call compiles") as report:
        for done in (10, 12, 24, 25, 30):
            report(done, 100)
    # 12 in 60 s since the second call: 76 are left
    assert capsys.readouterr().err.splitlines() == [
        "evaluating: 24/100, about 6 min left",
        "evaluating: 30/100, about 4.3 h left",
    ]


def test_a_long_first_call_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    with terminal.progress("generating", "the first call of a size compiles"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "generating: the first call of a size compiles\n"


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
