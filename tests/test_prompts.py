"""Prompts from files and from the built-in tasks."""

import gzip
import json

import pytest

from jax_lm.data.prompts import builtin_prompts, group_tests, load_tasks, open_prompts
from jax_lm.data.sources import open_source


def test_rows_of_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "a", "test_cases": ["assert True"]},
        {"prompt": [{"role": "user", "content": "b"}]},
        # for a template that knows it
        {"prompt": [{"role": "user", "content": "c", "name": "n"}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    # a blank line is a line
    assert open_prompts(path) == dict(zip(["line 1", "line 3", "line 5"], rows, strict=True))


ROWS = [{"prompt": "a", "test_cases": ["assert True"]}, {"prompt": "b\u2028c", "test_cases": []}]
WHOLE = {"split": "train", "subset": None}


@pytest.mark.parametrize("name", ["rows.jsonl", "lines.json", "array.json", "rows.txt"])
def test_lines_and_arrays_give_the_same_rows(tmp_path, name):
    path = tmp_path / name
    texts = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    path.write_text(
        f"[{', '.join(texts)}]" if name == "array.json" else "\n".join(texts), encoding="utf-8"
    )
    assert [*open_prompts(str(path), **WHOLE).values()] == ROWS
    with pytest.raises(ValueError, match=r"split='test': data=.* has no splits"):
        open_prompts(str(path), split="test", subset=None)


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl", "blob"])
def test_a_compressed_file_gives_the_rows_of_its_text(tmp_path, name):
    path = tmp_path / name
    rows = [{"prompt": f"{number} " + "x" * number} for number in range(300)]
    packed = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    path.write_bytes(packed)
    assert [*open_prompts(path).values()] == rows
    # one part, however many are asked for: a part is a range of bytes
    assert open_source(str(path), 4).parts == 1
    path.write_bytes(packed[:-20])
    with pytest.raises(ValueError, match=f"{name}' cannot be read: Compressed file ended"):
        open_prompts(path)
    path.write_bytes(packed[:30] + b"damage" + packed[36:])
    with pytest.raises(ValueError, match=f"{name}' cannot be read: "):
        open_prompts(path)


def test_columns_are_given_our_names(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "a", "tests": ["assert True"], "response": "r"}) + "\n")
    columns = (("prompt", "question"), ("test_cases", "tests"))
    (row,) = open_prompts(str(path), columns, **WHOLE).values()
    assert (row["prompt"], row["test_cases"], row["response"]) == ("a", ["assert True"], "r")
    with pytest.raises(
        ValueError, match="line 1: has no column 'q', only question, tests, response"
    ):
        open_prompts(str(path), (("prompt", "q"),), **WHOLE)


def test_a_folder_has_the_splits_that_its_files_are_named_by(tmp_path):
    for name, prompt in (("train-0", "a"), ("train-1", "b"), ("test", "c"), ("my_dev", "d")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")

    def prompts(split):
        rows = open_prompts(str(tmp_path), split=split, subset=None)
        return [row["prompt"] for row in rows.values()]

    assert [prompts(split) for split in ("train", "test", "validation")] == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]
    with pytest.raises(
        ValueError, match=r"split='tests': data=.* has only validation, test, train"
    ):
        prompts("tests")
    (tmp_path / "more.jsonl").write_text(json.dumps({"prompt": "e"}) + "\n")
    with pytest.raises(ValueError, match=r"has the name of a split and more\.jsonl has not"):
        prompts("train")
    for path in tmp_path.glob("t*.jsonl"):
        path.unlink()
    (tmp_path / "my_dev.jsonl").rename(tmp_path / "latest.jsonl")
    assert prompts("train") == ["d", "e"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "line 2: not JSON"),
        ('{"prompt": "a"}\n{"question": "b"}\n', "line 2: has no 'prompt' that is text"),
        ('{"prompt": "a"}\n["b"]\n', "line 2: expected a JSON object, not list"),
        ('{"prompt": "a"}\n{"prompt": 3}\n', "line 2: has no 'prompt' that is text"),
        (
            '{"prompt": [{"role": "user", "content": "a"}]}\n{"prompt": [{"role": 1}]}\n',
            "line 2: prompt: all messages must",
        ),
        ('{"prompt": ["a"]}\n', "line 1: prompt: all messages must"),
        (
            '{"prompt": [{"role": "wizard", "content": "a"}]}\n',
            "line 1: prompt: role='wizard' must be one of system, developer, user",
        ),
        ('{"prompt": "a"}\n{"prompt": "\\ud83d"}\n', "line 2: prompt: not Unicode text"),
        ('{"prompt": [{"role": "user", "content": "\\ud83d"}]}\n', "line 1: prompt: not Unicode"),
        ('{"prompt": "a", "id": "\\ud83d"}\n', "line 1: id: not Unicode"),
        ('{"prompt": "a", "task_id": ["\\ud83d"]}\n', "line 1: task_id: not Unicode"),
        ("\n", "holds no prompt"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_prompts_are_refused(tmp_path, text, message):
    path = tmp_path / "prompts.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        open_prompts(path)


@pytest.mark.parametrize(
    "test",
    ["assert f(1) == 2", "assert(f(1) == 2)", "assert[2] == f(1)", "assert\tf(1)", "assert-1 == f(1)",
     "\nassert f(1)", "# one\n\n  # two\nassert f(1)", "assert f(\n1)", 'assert""==f(1)'],
)  # fmt: skip
def test_each_assertion_is_a_test(test):
    """However it begins; statements that only look alike stay together, as they may depend on each
    other.
    """
    compile(test, "test", "exec")
    assert group_tests([test, "assert f(2)"]) == (test, "assert f(2)")
    for other in ("asserted = f(1)", "assert_equal(f(1), 2)", "# assert f(1)", "x = 1\nassert x"):
        assert group_tests([other, test]) == (f"{other}\n{test}",)


def test_built_in_tasks_are_distinct_and_of_the_training_side():
    rows = builtin_prompts(200)
    assert rows == builtin_prompts(200)
    assert rows != builtin_prompts(200, seed=1)
    assert len({row["key"] for row in rows}) == 200
    assert {row["key"] for row in rows}.isdisjoint(task.key for task in load_tasks(2000))
    assert all(row["prefix"] == row["prompt"] and row["test_cases"] for row in rows)
    scripts = [row["test_cases"] for row in rows if not row["test_cases"][0].startswith("assert ")]
    assert scripts
    assert all(len(script) == 1 for script in scripts)
    with pytest.raises(ValueError, match="limit=0"):
        builtin_prompts(0)
