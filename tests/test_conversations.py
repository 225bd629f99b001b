"""Samples from JSON lines: what is visible, what is learnt, and what is refused."""

import json
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pytest

from jax_lm.data.batches import Row, close_sample
from jax_lm.data.columns import BadRowError, ConversationForm, row_fields
from jax_lm.data.conversations import conversation_rows, read_samples, rows_reader, text_rows
from jax_lm.data.sources import JsonFiles
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError

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
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


def texts(row, tokenizer):
    """What stays visible, and what is learnt."""
    return [
        tokenizer.decode(i for i, c in zip(row.ids, row.canvas, strict=True) if c is kind)
        for kind in (False, True)
    ]


def test_last_answer_of_a_conversation_is_learnt(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"messages": MESSAGES})
    [row] = read_samples(data, conversation_rows(tokenizer, 512)).rows
    visible, learnt = texts(row, tokenizer)
    assert visible == tokenizer.apply_chat_template(MESSAGES[:-1])
    assert learnt == "def two(): return 2<|im_end|>"
    assert row.open


def test_prompt_and_response_are_plain_text_unless_the_template_is_asked_for(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"prompt": "Two?", "response": "2"})
    [row] = read_samples(data, conversation_rows(tokenizer, 512)).rows
    assert texts(row, tokenizer) == ["Two?", "2<|endoftext|>"]
    chat = [{"role": "user", "content": "Two?"}]
    form = ConversationForm(template="chat")
    [row] = read_samples(data, conversation_rows(tokenizer, 512, form)).rows
    assert texts(row, tokenizer) == [tokenizer.apply_chat_template(chat), "2<|im_end|>"]
    without = DiffuCoderTokenizer(tokenizer.backend, None)
    with pytest.raises(TokenizerError, match="has no chat template"):
        conversation_rows(without, 512, form)({"prompt": "Two?", "response": "2"})


def test_every_answer_of_a_conversation_may_be_learnt(tokenizer):
    form = ConversationForm(turns="all")
    silent = [*MESSAGES[:2], {"role": "assistant", "content": " "}, *MESSAGES[1:]]
    for messages, count in ((MESSAGES, 2), (silent, 2)):
        rows = conversation_rows(tokenizer, 512, form)({"messages": messages})
        assert len(rows) == count
        learnt = [texts(row, tokenizer)[1] for row in rows]
        assert learnt == ["1<|im_end|>", "def two(): return 2<|im_end|>"]
        # each after all that was said before it
        assert texts(rows[1], tokenizer)[0] == tokenizer.apply_chat_template(messages[:-1])
    first = conversation_rows(tokenizer, 512, form)({"messages": MESSAGES})[0]
    assert texts(first, tokenizer)[0] == tokenizer.apply_chat_template(MESSAGES[:2])
    assert len(conversation_rows(tokenizer, 512)({"messages": MESSAGES})) == 1


def test_texts_are_learnt_whole_in_parts(tokenizer, tmp_path):
    data = write(tmp_path / "a.jsonl", {"text": "def one():\n    return 1\n" * 9}, {"text": "x"})
    rows = read_samples(data, text_rows(tokenizer, 16)).rows
    # nothing before a sample's first token can predict it
    assert all(row.canvas == (False, *[True] * (len(row.ids) - 1)) for row in rows)
    assert all(not row.open and len(row.ids) <= 16 for row in rows)
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
        {"messages": [{"role": "wizard", "content": "a"}, MESSAGES[-1]]},
    )
    samples = read_samples(data, conversation_rows(tokenizer, 128))
    assert len(samples.rows) == 1
    reasons = dict(samples.refused)
    assert list(reasons) == [f"line {number}" for number in (2, 3, *range(5, 14))]
    for line, part in (
        (2, "not JSON"), (3, "not list"), (5, "no response"), (6, "neither messages nor prompt"), (7, "must end"),
        (8, "role and content"), (9, "longer than max_length=128"), (10, "mask token"), (11, "no prompt"),
        (12, "must end"), (13, "role='wizard' must be one of system, developer, user, assistant, tool"),
    ):  # fmt: skip
        assert part in reasons[f"line {line}"], line
    [message] = caplog.messages
    assert "1 sample, 11 refused (line 2: " in message
    assert "and 8 more" in message


def test_what_is_not_unicode_costs_one_row(tokenizer, tmp_path):
    # As Windows editors and JavaScript leave them: a byte order mark, half an emoji, Latin-1.
    good = b'{"prompt": "a", "response": "b"}\n'
    bad = (
        b'{"prompt": "\\ud83d", "response": "b"}\n{"prompt": "na\xefve", "response": "b"}\n'
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\\udc00"}]}\n'
    )
    data = tmp_path / "a.jsonl"
    data.write_bytes(BOM_UTF8 + good + bad + good)
    reader = conversation_rows(tokenizer, 512)
    samples = read_samples(data, reader)
    assert len(samples.rows) == 2
    assert samples.rows[0] == samples.rows[1]
    assert [line for line, _ in samples.refused] == ["line 2", "line 3", "line 4"]
    reasons = ("half of a surrogate pair", "not UTF-8", "half of a surrogate pair")
    for (_, reason), part in zip(samples.refused, reasons, strict=True):
        assert part in reason
    array = tmp_path / "a.json"
    array.write_bytes(BOM_UTF8 + b"[" + good + b"]")
    assert read_samples(array, reader).rows == samples.rows[:1]
    job = JsonFiles.of([data], None)
    assert [len(reader(row_fields(line))) for _, line in [*job.read(0)][::4]] == [1, 1]


def test_turns_of_pandas_are_taken(tokenizer):
    # pandas reads a Parquet column of lists as arrays.
    turns = np.array(MESSAGES, dtype=object)
    reader = conversation_rows(tokenizer, 512)
    assert reader({"messages": turns}) == reader({"messages": MESSAGES})


def test_file_without_a_usable_row_is_refused(tokenizer, tmp_path):
    with pytest.raises(
        ValueError, match=r"0 samples, 1 refused \(line 1: has neither.*nothing to learn from"
    ):
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
    row = close_sample(Row((1, 2, 3), (False, True, True)), 2, 9)
    assert row == Row((1, 2, 3, 9, 9), (False, True, True, True, True), open=False)


def test_every_form_of_a_conversation_is_the_same_sample(tokenizer, tmp_path):
    speakers = {"system": "system", "user": "human", "assistant": "gpt"}
    turns = [{"from": speakers[each["role"]], "value": each["content"]} for each in MESSAGES]
    forms = [
        {"messages": MESSAGES},
        {"conversations": turns},
        {"conversations": MESSAGES},
        {"messages": turns},
    ]
    to_rows = conversation_rows(tokenizer, 512)
    expected, *others = read_samples(write(tmp_path / "a.jsonl", *forms), to_rows).rows
    assert others == [expected] * 3
    answered, completed = [{"prompt": "Two?", name: "2"} for name in ("response", "completion")]
    assert to_rows(answered) == to_rows(completed)


@pytest.mark.parametrize("text", ["[\n{row},\n{row}, 5]", "\n [{row},{row},5]\n"])
def test_a_json_array_gives_what_lines_give(tokenizer, tmp_path, caplog, text):
    row = json.dumps({"messages": MESSAGES}, indent=1)
    (tmp_path / "a.json").write_text(text.replace("{row}", row))
    to_rows = conversation_rows(tokenizer, 512)
    found = read_samples(tmp_path / "a.json", to_rows)
    assert (
        found.rows
        == read_samples(write(tmp_path / "a.jsonl", *[{"messages": MESSAGES}] * 2), to_rows).rows
    )
    assert found.refused == [("element 3", "expected a JSON object, not int")]
    assert "2 samples, 1 refused (element 3: expected a JSON object" in caplog.messages[0]
    lines = write(tmp_path / "lines.json", {"messages": MESSAGES})
    assert read_samples(lines, to_rows).rows == found.rows[:1]
    (tmp_path / "a.json").write_text(f"[{row},")
    with pytest.raises(ValueError, match=r"a\.json'\: begins as a JSON array and is no JSON \("):
        read_samples(tmp_path / "a.json", to_rows)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"conversations": [{"from": "bot", "value": "a"}] * 2},
            "from='bot' must be one of system, human, user, gpt",
        ),
        (
            {"conversations": "a"},
            "conversations: must be at least two objects with role and content, or with from",
        ),
        (
            {"conversations": [{"from": "human"}] * 2},
            "conversations: all messages must be objects with role and content, or",
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}] * 2},
            "conversations: must end with what the assistant",
        ),
        ({"prompt": "a", "response": "b", "completion": "c"}, "both a response and a completion"),
        ({"prompt": "a", "completion": 5}, "no completion that is text"),
    ],
)
def test_what_is_wrong_with_a_form_is_named(tokenizer, fields, reason):
    with pytest.raises(BadRowError) as refused:
        conversation_rows(tokenizer, 512)(fields)
    assert reason in str(refused.value)


def test_columns_of_other_names(tokenizer):
    fields = {
        "question": "Two?",
        "answer": "2",
        "chat": MESSAGES,
        "messages": [],
        "completion": "3",
        "body": "x = 1",
    }

    def read(kind, *columns):
        return rows_reader(kind, tokenizer, 512, columns)(fields)

    plain = conversation_rows(tokenizer, 512)
    assert read("conversations", ("prompt", "question"), ("response", "answer")) == plain(
        {"prompt": "Two?", "response": "2"}
    )
    assert read("conversations", ("messages", "chat")) == plain({"messages": MESSAGES})
    assert read("text", ("text", "body")) == text_rows(tokenizer, 512)({"text": "x = 1"})
    with pytest.raises(
        BadRowError, match="has no column 'code', only question, answer, chat, messages, completion"
    ):
        read("text", ("text", "code"))
