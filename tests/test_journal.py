"""An evaluation that was killed goes on, and only with the same settings."""

import json
from dataclasses import replace

import pytest

from jax_lm.evaluation.attempts import Attempt, Evaluator
from jax_lm.evaluation.journal import Journal, journal_settings
from jax_lm.evaluation.problems import Problem
from jax_lm.options import EXACT, Decoding, GenerationOptions
from jax_lm.reports.run_folder import SETTINGS
from jax_lm.sandbox import Local

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
    path = tmp_path / Journal.name
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
    (tmp_path / Journal.name).write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is no attempt"):
        Journal(tmp_path, SETUP)
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(ValueError, match=f"without {SETTINGS}"):
        Journal(tmp_path, SETUP)


def test_without_a_folder_it_only_remembers():
    with Journal(None, SETUP) as journal:
        journal.add(attempt("a"))
        assert journal.done == {("a", 0)}


OLD_GENERATION = {
    "max_new_tokens": 16, "temperature": 0.0, "top_p": 0.95, "top_k": 50, "num_steps": None, "tokens_per_step": 1,
    "alg": "entropy", "alg_temp": 0.0, "seed": 3, "early_stop": True, "preset": "turbo", "commit": None,
    "threshold": None, "factor": None, "decay": None, "block_length": None, "cache": None, "refresh_every": None,
    "refresh_steps": None, "freeze_prompt": None, "first_token": None,
}  # fmt: skip


def test_a_run_of_version_0_1_goes_on(engine, tmp_path):
    """Its seed and its preset stood in a flat generation."""
    problems = [attempt("a").problem]
    turbo = GenerationOptions(max_new_tokens=16, temperature=0.0, decoding=Decoding(preset="turbo"))

    def settings(**changes):
        evaluator = Evaluator(
            **{"engine": engine, "executor": Local(), "options": turbo, "batch_size": 2, "seed": 3} | changes
        )
        return journal_settings(evaluator, problems, suite="builtin", data=None, model=None, n=1, timeout=None)

    old = {name: value for name, value in settings().items() if name not in ("seed", "generation")}
    (tmp_path / SETTINGS).write_text(json.dumps(old | {"generation": OLD_GENERATION}))
    (tmp_path / Journal.name).write_text(json.dumps({"name": "a", "sample": 0, "outcome": "passed"}) + "\n")
    with Journal(tmp_path, settings()) as journal:
        assert journal.done == {("a", 0)}
    with pytest.raises(ValueError, match="begun with seed=3, not 4"):
        Journal(tmp_path, settings(seed=4))
    with pytest.raises(ValueError, match="begun with preset='turbo', not 'exact'"):
        Journal(tmp_path, settings(options=replace(turbo, decoding=EXACT)))
