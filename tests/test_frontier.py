"""The frontier of decoding: what is counted, which settings no other beats, and a run end to end."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from experiments.frontier import (
    Arguments,
    frontier_point,
    frontier_report,
    frontier_settings,
    main,
    undominated,
)
from jax_lm.diffusion.sampler import run
from jax_lm.evaluation.attempts import SANDBOX_ERROR, TOO_LONG, Evaluator
from jax_lm.inference import DiffuCoderInference

SIZE = {"limit": 2, "max_new_tokens": 48}
ONLY = ("exact", "exact, draft 4", "threshold 0.9", "entropy 0.1")


def record(outcome="passed", tokens=10, forwards=5, seconds=0.5):
    return {"outcome": outcome, "tokens": tokens, "forwards": forwards, "seconds": seconds}


def test_a_point_counts_what_the_sandbox_could_run():
    records = [record(), record("failed", 30, 11), record(SANDBOX_ERROR, 99, 99)]
    point = frontier_point("fast, draft 2", records, timed=True)
    expected = {
        "problems": 2,
        "passed": 1,
        "tokens": 40,
        "forwards": 16,
        "canvases": 3,
        "seconds": 1.0,
    }
    assert point | expected == point
    assert point["low"] < 0.5 < point["high"]
    [section, _] = frontier_report([point], {}).sections
    assert section.columns[-1] == "tokens/s"
    assert section.rows == [["fast, draft 2", "50.0%", "9.5% to 90.5%", "2.50", "8.0", "3", "40"]]
    with pytest.raises(ValueError, match="exact: the sandbox could run no program"):
        frontier_point("exact", [record(SANDBOX_ERROR)], timed=False)


def test_a_task_that_is_too_long_is_missed_and_has_no_answer():
    found = frontier_point("exact", [record(), record(TOO_LONG, 0, 0)], timed=False)
    assert (found["problems"], found["answers"], found["forwards_per_answer"]) == (2, 1, 5.0)


def point(name, rate, tokens_per_forward, canvases=1):
    return {
        "setting": name,
        "pass_rate": rate,
        "tokens_per_forward": tokens_per_forward,
        "canvases": canvases,
    }


def test_settings_that_no_other_beats():
    points = [
        point("exact", 0.7, 1.0),
        point("beaten", 0.6, 2.0),
        point("turbo", 0.65, 3.0),
        point("same as turbo", 0.65, 2.5),
        point("hasty", 0.2, 9.0),
        point("guesses", 0.7, 4.0, canvases=5),
    ]
    assert [each["setting"] for each in undominated(points)] == ["exact", "turbo", "hasty"]


def test_every_setting_is_one_that_decoding_takes(tmp_path):
    options = Arguments(out=tmp_path, max_new_tokens=16).options()
    assert list(options) == list(frontier_settings())
    assert {each.max_new_tokens for each in options.values()} == {16}
    assert len(set(options.values())) == len(options) >= 8
    assert {each.decoding.settings.commit for each in options.values()} == {
        "steps", "threshold", "factor", "dynamic", "entropy",
    }  # fmt: skip
    with pytest.raises(ValueError, match="only='best': must be one of 'exact'"):
        Arguments(out=tmp_path, only=("best",))


def test_a_run_measures_and_resumes(tmp_path, capsys, monkeypatch):
    arguments = Arguments(out=tmp_path, only=ONLY, **SIZE)
    main(arguments)
    assert "Settings that no other one beats" in capsys.readouterr().out
    points = {
        each["setting"]: each
        for each in json.loads((tmp_path / "frontier.json").read_text())["points"]
    }
    assert tuple(points) == ONLY
    exact, drafted = points["exact"], points["exact, draft 4"]
    # Guesses give the same answers with fewer evaluations.
    assert [exact[name] for name in ("passed", "tokens")] == [
        drafted[name] for name in ("passed", "tokens")
    ]
    assert drafted["forwards"] < exact["forwards"]
    assert points["threshold 0.9"]["forwards"] < exact["forwards"]
    assert exact["tokens"] > 0
    assert "seconds" not in exact
    table = (tmp_path / "frontier.md").read_text()
    assert "| exact, draft 4 |" in table
    assert "tokens/s" not in table
    picture = ElementTree.parse(tmp_path / "frontier.svg").getroot()
    assert "threshold, window" in "".join(picture.itertext())

    def decode_again(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(Evaluator, "decode_batch", decode_again)
    before = json.loads((tmp_path / "frontier.json").read_text())["points"]
    main(arguments)
    assert json.loads((tmp_path / "frontier.json").read_text())["points"] == before
    with pytest.raises(ValueError, match=r"was begun with .*seed=0, not 1"):
        main(replace(arguments, seed=1))


def test_a_timed_frontier_has_tokens_per_second(tmp_path, monkeypatch):
    decode, made = DiffuCoderInference.decode, []

    def recorded(*arguments, **options):
        made.append(decode(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(DiffuCoderInference, "decode", recorded)
    run.parallel.clear_cache()
    main(Arguments(out=tmp_path, timed=True, only=("threshold 0.9",), **SIZE))
    (found,) = json.loads((tmp_path / "frontier.json").read_text())["points"]
    assert any(batch.compile_seconds for batch in made)
    # Of decoding alone: a batch for which something was compiled is decoded once more.
    warm = [batch.seconds for batch in made if not batch.compile_seconds]
    assert found["seconds"] == pytest.approx(sum(warm), abs=1e-3 * len(warm))
    assert len(warm) == found["problems"]
    assert "tokens/s" in (tmp_path / "frontier.md").read_text()
