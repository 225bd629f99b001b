"""The HTTP interface, asked by the official client and by hand: answers, streams, refusals, clients
that go away.
"""

import http.client
import json
import re
import threading
import time
from dataclasses import replace
from importlib.metadata import version

import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")

import jax
import numpy as np
import openai
from cases.server import COMPLETION, OPTIONS, PROMPT, call, listening, started

from jax_lm.options import GenerationOptions
from jax_lm.serving import api
from jax_lm.serving.api import ServerSettings
from jax_lm.serving.engine import Engine
from jax_lm.serving.errors import invalid
from jax_lm.serving.jobs import Job, spelling
from jax_lm.serving.keys import request_key
from jax_lm.serving.middleware import RequestLimits
from jax_lm.serving.responses import AnswerFormat
from jax_lm.serving.schemas import CompletionBody, DecodingBody
from jax_lm.serving.slots import Slots
from jax_lm.tokenizer import MASK, DiffuCoderTokenizer

KEY = "k" * 20
UNREADABLE = "the body is nested too deeply, has a number of too many digits, or is not UTF-8"


@pytest.fixture(scope="module")
def engine(tiny_inference):
    with started(tiny_inference) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(tiny_inference):
    """The greedy completion of PROMPT, without a server."""
    return tiny_inference.complete([PROMPT], GenerationOptions(max_new_tokens=24, temperature=0.0))[
        0
    ]


@pytest.mark.parametrize("path", api.ENDPOINTS)
def test_every_endpoint_says_how_its_texts_are_encoded(path):
    body, _ = api.ENDPOINTS[path]
    assert body.gaps is not DecodingBody.gaps


def test_models(client):
    model, *others = client.models.list().data
    assert model.id == "tiny"
    assert [each.id for each in others] == ["tiny@exact", "tiny@fast", "tiny@turbo"]
    assert [each.preset for each in (model, *others)] == ["exact", "exact", "fast", "turbo"]
    # Of 128 columns one at least is the prompt's.
    assert (model.max_tokens, model.max_model_len, model.context_length) == (80, 96, 96)
    assert client.models.retrieve("tiny").id == "tiny"
    assert client.get("models/", cast_to=dict)["data"][0]["id"] == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completion(client, expected):
    answer = client.completions.create(prompt=PROMPT, logprobs=1, **COMPLETION)
    (choice,) = answer.choices
    assert choice.text == expected
    assert choice.finish_reason in ("stop", "length")
    assert "".join(choice.logprobs.tokens) == expected
    assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    assert answer.usage.completion_tokens == len(choice.logprobs.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_several_prompts_and_choices(client, expected):
    options = COMPLETION | {"temperature": 1.0, "seed": 5}
    answer = client.completions.create(prompt=[PROMPT, "x = 1"], n=2, echo=True, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert [text.startswith(PROMPT) for text in texts] == [True, True, False, False]
    assert len(set(texts)) == 4
    again = client.completions.create(prompt=PROMPT, n=2, echo=True, **options)
    assert [choice.text for choice in again.choices] == texts[:2]


def test_the_longest_answer_is_told_as_it_is(tiny_inference):
    engine = Engine(tiny_inference, replace(OPTIONS, max_tokens=1024))
    with listening(engine) as address:
        card, *_ = call(address, "GET", "/v1/models")[2]["data"]
        fields = {"prompt": "", "max_tokens": card["max_tokens"] + 1}
        status, _, body = call(address, "POST", "/v1/completions", fields)
        assert (card["max_tokens"], status) == (95, 400)
        assert "maximum context length is 96 tokens" in body["error"]["message"]
        # beyond the limit of the server as well: the smaller of the two is told
        _, _, body = call(address, "POST", "/v1/completions", fields | {"max_tokens": 10_000})
        assert body["error"]["message"].endswith("max_tokens=10000: at most 95")


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/tiny", "/health", "/ready", "/metrics", "/"]
)
def test_head_is_get_without_a_body(address, path):
    status, headers, body = call(address, "HEAD", path)
    assert (status, body) == (200, "")
    assert headers["content-type"] == call(address, "GET", path)[1]["content-type"]
    assert call(address, "HEAD", "/v1/completions")[0] == 405


def test_token_ids_are_prompts(client, engine, expected):
    ids = engine.tokenizer.encode_plain(PROMPT)
    answer = client.completions.create(prompt=[ids, ids[:3]], **COMPLETION)
    assert answer.choices[0].text == expected
    assert answer.usage.prompt_tokens == len(ids) + 3
    assert (
        client.completions.create(prompt=ids, echo=True, **COMPLETION).choices[0].text
        == PROMPT + expected
    )
    for wrong in ([engine.tokenizer.vocab_size], [-1], [1.5], [5, "a"]):
        with pytest.raises(openai.BadRequestError, match="prompt"):
            client.completions.create(prompt=wrong, **COMPLETION)


@pytest.mark.parametrize("streams", [False, True])
def test_no_tokens_with_echo_are_the_prompts_alone(client, engine, streams):
    options = COMPLETION | {"max_tokens": 0, "stream": streams}
    options |= {"stream_options": {"include_usage": True}} if streams else {}
    pieces = client.completions.create(prompt=[PROMPT, "x"], n=2, echo=True, **options)
    pieces = list(pieces) if streams else [pieces]
    choices = [choice for piece in pieces for choice in piece.choices]
    texts = ["".join(each.text for each in choices if each.index == index) for index in range(4)]
    assert texts == [PROMPT, PROMPT, "x", "x"]
    ends = [(each.index, each.finish_reason) for each in choices if each.finish_reason]
    assert ends == [(index, "length") for index in range(4)]
    spent = len(engine.tokenizer.encode_plain(PROMPT)) + 1
    assert (pieces[-1].usage.prompt_tokens, pieces[-1].usage.completion_tokens) == (spent, 0)
    with pytest.raises(openai.BadRequestError, match="context holds 96"):
        client.completions.create(prompt=PROMPT * 20, echo=True, **options)


@pytest.mark.parametrize("logprobs", [None, 1])
def test_answers_of_no_tokens_are_as_many_as_others_at_most(client, logprobs):
    options = COMPLETION | {"max_tokens": 0, "echo": True, "logprobs": logprobs}
    with pytest.raises(openai.BadRequestError, match="26 completions at once: at most 12"):
        client.completions.create(prompt=["x"] * 13, n=2, **options)


def test_scores_do_not_keep_requests_with_a_grammar_waiting(address, monkeypatch):
    begun = threading.Event()
    release = threading.Event()

    def score(*_):
        begun.set()
        assert release.wait(30)
        return ()

    monkeypatch.setattr(api, "score", score)
    scored = {"model": "tiny", "prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 0}
    waiting = threading.Thread(target=call, args=(address, "POST", "/v1/completions", scored))
    waiting.start()
    try:
        assert begun.wait(30)
        body = COMPLETION | {"prompt": "{", "grammar": "python", "max_tokens": 1}
        assert call(address, "POST", "/v1/completions", body)[0] == 200
    finally:
        release.set()
        waiting.join()


def test_filters_act(client, tiny_inference):
    """One candidate is the likeliest token, however it is asked for."""
    options = GenerationOptions(max_new_tokens=24, temperature=1.0, top_k=1)
    likeliest = tiny_inference.complete([PROMPT], options)[0]
    drawn = COMPLETION | {"temperature": 1.0, "seed": 3}
    for extra in ({"top_k": 1}, {"min_p": 1.0}):
        assert (
            client.completions.create(prompt=PROMPT, extra_body=extra, **drawn).choices[0].text
            == likeliest
        )
    assert client.completions.create(prompt=PROMPT, **drawn).choices[0].text != likeliest


def test_without_an_end_all_tokens_are_written(client):
    answer = client.completions.create(
        prompt=PROMPT, extra_body={"ignore_eos": True}, **COMPLETION | {"max_tokens": 80}
    )
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (80, "length")


def test_a_conversation_goes_on_with_the_answers_own_message(client, engine):
    messages = [{"role": "user", "content": "Write gcd."}]
    first = client.chat.completions.create(messages=messages, **COMPLETION).choices[0].message
    again = [*messages, first, {"role": "user", "content": "Shorter.", "name": "ann"}]
    answer = client.chat.completions.create(messages=again, **COMPLETION)
    plain = [
        *messages,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "Shorter."},
    ]
    assert answer.usage.prompt_tokens == len(engine.tokenizer.encode_chat(plain))
    assert (
        answer.choices[0].message.content
        == client.chat.completions.create(messages=plain, **COMPLETION).choices[0].message.content
    )


def test_suffix_is_infilling(client, tiny_inference):
    options = GenerationOptions(max_new_tokens=24, temperature=0.0)
    middle = tiny_inference.infill("def area(r):\n", "\n    return result\n", 24, options=options)
    answer = client.completions.create(
        prompt="def area(r):\n", suffix="\n    return result\n", **COMPLETION
    )
    assert answer.choices[0].text == middle


@pytest.mark.parametrize(
    "extra", [{}, {"preset": "fast"}, {"preset": "turbo"}, {"steps": 6, "alg": "maskgit_plus"}]
)
def test_stream_is_the_answer_in_pieces(client, extra):
    whole = client.completions.create(prompt=PROMPT, extra_body=extra, **COMPLETION)
    options = COMPLETION | {"stream": True, "stream_options": {"include_usage": True}}
    *pieces, last = client.completions.create(prompt=PROMPT, extra_body=extra, **options)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert [
        piece.choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason
    ] == [whole.choices[0].finish_reason]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_stop_text(client, expected):
    stop = expected[4:7]
    for streams in (False, True):
        answer = client.completions.create(prompt=PROMPT, stop=[stop], stream=streams, **COMPLETION)
        pieces = answer if streams else [answer]
        assert (
            "".join(piece.choices[0].text for piece in pieces) == expected[: expected.index(stop)]
        )


def test_chat(client, tiny_inference):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write gcd."},
    ]
    options = GenerationOptions(max_new_tokens=24, temperature=0.0)
    expected = tiny_inference.chat(messages, options)
    answer = client.chat.completions.create(messages=messages, logprobs=True, **COMPLETION)
    assert answer.choices[0].message.content == expected
    assert "".join(token.token for token in answer.choices[0].logprobs.content) == expected
    pieces = list(client.chat.completions.create(messages=messages, stream=True, **COMPLETION))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Write "}, {"type": "text", "text": "gcd."}],
        }
    ]
    other = client.chat.completions.create(messages=[messages[0], *parts], **COMPLETION)
    assert other.choices[0].message.content == expected


def events(address, body):
    """Server-sent events as (name, data)."""
    status, _, text = call(address, "POST", "/v1/denoise", body)
    assert status == 200, text
    for block in text.strip().split("\n\n"):
        name, content = block.split("\n")
        yield name.removeprefix("event: "), json.loads(content.removeprefix("data: "))


def test_denoise_tells_every_commit(address, expected):
    first, *middle, last = events(address, {"prompt": PROMPT, **COMPLETION})
    assert first[0] == "start"
    assert first[1]["length"] == 24
    assert {name for name, _ in middle} == {"commits"}
    commits = [commit for _, data in middle for commit in data["commits"]]
    assert len({commit["position"] for commit in commits}) == len(commits)
    assert set(commits[0]) == {"position", "token_id", "text", "confidence", "step"}
    assert last == ("done", last[1] | {"text": expected})
    by_position = {commit["position"]: commit["text"] for commit in commits}
    assert "".join(by_position[place] for place in range(last[1]["tokens"])) == expected
    *_, (name, data) = events(
        address, {"messages": [{"role": "user", "content": "gcd"}], **COMPLETION}
    )
    assert (name, data["finish_reason"] in ("stop", "length")) == ("done", True)


WRONG = {
    "temperature": {"temperature": 3},
    "max_tokens": {"max_tokens": 0},
    "n": {"n": 999},
    "top_p": {"top_p": 0},
    "seed": {"seed": 2**64},
    "alg": {"alg": "best"},
    "preset": {"preset": "slow"},
    "threshold": {"threshold": 1.5},
    "steps": {"steps": 25},
    "logit_bias": {"logit_bias": {"5": 1.0}},
    "presence_penalty": {"presence_penalty": 0.5},
    "best_of": {"best_of": 3},
    "surprise": {"surprise": 1},
    "block_length": {"block_length": 8, "preset": "fast"},
    "stop": {"stop": ["a"] * 257},
    "prompt": {"prompt": 7},
    "top_k": {"top_k": -2},
    "min_p": {"min_p": 2},
    "tools": {"tools": [{"type": "function"}]},
    "response_format": {"response_format": {"type": "xml"}},
    "grammar": {"grammar": "cobol"},
    "length_penalty": {"length_penalty": 1.1},
    "store": {"store": 0},
    "ignore_eos": {"ignore_eos": "yes"},
    "stream_options": {"stream_options": {"include_obfuscation": True}},
    "logprobs": {"logprobs": 6},
    "entropy_bound": {"entropy_bound": -1},
}
INNER_NAMES = re.compile(r"constrained|tagged|#|pydantic|Input|list\[|Value error")


@pytest.mark.parametrize("param", WRONG)
def test_wrong_options_are_refused_by_name(address, param):
    status, _, body = call(
        address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION | WRONG[param]
    )
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"].split(".")[0] == param
    assert body["error"]["message"].startswith(param)
    assert not INNER_NAMES.search(body["error"]["message"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["a"] * 257}, "stop: at most 256, not 257"),
        ({"stop": 5}, "stop=5: must be a text or a list of texts"),
        ({"stop": ["a", ""]}, "stop.1='': must not be empty"),
        ({"temperature": 3}, "temperature=3: must be less than or equal to 2"),
        ({"prompt": [1, "a"]}, "prompt.1='a': must be a valid integer"),
        ({"prompt": None}, "prompt: must be given"),
        (
            {"tool_choice": "required"},
            "tool_choice='required': not supported by this server; only 'none' or 'auto' is accepted",
        ),
        ({"surprise": 1}, "surprise: not supported by this server"),
        ({"top_k": 51}, "top_k=51: must be less than or equal to 50"),
        ({"max_tokens": 0}, "max_tokens=0: must be at least 1, or 0 with the echo of a completion"),
    ],
)
def test_refusals_say_what_came_and_what_is_allowed(address, fields, message):
    status, _, body = call(
        address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION | fields
    )
    assert (status, body["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content=5: must be a text or a list of parts",
        ),
        ("/v1/responses", {"input": 5}, "input=5: must be a text or a list of messages"),
    ],
)
def test_texts_that_are_none_are_refused_by_their_field(address, path, fields, message):
    status, _, body = call(address, "POST", path, {"model": "tiny"} | fields)
    assert (status, body["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body must be given"),
        ("[]", "the body must be an object"),
        ("{", "the body is not JSON"),
        ("[" * 50_000 + "]" * 50_000, UNREADABLE),
        (b'{"prompt": "\xff"}', UNREADABLE),
        ('{"prompt": "x", "seed": ' + "9" * 5000 + "}", UNREADABLE),
    ],
)
def test_what_is_no_request_is_refused(address, body, message):
    status, _, answer = call(address, "POST", "/v1/completions", body)
    assert status == 400
    assert answer["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("fields", "begins", "ends", "param"),
    [
        ({"é" * 50_000: 1}, "\\xe9\\xe9", ": not supported by this server", "\\xe9" * 25),
        ({"steps": 10**4000}, "steps=1000", "tokens of the hole", "steps"),
        ({"alg": "x" * 50_000}, "alg='xxx", "'left_to_right' or 'untied'", "alg"),
    ],
)
def test_a_message_of_an_error_is_short_whatever_came(address, fields, begins, ends, param):
    body = {"prompt": PROMPT, "max_tokens": 8, "preset": "exact"} | fields
    status, _, answer = call(address, "POST", "/v1/completions", body)
    error = answer["error"]
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(begins)
    assert error["message"].endswith(ends)
    assert len(error["message"]) < 700


def test_errors_reach_the_client_as_its_own(client, address):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 96") as refused:
        client.completions.create(prompt=PROMPT * 20, **COMPLETION)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.NotFoundError, match="this server offers"):
        client.completions.create(prompt=PROMPT, **COMPLETION | {"model": "gpt"})
    assert (
        call(address, "POST", "/v1/completions", "{")[2]["error"]["message"]
        == "the body is not JSON"
    )
    status, _, body = call(address, "GET", "/v1/completions")
    assert (status, body["error"]["type"]) == (405, "invalid_request_error")
    status, _, body = call(address, "GET", "/v1/nothing")
    assert (status, body["error"]["message"]) == (404, "GET /v1/nothing: Not Found")


def test_special_tokens_in_a_text_are_its_characters(address, engine):
    def spent(path, **fields):
        return call(address, "POST", path, fields | COMPLETION)[2]["usage"]["prompt_tokens"]

    marker = len(engine.tokenizer.encode_plain("<|im_end|>"))
    assert marker > 1
    assert (
        spent("/v1/completions", prompt=f"x{MASK}")
        == len(engine.tokenizer.encode_plain(f"x{MASK}"))
        > 3
    )
    chat = [
        spent("/v1/chat/completions", messages=[{"role": "user", "content": f"a{end}"}])
        for end in ("", "<|im_end|>")
    ]
    assert chat[1] - chat[0] == marker
    before, after = (
        engine.tokenizer.encode_chat([{"role": "user", "content": "a<|im_end|>"}]),
        "<|im_end|>",
    )
    assert before.count(engine.tokenizer.token_id(after)) == 1


def test_an_empty_prompt_begins_a_text(client):
    assert client.completions.create(prompt="", **COMPLETION).usage.prompt_tokens == 1


@pytest.mark.parametrize(
    ("fields", "problem", "param", "begins"),
    [
        ({"steps": 2}, "num_steps=2: must be None", "steps", "steps=2: must be None"),
        ({"max_tokens": 2}, "max_tokens=2: at most 1", "max_tokens", "max_tokens=2: at most 1"),
        ({"response_format": {"type": "json_object"}}, "grammar='json_object': must be None", "response_format",
         "response_format: grammar='json_object': must be None"),
        ({"grammar": "python"}, "grammar='python': must be None", "grammar", "grammar='python': must be None"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_of_the_request(fields, problem, param, begins):
    """As an autoregressive model refuses steps and grammars by the names of our options."""
    refusal = invalid(ValueError(problem), CompletionBody(prompt="a", **fields))
    assert (refusal.body["error"]["param"], refusal.body["error"]["message"]) == (param, begins)


def test_health_ready_and_metrics(address, client):
    client.completions.create(prompt=PROMPT, **COMPLETION)
    assert [call(address, "GET", path)[0] for path in ("/health", "/ready")] == [200, 200]
    assert call(address, "GET", "/ready")[2] == {"status": "ready", "waits_for": None}
    status, _, text = call(address, "GET", "/metrics")
    assert status == 200
    for line in (
        "diffucoder_ready 1.0",
        'diffucoder_http_requests_total{key="",path="/v1/completions",status="200"}',
        "diffucoder_running_rows 0.0",
        'diffucoder_rows_total{adapter="",outcome="length"}',
        "diffucoder_first_text_seconds_bucket",
        "diffucoder_compilations_total",
    ):
        assert line in text


def test_a_full_queue_is_429_with_a_time_to_come_back(tiny_inference):
    engine = Engine(tiny_inference, replace(OPTIONS, queue=1))
    with listening(engine) as address:
        assert call(address, "GET", "/ready")[0] == 503
        first = threading.Thread(
            target=call, args=(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)
        )
        first.start()
        while not engine.queue.waiting:
            time.sleep(0.01)
        assert call(address, "GET", "/ready")[2] == {"status": "not ready", "waits_for": "compiler"}
        status, headers, body = call(
            address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION
        )
        assert (status, body["error"]["type"], body["error"]["code"]) == (
            429,
            "rate_limit_error",
            "queue_full",
        )
        assert int(headers["retry-after"]) >= 1
        engine.refuse_new(0.0)
        assert call(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)[0] == 503
        engine.start()
        first.join(60)
        assert not first.is_alive()


@pytest.mark.parametrize("body", [{"stream": True}, {}], ids=["stream", "whole"])
def test_a_client_that_goes_away_frees_its_place(address, engine, body):
    def ends():
        return engine.metrics.rows.labels("cancelled", "")._value.get()

    before = ends()
    connection = http.client.HTTPConnection(*address, timeout=60)
    content = json.dumps({"prompt": PROMPT, "max_tokens": 80, "n": 8, "seed": 1, **body})
    connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
    if body:
        connection.getresponse().read(20)
    else:
        while not engine.queue.running:
            time.sleep(0.005)
    connection.sock.close()
    connection.close()
    deadline = time.monotonic() + 20
    while ends() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ends() > before
    assert call(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)[0] == 200


@pytest.mark.parametrize("preset", ["exact", "fast", "turbo"])
def test_logits_that_are_not_finite_end_their_request_alone(
    address, engine, broken_sampler, monkeypatch, preset
):
    """Requests waited for their timeout, as nothing was ever decided."""
    body = {"prompt": PROMPT, "preset": preset} | COMPLETION
    other = {"prompt": "x = ", "preset": preset} | COMPLETION
    expected = call(address, "POST", "/v1/completions", other)[2]["choices"]
    encode = engine.tokenizer.encode
    token = min({*encode(PROMPT)} - {*encode("x = "), *encode(expected[0]["text"])})
    with monkeypatch.context() as patch:
        for slots in engine.workers[0].groups:
            broken = broken_sampler(slots.sampler, "embed_tokens", token)
            patch.setattr(slots, "sampler", broken)
        for streams in (False, True):
            status, _, answer = call(address, "POST", "/v1/completions", body | {"stream": streams})
            assert (status, answer["error"]["code"]) == (500, "not_finite")
            assert "logits are not finite" in answer["error"]["message"]
        assert call(address, "POST", "/v1/completions", other)[2]["choices"] == expected
    assert call(address, "POST", "/v1/completions", body)[0] == 200


def test_logits_that_become_not_finite_end_a_stream_with_an_error(
    address, engine, broken_sampler, monkeypatch
):
    """What was decoded before has been sent; the stream says why no more follows."""
    runs = []
    with monkeypatch.context() as patch:
        for slots in engine.workers[0].groups:
            patch.setattr(slots, "sampler", slots.sampler)
            broken, run = broken_sampler(slots.sampler, "embed_tokens"), slots.run

            def run_then_break(*job, slots=slots, broken=broken, run=run):
                run(*job)
                runs.append(slots)
                # by then, text has been sent
                if len(runs) > 4:
                    slots.sampler = broken

            patch.setattr(slots, "run", run_then_break)
        body = {"prompt": PROMPT, "max_tokens": 80, "stream": True, "preset": "exact"}
        status, _, text = call(address, "POST", "/v1/completions", body)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert status == 200
    assert len(events) > 1
    assert events[-1]["error"]["code"] == "not_finite"
    assert "[DONE]" not in text
    assert call(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)[0] == 200


def test_what_fails_inside_is_a_500_that_says_nothing(address, monkeypatch):
    def next_event(self):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(Job, "next_event", next_event)
        status, _, body = call(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)
        assert (status, body["error"]["type"]) == (500, "server_error")
        assert "secret" not in json.dumps(body)
        status, _, text = call(
            address, "POST", "/v1/completions", {"prompt": PROMPT, "stream": True} | COMPLETION
        )
        assert (status, text["error"]["type"]) == (500, "server_error")
    assert call(address, "POST", "/v1/completions", {"prompt": PROMPT} | COMPLETION)[0] == 200


def test_defaults_and_presets_by_name(engine, expected):
    """A request's own field, then the preset of the name, then the server's default."""
    settings = ServerSettings(model="tiny", defaults={"preset": "turbo", "temperature": 0.0})
    body = {"prompt": PROMPT, "max_tokens": 24, "logprobs": 0}
    with listening(engine, settings) as address:

        def steps(**fields):
            (choice,) = call(address, "POST", "/v1/completions", body | fields)[2]["choices"]
            return choice["text"], max(choice["logprobs"]["commit_steps"])

        exact = steps(preset="exact")
        assert exact[0] == expected
        assert steps(model="tiny@exact") == exact
        assert steps(model="tiny@turbo", preset="exact") == exact
        assert steps() == steps(preset="turbo") == steps(model="tiny@turbo")
        # a number of steps is a schedule, which `turbo` has none of
        assert steps(steps=24) == steps(preset="fast", steps=24)
        status, _, answer = call(address, "POST", "/v1/completions", body | {"model": "tiny@slow"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_what_times_out_is_504_in_a_stream_too(address, engine, monkeypatch, caplog):
    caplog.set_level("INFO", logger="jax_lm.serving.access")
    monkeypatch.setattr(engine, "options", replace(engine.options, timeout=0.001))
    for streams in ({}, {"stream": True}):
        body = {"prompt": PROMPT, "max_tokens": 60} | streams
        status, headers, answer = call(address, "POST", "/v1/completions", body)
        assert (status, answer["error"]["code"]) == (504, "timeout")
        assert "--timeout" in answer["error"]["message"]
        assert headers["x-should-retry"] == "false"
    # the log counts the time in the queue, although no slot was ever given
    lines = [each.fields for each in caplog.records if each.msg == "request"]
    assert [line["queue_seconds"] > 0 for line in lines[:1]] == [True]


def test_an_answer_without_a_length_has_the_servers(tiny_inference):
    asked = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}
    with (
        started(tiny_inference, replace(OPTIONS, default_tokens=12)) as engine,
        listening(engine) as address,
    ):
        _, _, answer = call(address, "POST", "/v1/completions", asked)
        assert answer["usage"]["completion_tokens"] == 12
        _, _, answer = call(address, "POST", "/v1/completions", asked | {"max_tokens": 20})
        assert answer["usage"]["completion_tokens"] == 20


def test_answers_that_are_done_in_time_are_returned(address, engine, expected, monkeypatch):
    submit = engine.submit

    def hasten(requests, *arguments, **options):
        jobs = submit(requests, *arguments, **options)
        jobs[1].deadline = 0.0
        return jobs

    monkeypatch.setattr(engine, "submit", hasten)
    body = {"prompt": PROMPT, "n": 2, **COMPLETION}
    status, _, answer = call(address, "POST", "/v1/completions", body)
    assert (status, [choice["text"] for choice in answer["choices"]]) == (200, [expected])
    assert answer["usage"]["completion_tokens"] > 0


def test_a_long_conversation_does_not_stop_the_server(address, monkeypatch):
    """Nor does a device: both are left to other threads."""
    begun, release = threading.Event(), threading.Event()

    def encode(self, messages):
        begun.set()
        assert release.wait(20)
        return [1, 2, 3]

    monkeypatch.setattr(DiffuCoderTokenizer, "encode_chat", encode)
    body = {"messages": [{"role": "user", "content": "x"}], **COMPLETION}
    asking = threading.Thread(target=call, args=(address, "POST", "/v1/chat/completions", body))
    asking.start()
    try:
        assert begun.wait(20)
        assert call(address, "GET", "/health")[0] == 200
    finally:
        release.set()
        asking.join(60)


def test_a_device_that_hangs_is_not_healthy(address, engine, monkeypatch):
    """A call that does not return holds requests beyond their deadlines, which end between calls."""
    release = threading.Event()
    advance = Slots.advance

    def hang(self, *arguments):
        assert release.wait(30)
        return advance(self, *arguments)

    monkeypatch.setattr(Slots, "advance", hang)
    monkeypatch.setattr("jax_lm.serving.engine.HANGS_AFTER", 0.5)
    monkeypatch.setattr(engine, "options", replace(engine.options, timeout=0.1))
    body = {"prompt": PROMPT, **COMPLETION}
    asking = threading.Thread(target=call, args=(address, "POST", "/v1/completions", body))
    asking.start()
    try:
        deadline = time.monotonic() + 10
        while (health := call(address, "GET", "/health"))[0] == 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (health[0], health[2]) == (503, {"status": "stopped, or the device hangs"})
    finally:
        release.set()
        asking.join(60)
    assert call(address, "GET", "/health")[0] == 200


def test_a_line_of_the_log_tells_what_a_request_took(address, caplog):
    caplog.set_level("INFO", logger="jax_lm.serving.access")
    for streams in ({}, {"stream": True}):
        caplog.clear()
        trace = f"00-{'a' * 32}-{'b' * 16}-01"
        body = {"prompt": PROMPT, **COMPLETION} | streams
        call(address, "POST", "/v1/completions", body, traceparent=trace)
        # the line follows the answer
        deadline = time.monotonic() + 10
        while not (lines := [each.fields for each in caplog.records if each.msg == "request"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (line,) = lines
        assert line["traceparent"] == trace
        assert (line["prompt_tokens"], line["completion_tokens"] > 0) == (11, True)
        assert line["reason"] in ("stop", "length")
        assert line["queue_seconds"] >= 0


def test_fields_that_are_ignored_are_named(engine):
    body = {"prompt": PROMPT, "repetition_penalty": 1.05, "top_k": 0, "seed": -1, **COMPLETION}
    unknown = body | {"surprise": 1, "logit_bias": {"5": 1.0}}
    for lenient, fields, names in (
        (False, body, "repetition_penalty, top_k"),
        (True, unknown, "repetition_penalty, surprise, logit_bias, top_k"),
    ):
        with listening(engine, limits=RequestLimits(is_lenient=lenient)) as address:
            status, headers, _ = call(address, "POST", "/v1/completions", fields)
            assert (status, headers["x-ignored-fields"]) == (200, names)
            plain = call(address, "POST", "/v1/completions", {"prompt": PROMPT, **COMPLETION})
            assert "x-ignored-fields" not in plain[1]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    for index in (0, 1, 127):
        expected = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), index))
        assert (request_key(seed, index) == np.asarray(expected)).all()
    assert (request_key(2**32 + seed, 0) != request_key(seed, 0)).any()


def test_keys_and_the_page(engine):
    with listening(
        engine, ServerSettings(model="tiny"), RequestLimits(keys=(KEY,), hosts=())
    ) as address:
        for path in ("/", "/page.css", "/page.js", "/health"):
            assert call(address, "GET", path)[0] == 200
        assert call(address, "GET", "/../pyproject.toml")[0] == 401
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert call(address, "GET", path)[0] == 401
            assert call(address, "GET", path, Authorization=f"Bearer {KEY}")[0] == 200
        wrong = openai.OpenAI(
            base_url="http://{}:{}/v1".format(*address), api_key="wrong", max_retries=0
        )
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()


def test_prompts_are_not_logged_unless_asked(engine, caplog):
    caplog.set_level("INFO", logger="jax_lm")
    for logs, count in ((False, 0), (True, 2)):
        caplog.clear()
        with listening(engine, ServerSettings(model="tiny", logs_prompts=logs)) as address:
            call(
                address,
                "POST",
                "/v1/completions",
                {"prompt": "very private"} | COMPLETION,
                X_Request_ID="abc",
            )
        assert sum(record.message == "texts" for record in caplog.records) == count
        assert ("private" in str([vars(record) for record in caplog.records])) == logs
        (line,) = [record.fields for record in caplog.records if record.message == "request"]
        assert (line["request_id"], line["status"], line["path"]) == ("abc", 200, "/v1/completions")


def test_responses(client, address):
    """As openai-python asks for them: whole, as a stream, and of a form."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "gcd"}]
    chat = client.chat.completions.create(messages=messages, **COMPLETION)
    asked = {"model": "tiny", "max_output_tokens": 24, "temperature": 0}
    ignored = {
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}, "verbosity": None},
    }
    whole = client.responses.create(
        input="gcd", instructions="Be brief.", extra_body=ignored, **asked
    )
    assert whole.output_text == chat.choices[0].message.content
    cut = chat.choices[0].finish_reason == "length"
    assert whole.status == ("incomplete" if cut else "completed")
    assert (whole.incomplete_details is not None) == cut
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    events = list(client.responses.create(input=messages, stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", whole.status]
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == events[-1].response.output_text == whole.output_text
    # the helper of the client puts the events together
    with client.responses.stream(input=messages, **asked) as stream:
        assert [event.type for event in stream] == [event.type for event in events]
    for fields, param in (
        ({"store": True}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"input": []}, "input"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
    ):
        body = {"input": "x"} | asked | fields
        status, _, answer = call(address, "POST", "/v1/responses", body)
        assert (status, answer["error"]["param"]) == (400, param)


def test_gaps_of_mistral_have_log_probabilities_but_no_echo(address):
    body = {"prompt": PROMPT, "suffix": "\n", "logprobs": 0, **COMPLETION}
    answer = call(address, "POST", "/v1/fim/completions", body)[2]
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    assert [each["top_logprobs"] for each in content] == [[]] * len(content)
    status, _, answer = call(address, "POST", "/v1/fim/completions", body | {"echo": True})
    assert (status, answer["error"]["message"]) == (400, "echo=True: must be False")


@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_a_time_limit_may_be_as_long_as_one_likes(address, path):
    body = {"prompt": PROMPT, "n_predict": 2, "t_max_predict_ms": 10**400}
    status, _, answer = call(address, "POST", path, body)
    assert (status, answer["tokens_predicted"]) == (200, 2)


def test_tokens_of_texts_and_texts_of_tokens(address, engine):
    ids = engine.tokenizer.encode_plain("x = 1<|im_end|>")
    fields = {"prompt": "x = 1<|im_end|>", "return_token_strs": True}
    status, _, answer = call(address, "POST", "/tokenize", fields)
    assert (status, answer["tokens"], answer["count"]) == (200, ids, len(ids))
    assert answer["max_model_len"] == 96
    assert "".join(answer["token_strs"]) == fields["prompt"]
    assert call(address, "POST", "/tokenize", {"content": "x = 1<|im_end|>"})[2]["tokens"] == ids
    chat = [{"role": "user", "content": "gcd"}]
    tokens = call(address, "POST", "/tokenize", {"messages": chat})[2]["tokens"]
    assert tokens == engine.tokenizer.encode_chat(chat)
    text = call(address, "POST", "/detokenize", {"tokens": ids})[2]
    assert text == dict.fromkeys(("prompt", "content"), "x = 1<|im_end|>")
    for path, wrong, param in (
        ("/detokenize", {"tokens": [engine.tokenizer.vocab_size]}, "tokens"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {"tokens": ids, "model": "other"}, "model"),
    ):
        status, _, answer = call(address, "POST", path, wrong)
        assert (status, answer["error"]["param"]) == (404 if param == "model" else 400, param)
    assert call(address, "GET", "/tokenizer_info")[2]["eos_token"] == engine.tokenizer.special.end
    assert call(address, "GET", "/version")[2] == {"version": version("jax-diffucoder")}


def test_a_long_text_holds_up_nobody(address, monkeypatch):
    """200,000 equal letters took 10 s, each decoded on the thread that answers everybody."""
    decode, threads = DiffuCoderTokenizer.decode, []

    def counted(self, *arguments, **options):
        threads.append(threading.current_thread().name)
        return decode(self, *arguments, **options)

    monkeypatch.setattr(DiffuCoderTokenizer, "decode", counted)
    # other tests have spelled this letter
    spelling.cache_clear()
    long = {"prompt": "a" * 200_000}
    _, _, answer = call(address, "POST", "/tokenize", long)
    assert (answer["count"], answer["token_strs"], threads) == (200_000, None, [])
    _, _, answer = call(address, "POST", "/tokenize", long | {"return_token_strs": True})
    assert (answer["token_strs"], len(threads)) == (["a"] * 200_000, 1)
    _, _, text = call(address, "POST", "/detokenize", {"tokens": answer["tokens"]})
    assert text["content"] == long["prompt"]
    assert set(threads) == {"AnyIO worker thread"}


def slow_down(monkeypatch, call, heartbeat):
    """Let a call of the device take so many seconds, and a comment be due after so many."""
    run = Slots.run

    def run_slowly(self, *arguments):
        time.sleep(call)
        run(self, *arguments)

    monkeypatch.setattr(api, "HEARTBEAT_SECONDS", heartbeat)
    monkeypatch.setattr(Slots, "run", run_slowly)


def test_a_silent_stream_sends_comments(address, monkeypatch):
    slow_down(monkeypatch, 0.3, 0.05)
    body = {"prompt": PROMPT, "max_tokens": 8, "stream": True}
    status, _, text = call(address, "POST", "/v1/completions", body)
    assert (status, text.count("data: [DONE]")) == (200, 1)
    assert text.count(": waiting\n\n") > 3


def test_a_stream_of_events_without_text_sends_comments(engine, monkeypatch):
    # "exact" commits tokens in any order, so that many steps write no text
    slow_down(monkeypatch, 0.1, 0.25)
    monkeypatch.setattr(AnswerFormat, "progress", lambda *_: ())
    body = {"prompt": PROMPT, "max_tokens": 32, "stream": True, "preset": "exact"}
    with listening(engine) as address:
        status, _, text = call(address, "POST", "/v1/completions", body)
    assert (status, text.count("data: [DONE]")) == (200, 1)
    assert text.count(": waiting\n\n") >= 2


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_late_while_a_call_of_the_device_hangs(
    tiny_inference, monkeypatch, is_ready, stream
):
    """Or while the warm-up compiles: the engine's thread is in a call, and ends no job."""
    is_free = threading.Event()
    monkeypatch.setattr(api, "HEARTBEAT_SECONDS", 0.1)
    body = {"prompt": PROMPT, "max_tokens": 8, "stream": stream}
    held = "run" if is_ready else "compile"
    own = getattr(Slots, held)
    engine = Engine(tiny_inference, replace(OPTIONS, timeout=0.5))
    if is_ready:
        engine.start()
        assert engine.ready.wait(120)
    monkeypatch.setattr(
        Slots, held, lambda *arguments, **named: is_free.wait(60) and own(*arguments, **named)
    )
    if not is_ready:
        engine.start()
    try:
        with listening(engine) as address:
            start = time.monotonic()
            status, _, answer = call(address, "POST", "/v1/completions", body)
            assert (status, answer["error"]["code"]) == (504, "timeout")
            assert time.monotonic() - start < 10
            assert engine.ready.is_set() == is_ready
            is_free.set()
            # the late job is forgotten once the call has returned
            while engine.queue.jobs:
                assert time.monotonic() - start < 60
                time.sleep(0.05)
    finally:
        is_free.set()
        engine.close(grace=0.0)


def test_requests_of_clients_that_left_are_not_prepared(engine, monkeypatch):
    begun = []
    is_free = threading.Event()
    own = CompletionBody.gaps

    def gaps(body, *arguments):
        begun.append(body.prompt)
        assert is_free.wait(30)
        return own(body, *arguments)

    monkeypatch.setattr(CompletionBody, "gaps", gaps)
    body, kind = json.dumps({"prompt": "left"}), {"Content-Type": "application/json"}
    with listening(engine) as address:
        clients = [http.client.HTTPConnection(*address) for _ in range(20)]
        for each in clients:
            each.request("POST", "/v1/completions", body, kind)
        while not begun:
            time.sleep(0.01)
        time.sleep(0.5)
        for each in clients:
            each.close()
        time.sleep(0.5)
        is_free.set()
        last = {"prompt": PROMPT, "max_tokens": 1}
        assert call(address, "POST", "/v1/completions", last)[0] == 200
    assert begun.count("left") < 10
    assert begun[-1] == PROMPT


@pytest.mark.parametrize(
    "texts",
    [{"prompt": "a", "suffix": "b"}, {"prompt": ["a", "<fim_prefix>a<fim_suffix>b<fim_middle>"]}],
)
def test_a_prompt_with_a_gap_gets_no_scores(client, texts):
    """Its tokens are not those of the text that is repeated, which has the markers."""
    with pytest.raises(openai.BadRequestError, match="cannot be combined with a gap") as refused:
        client.completions.create(model="tiny", echo=True, logprobs=1, **texts)
    assert refused.value.param == "logprobs"
