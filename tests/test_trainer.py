"""The training loop on a regression of a few numbers: gradients, schedule, resume to the bit,
refusals.
"""

import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.host import interruption
from jax_lm.training import trainer as trainer_module
from jax_lm.training.checkpoints import RunCheckpoints
from jax_lm.training.config import OptimizerConfig, TrainerConfig
from jax_lm.training.metrics import TRACKERS
from jax_lm.training.trainer import State, Trainer
from jax_lm.training.update import LossTerms, Mean, gradient, split_rows

ROWS, STEPS = 8, 12


class Rows(NamedTuple):
    """Inputs, how many of their positions count, and the number of the row."""

    tokens: np.ndarray
    counted: np.ndarray
    number: np.ndarray


def regression(params, batch, key):
    """Mean over counted positions of the squared error, with noise that follows from step and row."""
    noise = jax.vmap(lambda n: jax.random.normal(jax.random.fold_in(key, n), (6,)))(batch.number)
    x = (batch.tokens / 10 + 0.1 * noise).astype(params["out"]["weight"].dtype)
    errors = (x * params["out"]["weight"] + params["out"]["bias"] - 1).astype(jnp.float32) ** 2
    counted = jnp.arange(6) < batch.counted[:, None]
    by_row = jnp.sum(errors * counted, axis=1)
    terms = {
        "error": Mean(jnp.sum(by_row), jnp.sum(counted).astype(jnp.float32)),
        "error_by_row": Mean(jnp.sum(by_row), jnp.float32(len(by_row))),
        "max_error": jnp.max(errors * counted),
    }
    return LossTerms(jnp.sum(errors * counted), jnp.sum(counted), terms)


class Stream:
    """Batches that hang on all that came before, and a buffer as a rollout would have."""

    def __init__(self, fails_at=None):
        self.rng, self.taken, self.fails_at = np.random.default_rng(0), 0, fails_at
        self.buffer = {"scores": np.zeros(3, np.float32), "texts": ["none"], "nested": {}}
        self.after = None

    def draw(self, state):
        if self.taken == self.fails_at:
            raise KeyboardInterrupt
        if self.after:
            self.after(self.taken)
        self.taken += 1
        tokens = self.rng.integers(0, 20, (ROWS, 6)).astype(np.int32)
        # A reference that follows the weights, as reinforcement learning keeps one.
        self.buffer["scores"] = self.buffer["scores"] * 0.5 + np.nan_to_num(
            state.params["out"]["bias"][:3]
        )
        tokens[0, 0] += int(self.buffer["scores"].sum() * 100) % 3
        self.buffer["texts"] = [f"batch {self.taken}"]
        return Rows(tokens, self.rng.integers(1, 7, ROWS), np.arange(ROWS)), {
            "drawn": float(self.taken)
        }

    arrays = ()

    def save(self):
        return {"rng": self.rng.bit_generator.state, "taken": self.taken, "buffer": self.buffer}

    def load(self, saved):
        self.rng.bit_generator.state = saved["rng"]
        self.taken, self.buffer = saved["taken"], saved["buffer"]


def settings(*, learning_rate=0.05, **changes):
    options = {"max_steps": STEPS, "log_every": 3, "save_every": 5, "evaluate_every": 4, "seed": 1}
    return TrainerConfig(
        optimizer=OptimizerConfig(learning_rate=learning_rate), **(options | changes)
    )


def params():
    weights = jax.random.normal(jax.random.key(0), (2, 6)).astype(jnp.bfloat16)
    return {"out": {"weight": weights[0], "bias": weights[1]}}


def leaves(trainer):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state)]


def entries(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def without_times(lines):
    return [
        {k: v for k, v in line.items() if k not in ("tokens_per_second", "seconds")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from its first step to its last."""
    out = tmp_path_factory.mktemp("whole")
    trainer = Trainer(regression, params(), settings(), out=out)
    assert trainer.run(Stream(), evaluate=bias)
    return trainer


def bias(weights):
    return {"bias": weights["out"]["bias"].sum()}


def test_training_lowers_the_loss(whole):
    losses = [line["loss"] for line in entries(whole.out) if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]


def test_entries_tell_means_largest_rates_and_evaluations(whole):
    lines = entries(whole.out)
    assert [line["step"] for line in lines] == [3, 4, 6, 8, 9, 12, 12]
    assert [set(line) for line in lines if "eval_bias" in line] == [{"step", "eval_bias"}] * 3
    first = lines[0]
    assert first["drawn"] == 2  # the mean of 1, 2 and 3
    assert first["loss"] == pytest.approx(first["error"], rel=1e-6)
    assert first["max_error"] > first["error"]
    # Of steps 1 to 3: the schedule starts at the peak without a warm-up.
    assert first["learning_rate"] == pytest.approx(
        np.mean([cosine(step) for step in range(3)]), rel=1e-5
    )
    assert {"gradient_norm", "tokens_per_second", "seconds"} <= set(first)


def cosine(step, peak=0.05, floor=0.1):
    return peak * (floor + (1 - floor) * (1 + np.cos(np.pi * step / STEPS)) / 2)


def test_masters_and_moments_are_float32(whole):
    assert {leaf.dtype for leaf in leaves(whole) if leaf.dtype.kind == "f"} == {np.dtype("float32")}


def batch():
    return Stream().draw(State({"out": {"bias": np.zeros(6, np.float32)}}, (), 0))[0]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_gradient_of_parts_is_the_gradient_of_the_batch(parts):
    """With rows of different weights: a mean of means would be another gradient."""
    masters = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params())
    key, rows = jax.random.key(3), jax.tree.map(jnp.asarray, batch())
    (whole, whole_metrics), (split, split_metrics) = (
        jax.jit(lambda p, b, n=n: gradient(regression, p, {}, b, key, parts=n))(masters, rows)
        for n in (1, parts)
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
    for name, value in whole_metrics.items():
        np.testing.assert_allclose(value, split_metrics[name], rtol=2e-6)


def test_parts_take_rows_of_every_device():
    rows = split_rows({"x": jnp.arange(8)}, 2)
    np.testing.assert_array_equal(rows["x"], [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_parts_that_do_not_divide_the_rows_are_named():
    with pytest.raises(ValueError, match="parts=3: must divide the 8 rows"):
        split_rows({"x": jnp.arange(8)}, 3)


def test_frozen_weights_are_seen_and_stay(tmp_path):
    trainer = Trainer(
        regression, {"out": {"bias": params()["out"]["bias"]}}, settings(stop_after=2), out=tmp_path,
        frozen={"out": {"weight": params()["out"]["weight"]}},
    )  # fmt: skip
    trainer.run(Stream())
    assert set(trainer.state.params["out"]) == {"bias"}
    np.testing.assert_array_equal(trainer.frozen["out"]["weight"], params()["out"]["weight"])


def test_nothing_to_learn_from_is_a_step_of_zero():
    nothing = Rows(jnp.ones((2, 6), jnp.int32), jnp.zeros(2, jnp.int32), jnp.arange(2))
    without_metrics = lambda *arguments: regression(*arguments)._replace(metrics={})  # noqa: E731
    gradients, metrics = gradient(without_metrics, params(), {}, nothing, jax.random.key(0))
    assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradients))
    assert metrics["loss"] == 0


@pytest.mark.parametrize("killed_at", [3, 7, 10])
def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(whole, tmp_path, killed_at):
    """Weights, moments and metrics; before the first checkpoint, after it, and right at one."""
    with pytest.raises(KeyboardInterrupt):
        Trainer(regression, params(), settings(), out=tmp_path).run(
            Stream(fails_at=killed_at), evaluate=bias
        )
    resumed, stream = Trainer(regression, params(), settings(), out=tmp_path), Stream()
    assert resumed.run(stream, evaluate=bias)
    assert stream.taken == STEPS
    for ours, theirs in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert without_times(entries(tmp_path)) == without_times(entries(whole.out))


@pytest.mark.parametrize("in_background", [False, True])
def test_termination_ends_the_run_with_a_checkpoint(whole, tmp_path, in_background):
    stream = Stream()
    stream.after = lambda taken: os.kill(os.getpid(), signal.SIGTERM) if taken == 6 else None
    before = signal.getsignal(signal.SIGTERM)
    trainer = Trainer(
        regression, params(), settings(async_checkpointing=in_background), out=tmp_path
    )
    assert not trainer.run(stream)
    assert trainer.state.step == 7
    assert signal.getsignal(signal.SIGTERM) == before
    assert [line["step"] for line in entries(tmp_path)] == [3, 6]
    resumed = Trainer(regression, params(), settings(), out=tmp_path)
    assert resumed.run(Stream())
    for ours, theirs in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


class Leaving:
    """Takes the place of the end of the process."""

    def __init__(self, monkeypatch):
        self.statuses, self.ended = [], threading.Event()
        monkeypatch.setattr(trainer_module, "PATIENCE", 0.05)
        monkeypatch.setattr(trainer_module, "APART", 0.1)
        monkeypatch.setattr(trainer_module.os, "_exit", self.leave)

    def leave(self, status):
        self.statuses.append(status)
        self.ended.set()
        # the process would be gone
        threading.Event().wait()

    def signal(self):
        """Do what a signal does while the main thread cannot see it."""
        interruption.answers[signal.SIGTERM]()

    def stay(self):
        """Be stuck until the process ends."""
        assert self.ended.wait(60)
        raise KeyboardInterrupt


def resume(whole, out):
    """Resume a run, and compare it with one that was never stopped."""
    resumed = Trainer(regression, params(), settings(), out=out)
    assert resumed.run(Stream(), evaluate=bias)
    for ours, theirs in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert without_times(entries(out)) == without_times(entries(whole.out))


def latest(out):
    with RunCheckpoints(out / "checkpoints", 2) as checkpoints:
        return checkpoints.latest


def test_termination_in_a_long_draw_ends_the_process_with_a_checkpoint(
    whole, tmp_path, monkeypatch
):
    leaving, stream = Leaving(monkeypatch), Stream()
    draw = stream.draw

    def long_draw(state):
        if stream.taken == 6:
            leaving.signal()
            leaving.stay()
        return draw(state)

    stream.draw = long_draw
    with pytest.raises(KeyboardInterrupt):
        Trainer(regression, params(), settings(), out=tmp_path).run(stream, evaluate=bias)
    assert leaving.statuses == [143]
    assert [line["step"] for line in entries(tmp_path)] == [3, 4, 6]
    assert latest(tmp_path) == 6
    resume(whole, tmp_path)


def test_termination_in_a_long_evaluation_makes_it_again(whole, tmp_path, monkeypatch):
    leaving = Leaving(monkeypatch)

    def evaluate(weights):
        if trainer.state.step == 8:
            leaving.signal()
            leaving.stay()
        return bias(weights)

    trainer = Trainer(regression, params(), settings(), out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(Stream(), evaluate=evaluate)
    assert leaving.statuses == [143]
    assert latest(tmp_path) == 8
    assert [line["step"] for line in entries(tmp_path) if "eval_bias" in line] == [4]
    resume(whole, tmp_path)


def stuck_at(trainer, step, action):
    """Let the update of a step do something first; the main thread then sees no signal."""
    update = trainer.update

    def stuck(*arguments):
        if int(arguments[3]) == step:
            action()
        return update(*arguments)

    trainer.update = stuck


@pytest.mark.parametrize(("step", "saved"), [(1, None), (6, 5)])
def test_termination_does_not_wait_for_a_step_if_none_would_be_lost(
    whole, tmp_path, monkeypatch, caplog, step, saved
):
    """In the first step, which compiles, and in the one after a checkpoint."""
    leaving = Leaving(monkeypatch)
    trainer = Trainer(regression, params(), settings(), out=tmp_path)
    stuck_at(trainer, step, lambda: (leaving.signal(), leaving.stay()))
    with pytest.raises(KeyboardInterrupt):
        trainer.run(Stream(), evaluate=bias)
    assert leaving.statuses == [143]
    assert latest(tmp_path) == saved
    where = (
        f"stopped with a checkpoint of step {saved};" if saved else "stopped before a checkpoint;"
    )
    assert where in caplog.text
    resume(whole, tmp_path)


def test_termination_waits_for_a_step_that_others_hang_on(whole, tmp_path, monkeypatch, caplog):
    leaving = Leaving(monkeypatch)
    monkeypatch.setattr(trainer_module, "APART", 60)
    trainer = Trainer(regression, params(), settings(), out=tmp_path)

    def wait():
        os.kill(os.getpid(), signal.SIGTERM)
        leaving.signal()
        # one signal may come twice
        leaving.signal()
        while "stopping after step" not in caplog.text:
            time.sleep(0.01)
        time.sleep(0.2)

    stuck_at(trainer, 8, wait)
    assert not trainer.run(Stream(), evaluate=bias)
    assert "stopping after step 8; a second signal ends at once, and loses 2 steps" in caplog.text
    # Not at once, as a signal that comes twice is one.
    assert latest(tmp_path) == 8
    resume(whole, tmp_path)


def test_a_second_termination_signal_does_not_wait(whole, tmp_path, monkeypatch):
    leaving = Leaving(monkeypatch)
    trainer = Trainer(regression, params(), settings(), out=tmp_path)

    def wait():
        leaving.signal()
        time.sleep(0.2)
        threading.Thread(target=leaving.signal, daemon=True).start()
        leaving.stay()

    stuck_at(trainer, 8, wait)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(Stream(), evaluate=bias)
    assert leaving.statuses == [143]
    assert latest(tmp_path) == 5
    resume(whole, tmp_path)


@pytest.mark.parametrize("killed_at", [6, 11])
def test_checkpoints_in_the_background_are_those_of_the_foreground(whole, tmp_path, killed_at):
    """The next steps overwrite what is being written; a checkpoint is of its step all the same."""
    config = settings(async_checkpointing=True, save_every=1)
    with pytest.raises(KeyboardInterrupt):
        Trainer(regression, params(), config, out=tmp_path).run(
            Stream(fails_at=killed_at), evaluate=bias
        )
    with RunCheckpoints(tmp_path / "checkpoints", 2) as checkpoints:
        assert checkpoints.latest == killed_at
    resumed = Trainer(regression, params(), config, out=tmp_path)
    assert resumed.run(Stream(), evaluate=bias)
    for ours, theirs in zip(leaves(resumed), leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


class Evaluations:
    """Gives these values, one after the other, as an evaluation."""

    def __init__(self, *values):
        self.values = list(values)

    def __call__(self, weights):
        return {"score": self.values.pop(0), "loss": 0.0}


BEST = {"metric_for_best_model": "score", "evaluate_every": 2, "save_every": 100, "keep": 1}


def test_best_checkpoint_stays_and_ends_the_run(tmp_path):
    trainer = Trainer(
        regression, params(), settings(load_best_model_at_end=True, **BEST), out=tmp_path
    )
    assert trainer.run(Stream(), evaluate=Evaluations(0.1, 0.5, 0.5, float("nan"), 0.4, 0.3))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["12", "4"]
    assert trainer.state.step == 4
    other = Trainer(regression, params(), settings(stop_after=4), out=tmp_path / "other")
    other.run(Stream())
    for ours, theirs in zip(leaves(trainer), leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


def test_a_run_without_better_evaluations_ends_and_stays_ended(tmp_path):
    config = settings(early_stopping_patience=2, **BEST)
    trainer = Trainer(regression, params(), config, out=tmp_path)
    assert trainer.run(Stream(), evaluate=Evaluations(0.1, 0.5, 0.5, 0.4))
    assert trainer.state.step == 8
    again = Trainer(regression, params(), config, out=tmp_path)
    assert again.run(Stream(fails_at=0), evaluate=Evaluations())
    assert again.state.step == 8


def test_the_best_evaluation_costs_no_patience_when_it_is_made_again(tmp_path):
    """Killed after the evaluation of the start, which is the best so far."""
    config = settings(early_stopping_patience=1, **BEST)
    run = {"evaluates_start": True}
    with pytest.raises(KeyboardInterrupt):
        Trainer(regression, params(), config, out=tmp_path).run(
            Stream(fails_at=0), evaluate=Evaluations(0.5), **run
        )
    resumed = Trainer(regression, params(), config, out=tmp_path)
    assert resumed.run(Stream(), evaluate=Evaluations(0.5, 0.6, 0.1), **run)
    assert resumed.state.step == 4


def test_patience_survives_a_kill(tmp_path):
    """One evaluation without an improvement before the kill, and one after it."""
    config = settings(early_stopping_patience=2, **(BEST | {"save_every": 1}))
    with pytest.raises(KeyboardInterrupt):
        Trainer(regression, params(), config, out=tmp_path).run(
            Stream(fails_at=7), evaluate=Evaluations(0.1, 0.5, 0.2)
        )
    resumed = Trainer(regression, params(), config, out=tmp_path)
    assert resumed.run(Stream(), evaluate=Evaluations(0.3))
    assert resumed.state.step == 8


@pytest.mark.parametrize(
    ("peak", "dtype"), [(1e9, "bfloat16"), (1e9, "float32"), (None, "bfloat16")]
)
def test_utilisation_is_told_where_the_peak_is_known(tmp_path, monkeypatch, peak, dtype):
    monkeypatch.setattr("jax_lm.training.trainer.peak_flops", lambda kind: peak)
    config = settings(stop_after=3, compute_dtype=dtype)
    Trainer(
        regression, params(), config, out=tmp_path, token_flops=lambda length: 100.0 * length
    ).run(Stream())
    (entry,) = entries(tmp_path)
    if peak is None or dtype == "float32":
        assert "mfu" not in entry
    else:
        assert entry["mfu"] == pytest.approx(
            entry["tokens_per_second"] * 600 / 1e9 / jax.device_count()
        )


def test_only_the_newest_checkpoints_stay_and_partial_ones_go(whole, tmp_path):
    folder = whole.out / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["10", "12"]
    partial = tmp_path / "checkpoints" / "9.orbax-checkpoint-tmp"
    (partial / "state").mkdir(parents=True)
    trainer = Trainer(regression, params(), settings(stop_after=1), out=tmp_path)
    trainer.run(Stream())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]


def test_finished_run_is_not_trained_again(whole):
    again = Trainer(regression, params(), settings(), out=whole.out)
    assert again.run(Stream(fails_at=0))
    for ours, theirs in zip(leaves(again), leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize(
    ("config", "identity", "named"),
    [
        (settings(resume="never"), {}, "resume=auto continues it"),
        (settings(seed=2), {}, "holds a run with seed=1, not 2; take another folder"),
        (settings(learning_rate=0.1), {}, r"optimizer.learning_rate=0.05, not 0.1"),
        (settings(), {"data": "b.jsonl"}, "holds a run with data=None, not 'b.jsonl'"),
    ],
)
def test_run_with_other_settings_is_not_continued(whole, config, identity, named):
    with pytest.raises(ValueError, match=named):
        Trainer(regression, params(), config, out=whole.out, identity=identity).run(Stream())


# Orbax leaves tasks behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "file", ["rest/_METADATA", "rest/manifest.ocdbt", "state/manifest.ocdbt", "state/_METADATA"]
)
def test_a_damaged_checkpoint_is_named(whole, tmp_path, file):
    shutil.copytree(whole.out, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    os.truncate(newest / file, 5)
    with pytest.raises(ValueError, match=f"checkpoint .*/{newest.name} is damaged: remove it"):
        Trainer(regression, params(), settings(), out=tmp_path / "run").run(Stream())


def test_other_weights_are_not_continued(whole):
    with pytest.raises(ValueError, match=r"lacks .*'scale'.* of another run"):
        Trainer(regression, params() | {"scale": jnp.ones(1)}, settings(), out=whole.out).run(
            Stream()
        )


def test_what_is_not_finite_stops_the_run_with_its_batch(tmp_path):
    class Broken(Stream):
        def draw(self, state):
            rows, drawn = super().draw(state)
            return (
                rows._replace(tokens=rows.tokens.astype(np.float32) * np.nan)
                if self.taken == 7
                else rows
            ), drawn

    trainer = Trainer(regression, params(), settings(), out=tmp_path)
    with pytest.raises(FloatingPointError, match=r"loss is nan at step 7.*not-finite-7.npz"):
        trainer.run(Broken())
    saved = np.load(tmp_path / "not-finite-7.npz")
    assert set(saved) == {"tokens", "counted", "number"}
    assert np.isnan(saved["tokens"]).all()
    with RunCheckpoints(tmp_path / "checkpoints", 2) as checkpoints:
        assert checkpoints.latest == 5


def test_metrics_are_fetched_while_the_next_step_runs(tmp_path):
    """The metrics of a step are waited for only after the next one has been handed over."""
    order, stream = [], Stream()
    stream.after = lambda taken: order.append(("start", taken + 1))
    trainer = Trainer(regression, params(), settings(stop_after=4), out=tmp_path)
    trainer.run(stream, check=lambda step, metrics: order.append(("finish", step)))
    pairs = itertools.chain.from_iterable([("start", n), ("finish", n - 1)] for n in range(2, 5))
    assert order == [("start", 1), *pairs, ("finish", 4)]


def test_profile_writes_a_trace_of_its_steps(tmp_path):
    Trainer(regression, params(), settings(stop_after=4, profile="steps=2:3"), out=tmp_path).run(
        Stream()
    )
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize(("tracker", "library"), TRACKERS.items())
def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(
    tmp_path, monkeypatch, tracker, library
):
    monkeypatch.setitem(sys.modules, library, None)
    trainer = Trainer(regression, params(), settings(track=(tracker,)), out=tmp_path)
    with pytest.raises(
        ValueError, match=rf"track={tracker}: needs pip install 'jax-diffucoder\[{tracker}\]'"
    ):
        trainer.run(Stream())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_steps": 0}, "max_steps=0"),
        ({"stop_after": 0}, "stop_after=0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
        ({"stop_after": 13}, "stop_after=13"),
        ({"compute_dtype": "half"}, "compute_dtype='half'"),
        ({"resume": "yes"}, "resume='yes'"),
        ({"seed": -1}, "seed=-1"),
        ({"track": ("paper",)}, "track='paper'"),
        (
            {"early_stopping_patience": 0, "metric_for_best_model": "loss"},
            "early_stopping_patience=0",
        ),
        (
            {"load_best_model_at_end": True},
            "load_best_model_at_end=True: needs metric_for_best_model",
        ),
        ({"profile": "10:13"}, "profile='10:13'"),
        ({"profile": "steps=3:2"}, "profile='steps=3:2'"),
        ({"profile": "steps=1:13"}, "profile='steps=1:13'"),
        ({"optimizer": OptimizerConfig(learning_rate=1.0, warmup_steps=12)}, "warmup_steps=12"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    base = {"max_steps": STEPS, "optimizer": OptimizerConfig(learning_rate=1.0)}
    with pytest.raises(ValueError, match=named):
        TrainerConfig(**(base | changes))


def test_a_run_of_unknown_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_steps=None: must be given"):
        Trainer(regression, params(), settings(max_steps=None), out=tmp_path)
