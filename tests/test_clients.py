"""Requests as clients send them: each is answered, with what was asked for, or refused by name.

`samples/requests.jsonl` has one per line, with the version or commit of the client, what it reads
from the answer (`reads`), and an ordinary request that must have the same answer (`plain`). Those of
openai-python, LangChain, LiteLLM and evalplus were recorded; the others are written from the clients' sources.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("outlines_core")

from cases.server import OPTIONS, call, listening, started

from jax_lm.grammar import find_grammar
from jax_lm.serving.gaps import split_gap
from jax_lm.serving.infill import InfillBody, cut_at_dedent, cut_to_fit
from jax_lm.serving.middleware import RequestLimits
from jax_lm.serving.schemas import CompletionBody
from jax_lm.serving.slots import Slots

SAMPLES = Path(__file__).parent / "samples" / "requests.jsonl"
REQUESTS = [json.loads(line) for line in SAMPLES.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def engine(tiny_inference):
    with started(tiny_inference, replace(OPTIONS, context=128)) as engine:
        yield engine


def chunks(stream):
    """Read a stream as line-based clients do: every line is empty or one event."""
    assert {line[:6] for line in stream.split("\n")} == {"data: ", ""}
    events = stream.removesuffix("data: [DONE]\n\n")
    found = [json.loads(line[6:]) for line in events.split("\n") if line]
    # llama.cpp's streams end with the counts instead
    assert (events == stream) == ("stop" in found[-1])
    return found


def texts(answer):
    """Return the text of every choice, whatever the endpoint; those of a stream are joined."""
    if isinstance(answer, str):
        found = chunks(answer)
        if "stop" in found[-1]:
            assert [chunk["stop"] for chunk in found] == [False] * (len(found) - 1) + [True]
            assert found[-1]["tokens_predicted"] <= found[-1]["generation_settings"]["n_predict"]
            return ["".join(chunk["content"] for chunk in found)]
        choices = [choice for chunk in found for choice in chunk["choices"]]
        assert choices[-1]["finish_reason"] in ("stop", "length")
        pieces = [
            choice.get("text") or choice.get("delta", {}).get("content") for choice in choices
        ]
        return ["".join(piece or "" for piece in pieces)]
    if isinstance(answer, dict) and "output" in answer:
        assert answer["status"] in ("completed", "incomplete")
        return [item["content"][0]["text"] for item in answer["output"]]
    if isinstance(answer, list) or "choices" not in answer:
        return [
            each.get("content", "") for each in (answer if isinstance(answer, list) else [answer])
        ]
    assert {choice["finish_reason"] for choice in answer["choices"]} <= {"stop", "length"}
    return [
        choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in answer["choices"]
    ]


def value_at(answer, path):
    """Return a field of an answer by its path ("choices/0/text"), or by that key; None without it."""
    if path in answer:
        return answer[path]
    for step in path.split("/"):
        try:
            answer = answer[int(step) if isinstance(answer, list) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return answer


def name(sample):
    return f"{sample['client']}: {sample['what']}"


@pytest.mark.parametrize("sample", [one for one in REQUESTS if "refused" not in one], ids=name)
def test_what_a_client_sends_is_answered(address, sample):
    status, headers, answer = call(address, "POST", sample["path"], sample["body"])
    assert status == 200, answer
    assert headers["x-ignored-fields"] == sample.get("ignored")
    found = texts(answer)
    assert len(found) == sample.get("choices", 1)
    assert all(isinstance(text, str) for text in found)
    parts = chunks(answer) if isinstance(answer, str) else [answer]
    for path in sample.get("reads", ()):
        assert any(value_at(part, path) is not None for part in parts), path
    if sample["body"].get("stream_options", {}).get("include_usage"):
        assert [bool(part["usage"]) for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1]["choices"] == []
    if "grammar" in sample:
        grammar = find_grammar(sample["grammar"])
        assert [grammar.completion(text) for text in found] == [""] * len(found)
    # Greedy, so that the same answer without what means nothing is the same text.
    if sample["body"].get("temperature") == 0 and "plain" in sample:
        path = sample.get("plain_path", sample["path"])
        assert texts(call(address, "POST", path, sample["plain"])[2]) == found


@pytest.mark.parametrize("sample", [one for one in REQUESTS if "refused" in one], ids=name)
def test_what_this_server_does_not_have_is_named(address, sample):
    # a stream too is refused by a status and a body that clients read
    status, headers, answer = call(address, "POST", sample["path"], sample["body"])
    error = answer["error"]
    assert (status, error["param"], error["type"]) == (
        400,
        sample["refused"],
        "invalid_request_error",
    )
    assert headers["x-should-retry"] == "false"
    # the code by which LiteLLM calls a model with a larger context instead
    if "code" in sample:
        assert error["code"] == sample["code"]
        assert error["message"].startswith("This model's maximum context length is 128 tokens.")
        return
    assert error["message"].startswith(sample["refused"])
    is_value = "must be" in error["message"]
    assert error["code"] == (None if is_value else "unsupported_parameter")


def test_an_agent_gets_a_text_where_its_tools_are_ignored(engine):
    agents = [one for one in REQUESTS if one.get("refused") == "tools"]
    assert len(agents) >= 4
    with listening(engine, limits=RequestLimits(is_lenient=True)) as address:
        for sample in agents:
            status, headers, answer = call(address, "POST", sample["path"], sample["body"])
            assert (status, len(texts(answer))) == (200, 1)
            assert "tools" in headers["x-ignored-fields"].split(", ")


def test_every_client_is_there():
    answered = {one["client"].split()[0] for one in REQUESTS if "refused" not in one}
    assert answered >= {
        "openai-python",
        "langchain-openai",
        "litellm",
        "lm-eval",
        "llama.vscode",
        "llama.vim",
        "minuet-ai.nvim",
        "continue",
        "twinny",
        "cline",
        "aider",
        "evalplus",
        "zed",
    }


@pytest.mark.parametrize(
    ("prompt", "gap"),
    [
        ("<fim_prefix>a<fim_suffix>b<fim_middle>", ("a", "b")),
        ("<fim_prefix><fim_suffix>b<fim_middle>a", ("a", "b")),
        ("<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>\n", ("a", "b")),
        ("<|repo_name|>r\n<|file_sep|>x.py\nc\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
         ("# r\n# x.py\nc\na", "b")),
        ("<fim_prefix><filename>x.py\na<fim_suffix><fim_middle>", ("# x.py\na", "")),
        ("[SUFFIX]b[PREFIX]a", ("a", "b")),
        ("<PRE> a <SUF>b <MID>", ("a", "b")),
        ("<PRE>  a  <SUF> b<MID>", (" a ", " b")),
        ("<PRE> a <SUF>b <MID>\n", ("a", "b")),
        ("<PRE> <SUF>b <MID> a ", ("a ", "b")),
        ("<fim-prefix>a<fim-suffix>b<fim-middle>", ("a", "b")),
        ("c\n\n[SUFFIX]b[PREFIX]a", ("c\n\na", "b")),
        ("<|code_prefix|>a<|code_suffix|>b<|code_middle|>", ("a", "b")),
        ("<|user|>\nc\n<|code_suffix|>b<|code_prefix|>a<|code_middle|><|assistant|>\n",
         ("# \nc\na", "b")),
        ("<|repo_name|>r\n<|file_sep|>x.py\na", ("# r\n# x.py\na", None)),
        ("def f(x):\n    return x[SUFFIX]", None),
        ("row[SUFFIX] = row[PREFIX] + ", None),
        ("plain", None),
        ("<HTML><PRE>a</PRE><PRE>", None),
    ],
)  # fmt: skip
def test_every_template_of_a_gap_is_read(prompt, gap):
    assert split_gap(prompt) == gap


def test_a_marker_that_cannot_be_read_is_refused(address):
    # the last took hours when the markers were one regular expression, and nobody else was answered
    many = "<fim_prefix>" * 4000 + "<fim_suffix>" * 4000
    for prompt in ("<fim_prefix>a<fim_middle>", ["x", "a<|fim_suffix|>b"], many):
        status, _, answer = call(address, "POST", "/v1/completions", {"prompt": prompt})
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert "its markers cannot be read; must be <" in answer["error"]["message"]


def test_an_editor_names_the_fields_that_it_reads(address):
    sample = next(one for one in REQUESTS if one["client"].startswith("llama.vim"))
    answer = call(address, "POST", "/infill", sample["body"])[2]
    assert set(answer) == set(sample["reads"])
    assert answer["timings/predicted_ms"] > 0
    assert answer["timings/predicted_per_second"] == pytest.approx(
        1000 * answer["timings/predicted_n"] / answer["timings/predicted_ms"], rel=1e-3
    )
    whole = dict(sample["body"])
    del whole["response_fields"]
    assert (
        answer["timings/prompt_n"]
        == call(address, "POST", "/infill", whole)[2]["timings"]["prompt_n"]
    )


def test_null_is_as_good_as_not_given():
    names = set(CompletionBody.model_fields) - {"prompt"}
    assert CompletionBody.model_validate({"prompt": "x"} | dict.fromkeys(names)) == CompletionBody(
        prompt="x"
    )


def test_an_editor_gets_what_stands_between(address, engine):
    """As the endpoint of OpenAI gives it, with the text up to the cursor in two parts."""
    fields = {"temperature": 0, "preset": "turbo"}
    openai = {
        "prompt": "def area(r):\n    return",
        "suffix": "\n\nprint(area(2))\n",
        "max_tokens": 12,
    }
    expected = call(address, "POST", "/v1/completions", openai | fields)[2]
    llama = {
        "input_prefix": "def area(r):\n",
        "prompt": "    return",
        "input_suffix": openai["suffix"],
        "n_predict": 12,
    }
    answer = call(address, "POST", "/infill", llama | fields)[2]
    (choice,) = expected["choices"]
    assert answer["content"] == choice["text"]
    assert answer["stop_type"] == {"stop": "eos", "length": "limit"}[choice["finish_reason"]]
    assert answer["tokens_evaluated"] == expected["usage"]["prompt_tokens"]
    assert (answer["truncated"], answer["stop"]) == (False, True)


def test_an_editor_sends_more_than_fits(address):
    long = {"input_prefix": "x = 1\n" * 200, "input_suffix": "y = 2\n" * 200, "n_predict": 16}
    answer = call(address, "POST", "/infill", long)[2]
    assert answer["truncated"]
    assert answer["tokens_evaluated"] == 128 - 16 - 1


def test_an_editor_that_waits_no_longer_gets_what_there_is(address):
    body = {"input_prefix": "def f(n):\n", "n_predict": 80, "t_max_predict_ms": 1, "temperature": 0}
    status, _, answer = call(address, "POST", "/infill", body)
    assert (status, answer["stop_type"]) == (200, "none")
    assert answer["content"] == ""
    prompt = {name: value for name, value in body.items() if name != "input_prefix"}
    prompt |= {"prompt": "def f(n):\n", "stream": True}
    status, _, streamed = call(address, "POST", "/completion", prompt)
    (chunk,) = chunks(streamed)
    assert (status, chunk["stop"], chunk["stop_type"], chunk["content"]) == (200, True, "none", "")


def test_what_is_final_of_a_late_answer_is_counted(address, monkeypatch):
    body = {"prompt": "def f(n):\n", "n_predict": 80, "temperature": 0, "preset": "fast"}
    body |= {"ignore_eos": True}
    # its program is compiled
    assert call(address, "POST", "/completion", body)[2]["tokens_predicted"] == 80
    run = Slots.run

    def run_slowly(self, *arguments, **named):
        time.sleep(0.2)
        run(self, *arguments, **named)

    monkeypatch.setattr(Slots, "run", run_slowly)
    body["t_max_predict_ms"] = 1000
    answer = call(address, "POST", "/completion", body)[2]
    assert (answer["stop_type"], bool(answer["content"])) == ("none", True)
    assert 0 < answer["tokens_predicted"] < 80
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"]
    events = chunks(call(address, "POST", "/completion", body | {"stream": True})[2])
    assert events[-1]["tokens_predicted"] >= events[-2]["tokens_predicted"] > 0


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (20, ([7, 8, 9, 1, 2, 3, 4], [5, 6], False)),
        (8, ([8, 9, 1, 2, 3, 4], [5, 6], False)),
        (6, ([1, 2, 3, 4], [5, 6], False)),
        (5, ([1, 2, 3, 4], [5], True)),
        (4, ([2, 3, 4], [5], True)),
        (1, ([4], [], True)),
        (0, ([], [], True)),
    ],
)
def test_what_is_nearest_to_the_cursor_is_kept(room, kept):
    assert cut_to_fit([7, 8, 9], [1, 2, 3, 4], [5, 6], room) == kept


@pytest.mark.parametrize(
    ("least", "kept"),
    [(0, "a\n    b\n\n  c\nd"), (1, "a\n    b\n\n  c"), (3, "a\n    b\n"), (5, "a")],
)
def test_a_line_that_is_indented_too_little_ends_the_text(least, kept):
    assert cut_at_dedent("a\n    b\n\n  c\nd", least) == kept


def test_the_schema_tells_what_means_nothing():
    schema = InfillBody.model_json_schema()["properties"]
    assert [] in schema["tools"]["enum"]
    assert schema["id_slot"] == {}
    assert {"type": "null"} in schema["n_cmpl"]["anyOf"]
