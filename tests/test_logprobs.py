"""Log-probabilities as the server tells them: what the model said when each token was committed, in
OpenAI's forms.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("openai")
pytest.importorskip("fastapi")

import openai
from cases.server import COMPLETION, PROMPT, listening, started

from jax_lm.serving.jobs import Event, TokenLogProb
from jax_lm.serving.responses import AnswerFormat, token_name
from jax_lm.serving.schemas import CompletionBody, Gap


@pytest.fixture(scope="module")
def client(tiny_inference):
    with started(tiny_inference) as engine, listening(engine) as address:
        yield openai.OpenAI(
            base_url="http://{}:{}/v1".format(*address), api_key="none", max_retries=0
        )


def said(inference, prompt, tokens, commit_steps):
    """Log-probabilities of every column of an answer, from the canvas before the step that decided
    it, without MASK.
    """
    tokens, steps = np.array(tokens), np.array(commit_steps)
    found = np.zeros((len(tokens), inference.config.vocab_size))
    for step in set(commit_steps):
        canvas = np.concatenate([prompt, np.where(steps < step, tokens, inference.sampler.mask_id)])
        logits = np.asarray(inference.sampler.forward(jnp.asarray(canvas[None], jnp.int32)))[
            0
        ].astype(np.float64)
        logits[:, inference.sampler.mask_id] = -np.inf
        shifted = jax.nn.log_softmax(logits[len(prompt) - 1 : -1], axis=-1)
        found[steps == step] = np.asarray(shifted)[steps == step]
    return found


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_they_are_what_the_model_says_of_the_canvas_before_the_commit(
    client, tiny_inference, temperature
):
    options = COMPLETION | {
        "temperature": temperature,
        "seed": 3,
        "extra_body": {"ignore_eos": True},
    }
    (choice,) = client.completions.create(prompt=PROMPT, logprobs=5, **options).choices
    told, tokenizer = choice.logprobs, tiny_inference.tokenizer
    assert len(told.tokens) == len(told.commit_steps) == len(told.confidences) == 24
    assert all(0 < value <= 1 for value in told.confidences)
    events = client.post("/denoise", body={"prompt": PROMPT} | {**options, "extra_body": None} | {"ignore_eos": True},
                         cast_to=str)  # fmt: skip
    ids = token_ids(events)
    prompt = np.array(tokenizer.encode_plain(PROMPT))
    reference = said(tiny_inference, prompt, ids, told.commit_steps)
    np.testing.assert_allclose(
        told.token_logprobs, reference[np.arange(24), ids], rtol=0, atol=2e-4
    )
    for column, (top, values) in enumerate(zip(told.top_logprobs, reference, strict=True)):
        best = np.sort(values)[-5:][::-1]
        np.testing.assert_allclose(
            sorted(top.values(), reverse=True)[: len(top)][:4], best[:4], rtol=0, atol=2e-4
        )
        assert any(
            np.isclose(value, told.token_logprobs[column], atol=1e-9) for value in top.values()
        )


def token_ids(events):
    """Ids of an answer by position, from what `/v1/denoise` tells of it."""
    lines = [
        json.loads(line.removeprefix("data: "))
        for line in events.splitlines()
        if line.startswith("data: ")
    ]
    commits = [commit for line in lines for commit in line.get("commits", ())]
    return [commit["token_id"] for commit in sorted(commits, key=lambda commit: commit["position"])]


def test_a_conversation_tells_alternatives_bytes_and_order(client):
    messages = [{"role": "user", "content": "Write gcd."}]
    whole = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=20, **COMPLETION
    ).choices[0]
    content = whole.logprobs.content
    # Of a character that two tokens share, neither has more than a part.
    assert (
        b"".join(bytes(token.bytes) for token in content).decode(errors="replace")
        == whole.message.content
    )
    assert [token.token for token in content] == [
        bytes(token.bytes).decode(errors="replace") for token in content
    ]
    for token in content:
        values = [other.logprob for other in token.top_logprobs]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        # Greedy: the token is the likeliest.
        assert (token.logprob, token.bytes) == (values[0], token.top_logprobs[0].bytes)
        assert sum(np.exp(values)) <= 1 + 1e-5
        assert 0 < token.confidence <= 1
    # One per step in the schedule of the reference.
    assert len({token.commit_step for token in content}) >= len(content) - 1
    pieces = list(
        client.chat.completions.create(
            messages=messages, logprobs=True, top_logprobs=2, stream=True, **COMPLETION
        )
    )
    streamed = [
        token for piece in pieces for token in (piece.choices[0].logprobs or NOTHING).content
    ]
    assert [(token.token, token.logprob) for token in streamed] == [
        (token.token, token.logprob) for token in content
    ]
    assert {len(token.top_logprobs) for token in streamed} == {2}


class NOTHING:
    content = ()


def test_nobody_who_does_not_ask_is_told(client):
    choice = client.completions.create(prompt=PROMPT, **COMPLETION).choices[0]
    assert choice.logprobs is None
    choice = client.chat.completions.create(
        messages=[{"role": "user", "content": "x"}], **COMPLETION
    ).choices[0]
    assert choice.logprobs is None
    zero = client.completions.create(prompt=PROMPT, logprobs=0, **COMPLETION).choices[0].logprobs
    assert zero.top_logprobs is None
    assert len(zero.token_logprobs) == len(zero.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_logprobs": 2}, "top_logprobs=2: needs logprobs=true"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs=21: must be less than or equal to 20",
        ),
    ],
)
def test_what_does_not_fit_is_refused(client, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(
            messages=[{"role": "user", "content": "x"}], **COMPLETION, **options
        )


def test_bytes_that_are_no_text_are_spelled_out():
    assert (
        token_name(TokenLogProb(text="\ufffd", content=b"\xe2\x82", value=-1.0))
        == "bytes:\\xe2\\x82"
    )
    assert token_name(TokenLogProb(text="a", content=b"a", value=-1.0)) == "a"


def test_bytes_of_tokens_add_up_to_the_text(tiny_inference):
    tokenizer, text = tiny_inference.tokenizer, "naïve → 日本 🚀\n\tdef f(x):"
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
    assert b"".join(pieces).decode() == text
    stop = tokenizer.stop_ids[0]
    assert tokenizer.token_bytes(stop) == tokenizer.decode([stop]).encode()


def test_a_prompt_is_scored_from_left_to_right(client, tiny_inference):
    """As lm-evaluation-harness asks (`local-completions`), and reads: all but the last token."""
    sampler, tokenizer = tiny_inference.sampler, tiny_inference.tokenizer
    ids = tokenizer.encode_plain(PROMPT)
    expected = []
    for column in range(1, len(ids)):
        canvas = np.array([ids[:column] + [sampler.mask_id] * (len(ids) - column)], np.int32)
        logits = np.asarray(sampler.forward(jnp.asarray(canvas)))[0, column - 1].astype(np.float64)
        logits[sampler.mask_id] = -np.inf
        expected.append(np.asarray(jax.nn.log_softmax(logits)))
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    (choice,) = client.completions.create(model="tiny", prompt=[ids], **body).choices
    told = choice.logprobs
    assert told.prompt_estimator.startswith("left to right")
    assert len(told.tokens) == len(told.token_logprobs) == len(ids) + 1
    assert "".join(told.tokens[:-1]) == PROMPT
    assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
    own = [row[token] for row, token in zip(expected, ids[1:], strict=True)]
    np.testing.assert_allclose(told.token_logprobs[1:-1], own, rtol=0, atol=2e-5)
    best = [max(top.values()) for top in told.top_logprobs[1:-1]]
    np.testing.assert_allclose(best, [row.max() for row in expected], rtol=0, atol=2e-5)
    is_greedy = [row.argmax() == token for row, token in zip(expected, ids[1:], strict=True)]
    assert [a == b for a, b in zip(told.token_logprobs[1:-1], best, strict=True)] == is_greedy
    # without an answer, and as a text
    (alone,) = client.completions.create(
        model="tiny", prompt=PROMPT, **body | {"max_tokens": 0}
    ).choices
    assert alone.text == PROMPT
    assert alone.logprobs.token_logprobs == told.token_logprobs[:-1]
    with pytest.raises(openai.BadRequestError, match="logprobs: those of a prompt"):
        client.completions.create(model="tiny", prompt=PROMPT, suffix="x", **body)
    with pytest.raises(openai.BadRequestError, match="the context holds 96"):
        client.completions.create(model="tiny", prompt=PROMPT * 20, **body)


def test_after_a_timeout_the_other_choices_keep_their_index():
    """A client finds the prompt of an answer by it."""
    body = CompletionBody(prompt=["first", "second"], max_tokens=3)
    answer = AnswerFormat("x", "m", body)
    answer.begin([Gap([1], None, ""), Gap([2], None, "")], [])
    whole = answer.whole([Event(reason="timeout"), Event(reason="stop", text="of the second")])
    assert [(each["index"], each["text"]) for each in whole["choices"]] == [(1, "of the second")]


def test_names_and_offsets_of_parts_of_a_character(client, tiny_inference):
    ids = [*map(int, tiny_inference.tokenizer.encode_plain("é→x"))]
    body = {"max_tokens": 0, "logprobs": 1, "echo": True}
    (choice,) = client.completions.create(model="tiny", prompt=[ids], **body).choices
    told = choice.logprobs
    pieces = [tiny_inference.tokenizer.token_bytes(token) for token in ids]
    assert choice.text == "é→x"
    assert told.tokens[-1] == "x"
    assert told.tokens[0] == "bytes:\\xc3"
    # each token is one of those that were most likely, or beside them
    assert all(
        name in top for name, top in zip(told.tokens[1:], told.top_logprobs[1:], strict=True)
    )
    assert told.text_offset == [
        len(b"".join(pieces[:index]).decode(errors="ignore")) for index in range(len(ids))
    ]
