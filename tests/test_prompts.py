"""Prompts from files and from the built-in tasks."""

import json

import pytest

from jax_lm.data.prompts import builtin_prompts, held_out_tasks, read_prompts


def test_rows_of_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a", "test_cases": ["assert True"]}, {"prompt": [{"role": "user", "content": "b"}]}]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    assert read_prompts(path) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "line 2 is not JSON"),
        ('{"prompt": "a"}\n{"question": "b"}\n', "line 2 has no 'prompt'"),
        ('{"prompt": "a"}\n["b"]\n', "line 2 has no 'prompt'"),
        ("\n", "holds no prompt"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_prompts_are_refused(tmp_path, text, message):
    path = tmp_path / "prompts.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


def test_built_in_tasks_are_distinct_and_of_the_training_side():
    rows = builtin_prompts(200)
    assert rows == builtin_prompts(200)
    assert rows != builtin_prompts(200, seed=1)
    assert len({row["key"] for row in rows}) == 200
    assert {row["key"] for row in rows}.isdisjoint(task.key for task in held_out_tasks(2000))
    assert all(row["prefix"] == row["prompt"] and row["test_cases"] for row in rows)
    scripts = [row["test_cases"] for row in rows if not row["test_cases"][0].startswith("assert ")]
    assert scripts
    assert all(len(script) == 1 for script in scripts)
    with pytest.raises(ValueError, match="limit=0"):
        builtin_prompts(0)
