"""A run that was killed goes on, and only with the same settings."""

import json

import pytest

from jax_lm.evaluation.journal import ATTEMPTS, Journal
from jax_lm.evaluation.pass_rate import Attempt
from jax_lm.evaluation.problems import Problem
from jax_lm.reports.run_folder import SETTINGS, weights_digest

SETUP = {"suite": "humaneval", "n": 2, "generation": {"seed": 0}, "k": (1, 2)}


def attempt(name, sample=0, outcome="passed"):
    problem = Problem(name, "gaps", "x = ", "\n", ("assert x",), "1")
    return Attempt(problem, "x = 1\n", outcome, sample=sample, prompt="x = ", completion="1\u2028", forwards=3)


def test_a_second_start_knows_what_is_done(tmp_path):
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == set()
        journal.add(attempt("a"))
        journal.add(attempt("a", 1, "failed"))
        journal.add(attempt("b", 0, "sandbox_error"))
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == {("a", 0), ("a", 1)}
        assert journal.records["a", 0]["completion"] == "1\u2028"
        journal.add(attempt("b"))
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == {("a", 0), ("a", 1), ("b", 0)}
        assert journal.records["b", 0]["outcome"] == "passed"


@pytest.mark.parametrize("lost", [1, 20])
def test_a_line_that_was_being_written_is_cut_off(tmp_path, lost):
    with Journal(tmp_path, SETUP) as journal:
        journal.add(attempt("a"))
        journal.add(attempt("b"))
    path = tmp_path / ATTEMPTS
    path.write_bytes(path.read_bytes()[:-lost])
    with Journal(tmp_path, SETUP) as journal:
        assert journal.done == {("a", 0)}
        journal.add(attempt("b", 0, "failed"))
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"n": 3}, "n=2, not 3"), ({"generation": {"seed": 1}}, "seed=0, not 1"), ({"new": 1}, "new=None, not 1")],
)
def test_other_settings_are_refused_by_name(tmp_path, change, named):
    Journal(tmp_path, SETUP).close()
    with pytest.raises(ValueError, match=f"begun with {named}"):
        Journal(tmp_path, SETUP | change)


def test_a_folder_in_use_or_damaged_is_refused(tmp_path):
    with Journal(tmp_path, SETUP) as journal:
        with pytest.raises(ValueError, match="another run is writing there"):
            Journal(tmp_path, SETUP)
        journal.add(attempt("a"))
    (tmp_path / ATTEMPTS).write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is no attempt"):
        Journal(tmp_path, SETUP)
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(ValueError, match=f"without {SETTINGS}"):
        Journal(tmp_path, SETUP)


def test_without_a_folder_it_only_remembers():
    with Journal(None, SETUP) as journal:
        journal.add(attempt("a"))
        assert journal.done == {("a", 0)}


def test_other_weights_have_another_digest(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    before = weights_digest(tmp_path)
    content = bytearray(3 * 2**20)
    content[3 * 2**19] = 1
    weights.write_bytes(content)
    assert weights_digest(tmp_path) != before
