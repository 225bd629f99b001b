"""Attempts: batches, lengths of gaps, problems that do not fit."""

from dataclasses import replace

import pytest

from jax_lm.evaluation.attempts import TOO_LONG, Attempt, Evaluator, batch_seed, execute_attempts
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import CompletionPrompting
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.sandbox import Local

ANYWHERE = Local(allow_unsafe=True)
TURBO = GenerationOptions(max_new_tokens=16, temperature=0.0, decoding=Decoding(preset="turbo"))


def gap(name, prefix="def double(x):\n    return ", suffix="\n", canonical="x * 2"):
    return Problem(name, "gaps", prefix, suffix, ("assert double(3) == 6",), canonical)


def evaluator_of(engine, options, **settings):
    return Evaluator(engine=engine, executor=ANYWHERE, options=options, **settings)


def test_every_problem_is_attempted_once(engine):
    problems = [gap("a"), gap("b", prefix="# longer\n" * 8 + "def double(x):\n    return "), gap("c")]
    progress = []
    evaluator = evaluator_of(engine, TURBO, batch_size=2, prompting=CompletionPrompting(8))
    attempts = list(evaluator.attempts(problems, on_progress=lambda *now: progress.append(now)))
    assert sorted(attempt.problem.name for attempt in attempts) == ["a", "b", "c"]
    assert progress == [(2, 3), (3, 3)]
    for attempt in attempts:
        assert attempt.program == attempt.problem.prefix + attempt.completion + "\n"
        assert attempt.prompt == attempt.problem.prefix
        assert attempt.forwards >= 1
        assert attempt.outcome in ("passed", "failed")
    same = [attempt.completion for attempt in attempts if attempt.problem.name in "ac"]
    assert same[0] == same[1]


def test_samples_differ_and_a_run_goes_on_as_if_it_had_not_stopped(engine):
    problems = [gap("a"), gap("b"), gap("c")] * 2
    drawn = GenerationOptions(
        max_new_tokens=16, temperature=1.0, top_k=None, top_p=None, decoding=Decoding(preset="turbo")
    )

    def attempts(done=frozenset()):
        evaluator = evaluator_of(engine, drawn, batch_size=2, prompting=CompletionPrompting(8))
        return {attempt.key: attempt.completion for attempt in evaluator.attempts(problems, done=done)}

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
    (attempt,) = evaluator_of(engine, TURBO, batch_size=1).attempts([gap("long", prefix="x = 1\n" * 600)])
    assert attempt.outcome == TOO_LONG
    assert not attempt.passed
    assert "the context holds 512" in attempt.detail


def test_bad_batch_size_is_named(engine):
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluator_of(engine, TURBO, batch_size=0)
