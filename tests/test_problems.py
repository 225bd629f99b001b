"""Problems: what is held out, and what is read from HumanEval-infilling files."""

import gzip
import json
import random
from pathlib import Path

import pytest

from jax_lm.evaluation.pass_rate import judge
from jax_lm.evaluation.problems import held_out_problems, infilling_problems
from jax_lm.sandbox import Local

RECORDS = [
    {
        "task_id": f"SingleLineInfilling/HumanEval/{number}/L1",
        "entry_point": "add",
        "prompt": f"def add(a, b):\n    c = {number}\n",
        "suffix": "    return total\n",
        "canonical_solution": "    total = a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    for number in range(10)
]


ANYWHERE = Local(allow_unsafe=True)
"""These programs are our own: they may run where nothing contains them."""


def outcomes(problems, middles):
    return [attempt.outcome for attempt in judge(ANYWHERE, list(zip(problems, middles, strict=True)))]


def written(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_held_out_problems_are_distinct():
    problems = held_out_problems(200)
    assert len({problem.prefix + problem.canonical for problem in problems}) > 150
    assert len({problem.name for problem in problems}) == 200
    assert len({problem.name.split("/")[0] for problem in problems}) > 80
    assert held_out_problems(20) == problems[:20]


def test_canonical_bodies_pass_and_empty_bodies_fail():
    problems = random.Random(0).sample(held_out_problems(300), 100)
    assert outcomes(problems, [problem.canonical for problem in problems]) == ["passed"] * 100
    assert "passed" not in outcomes(problems, ["\n    pass\n"] * 100)


@pytest.mark.parametrize("name", ["problems.jsonl", "problems.jsonl.gz"])
def test_infilling_file_is_read_and_its_middles_pass(tmp_path, name):
    problems = infilling_problems(written(tmp_path / name, RECORDS))
    assert [problem.name for problem in problems] == [record["task_id"] for record in RECORDS]
    assert {problem.group for problem in problems} == {"SingleLineInfilling"}
    middles = [problems[0].canonical, "    total = a - b\n", ""]
    assert outcomes(problems[:1] * 3, middles) == ["passed", "failed", "failed"]


def test_a_line_ends_where_it_ends(tmp_path):
    problem = infilling_problems(written(tmp_path / "problems.jsonl", RECORDS))[0]
    assert problem.program("    total = 1\n    more = 2\n") == problem.program("    total = 1\n")


def test_a_limit_is_spread_over_the_file(tmp_path):
    problems = infilling_problems(written(tmp_path / "problems.jsonl", RECORDS), 5)
    assert [problem.name for problem in problems] == [RECORDS[number]["task_id"] for number in (0, 2, 4, 6, 8)]
    assert len(infilling_problems(tmp_path / "problems.jsonl", 99)) == 10


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "holds no problem"),
        (b"{", "cannot be read"),
        (b"[1]", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (json.dumps(RECORDS[0] | {"suffix": 3}).encode(), "line 1 has no text 'suffix'"),
        (b'{"task_id": "a"}', "line 1 has no text 'entry_point'"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, content, named):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named) as error:
        infilling_problems(path)
    assert str(path) in str(error.value)


def test_truncated_and_missing_files_are_refused(tmp_path):
    path = written(tmp_path / "problems.jsonl.gz", RECORDS)
    path.write_bytes(path.read_bytes()[:-20])
    for bad in (path, tmp_path / "none.jsonl"):
        with pytest.raises(ValueError, match="cannot be read"):
            infilling_problems(bad)


@pytest.mark.parametrize("read", [held_out_problems, lambda count: infilling_problems(Path("unused"), count)])
def test_limits_below_one_are_named(read):
    with pytest.raises(ValueError, match="limit=0"):
        read(0)
