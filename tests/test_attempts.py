"""Attempts: batches, lengths of gaps, problems that do not fit; a killed run goes on with the same
settings.
"""

import json
from dataclasses import replace

import pytest

from jax_lm.evaluation.attempts import (
    TOO_LONG,
    Attempt,
    Evaluator,
    Journal,
    batch_seed,
    execute_attempts,
    journal_settings,
)
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import CompletionPrompting
from jax_lm.options import EXACT, Decoding, GenerationOptions
from jax_lm.reports.run_folder import SETTINGS
from untrusted import Case, Local

ANYWHERE = Local(allow_unsafe=True)
TURBO = GenerationOptions(max_new_tokens=16, temperature=0.0, decoding=Decoding(preset="turbo"))


def gap(name, prefix="def double(x):\n    return ", suffix="\n", canonical="x * 2"):
    return Problem(name, "gaps", prefix, suffix, ("assert double(3) == 6",), canonical)


def evaluator_of(engine, options, **settings):
    return Evaluator(engine=engine, executor=ANYWHERE, options=options, **settings)


def test_the_tests_of_a_program_have_the_sum_of_their_limits():
    cases = tuple(Case(str(number), str(number)) for number in range(20))
    limits = [
        Attempt(Problem("p", "g", "", "", tests, "", seconds=6.0), "").job.limits.total_seconds
        for tests in (("assert True",), cases, cases * 50)
    ]
    assert limits == [60.0, 120.0, 3600.0]


def test_a_few_problems_are_no_larger_batch(engine, monkeypatch):
    sizes, decode = [], engine.decode
    monkeypatch.setattr(
        engine, "decode", lambda rows, *a, **k: sizes.append(len(rows)) or decode(rows, *a, **k)
    )
    evaluator = evaluator_of(engine, TURBO, batch_size=25, prompting=CompletionPrompting(8))
    assert len(list(evaluator.attempts([gap("a"), gap("b")]))) == 2
    assert sizes == [2]


def test_every_problem_is_attempted_once(engine):
    problems = [
        gap("a"),
        gap("b", prefix="# longer\n" * 8 + "def double(x):\n    return "),
        gap("c"),
    ]
    progress = []
    evaluator = evaluator_of(engine, TURBO, batch_size=2, prompting=CompletionPrompting(8))
    attempts = list(evaluator.attempts(problems, on_progress=lambda *now: progress.append(now)))
    assert sorted(attempt.problem.name for attempt in attempts) == ["a", "b", "c"]
    # a part of a batch counts as so many of its attempts
    assert sorted(progress, key=lambda now: now[0]) == progress
    assert [now for now in progress if len(now) == 2] == [(2, 3), (3, 3)]
    assert {now[:2] for now in progress} >= {(2, 3), (3, 3)}
    for attempt in attempts:
        assert attempt.program == attempt.problem.prefix + attempt.completion + "\n"
        assert attempt.prompt == attempt.problem.prefix
        assert attempt.forwards >= 1
        assert attempt.outcome in ("passed", "failed")
    same = [attempt.completion for attempt in attempts if attempt.problem.name in "ac"]
    assert same[0] == same[1]


def test_samples_differ_and_a_run_goes_on_as_if_it_had_not_stopped(engine):
    # Something that the model cannot know.
    problems = [gap(name, prefix=f"def {name}(x, y):\n    ") for name in "abc"] * 2
    drawn = GenerationOptions(
        max_new_tokens=16,
        temperature=1.0,
        top_k=None,
        top_p=None,
        decoding=Decoding(preset="turbo"),
    )

    def attempts(done=frozenset()):
        evaluator = evaluator_of(engine, drawn, batch_size=2, prompting=CompletionPrompting(8))
        return {
            attempt.key: attempt.completion for attempt in evaluator.attempts(problems, done=done)
        }

    whole = attempts()
    assert set(whole) == {(name, sample) for name in "abc" for sample in (0, 1)}
    assert len(set(whole.values())) > 3
    done = {("a", 0), ("b", 0), ("c", 0)}
    assert attempts(done) == {key: text for key, text in whole.items() if key not in done}


def test_seeds_of_batches_differ():
    seeds = {batch_seed(seed, number) for seed in range(20) for number in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_time_of_a_problem_is_its_limit():
    slow = replace(gap("slow"), tests=("import time\ntime.sleep(3)",), seconds=0.3)
    (attempt,) = execute_attempts(ANYWHERE, [Attempt(slow, slow.program("x"))])
    assert attempt.outcome == "timeout"


def test_a_problem_beyond_the_context_is_not_passed(engine):
    (attempt,) = evaluator_of(engine, TURBO, batch_size=1).attempts(
        [gap("long", prefix="x = 1\n" * 600)]
    )
    assert attempt.outcome == TOO_LONG
    assert not attempt.passed
    assert "the context holds 512" in attempt.detail


SETUP = {"suite": "humaneval", "n": 2, "generation": {"seed": 0}, "k": (1, 2)}


def attempt(name, sample=0, outcome="passed"):
    problem = Problem(name, "gaps", "x = ", "\n", ("assert x",), "1")
    return Attempt(
        problem, "x = 1\n", outcome, sample=sample, prompt="x = ", completion="1\u2028", forwards=3
    )


def test_a_second_start_knows_what_is_done(tmp_path):
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == set()
        journal.append(attempt("a").record())
        journal.append(attempt("a", 1, "failed").record())
        journal.append(attempt("b", 0, "sandbox_error").record())
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == {("a", 0), ("a", 1)}
        assert journal.records["a", 0]["completion"] == "1\u2028"
        journal.append(attempt("b").record())
    with Journal(tmp_path / "run", SETUP) as journal:
        assert journal.done == {("a", 0), ("a", 1), ("b", 0)}
        assert journal.records["b", 0]["outcome"] == "passed"


@pytest.mark.parametrize("lost", [1, 20])
def test_a_line_that_was_being_written_is_cut_off(tmp_path, lost):
    with Journal(tmp_path, SETUP) as journal:
        journal.append(attempt("a").record())
        journal.append(attempt("b").record())
    path = tmp_path / Journal.name
    path.write_bytes(path.read_bytes()[:-lost])
    with Journal(tmp_path, SETUP) as journal:
        assert journal.done == {("a", 0)}
        journal.append(attempt("b", 0, "failed").record())
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n": 3}, "n=2, not 3"),
        ({"generation": {"seed": 1}}, "generation.seed=0, not 1"),
        ({"new": 1}, "new=None, not 1"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, named):
    Journal(tmp_path, SETUP).close()
    with pytest.raises(ValueError, match=f"begun with {named}"):
        Journal(tmp_path, SETUP | change)


def test_a_folder_in_use_or_damaged_is_refused(tmp_path):
    with Journal(tmp_path, SETUP) as journal:
        with pytest.raises(ValueError, match="another run is writing there"):
            Journal(tmp_path, SETUP)
        journal.append(attempt("a").record())
    (tmp_path / Journal.name).write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is not an attempt"):
        Journal(tmp_path, SETUP)
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(ValueError, match=f"without {SETTINGS}"):
        Journal(tmp_path, SETUP)


def test_without_a_folder_it_only_remembers():
    with Journal(None, SETUP) as journal:
        journal.append(attempt("a").record())
        assert journal.done == {("a", 0)}


def test_seed_and_options_are_settings_of_a_run(engine, tmp_path):
    def settings(**changes):
        evaluator = evaluator_of(engine, **{"options": TURBO, "batch_size": 2, "seed": 3} | changes)
        return journal_settings(evaluator, [attempt("a").problem], data=None, model=None, n=1)

    for _ in range(2):
        Journal(tmp_path, settings()).close()
    with pytest.raises(ValueError, match="begun with seed=3, not 4"):
        Journal(tmp_path, settings(seed=4))
    with pytest.raises(
        ValueError, match=r"begun with generation\.decoding\.preset='turbo', not 'exact'"
    ):
        Journal(tmp_path, settings(options=replace(TURBO, decoding=EXACT)))


def test_a_folder_of_another_kind_of_run_stays_as_it_is(tmp_path):
    (tmp_path / SETTINGS).write_text('{"adam_beta1": 0.9}')
    with pytest.raises(ValueError, match="holds another kind of run"):
        Journal(tmp_path, SETUP)
    assert [path.name for path in tmp_path.iterdir()] == [SETTINGS]
