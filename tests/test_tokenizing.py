"""Tokenising once: the samples are those of the file, whatever workers do, and a killed run is
finished to the byte.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_lm.cli.main import main
from jax_lm.data.conversations import conversation_rows, read_samples, text_rows
from jax_lm.data.sources import lines_from
from jax_lm.data.token_shards import TextRows, TokenShards
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.run_folder import exclusive
from jax_lm.tokenizer import DiffuCoderTokenizer

WORDS = (
    "def",
    "return",
    "value",
    "for",
    "in",
    "range",
    "total",
    "é",
    "漢字",
    "1",
    "23",
    "(",
    ")",
    ":",
    "+",
    "\n",
)


def text(rng, words):
    return " ".join(rng.choices(WORDS, k=words)) + "x"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of texts and of conversations, with lines that cannot be used."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    (folder / "texts").mkdir()
    for number in range(2):
        rows = [json.dumps({"text": text(rng, rng.randrange(1, 60))}) for _ in range(120)]
        rows[5], rows[9], rows[70] = "not json", "", json.dumps({"other": 1})
        (folder / "texts" / f"{number}.jsonl").write_text("\n".join(rows) + "\n" * number)
    (folder / "texts" / "1.jsonl").open("ab").write(b'{"text": "\xff"}\n')
    rows = [
        {"prompt": text(rng, 5), "response": text(rng, rng.randrange(1, 30))} for _ in range(200)
    ]
    rows[7], rows[8] = {"prompt": "a"}, {"prompt": "a", "response": "b " * 5000}
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def command(folder, out, data, **changes):
    options = {
        "data": folder / data,
        "model": BUILTIN_MODEL,
        "out": out,
        "workers": 1,
        "num-shards": 5,
    } | changes
    return [
        "data",
        "tokenize",
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]


def contents(out):
    """All files that a run leaves, but its time and place."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@pytest.fixture(scope="module")
def tokenizer():
    return DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)


@pytest.fixture(scope="module")
def whole(folder):
    """A tokenisation of the texts that nobody disturbs."""
    assert main(command(folder, folder / "whole", "texts")) == 0
    return folder / "whole"


def test_texts_are_those_of_the_files(folder, whole, tokenizer):
    shards = TokenShards.open(whole, "text", tokenizer.fingerprint)
    first = (folder / "texts" / "0.jsonl").read_bytes()
    lines = [
        line
        for number in range(2)
        for line in (folder / "texts" / f"{number}.jsonl").read_bytes().splitlines()
    ]
    good = folder / "good.txt"
    good.write_bytes(b"\n".join(line for line in lines if b"\xff" not in line))
    rows = read_samples(good, text_rows(tokenizer, sys.maxsize)).rows
    assert len(shards) == len(rows) == 2 * (120 - 3)
    order = TextRows.of(shards, 10**6, 0)
    ((group,),) = [order.rows(0, 1)]
    assert [order[piece].ids for piece in group] == [row.ids for row in rows]
    assert shards.refused == 2 * 2 + 1
    refused = [
        entry
        for path in sorted(whole.glob("0*.json"))
        for entry in json.loads(path.read_text())["refused"]
    ]
    before = first[: first.index(b"not json")]
    assert refused[0][0] == f"0.jsonl, line {len(before.splitlines()) + 1}"
    assert sum("not JSON" in reason for _, reason in refused) == 2
    assert sum("has no text" in reason for _, reason in refused) == 2
    assert sum("utf-8" in reason for _, reason in refused) == 1


def test_conversations_are_those_of_the_file(folder, tokenizer, tmp_path, capsys):
    assert (
        main(
            command(
                folder, tmp_path / "out", "chats.jsonl", kind="conversations", **{"max-length": 512}
            )
        )
        == 0
    )
    shards = TokenShards.open(tmp_path / "out", "conversations", tokenizer.fingerprint)
    rows = read_samples(folder / "chats.jsonl", conversation_rows(tokenizer, 512)).rows
    assert [shards[number] for number in range(len(shards))] == rows
    assert shards.lengths.tolist() == [len(row.ids) for row in rows]
    told = capsys.readouterr().out
    assert "198 samples" in told
    assert "2 lines refused; line 8: has no response" in told
    assert "no response" in told
    assert "longer than max_length=512" in told


def test_workers_change_nothing(folder, whole, tmp_path):
    assert main(command(folder, tmp_path / "out", "texts", workers=3)) == 0
    assert contents(tmp_path / "out") == contents(whole)


def test_another_column_is_read_as_text(folder, tmp_path, tokenizer):
    (tmp_path / "code.jsonl").write_text(json.dumps({"content": "x = 1"}) + "\n")
    assert (
        main(command(tmp_path, tmp_path / "out", "code.jsonl", **{"text-column": "content"})) == 0
    )
    shards = TokenShards.open(tmp_path / "out", "text", tokenizer.fingerprint)
    assert tokenizer.decode(shards.text(0, shards.tokens)) == "x = 1<|endoftext|>"


def children(process):
    """Processes that a process has started."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the workers in /proc")
def test_killed_run_is_finished_to_the_byte(folder, tmp_path):
    """SIGKILL between two shards and inside one; workers end with the run, and what they left
    half-written goes.
    """
    rng = random.Random(1)
    data = tmp_path / "large.jsonl"
    data.write_text("".join(json.dumps({"text": text(rng, 400)}) + "\n" for _ in range(4000)))
    options = {"workers": 2, "num-shards": 12}
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    words = [sys.executable, "-m", "jax_lm", *command(tmp_path, out, "large.jsonl", **options)]
    for done in (1, 4):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(out.glob("0*.json"))) < done:
            time.sleep(0.01)
        workers = children(process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert workers
        # Nobody asks after them here, so that ended ones may stay as zombies.
        until = time.monotonic() + 20
        while any(is_running(worker) for worker in workers) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(is_running(worker) for worker in workers)
    assert 4 <= len(list(out.glob("0*.json"))) < 12
    assert not (out / "dataset.json").exists()
    (out / ".000011.tokens.1.0123abcd").write_bytes(b"left")
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("0*.json")}
    assert main(command(tmp_path, out, "large.jsonl", **options)) == 0
    assert main(command(tmp_path, undisturbed, "large.jsonl", **options)) == 0
    assert contents(out) == contents(undisturbed)
    # What was done was not done again.
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("data", "changes", "named"),
    [
        ("texts", {"num-shards": 4}, "was begun with source."),
        ("chats.jsonl", {}, "was begun with source."),
        ("texts", {"kind": "conversations"}, "was begun with kind='text', not 'conversations'"),
        ("absent.jsonl", {}, "absent.jsonl' cannot be read: there is no such file"),
        ("texts", {"num-shards": 0}, "num_shards=0: must be at least 1"),
    ],
)
def test_other_data_are_not_added_to_a_folder(folder, whole, capsys, data, changes, named):
    before = contents(whole)
    assert main(command(folder, whole, data, **changes)) == 2
    assert named in capsys.readouterr().err
    assert contents(whole) == before


def test_two_runs_do_not_write_one_folder(folder, tmp_path, capsys):
    with exclusive(tmp_path / "out"):
        assert main(command(folder, tmp_path / "out", "texts")) == 2
        assert "another run is writing there" in capsys.readouterr().err
        assert contents(tmp_path / "out") == {".lock": b""}


@pytest.mark.parametrize(
    ("text", "said"), [('{"x": 1}\n', ", 1 line refused; line 1: has no text"), ("", ", 0 lines")]
)
def test_data_without_a_usable_line_are_refused(text, said, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text(text)
    assert main(command(tmp_path, tmp_path / "out", "bad.jsonl")) == 2
    assert f"0 samples, 0 tokens{said}" in capsys.readouterr().err
    # The same command with better data finds nothing in its way.
    assert contents(tmp_path / "out") == {".lock": b""}
    (tmp_path / "bad.jsonl").write_text('{"text": "def f(): pass"}\n')
    assert main(command(tmp_path, tmp_path / "out", "bad.jsonl")) == 0


@given(
    # two bytes begin a compressed file, which has no ranges
    lines=st.lists(
        st.binary(max_size=12).filter(lambda line: not {*b"\n\x1f"} & {*line}), max_size=12
    ),
    size=st.integers(1, 30),
    ends=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_ranges_of_bytes_hold_every_line_once(tmp_path_factory, lines, size, ends):
    path = tmp_path_factory.mktemp("ranges") / "a"
    whole = b"\n".join(lines) + b"\n" * ends
    path.write_bytes(whole)
    found = [
        line
        for start in range(0, len(whole), size)
        for _, line in lines_from(path, start, start + size)
    ]
    assert [line.rstrip(b"\n") for line in found] == [line for line in lines if line.strip()]


def test_without_the_extra_one_line_says_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    file = tmp_path / "x.parquet"
    file.touch()
    assert main(command(tmp_path, tmp_path / "out", str(file))) == 2
    assert "needs pip install 'jax-diffucoder[datasets]'" in capsys.readouterr().err


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("form", ["one.parquet", "parquet", "saved"])
def test_what_datasets_loads_is_tokenised_in_parts(
    folder, tmp_path, tokenizer, monkeypatch, form, streaming
):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    texts = [
        json.loads(line)["prompt"] for line in (folder / "chats.jsonl").read_text().splitlines()
    ]
    made, data = datasets.Dataset.from_list([{"text": text} for text in texts]), tmp_path / form
    if form == "saved":
        made.save_to_disk(data, num_shards=3)
    elif form == "parquet":
        data.mkdir()
        for number in range(3):
            made.shard(3, number, contiguous=True).to_parquet(data / f"train-{number}.parquet")
    else:
        # Row groups of 20, as one file in parts when streamed.
        made.to_parquet(data, batch_size=20)
    words = command(tmp_path, tmp_path / "out", form, **{"num-shards": 3})
    assert main([*words, *(["--streaming"] if streaming else [])]) == 0
    shards = TokenShards.open(tmp_path / "out", "text", tokenizer.fingerprint)
    starts = zip(shards.token_starts[:-1].tolist(), shards.token_starts[1:].tolist(), strict=True)
    written = "".join(tokenizer.decode(shards.text(start, stop)) for start, stop in starts)
    assert written == "".join(f"{text}<|endoftext|>" for text in texts)
    assert len(shards.names) == 3
