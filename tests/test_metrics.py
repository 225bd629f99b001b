"""Where the numbers of a run go."""

import json
import logging

import pytest

from jax_lm.training.metrics import lines_writer, open_writers


def write(out, steps, *, resumed_at=0, track=()):
    with open_writers(
        out, track, steps=9, resumed_at=resumed_at, config={"seed": 1}
    ) as write_entry:
        for step in steps:
            write_entry(step, {"loss": 1 / step})


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_console_and_json_lines_are_always_written(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="jax_lm.training.metrics"):
        write(tmp_path, [4])
    assert caplog.messages == [f"all metrics: {tmp_path / 'metrics.jsonl'}", "step 4/9  loss 0.25"]
    assert lines(tmp_path) == [{"step": 4, "loss": 0.25}]


def test_the_console_shows_a_few_numbers_and_the_file_all(tmp_path, caplog):
    metrics = {"loss": 0.5, "kl": 0.1, "score_seconds": 3.0, "reward": 0.75, "eval_reward": 0.5}
    with (
        caplog.at_level(logging.INFO, logger="jax_lm.training.metrics"),
        open_writers(tmp_path, (), steps=9, resumed_at=0, config={}) as write_entry,
    ):
        write_entry(4, metrics)
    assert caplog.messages[-1] == "step 4/9  loss 0.5  reward 0.75  eval_reward 0.5"
    assert lines(tmp_path) == [{"step": 4} | metrics]


def test_resumed_run_drops_what_came_after_its_checkpoint(tmp_path):
    write(tmp_path, [1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')  # a line that a kill cut short
    write(tmp_path, [3, 4], resumed_at=2)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    write(tmp_path, [1])
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_entries_come_at_once(tmp_path):
    with open_writers(tmp_path, (), steps=9, resumed_at=0, config={}) as write_entry:
        write_entry(1, {"loss": 2.0})
        assert lines(tmp_path) == [{"step": 1, "loss": 2.0}]


def test_what_is_not_finite_is_null(tmp_path):
    with open_writers(tmp_path, (), steps=9, resumed_at=0, config={}) as write_entry:
        write_entry(1, {"loss": 2.0, "reward": float("nan"), "max_log_ratio": float("inf")})
    assert lines(tmp_path) == [{"step": 1, "loss": 2.0, "reward": None, "max_log_ratio": None}]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    write(tmp_path, [1, 2], track=("tensorboard",))
    [events] = (tmp_path / "tensorboard").iterdir()
    assert events.read_bytes().count(b"loss") == 2


def test_wandb_continues_its_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write(tmp_path, [1, 2], track=("wandb",))
    first = json.loads((tmp_path / "wandb.json").read_text())
    write(tmp_path, [3], track=("wandb",), resumed_at=2)
    assert json.loads((tmp_path / "wandb.json").read_text()) == first
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{first['id']}"))


def test_a_damaged_line_ends_a_resumed_run_and_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nbroken\n')
    with (
        pytest.raises(ValueError, match=r"metrics\.jsonl: a line is not JSON"),
        lines_writer(path, 1),
    ):
        pass
    assert path.read_text() == '{"step": 1}\nbroken\n'
