"""`diffucoder data show`: what a training will see, before an hour is spent."""

import json

import pytest

from jax_lm.cli import main as cli

PROMPT, RESPONSE = "def double(x):", "    return 2 * x"


@pytest.fixture
def file(tmp_path):
    def make(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        )
        return str(path)

    return make


def show(capsys, *words):
    status = cli.main(["data", "show", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_prompt_is_visible_and_the_response_is_learnt(file, capsys):
    turns = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": RESPONSE}]
    path = file({"messages": turns})
    status, bare, _ = show(capsys, path, "--mask-ratio", "0")
    assert status == 0
    assert (
        f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n{RESPONSE}<|im_end|>" in bare
    )
    assert ", 0 masked here" in bare
    _, all_masked, _ = show(capsys, path, "--mask-ratio", "1")
    learnt = int(all_masked.partition(" tokens, ")[2].partition(" of them")[0])
    assert (
        f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n{'░' * learnt}\n"
        in all_masked
    )
    assert f"{learnt} of them learned, {learnt} masked here" in all_masked


def test_masks_are_drawn_by_the_seed(file, capsys):
    path = file({"prompt": PROMPT, "response": RESPONSE * 20})
    first, again, other = (show(capsys, path, "--seed", seed)[1] for seed in ("0", "0", "1"))
    assert first == again != other


def test_texts_are_learnt_as_wholes_and_in_pieces(file, capsys):
    status, out, _ = show(
        capsys,
        file({"text": "x = 1\n" * 40}),
        "--kind",
        "text",
        "--max-length",
        "32",
        "--limit",
        "2",
    )
    assert status == 0
    # The first token of a text is never masked: nothing before it predicts it.
    assert out.count("32 tokens, 31 of them learned") == 2


def test_refused_lines_are_named_and_nothing_reaches_the_terminal(file, capsys):
    path = file(
        "no json", {"text": "\x1b[31mred"}, {"prompt": "\x1b[31m" + PROMPT, "response": RESPONSE}
    )
    status, out, _ = show(capsys, path)
    assert status == 0
    assert "line 1: refused: not JSON" in out
    assert "refused: has neither messages nor prompt" in out
    assert "\x1b" not in out
    status, _, err = show(capsys, path, "--limit", "2")
    assert status == 1
    assert "no samples" in err


def test_other_data_needs_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    status, out, err = show(capsys, "owner/name")
    assert (status, out) == (2, "")
    assert "pip install 'jax-diffucoder[datasets]'" in err


def test_data_that_cannot_be_loaded_are_named_with_the_reason(tmp_path, capsys, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "nested" / "data").mkdir(parents=True)
    (tmp_path / "nested" / "data" / "rows.jsonl").write_text("no json\n")
    words = ["sft", "--data", str(tmp_path / "nested"), "--out", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "nested': datasets cannot load it (JSON parse error" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["rows.parquet", "folder"])
def test_a_parquet_file_and_a_folder_of_the_hub_are_shown_and_learnt(
    file, tmp_path, capsys, monkeypatch, form
):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"prompt": PROMPT, "response": f"    return {number} * x"} for number in range(4)]
    target = tmp_path / form
    (target / "data").mkdir(parents=True) if form == "folder" else None
    path = target / "data" / "train-00000-of-00001.parquet" if form == "folder" else target
    datasets.Dataset.from_list(rows).to_parquet(str(path))
    _, shown, _ = show(capsys, str(target), "--mask-ratio", "0", "--limit", "4")
    assert [f"return {number} * x" in shown for number in range(4)] == [True] * 4
    words = ["--max-steps", "1", "--batch-size", "2", "--max-length", "64", "--warmup-steps", "0"]
    losses = []
    for name, data in (("from_rows", file(*rows)), ("from_parquet", str(target))):
        assert cli.main(["sft", "--data", data, "--out", str(tmp_path / name), *words]) == 0
        losses.append(
            json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        )
    assert losses[0] == losses[1]


@pytest.mark.parametrize("form", ["hub's layout", "saved"])
def test_split_and_columns_choose_what_is_shown_and_learnt(
    file, tmp_path, capsys, monkeypatch, form
):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    splits, folder = {}, tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    for split, sign in (("train", "+"), ("test", "-")):
        rows = [
            {"question": PROMPT, "answer": f"    return {number} {sign} x", "response": "no"}
            for number in range(4)
        ]
        splits[split] = datasets.Dataset.from_list(rows)
        if form != "saved":
            splits[split].to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    if form == "saved":
        datasets.DatasetDict(splits).save_to_disk(str(folder))
    chosen = ["--split", "test", "--prompt-column", "question", "--response-column", "answer"]
    _, shown, _ = show(capsys, str(folder), "--mask-ratio", "0", "--limit", "4", *chosen)
    assert [f"return {number} - x" in shown for number in range(4)] == [True] * 4
    words = ["--max-steps", "1", "--batch-size", "2", "--max-length", "64", "--warmup-steps", "0"]
    plain = file(
        *({"prompt": row["question"], "response": row["answer"]} for row in splits["test"])
    )
    losses = []
    for name, *data in (("from_lines", plain), ("from_split", str(folder), *chosen)):
        assert cli.main(["sft", "--data", *data, "--out", str(tmp_path / name), *words]) == 0
        losses.append(
            json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        )
    assert losses[0] == losses[1]


CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: old.jsonl
  - split: test
    path: new/*.jsonl
---
# Rows
"""


def brevity(prompts, completions, **columns):
    """A reward that needs no sandbox."""
    return [-float(len(text)) for text in completions]


@pytest.mark.parametrize("form", ["rows.parquet", "hub's layout", "card", "named"])
def test_grpo_learns_from_what_sft_takes(file, tmp_path, capsys, monkeypatch, form):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [
        {"question": f"def f{number}(x):", "tests": [f"assert f{number}(1)"]} for number in range(4)
    ]
    made, target, chosen = datasets.Dataset.from_list(rows), tmp_path / form, ["--split", "test"]
    if form == "rows.parquet":
        made.to_parquet(str(target))
        chosen = []
    else:
        (target / "data").mkdir(parents=True)
        (target / "new").mkdir()
        other = json.dumps({"question": "other", "tests": ["assert False"]}) + "\n"
        if form == "card":
            (target / "README.md").write_text(CARD)
            (target / "old.jsonl").write_text(other)
            made.to_json(str(target / "new" / "rows.jsonl"))
        elif form == "named":
            (target / "train.jsonl").write_text(other)
            (target / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            (target / "data" / "train-00000-of-00001.jsonl").write_text(other)
            made.to_json(str(target / "data" / "test-00000-of-00001.jsonl"))
    words = [
        *(
            "--max-steps",
            "1",
            "--num-generations",
            "2",
            "--prompts-per-step",
            "2",
            "--max-new-tokens",
            "8",
        ),
        *(
            "--num-steps",
            "4",
            "--num-iterations",
            "1",
            "--max-prompt-length",
            "64",
            "--warmup-steps",
            "0",
        ),
        *(
            "--reward-funcs",
            "test_data_command:brevity",
            "--preset",
            "turbo",
            "--save-dtype",
            "bfloat16",
        ),
    ]
    named = ["--prompt-column", "question", "--test-cases-column", "tests"]
    plain = file(*({"prompt": row["question"], "test_cases": row["tests"]} for row in rows))
    sampled = []
    for name, *data in (("from_lines", plain), ("from_data", str(target), *chosen, *named)):
        assert cli.main(["grpo", "--data", *data, "--out", str(tmp_path / name), *words]) == 0, (
            capsys.readouterr().err
        )
        (path,) = (tmp_path / name / "completions").iterdir()
        sampled.append(path.read_text())
    assert sampled[0] == sampled[1]
    assert "def f2(x):" in sampled[0]
    assert "other" not in sampled[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--split", "test"], "split='test': data="),
        (["--prompt-column", "q"], "line 1: has no column 'q', only prompt, response"),
        (
            ["--data", "builtin", "--prompt-column", "q"],
            "prompt_column='q': data='builtin' has fixed names of columns",
        ),
        (["--data", "builtin", "--subset", "x"], "subset='x': data='builtin' has no subsets"),
    ],
)
def test_what_grpo_cannot_read_is_one_line(file, tmp_path, capsys, words, said):
    path = file({"prompt": PROMPT, "response": RESPONSE})
    out = tmp_path / "out"
    options = ["--reward-funcs", "test_data_command:brevity"]
    assert cli.main(["grpo", "--data", path, "--out", str(out), *options, *words]) == 2
    err = capsys.readouterr().err
    assert (said in err, len(err.splitlines())) == (True, 1)
    assert not out.exists()


@pytest.mark.parametrize("command", ["show", "sft"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--split", "test"], "split='test': data="),
        (
            ["--subset", "python"],
            "has no subsets; a hub id, a folder in the hub's layout and Parquet have them",
        ),
        (
            ["--prompt-column", "q"],
            "prompt_column='q': prompt_column and response_column need each other",
        ),
        (
            ["--messages-column", "m", "--prompt-column", "q", "--response-column", "a"],
            "messages_column='m': excludes",
        ),
        (
            ["--prompt-column", "q", "--response-column", "a"],
            "has no column 'q', only prompt, response",
        ),
    ],
)
def test_a_part_or_column_that_is_not_there_is_one_line(
    file, tmp_path, capsys, command, words, said
):
    path = file({"prompt": PROMPT, "response": RESPONSE})
    if command == "show":
        status, out, err = show(capsys, path, *words)
    else:
        status = cli.main(
            ["sft", "--data", path, "--out", str(tmp_path / "out"), "--max-steps", "1", *words]
        )
        out, err = capsys.readouterr()
        assert not (tmp_path / "out").exists()
    if command == "show" and "has no column" in said:
        assert (status, said in out) == (1, True)
        return
    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]


def test_columns_of_the_other_kind_are_refused(file, capsys):
    path = file({"text": "x = 1"})
    status, _, err = show(capsys, path, "--kind", "text", "--messages-column", "chat")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "messages_column='chat': kind=text has no such column" in err
    assert show(capsys, path, "--text-column", "body")[0] == 2


def test_a_tokenised_folder_is_named_as_one(tmp_path, capsys):
    data = tmp_path / "chat.jsonl"
    data.write_text('{"prompt": "a", "response": "b"}\n')
    out = str(tmp_path / "tokens")
    words = ["data", "tokenize", "--data", str(data), "--model", "builtin", "--out", out]
    assert cli.main([*words, "--kind", "conversations"]) == 0
    # of one thing there is no plural
    assert "1 sample, 3 tokens, 0 lines refused" in capsys.readouterr().out
    assert cli.main(["data", "show", out]) == 2
    assert "is tokenised: only adapt and sft read such a folder" in capsys.readouterr().err
