"""The tasks that ship with the built-in model: which they are, in which order, and how many."""

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from jax_lm.data.prompts import load_tasks, read_shipped_tasks


def digest(tasks):
    return hashlib.sha256("".join(json.dumps(asdict(task)) for task in tasks).encode()).hexdigest()


def test_held_out_tasks_are_those_that_every_measurement_used():
    """Recorded with the first generator. A model card's pass@1 is over the first 300."""
    assert (
        digest(load_tasks(300))
        == "ba7bfeeb2c9833371023242eb6f0751b925a00b2011602913467d031bd7c4d33"
    )


def test_training_tasks_are_those_that_runs_of_version_0_1_used():
    """Recorded with the first generator, seed 0: fingerprints of run folders depend on them."""
    assert (
        digest(load_tasks(2000, "training"))
        == "4e4856678f109c564814a7e87153863cd8bd9dd6d5ea0faa401bf1f1ad88b9c4"
    )


@pytest.mark.parametrize(("split", "count"), [("held-out", 2000), ("training", 4000)])
def test_keys_are_distinct(split, count):
    assert (
        len({task.key for task in read_shipped_tasks(split)})
        == len(read_shipped_tasks(split))
        == count
    )


def test_splits_share_no_key():
    assert {task.key for task in load_tasks(2000)}.isdisjoint(
        task.key for task in load_tasks(4000, "training")
    )


def test_fewer_tasks_are_the_first_ones():
    assert load_tasks(20) == load_tasks(300)[:20]
    assert load_tasks(20, "training") == load_tasks(300, "training")[:20]
    assert load_tasks(20, "training", 5) == load_tasks(300, "training", 5)[:20]


def test_seeds_draw_other_orders():
    orders = [[task.key for task in load_tasks(4000, "training", seed)] for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(order) for order in orders}) == 1
    assert orders[1] == [task.key for task in load_tasks(4000, "training", 1)]


@pytest.mark.parametrize(
    ("split", "count", "message"),
    [
        ("held-out", 0, r"limit=0: must lie in \[1, 2000\]"),
        ("held-out", 2001, r"limit=2001: must lie in \[1, 2000\]"),
        ("training", -1, r"limit=-1: must lie in \[1, 4000\]"),
        ("training", 4001, r"limit=4001: must lie in \[1, 4000\]"),
    ],
)
def test_counts_that_cannot_be_had_are_named(split, count, message):
    with pytest.raises(ValueError, match=message):
        load_tasks(count, split)


def test_reading_needs_the_standard_library_alone():
    program = "import sys; import jax_lm.data.prompts; print(*{'jax', 'numpy', 'recipes'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )
