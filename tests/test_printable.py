"""What a program says reaches a terminal as text: it is not acted on, and nothing fails because of
it.
"""

import json
import logging
import threading
import urllib.error
import urllib.request
from collections import OrderedDict

import numpy as np
import pytest

from jax_lm.cli import main as cli
from jax_lm.cli.commands.evaluation import check_fillings
from jax_lm.evaluation.attempts import Attempt
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.report import attempt_section
from jax_lm.training.prompt_set import Prompt
from jax_lm.training.rollout_source import RolloutSource
from jax_lm.training.rollouts import Completions, Rollout
from untrusted import Local, Program, run
from untrusted.http import TOKEN_VARIABLE, Worker
from untrusted.printable import printable, printable_json
from untrusted.results import TestResult, read_results, results_text
from untrusted.runner import answer_request, why_not
from untrusted.tiers import SAFE

NASTY = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\ud800\u202e\x00é"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\ud800\u202e\x00é"
TIER = next((tier for tier in SAFE if not why_not(tier)), "unsafe")
PROGRAM = f"""
import sys
nasty = {NASTY!a}
class Nasty(Exception): pass
Nasty.__name__ = "\\x1b[2J\\x9b"
print(nasty.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), flush=True)
sys.stderr.buffer.write(nasty.encode("utf-8", "surrogatepass"))
def f(x):
    if x == 1: raise Nasty(nasty)
    if x == 2: sys.exit(nasty)
    return nasty
"""
TESTS = [
    "assert f(1) == 1",
    "assert f(2) == 1",
    "assert f(3) == 1",
    "x = f(1)\nassert x",
    "x = f(3)\nassert x == 1, x",
]


def fit(text):
    """Whether a terminal shows a text and does nothing else."""
    text.encode()
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_text_and_data_are_made_printable():
    assert printable(NASTY) == SHOWN
    assert printable("a\tb\nc") == "a\tb\nc"
    assert fit(printable_json({"text": NASTY}))
    assert "é" in printable_json(NASTY)
    for value in (NASTY, "\U000e0001", ["\n", {"\x85": 1.5}]):
        assert json.loads(printable_json(value)) == value


def test_details_are_printable_wherever_they_come_from():
    result = run(PROGRAM, TESTS, executor=TIER, allow_unsafe=True)
    assert [test.outcome for test in result.tests] == ["failed"] * 5
    assert all(fit(test.detail) and "owned" in test.detail for test in result.tests), result.tests
    assert TestResult("failed", NASTY).detail == SHOWN
    told = json.loads(results_text([result]))
    told["results"][0]["tests"] = [{"outcome": "failed", "detail": NASTY}]
    (remote,) = read_results(json.dumps(told), [Program(PROGRAM)])
    assert remote.detail == SHOWN
    # What it wrote is data, and stays as it is; as JSON it is ASCII.
    assert "\x1b]0;owned" in result.stdout
    assert results_text([result]).isascii()


def test_the_command_line_shows_a_program_that_writes_for_terminals(capsys, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "tests.py").write_text("\n".join(TESTS[:3]), encoding="utf-8")
    options = ["--executor", TIER, "--allow-unsafe-exec", "--tests", str(tmp_path / "tests.py")]
    assert cli.main(["sandbox", "run", str(tmp_path / "program.py"), *options]) == 1
    captured = capsys.readouterr()
    assert fit(captured.out)
    assert fit(captured.err)
    assert captured.out.count(r"\x1b]0;owned\x07") >= 5


def test_an_error_line_is_printable(capsys):
    # A name that is no UTF-8 has such surrogates.
    assert cli.main(["sandbox", "run", "/absent/\x1b]0;owned\udc9b"]) == 2
    err = capsys.readouterr().err
    assert fit(err)
    assert r"/absent/\x1b]0;owned\udc9b" in err


def test_an_answered_request_is_ascii():
    request = json.dumps(
        {"executor": TIER, "allow_unsafe": True, "jobs": [{"code": PROGRAM, "tests": TESTS}]}
    )
    assert answer_request(request).isascii()


def test_a_worker_logs_no_escape_sequence(monkeypatch, caplog):
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-of-the-tests-0123456789")
    caplog.set_level(logging.INFO, "untrusted.http")
    with Worker(("127.0.0.1", 0), Local(workers=1, allow_unsafe=True)) as worker:
        thread = threading.Thread(target=worker.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        # `urlopen` would refuse to send it.
        request = urllib.request.Request(f"http://127.0.0.1:{worker.server_address[1]}/")
        request.selector = "/\x1b]0;owned\x07"
        monkeypatch.setattr("http.client.HTTPConnection._validate_path", lambda *_: None)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=20)
        worker.shutdown()
        thread.join()
    said = [record.getMessage() for record in caplog.records]
    assert any("owned" in message for message in said)
    assert all(map(fit, said))


def problem():
    return Problem(name="p", prefix="", suffix="", tests=(TESTS[0],), canonical=PROGRAM, group="g")


def test_an_evaluation_prints_what_programs_said(capsys):
    assert (
        check_fillings(
            cli.parse(["eval", "mbpp", "--canonical"]), [problem()], Local(TIER, allow_unsafe=True)
        )
        == 1
    )
    out = capsys.readouterr().out
    assert fit(out)
    assert r"\x1b]0;owned\x07" in out


def test_a_report_shows_what_programs_said():
    result = Local(TIER, allow_unsafe=True).run_many([Program(PROGRAM, (TESTS[0],))])[0]
    attempt = Attempt(problem(), PROGRAM, outcome=result.outcome, detail=result.detail)
    assert fit(attempt_section(attempt.record()).title)


def test_the_log_of_completions_can_be_shown(tmp_path):
    batches = RolloutSource.__new__(RolloutSource)
    batches.out = tmp_path
    empty = np.zeros((1, 2), int)
    completions = Completions(
        empty, empty > 0, empty > 0, empty, empty, empty * 1.0, np.array([NASTY]), np.zeros(1, bool)
    )
    batches.log(
        3, Rollout(np.array([Prompt(NASTY, (), {})]), completions, np.ones(1), OrderedDict())
    )
    text = (tmp_path / "completions" / "000003.jsonl").read_text(encoding="utf-8")
    assert fit(text)
    assert json.loads(text)["completion"] == json.loads(text)["prompt"] == NASTY
