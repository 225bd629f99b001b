"""A run of steps keeps what is done, goes on after failures and kills, and gives up on what kills
it again.
"""

import contextlib
import json

import pytest

from jax_lm.reports.steps import DONE, FAILED, LEFT_OUT, LeftOut, Step, Steps

SETTINGS = {"model": "m"}


class Work:
    """Steps that count their calls; `fail` makes one of them raise."""

    def __init__(self):
        self.calls, self.fail = [], {}

    def step(self, name):
        def action(done):
            self.calls.append(name)
            if name in self.fail:
                raise self.fail[name]
            return {"seen": sorted(done)}

        return Step(name, name.title(), action)

    def run(self, folder, *names):
        with Steps(folder, SETTINGS) as steps:
            steps.run([self.step(name) for name in names])
        return steps.outcomes


@pytest.fixture
def work():
    return Work()


def test_a_failure_stops_nothing_and_is_tried_again(work, tmp_path):
    work.fail = {
        "b": RuntimeError("no\nmemory"),
        "c": LeftOut("not here"),
        "d": ValueError("d=1: too small"),
    }
    outcomes = work.run(tmp_path, "a", "b", "c", "d", "e")
    assert [outcomes[name].state for name in "abcde"] == [DONE, FAILED, LEFT_OUT, FAILED, DONE]
    assert outcomes["b"].reason.startswith("RuntimeError: no memory (test_steps.py, line ")
    assert [outcomes["c"].reason, outcomes["d"].reason] == ["not here", "d=1: too small"]
    assert outcomes["e"].row == {"seen": ["a"]}
    work.fail, work.calls = {}, []
    outcomes = work.run(tmp_path, "a", "b", "c", "d", "e")
    assert work.calls == ["b", "c", "d"]
    assert {outcome.state for outcome in outcomes.values()} == {DONE}


def test_a_step_that_ends_the_process_twice_is_given_up(work, tmp_path):
    """What leaves a step without its end: a kill, which SystemExit stands for."""
    work.fail = {"b": SystemExit(9)}
    for _ in range(2):
        with pytest.raises(SystemExit):
            work.run(tmp_path, "a", "b", "c")
    outcomes = work.run(tmp_path, "a", "b", "c")
    assert work.calls == ["a", "b", "b", "c"]
    assert (outcomes["b"].state, outcomes["c"].state) == (FAILED, DONE)
    assert "2 times" in outcomes["b"].reason


def test_being_interrupted_is_no_failure(work, tmp_path):
    work.fail = {"a": KeyboardInterrupt()}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            work.run(tmp_path, "a")
    work.fail = {}
    assert work.run(tmp_path, "a")["a"].state == DONE


def test_a_failed_step_may_end_the_process_later(work, tmp_path):
    """Only ends without an outcome in a row count."""
    for failure in (SystemExit(9), RuntimeError("no"), SystemExit(9)):
        work.fail = {"a": failure}
        with contextlib.suppress(SystemExit):
            work.run(tmp_path, "a")
    work.fail = {}
    assert work.run(tmp_path, "a")["a"].state == DONE


def test_a_line_that_was_being_written_is_cut_off(work, tmp_path):
    work.run(tmp_path, "a", "b")
    path = tmp_path / Steps.name
    path.write_bytes(path.read_bytes()[:-5])
    work.calls = []
    work.run(tmp_path, "a", "b")
    assert work.calls == ["b"]
    assert [json.loads(line)["state"] for line in path.read_text().splitlines()][-2:] == [
        "begun",
        "done",
    ]


def test_other_settings_and_damage_are_refused(work, tmp_path):
    work.run(tmp_path, "a")
    with pytest.raises(ValueError, match="begun with model='m', not 'n'"):
        Steps(tmp_path, {"model": "n"})
    with (tmp_path / Steps.name).open("a") as file:
        file.write('{"state": "done"}\n')
    with pytest.raises(ValueError, match="line 3 is not a step"):
        Steps(tmp_path, SETTINGS)


def test_progress_names_the_step(work, tmp_path):
    told = []
    with Steps(tmp_path, SETTINGS) as steps:
        steps.run([work.step("a"), work.step("b")], on_step=lambda *told_now: told.append(told_now))
    assert told == [(0, 2, "A"), (1, 2, "B"), (2, 2, "")]
