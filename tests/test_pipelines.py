"""The prompts of the RL experiments: what the recipe draws, and nothing that was seen in training."""

import itertools
import json
from pathlib import Path

import pytest

from builtin_model.compositions import LENGTHS
from builtin_model.pipelines import draw_prompts
from jax_lm.data.prompts import read_shipped_tasks, task_prompt

FOLDER = Path(__file__).parent.parent / "experiments" / "pipelines"


def rows(name, steps):
    lines = (FOLDER / f"{name}-{steps}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("steps", [4, 5])
def test_the_files_are_what_the_recipe_draws(steps):
    """In the order of the files: the test prompts first."""
    assert [task_prompt(task) for task in draw_prompts(steps, 5)] == rows("test", steps)[:5]


def test_no_pipeline_is_in_two_files_or_in_the_corpus():
    keys = {
        (name, steps): {row["key"] for row in rows(name, steps)}
        for name, steps in itertools.product(("train", "dev", "test"), (4, 5))
    }
    counts = {"train": 400, "dev": 100, "test": 300}
    assert {part: len(found) for part, found in keys.items()} == {
        (name, steps): counts[name] for name, steps in keys
    }
    assert len(set().union(*keys.values())) == 2 * sum(counts.values())
    # composition|skip:2|sort:None|count: two steps and the result. The corpus draws at most three.
    lengths = {(steps, key.count("|") - 1) for (_, steps), found in keys.items() for key in found}
    assert lengths == {(4, 4), (5, 5)}
    shipped = {
        task.key.count("|") - 1
        for split in ("training", "held-out")
        for task in read_shipped_tasks(split)
        if task.family == "composition"
    }
    assert shipped == set(LENGTHS)
    assert max(LENGTHS) == 3
