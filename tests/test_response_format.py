"""Answers that a request holds to a grammar: what they are, streams of them, who else is served,
what is refused.
"""

import ast
import http.client
import itertools
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytest.importorskip("outlines_core")

import openai
import pydantic
from cases.published_model import publish_growing
from cases.server import OPTIONS, RecordingListener, call, listening, started

from jax_lm.diffusion.constrained import Repair
from jax_lm.grammar import find_grammar
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving import admission, api
from jax_lm.serving.constrained import ConstrainedSequence
from jax_lm.serving.jobs import Request
from jax_lm.serving.schemas import CompletionBody
from jax_lm.serving.slots import Slots

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "role": {"enum": ["admin", "user"]},
        "pets": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer"}},
                "required": ["kind", "age"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "role", "pets"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
PROMPT = "def gcd(a, b):\n"
LENGTH = 48
"""Tokens of answers: with a block that is not whole. Another length is another program."""
ASKED = {"prompt": PROMPT, "max_tokens": LENGTH, "temperature": 0, "preset": "turbo"}
TALK = {"messages": [{"role": "user", "content": "Who is it?"}]} | {
    k: v for k, v in ASKED.items() if k != "prompt"
}
HOSTILE = "(a|b)*a(a|b){24}"
"""Needs an automaton of 33 million states."""


class FaultySlots(Slots):
    """Slots whose calls may fail."""

    before_run = staticmethod(lambda: None)

    def run(self, *arguments, **options):
        self.before_run()
        super().run(*arguments, **options)


@pytest.fixture(scope="module")
def engine(tiny_inference):
    with started(tiny_inference, replace(OPTIONS, slots=4), slots_type=FaultySlots) as engine:
        yield engine


def is_person(text):
    """Whether a text is what the schema asks for, read by Python alone."""
    found = json.loads(text)
    assert list(found) == ["name", "role", "pets"]
    assert isinstance(found["name"], str)
    assert len(found["name"]) <= 6
    assert found["role"] in ("admin", "user")
    assert 1 <= len(found["pets"]) <= 2
    for pet in found["pets"]:
        assert list(pet) == ["kind", "age"]
        assert pet["kind"] in ("cat", "dog")
        assert type(pet["age"]) is int
    return True


HOLDS = {
    "json_object": lambda text: isinstance(json.loads(text), dict),
    f"json_schema:{json.dumps(PERSON)}": is_person,
    "regex:[0-9]{3}-[a-z]{2,9}": lambda text: re.fullmatch("[0-9]{3}-[a-z]{2,9}", text),
    "python": lambda text: ast.parse(PROMPT + text),
}


def pieces(streamed):
    """The chunks of a stream, which ends as it should."""
    assert streamed.rstrip().endswith("data: [DONE]"), streamed[-300:]
    return [json.loads(part[6:]) for part in streamed.splitlines() if part.startswith("data: {")]


def whole(chunks, index=0):
    """The text of a choice of a stream, and the reason of its end."""
    choices = [
        choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
    ]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    texts = [
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices
    ]
    (reason,) = reasons
    return "".join(texts), reason


@pytest.mark.parametrize("name", HOLDS, ids=lambda name: name.partition(":")[0])
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_meet_their_grammar_and_are_those_of_the_command_line(
    address, tiny_inference, name, temperature
):
    """A model of noise, for which every token is a repair; drawn answers are the same draw for
    draw.
    """
    decoding = Decoding(preset="turbo")
    options = GenerationOptions(
        max_new_tokens=LENGTH, temperature=float(temperature), grammar=name, decoding=decoding
    )
    asked = ASKED | {"grammar": name, "seed": 5, "temperature": temperature}
    _, _, answer = call(address, "POST", "/v1/completions", asked)
    (choice,) = answer["choices"]
    assert HOLDS[name](choice["text"])
    assert choice["text"] == tiny_inference.complete([PROMPT], options, seed=5)[0]
    _, _, streamed = call(address, "POST", "/v1/completions", asked | {"stream": True})
    assert whole(pieces(streamed)) == (choice["text"], choice["finish_reason"])


def test_a_grammar_is_met_in_blocks_unless_something_else_is_asked_for():
    def preset(default, **fields):
        body = CompletionBody.model_validate({"prompt": PROMPT, "grammar": "python"} | fields)
        return body.options(64, {"preset": default}).decoding.preset

    assert (preset("exact"), preset("fast"), preset("turbo")) == ("fast", "fast", "turbo")
    assert preset("exact", grammar=None) == preset("exact", block_length=0) == "exact"
    assert preset("turbo", preset="exact") == "exact"


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_every_preset(address, tiny_inference, preset):
    decoding = Decoding(preset=preset)
    options = GenerationOptions(
        max_new_tokens=LENGTH, temperature=0.0, grammar="json_object", decoding=decoding
    )
    asked = ASKED | {"grammar": "json_object", "preset": preset}
    _, _, answer = call(address, "POST", "/v1/completions", asked)
    assert answer["choices"][0]["text"] == tiny_inference.complete([PROMPT], options)[0]


def test_response_format_in_a_conversation(address):
    for form, holds in (({"type": "json_object"}, HOLDS["json_object"]), (NAMED, is_person)):
        _, _, answer = call(
            address, "POST", "/v1/chat/completions", TALK | {"response_format": form}
        )
        text = answer["choices"][0]["message"]["content"]
        assert holds(text)
        _, _, streamed = call(
            address,
            "POST",
            "/v1/chat/completions",
            TALK | {"response_format": form, "stream": True},
        )
        assert whole(pieces(streamed))[0] == text
    _, _, free = call(
        address, "POST", "/v1/chat/completions", TALK | {"response_format": {"type": "text"}}
    )
    assert free["choices"] == call(address, "POST", "/v1/chat/completions", TALK)[2]["choices"]


def test_a_message_under_python_is_a_program_by_itself(address):
    _, _, answer = call(
        address, "POST", "/v1/chat/completions", TALK | {"grammar": "python", "temperature": 1}
    )
    ast.parse(answer["choices"][0]["message"]["content"])


def test_a_hole_between_two_texts(address):
    asked = ASKED | {
        "prompt": "x = (",
        "suffix": ")\nprint(x)\n",
        "max_tokens": 8,
        "grammar": "python",
        "temperature": 1,
    }
    for seed in range(3):
        _, _, answer = call(address, "POST", "/v1/completions", asked | {"seed": seed})
        ast.parse(asked["prompt"] + answer["choices"][0]["text"] + asked["suffix"])


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    age: int


class Owner(pydantic.BaseModel):
    pets: list[Pet]
    nickname: str | None


def test_the_official_client(client):
    common = {
        "model": "tiny",
        "messages": TALK["messages"],
        "max_tokens": 48,
        "temperature": 0,
        "extra_body": {"preset": "turbo"},
    }
    answer = client.chat.completions.create(response_format={"type": "json_object"}, **common)
    assert HOLDS["json_object"](answer.choices[0].message.content)
    # The client makes a schema of the class, and an object of the answer.
    for seed in range(3):
        try:
            parsed = client.chat.completions.parse(
                response_format=Owner, seed=seed, **common | {"temperature": 1}
            )
        except openai.LengthFinishReasonError as error:
            Owner.model_validate_json(error.completion.choices[0].message.content)
        else:
            assert isinstance(parsed.choices[0].message.parsed, Owner)
    # Random weights may fill the canvas, of which the client complains.
    told = ""
    asked = client.chat.completions.stream(response_format=Owner, **common)
    with asked as stream, suppress(openai.LengthFinishReasonError):
        for event in stream:
            told += event.delta if event.type == "content.delta" else ""
    Owner.model_validate_json(told)
    with pytest.raises(openai.BadRequestError, match="'minimum' is not supported"):
        client.chat.completions.create(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "integer", "minimum": 1}},
            },
            **common,
        )


def test_several_answers_with_log_probabilities(address):
    asked = ASKED | {
        "grammar": "json_object",
        "n": 2,
        "temperature": 1,
        "seed": 3,
        "prompt": "# ",
        "logprobs": 3,
        "max_tokens": 32,
    }
    _, _, answer = call(address, "POST", "/v1/completions", asked)
    assert len({choice["text"] for choice in answer["choices"]}) > 1
    for choice in answer["choices"]:
        assert HOLDS["json_object"](choice["text"])
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == choice["text"]
        assert all(-50 < value <= 0 for value in told["token_logprobs"])
        for token, value, top in zip(
            told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
        ):
            # Bytes that are no text by themselves are spelled out in the name.
            assert top.get(token, value) == value
            assert value in top.values()
    assert answer["usage"]["completion_tokens"] == sum(
        len(each["logprobs"]["tokens"]) for each in answer["choices"]
    )
    _, _, streamed = call(
        address, "POST", "/v1/completions", asked | {"stream": True, "logprobs": None}
    )
    chunks = pieces(streamed)
    assert [whole(chunks, index)[0] for index in range(2)] == [
        choice["text"] for choice in answer["choices"]
    ]


def test_a_canvas_that_is_too_short_is_still_an_answer(address):
    """Full without an end of its own, which is `length`; the least that the grammar has, or no
    answer at all.
    """
    asked = ASKED | {"grammar": "regex:a{3,30}", "max_tokens": 3}
    _, _, answer = call(address, "POST", "/v1/completions", asked)
    (choice,) = answer["choices"]
    assert re.fullmatch("a{3,30}", choice["text"])
    assert choice["finish_reason"] in ("stop", "length")
    _, _, full = call(
        address,
        "POST",
        "/v1/completions",
        asked | {"grammar": "regex:[0-9]:[a-z]:[0-9]", "max_tokens": 5},
    )
    assert (full["choices"][0]["finish_reason"], full["usage"]["completion_tokens"]) == (
        "length",
        5,
    )
    status, _, refused = call(
        address, "POST", "/v1/chat/completions", TALK | {"response_format": NAMED, "max_tokens": 5}
    )
    assert (status, refused["error"]["param"]) == (400, "response_format")
    assert refused["error"]["message"].startswith(
        "response_format: no text of at most 5 tokens is known"
    )


def test_stop_texts_end_right_answers_alone(address):
    """What stands before one is right; where it cannot be, the text is not written at all."""
    asked = ASKED | {"temperature": 1, "max_tokens": 40}
    for seed in range(3):
        _, _, answer = call(
            address,
            "POST",
            "/v1/completions",
            asked | {"grammar": "regex:[a-f0-9]+", "stop": ["a", "7"], "seed": seed},
        )
        text = answer["choices"][0]["text"]
        assert re.fullmatch("[b-f0-689]+", text)
        _, _, answer = call(
            address,
            "POST",
            "/v1/completions",
            asked | {"grammar": "python", "stop": ["\n\n", "x"], "seed": seed},
        )
        text = answer["choices"][0]["text"]
        ast.parse(PROMPT + text)
        assert "\n\n" not in text
        assert "x" not in text
    status, _, refused = call(
        address, "POST", "/v1/completions", asked | {"grammar": "json_object", "stop": "}"}
    )
    assert (status, refused["error"]["param"]) == (400, "grammar")


def test_what_is_told_on_the_way_is_never_taken_back(engine):
    for name, preset in zip(HOLDS, itertools.cycle(("exact", "turbo")), strict=False):
        listener, decoding = RecordingListener(), Decoding(preset=preset)
        options = GenerationOptions(
            max_new_tokens=40, temperature=1.0, grammar=name, decoding=decoding
        )
        before = tuple(engine.tokenizer.encode_plain(PROMPT))
        engine.submit([Request(before=before, options=options, seed=1)], listener)
        (end,) = listener.finished().values()
        assert end.is_answer
        texts = [event.text for event in listener.events]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
        commits = {commit.position: commit for event in listener.events for commit in event.commits}
        assert sum(len(event.commits) for event in listener.events) == len(commits)
        assert [commits[token.position] for token in end.tokens] == list(end.tokens)
        ids = [token.token_id for token in end.tokens]
        assert engine.tokenizer.decode(ids, skip_special_tokens=True) == end.text
        assert len(listener.events) > 1, "told in pieces"
    assert not engine.workers[0].repairs.pending


def test_a_schema_takes_few_forward_passes(engine):
    """What the schema determines takes none, and every other token of noise at most one, after the
    text that was decoded first.
    """
    before = tuple(engine.tokenizer.encode_plain(PROMPT))

    def answer(**settings):
        listener = RecordingListener()
        options = GenerationOptions(
            max_new_tokens=64, temperature=0.0, decoding=Decoding(preset="turbo"), **settings
        )
        engine.submit([Request(before=before, options=options)], listener)
        return next(iter(listener.finished().values()))

    plain, held = answer(early_stop=False), answer(grammar=f"json_schema:{json.dumps(PERSON)}")
    assert is_person(held.text)
    assert held.forwards < 1.5 * plain.forwards
    # {"name": " stands before any forward pass
    begun = [token for token in held.tokens if token.step == 0 and token.confidence == 1]
    assert "".join(token.text for token in begun).startswith('{"name": "')
    assert len([token for token in held.tokens if token.confidence == 1]) > len(held.tokens) / 3


@pytest.fixture
def slow(monkeypatch):
    """Grammars that answer when they are let go; tells when one is asked."""
    asked, release, real = threading.Event(), threading.Event(), Repair.check

    def check(self, hole, step):
        asked.set()
        assert release.wait(60)
        return real(self, hole, step)

    monkeypatch.setattr(Repair, "check", check)
    yield asked, release
    release.set()


def test_others_are_served_while_a_grammar_is_asked(engine, address, slow):
    asked, release = slow
    with ThreadPoolExecutor() as pool:
        held = pool.submit(
            call, address, "POST", "/v1/completions", ASKED | {"grammar": "json_object"}
        )
        assert asked.wait(30)
        free = [
            pool.submit(call, address, "POST", "/v1/completions", ASKED | {"seed": n})
            for n in range(6)
        ]
        assert [each.result(30)[0] for each in free] == [200] * 6
        assert not held.done()
        release.set()
        status, _, answer = held.result(60)
    assert status == 200
    assert HOLDS["json_object"](answer["choices"][0]["text"])


def test_answers_of_others_do_not_change(engine, address):
    alone = [
        call(address, "POST", "/v1/completions", ASKED | {"prompt": text})[2]["choices"]
        for text in ("x =", "def f(")
    ]
    with ThreadPoolExecutor() as pool:
        held = [
            pool.submit(call, address, "POST", "/v1/completions", ASKED | {"grammar": name})
            for name in HOLDS
        ]
        free = [
            pool.submit(call, address, "POST", "/v1/completions", ASKED | {"prompt": text})
            for text in ("x =", "def f(")
        ]
        assert [each.result()[2]["choices"] for each in free] == alone
        for name, each in zip(HOLDS, held, strict=True):
            assert HOLDS[name](each.result()[2]["choices"][0]["text"])


@pytest.mark.parametrize("body", [{"stream": True}, {}], ids=["stream", "whole"])
def test_a_client_that_goes_away_frees_its_place(address, engine, slow, body):
    asked, release = slow
    ends = engine.metrics.rows.labels("cancelled", "")._value
    before = ends.get()
    connection = http.client.HTTPConnection(*address, timeout=60)
    content = json.dumps(ASKED | {"grammar": "json_object", **body})
    connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
    assert asked.wait(30)
    (sequence,) = [each for each in engine.queue.running if isinstance(each, ConstrainedSequence)]
    connection.sock.close()
    connection.close()
    deadline = time.monotonic() + 20
    while ends.get() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ends.get() == before + 1
    # Whatever still reads for it is told to leave it.
    assert sequence.repair.constraint.given_up.is_set()
    assert sequence not in engine.workers[0].repairs.pending
    assert not any(sequence in slots.sequences for slots in engine.workers[0].groups)
    release.set()
    assert call(address, "POST", "/v1/completions", ASKED)[0] == 200


def test_a_grammar_that_takes_too_long_ends_with_its_request(engine, slow):
    listener = RecordingListener()
    options = GenerationOptions(max_new_tokens=8, grammar="json_object")
    engine.submit([Request(before=(5,), options=options)], listener, seconds=0.5)
    assert next(iter(listener.finished().values())).reason == "timeout"
    assert not engine.queue.running


def test_a_grammar_that_fails_fails_alone(engine, address, monkeypatch):
    def broken(self, hole, step):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(Repair, "check", broken)
        status, _, answer = call(
            address, "POST", "/v1/completions", ASKED | {"grammar": "json_object"}
        )
        assert (status, "secret" in json.dumps(answer)) == (500, False)
        assert call(address, "POST", "/v1/completions", ASKED)[0] == 200
    assert call(address, "POST", "/v1/completions", ASKED | {"grammar": "json_object"})[0] == 200


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_a_call_of_the_device_that_fails_once_costs_nobody_the_answer(address, monkeypatch, preset):
    asked = ASKED | {"grammar": "python", "preset": preset, "max_tokens": 40}
    expected = call(address, "POST", "/v1/completions", asked)[2]["choices"]
    calls = []

    def fail_now_and_then():
        calls.append(1)
        if len(calls) in (3, 16):
            raise RuntimeError("once")

    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(fail_now_and_then))
    assert call(address, "POST", "/v1/completions", asked)[2]["choices"] == expected
    assert len(calls) > 16


def test_guesses_change_nothing(tiny_inference):
    options = GenerationOptions(max_new_tokens=LENGTH, temperature=1.0, grammar="json_object")
    with started(tiny_inference, replace(OPTIONS, draft=2, warm_up=("1",))) as engine:
        before = tuple(engine.tokenizer.encode_plain(PROMPT))
        listener = RecordingListener()
        engine.submit([Request(before=before, options=options, seed=3)], listener)
        (end,) = listener.finished().values()
    assert end.text == tiny_inference.complete([PROMPT], options, seed=3)[0]


def test_a_hostile_expression_stalls_nobody(address, monkeypatch):
    monkeypatch.setattr(admission, "PREPARING_SECONDS", 2.0)
    with ThreadPoolExecutor() as pool:
        begun = time.monotonic()
        hostile = [
            pool.submit(
                call, address, "POST", "/v1/completions", ASKED | {"grammar": f"regex:{HOSTILE}{n}"}
            )
            for n in range(2)
        ]
        time.sleep(0.2)
        assert call(address, "GET", "/health")[0] == 200
        assert call(address, "POST", "/v1/completions", ASKED | {"max_tokens": 4})[0] == 200
        assert not hostile[0].done() or time.monotonic() - begun > 2
        for each in hostile:
            status, _, answer = each.result(60)
            assert (status, answer["error"]["param"]) == (400, "grammar")
            assert re.search(r"^grammar: regex='\(a\|b\).*: takes ", answer["error"]["message"])
        # One after the other.
        assert time.monotonic() - begun > 3.5


def test_too_many_requests_to_prepare_are_429(engine, monkeypatch):
    monkeypatch.setattr(api, "MAX_PREPARING", 0)
    with listening(engine) as address:
        status, headers, answer = call(
            address, "POST", "/v1/completions", ASKED | {"grammar": "json_object"}
        )
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        assert call(address, "POST", "/v1/completions", ASKED)[0] == 200


def schema(definition, **more):
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": definition} | more,
        }
    }


REFUSALS = [
    (
        {"response_format": {"type": "xml"}},
        "response_format.type='xml': must be 'text', 'json_object' or 'json_schema'",
    ),
    ({"response_format": "json"}, "response_format='json': "),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format: json_schema must be given with type 'json_schema'",
    ),
    (
        {"response_format": NAMED | {"type": "text"}},
        "response_format: json_schema must be given with type",
    ),
    (
        {"response_format": NAMED | {"extra": 1}},
        "response_format.extra: not supported by this server",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema: must be given",
    ),
    (
        schema({"type": "integer", "minimum": 1}),
        "response_format: json_schema: 'minimum' is not supported; leave it out, or",
    ),
    (schema({"type": "frog"}), "response_format: json_schema="),
    (schema({"not": {}}), "response_format: json_schema: 'not' is not supported"),
    (schema([]), "response_format.json_schema.schema: must be"),
    (
        schema(PERSON, strict="yes"),
        "response_format.json_schema.strict='yes': must be a valid boolean",
    ),
    (
        {"grammar": "cobol"},
        "grammar='cobol': must be python, json_object, regex:EXPRESSION or json_schema:SCHEMA",
    ),
    ({"grammar": ""}, "grammar='': must not be empty"),
    ({"grammar": 7}, "grammar=7: must be a valid string"),
    ({"grammar": "regex:(a"}, "grammar: regex='(a': Failed to build DFA"),
    ({"grammar": "json_schema:{"}, "grammar: json_schema='{': is not JSON"),
    ({"grammar": "regex:" + "a" * 20_001}, "grammar: regex='aaaa"),
    (
        {"grammar": "python", "prompt": "x = )"},
        "grammar: no text of at most 48 tokens is known that is valid here",
    ),
    (
        {"grammar": "json_object", "response_format": {"type": "json_object"}},
        "grammar: give either grammar or response_",
    ),
    (
        {"grammar": "json_object", "growth": "on"},
        "growth='on': must be 'off', or not given, with grammar",
    ),
    (
        {"response_format": {"type": "json_object"}, "ignore_eos": True},
        "ignore_eos=True: must be false with response_f",
    ),
    (
        {"grammar": "python", "max_tokens": 0, "echo": True},
        "max_tokens=0: must be at least 1 with grammar",
    ),
]


@pytest.mark.parametrize(("fields", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals_name_what_came_and_what_is_allowed(address, fields, message):
    status, _, answer = call(address, "POST", "/v1/completions", ASKED | fields)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["message"].startswith(message)
    assert answer["error"]["param"].split(".")[0] == re.match("[a-z_]+", message)[0]
    assert len(answer["error"]["message"]) < 500


@pytest.mark.parametrize("path", ["/v1/denoise", "/infill"])
def test_other_endpoints_have_no_grammar(address, path):
    for fields in ({"response_format": {"type": "json_object"}}, {"grammar": "python"}):
        status, _, answer = call(address, "POST", path, {"prompt": "x"} | fields)
        assert (status, answer["error"]["param"]) == (400, next(iter(fields)))


def test_a_hole_that_finds_its_length_has_no_grammar(tmp_path):
    inference = DiffuCoderInference(publish_growing(tmp_path), dtype="float32", verbose=False)
    request = Request(
        before=(5,), is_gap=True, options=GenerationOptions(max_new_tokens=8, grammar="json_object")
    )
    with pytest.raises(
        ValueError,
        match=r"growth: a hole that finds its own length .* growth='off' keeps its length",
    ):
        admission.sequence_of(request, inference, context=64, max_tokens=64)
    fixed = replace(request, options=replace(request.options, growth="off"))
    assert isinstance(
        admission.sequence_of(fixed, inference, context=64, max_tokens=64), ConstrainedSequence
    )


def test_an_object_may_be_cut_anywhere():
    """Each beginning of an object has an end, and the shortest; what no end makes an object has
    none.
    """
    grammar = find_grammar("json_object")
    text = '{"a": [1, -2.5e+3, true, null, "x\\n\\u00e9\\ud83d\\ude00é"], "b": {"c": [], "": {}}}\n'
    for length in range(len(text) + 1):
        assert isinstance(json.loads(text[:length] + grammar.completion(text[:length])), dict)
    for beginning, end in (
        ("", "{}"),
        ('{"a', '":0}'),
        ('{"a": t', "rue}"),
        ('{"a": [1.', "0]}"),
        (text, ""),
    ):
        assert grammar.completion(beginning) == end
    wrong = [
        "[",
        " {",
        '{"a":01',
        '{"a":1,}',
        '{"a":[1}',
        '{"a":\n"\n',
        '{"a":"\\x',
        "{}x",
        "{}" + " " * 65,
    ]
    for beginning in (*wrong, '{"a":' + "[" * 64, '{"a":' + "1" * 301, '{"a":"\\ude00'):
        assert grammar.completion(beginning) is None, beginning
