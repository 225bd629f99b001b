"""The tokenizer against recorded cases of the published one, chat templates, and what is refused."""

import json
import re
import shutil
import threading
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases.reference import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_model.bpe import train_bpe
from jax_lm.tokenizer import (
    DIFFUSION_PAD,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    START_OF_TURN,
    DiffuCoderTokenizer,
    TokenizerError,
    pad_left,
)

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "tokenizer"
CASES = json.loads((GOLDEN / "tokenizer_cases.json").read_text(encoding="utf-8"))
SPECIAL = (END_OF_TEXT, START_OF_TURN, END_OF_TURN, MASK, DIFFUSION_PAD)
HI = {"role": "user", "content": "hi"}
TEXTS = (
    "def add(a, b):\n    return a + b\n",
    "for i in range(10):\n    print(i)\n",
    "the sum of two numbers",
) * 3


def published(name):
    """A published file or folder; skips the test where these files are not at hand."""
    if not (PUBLISHED / name).exists():
        pytest.skip(f"no published tokenizer at {PUBLISHED / name}")
    return PUBLISHED / name


@pytest.fixture(scope="module")
def instruct():
    return DiffuCoderTokenizer.from_pretrained(published("diffucoder-instruct"))


@pytest.fixture(scope="module")
def base():
    return DiffuCoderTokenizer.from_pretrained(published("diffucoder-base"))


@pytest.fixture(scope="module")
def from_json(tmp_path_factory):
    """The instruct tokenizer by way of tokenizer.json: that of Qwen2.5 with the tokens that Dream
    adds.
    """
    fields = json.loads(published("qwen2.5-tokenizer.json").read_text(encoding="utf-8"))
    like = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    for number, token in enumerate(("<|beginoftext|>", MASK, DIFFUSION_PAD)):
        fields["added_tokens"].append({"id": 151665 + number, "content": token} | like)
    folder = tmp_path_factory.mktemp("json")
    (folder / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")
    return DiffuCoderTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def small():
    return train_bpe(
        TEXTS, vocab_size=300, special_tokens=SPECIAL, chat_template="{{ messages[0].content }}"
    )


@pytest.fixture
def saved(small, tmp_path):
    """The folder of the small tokenizer, to be damaged."""
    small.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def separate(saved, tmp_path):
    """The same tokenizer in the files of the published checkpoints: vocab.json, merges.txt,
    added_tokens.json.
    """
    content = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    vocabulary = {
        token: number for token, number in content["model"]["vocab"].items() if token not in added
    }
    folder = tmp_path / "separate"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = (" ".join(pair) for pair in content["model"]["merges"])
    (folder / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
    (folder / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
    return folder


@pytest.mark.parametrize("route", ["instruct", "from_json"])
def test_recorded_cases(request, route):
    tokenizer = request.getfixturevalue(route)
    assert len(CASES) == 24
    assert [tokenizer.encode(case["text"]) for case in CASES] == [case["ids"] for case in CASES]
    assert [tokenizer.decode(case["ids"]) for case in CASES] == [case["decoded"] for case in CASES]


def test_both_routes_agree_on_the_special_tokens(instruct, from_json):
    for tokenizer in (instruct, from_json):
        assert (tokenizer.vocab_size, tokenizer.mask_id, tokenizer.pad_id) == (
            151668,
            151666,
            151667,
        )


def test_stop_and_pad_ids(base, instruct):
    assert base.stop_ids == (151643, 151645)
    assert instruct.stop_ids == (151643, 151645, 151667)
    assert (base.pad_id, instruct.pad_id) == (151643, 151667)
    assert base.vocab_size == 151667


def test_tool_tags_are_text_and_turns_are_not(instruct):
    ids = instruct.encode("<|im_start|><tool_call>x</tool_call><|im_end|>")
    assert instruct.decode(ids, skip_special_tokens=True) == "<tool_call>x</tool_call>"


@pytest.mark.parametrize(
    ("messages", "prompted", "expected"),
    [
        ([HI], True, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
         "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ([HI], False, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
        ([{"role": "system", "content": "Be\nbrief."}, HI], True, "<|im_start|>system\nBe\nbrief.<|im_end|>\n"
         "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ([HI, {"role": "assistant", "content": "ho"}, HI], True,
         "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
         "<|im_start|>assistant\nho<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
    ],
)  # fmt: skip
def test_chat_template_to_the_character(instruct, messages, prompted, expected):
    assert instruct.apply_chat_template(messages, add_generation_prompt=prompted) == expected


def test_base_tokenizer_has_a_template_too(base, instruct):
    assert base.chat_template == instruct.chat_template


def test_a_tokenizer_without_a_mask_is_that_of_an_autoregressive_model(tmp_path):
    shutil.copy(published("qwen2.5-tokenizer.json"), tmp_path / "tokenizer.json")
    tokenizer = DiffuCoderTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode("def f(x):")) == "def f(x):"
    with pytest.raises(TokenizerError, match="no mask token: its model is autoregressive"):
        _ = tokenizer.mask_id


def with_template(tokenizer, template):
    return DiffuCoderTokenizer(tokenizer.backend, template)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ cycler.__init__.__globals__ }}", "__init__"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].update(role='x') }}", "update"),
        ("{{ messages[0].picture.url }}", "picture"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{% for i in range(1000000) %}{% endfor %}", "chat template"),
        ("{{ 1 // 0 }}", "chat template"),
        ("{{ 'a' + 1 }}", "chat template"),
        ("{% include 'other' %}", "chat template"),
    ],
)
def test_hostile_or_broken_template_is_refused(small, template, named):
    with pytest.raises(TokenizerError, match=named):
        with_template(small, template).apply_chat_template([HI])


def test_hostile_template_changes_no_message(small):
    messages = [dict(HI)]
    with pytest.raises(TokenizerError):
        with_template(small, "{{ messages[0].clear() }}").apply_chat_template(messages)
    assert messages == [HI]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([{"role": "user"}], "content"),
        ([], "no element 0"),
        ([{"role": "user", "content": None}], "chat template"),
    ],
)
def test_messages_that_the_template_does_not_accept(instruct, messages, named):
    with pytest.raises(TokenizerError, match=named):
        instruct.apply_chat_template(messages)


def test_without_template_there_is_no_chat(small):
    with pytest.raises(TokenizerError, match="no chat template"):
        with_template(small, None).apply_chat_template([HI])


def test_template_conveniences(small):
    template = "{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n{{ m | tojson }}\n{% endfor %}\n"
    expected = '{"role": "user", "content": "é"}\n'
    assert (
        with_template(small, template).apply_chat_template([HI, HI | {"content": "é"}]) == expected
    )


ODD_CHARACTERS = st.sampled_from(" \t\r\n\u00a0\u3000\u200bab1_'(){}<|>sSé\u0301\u1100\u1161🙂")
ASSIGNED = st.characters(
    exclude_categories=("Cs", "Cn")
)  # what Unicode may still define differs by version


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.text(ASSIGNED, max_size=60) | st.text(ODD_CHARACTERS, max_size=40))
def test_decoding_gives_back_the_normalised_text(small, text):
    assert not any(token in text for token in SPECIAL)
    assert small.decode(small.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "text", [*TEXTS[:3], "\n\n\n    \t x", "日本語 🙂🙃 русский", "it's   DON'T\r\n", "", "\0\x7f"]
)
def test_texts_come_back(small, text):
    assert small.decode(small.encode(text)) == text


def test_training_merges_frequent_words_within_the_vocabulary(small):
    assert small.vocab_size <= 300
    assert len(small.encode(" return")) < len(" return") / 2


def test_special_tokens_are_single_ids_after_the_others(small):
    first = small.vocab_size - len(SPECIAL)
    assert [small.encode(token) for token in SPECIAL] == [[first + i] for i in range(len(SPECIAL))]
    assert small.encode(f"a{MASK}{MASK}b") == [
        *small.encode("a"),
        small.mask_id,
        small.mask_id,
        *small.encode("b"),
    ]
    assert small.decode(small.encode(f"a{MASK}b"), skip_special_tokens=True) == "ab"
    assert small.decode(small.encode(f"a{MASK}b")) == f"a{MASK}b"


def test_unknown_token_has_no_id(small):
    with pytest.raises(KeyError, match="nothing"):
        small.token_id("<|nothing|>")


def test_saved_tokenizer_is_the_same(small, saved):
    loaded = DiffuCoderTokenizer.from_pretrained(saved)
    texts = [*TEXTS[:3], *(case["text"] for case in CASES), "".join(SPECIAL)]
    assert [loaded.encode(text) for text in texts] == [small.encode(text) for text in texts]
    for name in ("vocab_size", "mask_id", "pad_id", "stop_ids", "chat_template"):
        assert getattr(loaded, name) == getattr(small, name)
    ids = small.encode("".join(SPECIAL))
    assert (
        loaded.decode(ids, skip_special_tokens=True)
        == small.decode(ids, skip_special_tokens=True)
        == ""
    )


def test_template_of_tokenizer_config_is_read(saved):
    (saved / "chat_template.jinja").unlink()
    assert DiffuCoderTokenizer.from_pretrained(saved).chat_template is None
    (saved / "tokenizer_config.json").write_text('{"chat_template": "from the config"}')
    assert DiffuCoderTokenizer.from_pretrained(saved).chat_template == "from the config"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("def f(x): \ud83d", r"character 11 is '\\ud83d', half of a surrogate pair"),
        (b"na\xefve".decode("utf-8", "surrogateescape"), r"character 3 is '\\udcef'"),
    ],
)
def test_what_is_not_unicode_is_named(small, text, named):
    for encode in (small.encode, small.encode_plain):
        with pytest.raises(TokenizerError, match=named):
            encode(text)
    assert small.decode(small.encode("\U0001f600")) == "\U0001f600"


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt", "added_tokens.json"])
def test_missing_file_is_named(separate, missing):
    (separate / missing).unlink()
    with pytest.raises(TokenizerError, match=f"no .*{re.escape(missing)}"):
        DiffuCoderTokenizer.from_pretrained(separate)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=re.escape(str(tmp_path / "none"))):
        DiffuCoderTokenizer.from_pretrained(tmp_path / "none")


@pytest.mark.parametrize(
    "name", ["vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json"]
)
def test_damaged_file_is_refused(separate, name):
    (separate / name).write_bytes(b'\xff{"a": ')
    with pytest.raises(TokenizerError, match=re.escape(str(separate))):
        DiffuCoderTokenizer.from_pretrained(separate)


def test_damaged_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=re.escape(str(tmp_path))):
        DiffuCoderTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda ids: {token: number + 1 for token, number in ids.items()}, id="shifted"
        ),
        pytest.param(
            lambda ids: {token: number for token, number in ids.items() if token != MASK}, id="gap"
        ),
        pytest.param(lambda ids: ids | {START_OF_TURN: ids[END_OF_TURN]}, id="doubled"),
    ],
)
def test_added_ids_must_continue_the_vocabulary(separate, change):
    path = separate / "added_tokens.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(
        TokenizerError,
        match=r"added_tokens\.json: .* ids must continue the vocabulary without a gap",
    ):
        DiffuCoderTokenizer.from_pretrained(separate)


def test_added_token_of_the_vocabulary_is_refused(separate):
    path = separate / "added_tokens.json"
    ids = json.loads(path.read_text())
    path.write_text(
        json.dumps({"a": min(ids.values())} | {token: number + 1 for token, number in ids.items()})
    )
    with pytest.raises(TokenizerError, match=r"added_tokens\.json"):
        DiffuCoderTokenizer.from_pretrained(separate)


def test_tokenizer_without_mask_is_refused():
    with pytest.raises(TokenizerError, match=re.escape(MASK)):
        train_bpe(TEXTS, vocab_size=300, special_tokens=(END_OF_TEXT,))


def test_missing_special_tokens_are_added_in_a_fixed_order(small, tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "x", "pad_token": null}')
    small.save_settings(tmp_path)
    fields = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert list(fields) == ["unk_token", "pad_token", "eos_token", "mask_token"]


def test_required_ids_fit_or_are_both_named(small, tiny_config):
    config = replace(tiny_config, mask_token_id=small.mask_id, vocab_size=small.vocab_size)
    small.require_ids(config)
    small.require_ids(replace(config, vocab_size=small.vocab_size + 64))
    with pytest.raises(TokenizerError, match=rf"at {small.mask_id}, .* mask_token_id is 7\b"):
        small.require_ids(replace(config, mask_token_id=7))
    with pytest.raises(
        TokenizerError,
        match=rf"names no mask_token_id, and the tokenizer has .* at {small.mask_id}",
    ):
        small.require_ids(replace(config, mask_token_id=None))
    with pytest.raises(
        TokenizerError, match=rf"{small.vocab_size} tokens, the model only {small.vocab_size - 1}"
    ):
        small.require_ids(replace(config, vocab_size=small.vocab_size - 1))


@pytest.mark.parametrize(
    ("rows", "multiple_of", "ids", "mask"),
    [
        ([[1, 2, 3], [4]], 1, [[1, 2, 3], [9, 9, 4]], [[1, 1, 1], [0, 0, 1]]),
        ([[1, 2, 3], []], 4, [[9, 1, 2, 3], [9, 9, 9, 9]], [[0, 1, 1, 1], [0, 0, 0, 0]]),
        ([[1, 2]], 2, [[1, 2]], [[1, 1]]),
        ([[1, 2, 9]], 2, [[9, 1, 2, 9]], [[0, 1, 1, 1]]),
    ],
)
def test_rows_are_padded_on_the_left(rows, multiple_of, ids, mask):
    ours, present = pad_left(rows, 9, multiple_of=multiple_of)
    np.testing.assert_array_equal(ours, ids)
    np.testing.assert_array_equal(present, mask)


@pytest.mark.parametrize("rows", [[], [[], []]])
def test_nothing_to_pad(rows):
    for array in pad_left(rows, 9, multiple_of=8):
        assert array.shape == (len(rows), 0)


def test_batch_of_texts_is_padded_with_the_pad_token(small):
    texts = ["def add(a, b):", "", "x"]
    ids, mask = pad_left([small.encode(text) for text in texts], small.pad_id, multiple_of=8)
    assert ids.shape[1] % 8 == 0
    assert ids.shape[1] - max(mask.sum(axis=1)) < 8
    for row, present, text in zip(ids, mask, texts, strict=True):
        assert row[present == 1].tolist() == small.encode(text)
        assert (row[present == 0] == small.pad_id).all()
        assert (np.diff(present) >= 0).all()


@pytest.mark.parametrize("stop", [END_OF_TEXT, END_OF_TURN, DIFFUSION_PAD])
def test_text_ends_at_the_first_stop_token(small, stop):
    assert small.decode_until_stop(small.encode(f"a b{stop}c{END_OF_TEXT}d")) == "a b"


def test_other_threads_run_while_a_long_text_is_encoded(small):
    """A server answers others meanwhile."""
    text = "def total(values):\n    return sum(values)\n" * 30_000
    small.encode("x")
    begun = time.monotonic()
    encoding = threading.Thread(target=small.encode, args=(text,))
    encoding.start()
    longest, last = 0.0, begun
    while encoding.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, (now := time.monotonic()) - last), now
    assert longest < 0.5 * (last - begun), (longest, last - begun)


def test_text_without_stop_is_whole_and_without_masks(small):
    assert small.decode_until_stop(small.encode(f"{START_OF_TURN}a{MASK}b")) == "ab"
    assert small.decode_until_stop(small.encode(f"{END_OF_TEXT}a")) == ""
