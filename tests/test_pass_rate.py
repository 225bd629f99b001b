"""pass@1: batches, lengths of gaps, problems that do not fit."""

import pytest

from jax_lm.evaluation.pass_rate import TOO_LONG, candidates, evaluate, standard_error
from jax_lm.evaluation.problems import Problem, held_out_problems
from jax_lm.options import GenerationOptions
from jax_lm.sandbox import Local

ANYWHERE = Local(allow_unsafe=True)
TURBO = GenerationOptions(max_new_tokens=16, temperature=0.0, preset="turbo")


def gap(name, prefix="def double(x):\n    return ", suffix="\n", canonical="x * 2"):
    return Problem(name, "gaps", prefix, suffix, ("assert double(3) == 6",), canonical)


def test_every_problem_is_attempted_once(engine):
    problems = [gap("a"), gap("b", prefix="# longer\n" * 8 + "def double(x):\n    return "), gap("c")]
    progress = []
    attempts = list(
        evaluate(
            engine,
            problems,
            TURBO,
            batch_size=2,
            executor=ANYWHERE,
            middle_length=8,
            on_progress=lambda *now: progress.append(now),
        )
    )
    assert sorted(attempt.problem.name for attempt in attempts) == ["a", "b", "c"]
    assert progress == [(2, 3), (3, 3)]
    for attempt in attempts:
        program = attempt.problem.program(attempt.middle)
        assert program.startswith(attempt.problem.prefix)
        assert program.endswith("\n")
        assert attempt.outcome in ("passed", "failed")
    same = [attempt.middle for attempt in attempts if attempt.problem.name in "ac"]
    assert same[0] == same[1]


def test_a_problem_beyond_the_context_is_not_passed(engine):
    (attempt,) = evaluate(engine, [gap("long", prefix="x = 1\n" * 600)], TURBO, batch_size=1, executor=ANYWHERE)
    assert attempt.outcome == TOO_LONG
    assert not attempt.passed
    assert "the context holds 512" in attempt.detail


def test_lengths_of_a_gap(engine):
    def lengths(middle_length):
        return [template.parts[1] for template in candidates(engine, gap("a"), 16, middle_length)]

    assert lengths(None) == [16]
    assert lengths(5) == [5]
    assert lengths("auto") == [4, 8, 12, 16]
    assert lengths("oracle") == [len(engine.tokenizer.encode("x * 2"))]
    with pytest.raises(ValueError, match="middle_length='long'"):
        lengths("long")


def test_bad_batch_size_is_named(engine):
    with pytest.raises(ValueError, match="batch_size=0"):
        next(evaluate(engine, held_out_problems(1), TURBO, batch_size=0, executor=ANYWHERE))


def test_standard_error():
    assert standard_error(50, 100) == pytest.approx(0.05)
    assert standard_error(100, 100) == 0.0
