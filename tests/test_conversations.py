"""Samples from JSON lines: what is visible, what is learnt, and what is refused."""

import json
from pathlib import Path

import pytest

from jax_lm.data.batches import Row, closed
from jax_lm.data.conversations import conversation_rows, read_samples, text_rows
from jax_lm.tokenizer import DiffuCoderTokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "def two(): return 2"},
]


@pytest.fixture(scope="module")
def tokenizer(builtin_folder):
    return DiffuCoderTokenizer.from_pretrained(builtin_folder)


def write(path: Path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def texts(row, tokenizer):
    """What stays visible, and what is learnt."""
    return [
        tokenizer.decode(i for i, c in zip(row.ids, row.canvas, strict=True) if c is kind) for kind in (False, True)
    ]


def test_last_answer_of_a_conversation_is_learnt(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"messages": MESSAGES})
    [row] = read_samples(data, conversation_rows(tokenizer, 512)).rows
    visible, learnt = texts(row, tokenizer)
    assert visible == tokenizer.apply_chat_template(MESSAGES[:-1])
    assert learnt == "def two(): return 2<|im_end|>"
    assert row.open


def test_prompt_and_response_are_a_conversation(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"prompt": "Two?", "response": "2"})
    [row] = read_samples(data, conversation_rows(tokenizer, 512)).rows
    chat = [{"role": "user", "content": "Two?"}]
    assert texts(row, tokenizer) == [tokenizer.apply_chat_template(chat), "2<|im_end|>"]
    without = DiffuCoderTokenizer(tokenizer.backend, None)
    [row] = read_samples(data, conversation_rows(without, 512)).rows
    assert texts(row, tokenizer) == ["Two?", "2<|endoftext|>"]


def test_texts_are_learnt_whole_in_parts(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"text": "def one():\n    return 1\n" * 9}, {"text": "x"})
    rows = read_samples(data, text_rows(tokenizer, 16)).rows
    assert all(all(row.canvas) and not row.open and len(row.ids) <= 16 for row in rows)
    whole = tokenizer.decode(i for row in rows for i in row.ids)
    assert whole == "def one():\n    return 1\n" * 9 + "<|endoftext|>x<|endoftext|>"


def test_bad_rows_are_counted_and_named(tokenizer, tmp_path, caplog):
    data = write(
        tmp_path / "a.jsonl",
        {"prompt": "a", "response": "b"},
        "not json",
        "[1, 2]",
        "",
        {"prompt": "a"},
        {"text": "a"},
        {"messages": MESSAGES[:-1]},
        {"messages": [{"role": "user"}, MESSAGES[-1]]},
        {"prompt": "a", "response": "b " * 500},
        {"prompt": "a", "response": "<|mask|>"},
        {"prompt": "", "response": "b"},
        {"messages": [MESSAGES[1], {"role": "assistant", "content": "  "}]},
    )
    samples = read_samples(data, conversation_rows(tokenizer, 128))
    assert len(samples.rows) == 1
    reasons = dict(samples.refused)
    assert list(reasons) == [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    for line, part in (
        (2, "not JSON"), (3, "not list"), (5, "no response"), (6, "neither messages nor prompt"), (7, "must end"),
        (8, "role and content"), (9, "longer than max_length=128"), (10, "mask token"), (11, "no prompt"),
        (12, "must end"),
    ):  # fmt: skip
        assert part in reasons[line], line
    [message] = caplog.messages
    assert "1 samples, 10 refused (line 2: " in message
    assert "and 7 more" in message


def test_file_without_a_usable_row_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"0 samples, 1 refused \(line 1: has neither.*nothing to learn from"):
        read_samples(write(tmp_path / "a.jsonl", {"x": 1}), conversation_rows(tokenizer, 128))
    with pytest.raises(ValueError, match=r"data='.*absent.jsonl' cannot be read"):
        read_samples(tmp_path / "absent.jsonl", conversation_rows(tokenizer, 128))


def test_digest_tells_samples_apart(tokenizer, tmp_path):
    digests = {
        read_samples(write(tmp_path / "a.jsonl", {"text": text}), text_rows(tokenizer, 64)).digest
        for text in ("one", "two", "one")
    }
    assert len(digests) == 2


def test_closed_samples_end_in_their_own_pads():
    row = closed(Row((1, 2, 3), (False, True, True)), 2, 9)
    assert row == Row((1, 2, 3, 9, 9), (False, True, True, True, True), open=False)
