"""A file of prompts: every line is answered as if alone, a killed run goes on, nothing foreign is
overwritten.
"""

import json
import shutil

import pytest

from jax_lm.cli import main as cli
from jax_lm.cli.commands import answers
from jax_lm.reports.run_folder import lock

PROMPTS = [
    "def add(a, b):",
    "def is_even(n):",
    "def gcd(a, b):\n    while b:",
    "def f(",
    "def last(items):",
]


@pytest.fixture
def files(tmp_path, tiny_folder):
    lines = [
        {"prompt": PROMPTS[0], "id": "first"},
        PROMPTS[1],
        {"prompt": [{"role": "user", "content": PROMPTS[2]}]},
    ]
    rows = [*lines, *PROMPTS[3:]]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl", tiny_folder


def answer(files, *options, size=2):
    prompts, out, model = files
    words = [
        "--prompts",
        prompts,
        "--out",
        out,
        "--model",
        model,
        "--batch-size",
        size,
        "--max-new-tokens",
        "8",
    ]
    status = cli.main(["generate", *map(str, words), *options])
    return status, [
        json.loads(line) for line in out.read_text().splitlines()
    ] if out.exists() else []


def test_every_line_is_answered_whatever_the_batch(files, capsys, tiny_inference):
    status, written = answer(files)
    assert status == 0
    assert capsys.readouterr().out == f"wrote 5 answers to {files[1]}\n"
    assert [row["line"] for row in written] == [1, 2, 3, 4, 5]
    assert [row["prompt"] for row in written][:2] == PROMPTS[:2]
    assert written[0]["id"] == "first"
    assert written[2]["prompt"] == [{"role": "user", "content": PROMPTS[2]}]
    files[1].unlink()
    _, alone = answer(files, size=1)
    assert alone == written
    capsys.readouterr()
    answer(files, size=1)
    assert capsys.readouterr().out.startswith("wrote 0 answers")


def test_an_answer_has_the_line_of_its_prompt_in_the_file(files):
    _, written = answer(files)
    lines = files[0].read_text().splitlines()
    files[0].write_text("\n\n".join(lines) + "\n")
    status, _ = answer(files)
    assert status == 2
    files[1].unlink()
    _, spaced = answer(files)
    assert [row["line"] for row in written] == [1, 2, 3, 4, 5]
    assert [row["line"] for row in spaced] == [1, 3, 5, 7, 9]


def test_other_hosts_compute_the_answers_and_write_nothing(files, capsys, monkeypatch):
    monkeypatch.setattr("jax_lm.host.distributed.is_first", lambda: False)
    assert answer(files) == (0, [])
    assert (files[1].exists(), capsys.readouterr().out) == (False, "")


@pytest.mark.parametrize("cut", [0, 9])
def test_a_killed_run_goes_on_to_the_same_answers(files, capsys, monkeypatch, cut):
    _, whole = answer(files)
    lines = files[1].read_text().splitlines(keepends=True)
    # As after a kill: two answers, out of order, and perhaps a third one's beginning.
    files[1].write_text(lines[3] + lines[1] + lines[0][:cut])
    seen = []
    described = answers.answer_line
    monkeypatch.setattr(
        answers,
        "answer_line",
        lambda number, *rest: (seen.append(number), described(number, *rest))[1],
    )
    status, again = answer(files)
    assert (status, again) == (0, whole)
    assert sorted(seen) == [1, 3, 5]
    assert "resuming after 2 answers" in capsys.readouterr().err


def test_two_runs_do_not_write_one_file(files, capsys):
    with files[1].open("a") as file:
        lock(file, files[1])
        assert answer(files) == (2, [])
    # The run that was refused leaves the file of the other one, which has no answers yet.
    assert files[1].exists()
    assert f"out='{files[1]}': another run is writing there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '{"line": 1, "prompt": "", "completion": "", "run": "another"}\n',
            "has answers to other prompts or with other settings",
        ),
        ("my thesis\n", "line 1 is not an answer of this command"),
        ("[]\n", "line 1 is not an answer of this command"),
        ('{"line": 1}\n', "line 1 is not an answer of this command"),
        # A line without a line end may be an answer that a kill cut off, but these are none.
        ("my thesis", "its last line is not an answer of this command"),
        ('{"score": 1}', "its last line is not an answer of this command"),
    ],
)
def test_nothing_foreign_is_overwritten(files, capsys, content, said):
    files[1].write_text(content)
    prompts, out, model = files
    status = cli.main(
        ["generate", "--prompts", str(prompts), "--out", str(out), "--model", str(model)]
    )
    assert status == 2
    assert said in capsys.readouterr().err
    assert out.read_text() == content


def test_answers_with_line_separators_of_unicode_are_read_back(tmp_path):
    """They end no line of JSON Lines, and are written as they are."""
    lines = [{"line": n, "prompt": "", "completion": "a\u2028b\x85c", "run": "r"} for n in (1, 2)]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    assert answers.AnswerLog(path, "r").answers == dict(enumerate(lines, 1))


def test_the_folder_of_the_answers_is_made(files, capsys, tmp_path):
    prompts, _, model = files
    inside = tmp_path / "new" / "folder" / "answers.jsonl"
    assert len(answer((prompts, inside, model))[1]) == 5
    # A file stands where the folder would: refused before the model is loaded.
    capsys.readouterr()
    status, _ = answer((prompts, prompts / "answers.jsonl", model))
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith(f"error: out={str(prompts)!r}: must be a folder")


def test_other_settings_are_another_run(files, capsys):
    answer(files)
    before = files[1].read_text()
    status, _ = answer(files, "--seed", "1")
    assert status == 2
    assert "with other settings" in capsys.readouterr().err
    assert files[1].read_text() == before


def test_other_weights_under_the_same_name_are_another_run(files, capsys, tmp_path):
    prompts, out, model = files
    copy = shutil.copytree(model, tmp_path / "model")
    answer((prompts, out, copy))
    before = out.read_text()
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert answer((prompts, out, copy))[0] == 2
    assert "with other settings" in capsys.readouterr().err
    assert out.read_text() == before


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_answered(files, capsys):
    with files[0].open("a") as file:
        file.write(json.dumps("x " * 600) + "\n")
    status, written = answer(files)
    assert (status, written) == (2, [])
    assert "prompts.jsonl: line 6: prompt and new tokens take" in capsys.readouterr().err


def test_a_refusal_leaves_no_file(files, capsys, tiny_inference):
    status, _ = answer(files, "--cache", "delayed")
    assert status == 2
    assert "cache='delayed': decodes one text at a time" in capsys.readouterr().err
    assert not files[1].exists()
