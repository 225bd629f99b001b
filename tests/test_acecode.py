"""AceCode's rows, made here after its schema: difficulties, and the rewritten copy of a question."""

import ast
import json

import numpy as np
import pytest

from jax_lm.data.acecode import (
    AceCodeProblem,
    prepare_acecode,
    problem_prompts,
    rewrite_as_header,
    select_difficulty,
)


def row(
    number, qwen, llama, question="Add two numbers.", completion="def add(a, b):\n    return a + b"
):
    answers = [("qwen_coder_2.5", rate) for rate in qwen] + [
        ("llama3_instruct", rate) for rate in llama
    ]
    inferences = [
        {"completion": f"# {name}", "model_name": name, "pass_rate": rate} for name, rate in answers
    ]
    # The best answer, by a model that does not judge.
    inferences.append({"completion": completion, "model_name": "other", "pass_rate": 1.0})
    return {
        "id": f"p{number}",
        "source": "oss",
        "question": question,
        "test_cases": [f"assert add({number}, 1) == {number + 1}"],
        "inferences": inferences,
    }


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    skill = rng.random(320)
    return [row(i, *(0.9 * (rng.random((2, 8)) < share)).tolist()) for i, share in enumerate(skill)]


@pytest.fixture
def data(rows, tmp_path):
    path = tmp_path / "acecode.jsonl"
    path.write_text("".join(json.dumps(fields) + "\n" for fields in rows))
    return path


def chosen(rows, difficulty):
    """The stated rule, row by row."""
    rates = [
        [a["pass_rate"] for a in fields["inferences"] if a["model_name"] != "other"]
        for fields in rows
    ]
    means, deviations = [np.mean(r) for r in rates], [np.std(r) for r in rates]
    p20, p25, p75 = (np.percentile(means, share) for share in (20, 25, 75))
    least = np.percentile(deviations, 40)
    belongs = {
        "hard": lambda m: m <= p20,
        "medium": lambda m: p25 < m < p75,
        "easy": lambda m: m >= p75,
    }[difficulty]
    return [
        f["id"]
        for f, m, d in zip(rows, means, deviations, strict=True)
        if belongs(m) and d >= least
    ]


@pytest.mark.parametrize("difficulty", ["hard", "medium", "easy"])
def test_problems_of_a_difficulty(rows, data, tmp_path, difficulty):
    said = prepare_acecode(data, tmp_path / "out.jsonl", difficulty)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = chosen(rows, difficulty)
    assert len(expected) >= 10
    assert [fields["id"] for fields in written] == [name for name in expected for _ in range(2)]
    assert (
        f"{2 * len(expected)} prompts of {len(expected)} {difficulty} problems, from {len(rows)}"
        in said
    )
    first = written[0]
    assert first["prompt"] == [{"role": "user", "content": "Add two numbers."}]
    assert first["test_cases"] == rows[int(first["id"][1:])]["test_cases"]


def test_difficulties_do_not_overlap(rows):
    problems = [AceCodeProblem.read(fields) for fields in rows]
    parts = [
        {p.fields["id"] for p in select_difficulty(problems, d)} for d in ("hard", "medium", "easy")
    ]
    assert not (parts[0] & parts[1]) | (parts[1] & parts[2]) | (parts[0] & parts[2])


def test_only_the_judges_count(rows):
    assert len(AceCodeProblem.read(rows[0]).rates) == 16
    assert AceCodeProblem.read(rows[0]).best.startswith("def add")


def test_question_becomes_a_header_to_complete():
    question = 'Return "ok".\n\nUse """ and \\ as they are.'
    text = rewrite_as_header(AceCodeProblem.read(row(0, [0.5], [0.0], question=question)))
    assert text.startswith("Please complete the following problem:\n```python\ndef add(a, b):\n")
    program = text.split("```python\n")[1].removesuffix("```\n")
    assert ast.get_docstring(ast.parse(program).body[0]) == question


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "Write, if You like, a sum."},
        {"completion": "import math\ndef add(a, b):\n    return a + b"},
        {"completion": "def add(a,\n        b):\n    return a + b"},
    ],
)
def test_question_without_a_header_stays_alone(fields):
    assert len(problem_prompts(AceCodeProblem.read(row(0, [0.5], [0.0], **fields)))) == 1


def test_bad_rows_are_counted_and_named(data, rows, tmp_path, caplog):
    broken = [
        {**rows[0], "test_cases": []},
        {**rows[0], "inferences": [{"completion": "", "model_name": "other", "pass_rate": 0.5}]},
        {
            **rows[0],
            "inferences": [{"completion": "", "model_name": "qwen_coder_2.5", "pass_rate": 2}],
        },
        {**rows[0], "question": None},
        [],
    ]
    with data.open("a") as file:
        file.writelines(json.dumps(fields) + "\n" for fields in broken)
        file.write("not json\n")
    assert f"from {len(rows)} in" in prepare_acecode(data, tmp_path / "out.jsonl", "hard")
    assert [message.split(", ")[1].split(":")[0] for message in caplog.messages] == [
        f"line {n}" for n in range(len(rows) + 1, len(rows) + 7)
    ]


def test_file_without_problems_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"holds no problem of AceCode \(1 line refused\)"):
        prepare_acecode(tmp_path / "a.jsonl", tmp_path / "out.jsonl", "hard")
    assert not (tmp_path / "out.jsonl").exists()
