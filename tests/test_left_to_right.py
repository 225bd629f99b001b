"""Left to right with drafts from masks: fewer passes, and the text of one token per pass."""

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from cases.families import write_random
from flax import nnx

from jax_lm.config import FAMILIES
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer

# One token per pass. Blocks are decoded from left to right.
ONE_BY_ONE = GenerationOptions(
    max_new_tokens=23,
    temperature=0.0,
    top_p=None,
    alg="left_to_right",
    decoding=Decoding(commit="threshold", threshold=1.0, block_length=4),
)
DRAFTED = replace(ONE_BY_ONE, draft=3, decoding=Decoding(cache="causal"))


def with_favourites(model):
    """Let a model like a few tokens, so that some drafts are right."""
    # The first hidden unit is large for every token, and the logits of three tokens look at it.
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[...] = embedding[...].at[:, 0].set(1.0)
    head[...] = head[...].at[:, 0].set(0.0).at[[7, 8, 9], 0].set(jnp.array([0.55, 0.5, 0.3]))
    return model


@pytest.fixture
def sampler(tiny_config):
    """A model with causal blocks, of which masks draft some tokens right."""
    config = replace(tiny_config, model_type="qwen2", block_size=4, is_causal=True)
    return Sampler(with_favourites(DreamForCausalLM(config, rngs=nnx.Rngs(0))))


def canvas(rows=(5, 9, 1), new=23):
    """Prompts of these lengths, padded on the left."""
    width = max(rows)
    present = np.arange(width) >= width - np.array(rows)[:, None]
    ids = np.random.default_rng(0).integers(3, 40, (len(rows), width))
    return Canvas.after(np.where(present, ids, 0), present, new)


def assert_same(drafted, one_by_one):
    np.testing.assert_array_equal(drafted.tokens, one_by_one.tokens)
    np.testing.assert_array_equal(drafted.commit_step, one_by_one.commit_step)
    np.testing.assert_allclose(drafted.confidence, one_by_one.confidence, atol=1e-5)
    assert int(drafted.step) == int(one_by_one.step)


@pytest.mark.parametrize("stop_ids", [(), (73,)], ids=["whole", "stopped"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"temperature": 0.2, "top_p": 0.9}])
@pytest.mark.parametrize("draft", [0, 1, 2, 3])
def test_text_is_that_of_one_token_per_pass(sampler, draft, settings, stop_ids):
    drafted = DRAFTED.with_settings(draft=draft, **settings)
    for seed in range(2):
        given = {"seed": seed, "stop_ids": stop_ids}
        expected = sampler.generate(canvas(), ONE_BY_ONE.with_settings(**settings), **given)
        state = sampler.generate(canvas(), drafted, **given)
        assert_same(state, expected)
        assert int(state.forwards) < int(expected.forwards) + (draft == 0)
        # A row alone is decoded like a row of a batch.
        first = canvas()
        first = Canvas(first.tokens[:1], first.holes[:1], first.attention_mask[:1])
        alone = sampler.generate(first, drafted, **given)
        np.testing.assert_array_equal(alone.tokens[0], expected.tokens[0])


def test_drafts_that_are_all_right_decide_a_block_per_pass(sampler):
    # The greedy answer repeats one token: the first pass decides one, each other pass four.
    state = sampler.generate(canvas((4,)), DRAFTED)
    assert len(set(state.tokens[0, -23:].tolist())) == 1
    assert int(state.forwards) == 1 + -(-22 // 4)


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
def test_short_answers(sampler, new):
    # A prompt and an answer of one token are narrower than a block.
    one = replace(DRAFTED, max_new_tokens=new)
    narrow = sampler.generate(canvas((1,), new=new), one)
    np.testing.assert_array_equal(
        narrow.tokens,
        sampler.generate(canvas((1,), new=new), replace(ONE_BY_ONE, max_new_tokens=new)).tokens,
    )
    for temperature in (0.0, 0.7):
        settings = {"temperature": temperature, "max_new_tokens": new}
        expected = sampler.generate(canvas(new=new), ONE_BY_ONE.with_settings(**settings))
        assert_same(sampler.generate(canvas(new=new), DRAFTED.with_settings(**settings)), expected)


def test_streams_report_every_step(sampler):
    options = DRAFTED.with_settings(temperature=0.7)
    states = list(sampler.stream(canvas(), options, every=1, seed=3))
    expected = list(
        sampler.stream(canvas(), ONE_BY_ONE.with_settings(temperature=0.7), every=1, seed=3)
    )
    # Blocks of four report their last step again.
    by_step = {int(state.step): state for state in expected}
    assert [int(state.step) for state in states] == list(range(1, 24))
    for state in states:
        assert_same(state, by_step[int(state.step)])


def test_refused(sampler, tiny_model):
    with pytest.raises(ValueError, match=r"draft=4: must lie in \[0, 3\] for adapted to causal"):
        sampler.generate(canvas(), DRAFTED.with_settings(draft=4))
    with pytest.raises(ValueError, match="draft=3: must be 0 with cache='causal'"):
        Sampler(tiny_model).generate(canvas(), DRAFTED)
    holes = canvas()
    holes.holes[:, -1] = False
    with pytest.raises(ValueError, match="only completes prompts"):
        sampler.generate(holes, DRAFTED)
    state = next(sampler.stream(canvas(), ONE_BY_ONE))
    with pytest.raises(ValueError, match="state: must be None with cache='causal'"):
        sampler.generate(canvas(), DRAFTED, state=state)
    for name, value in {
        "threshold": 0.5, "block_length": 4, "active_blocks": 1, "alg_temp": 0.1, "alg": "origin"
    }.items():  # fmt: skip
        message = rf"{name}={value!r}: must be .* with cache='causal' for adapted to causal blocks"
        with pytest.raises(ValueError, match=message):
            sampler.generate(canvas(), DRAFTED.with_settings(**{name: value}))


def test_served_answers_are_those_of_one_token_per_pass(tmp_path):
    pytest.importorskip("fastapi")
    from cases.server import OPTIONS, call, listening, started

    from jax_lm.serving.engine import Engine

    (family,) = (family for family in FAMILIES if family.is_causal)
    folder = write_random(tmp_path / "random", family, initializer_range=0.02)
    model = with_favourites(DreamForCausalLM.from_pretrained(folder, dtype=jnp.float32))
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    model.save_pretrained(tmp_path / "model", tokenizer=tokenizer, source=folder)
    inference = DiffuCoderInference(tmp_path / "model", dtype="float32", verbose=False)
    requests = [
        {"max_tokens": count, "temperature": temperature, "seed": 5, "logprobs": 2} | more
        for count in (1, 2, 21)
        for temperature in (0, 0.7)
        for more in ({"prompt": "def f():"}, {"prompt": "a" * 40}, {"prompt": "a", "suffix": "b"})
    ]
    answers, passes = {}, {}
    for draft in (0, 3):
        options = replace(OPTIONS, draft=draft, slots=2)
        with started(inference, options) as engine, listening(engine) as address:
            answers[draft] = []
            for request in requests:
                body = {"model": "tiny"} | request
                status, _, answer = call(address, "POST", "/v1/completions", body)
                assert status == 200, answer
                answers[draft].append(answer["choices"][0])
            *_, counts = call(address, "GET", "/metrics")
            (count,) = re.findall(r"_row_forwards_total (\d\S*)", str(counts))
            passes[draft] = float(count)
    for alone, drafted in zip(answers[0], answers[3], strict=True):
        numbers, others = (
            [each["logprobs"].pop(name) for name in ("token_logprobs", "confidences")]
            for each in (alone, drafted)
        )
        np.testing.assert_allclose(others, numbers, rtol=1e-4)
        for each in (alone, drafted):
            each["logprobs"].pop("top_logprobs")
        # texts, ends, and the step of each token
        assert drafted == alone
    assert passes[3] < 0.7 * passes[0]
    greedy = GenerationOptions(max_new_tokens=21, temperature=0.0, draft=3)
    expected = inference.complete(["def f():"], replace(greedy, decoding=DRAFTED.decoding))[0]
    assert answers[3][12]["text"] == expected
    for options, message in (
        ({"draft": 4}, r"draft=4: must lie in \[0, 3\]"),
        ({"preset": "turbo"}, "preset='turbo'"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine(inference, replace(OPTIONS, **options))


@pytest.mark.parametrize("options", [ONE_BY_ONE, DRAFTED], ids=["one by one", "drafted"])
def test_a_row_that_is_over_stays_as_it_was_ended(sampler, options):
    decided = []

    def is_over(state):
        decided.append(int(np.sum(~np.asarray(state.masked)[0, -23:])))
        return np.array([True, False, False])

    ended = sampler.changed(is_over=is_over)
    *_, state = ended.stream(canvas(), options, every=4, stop_ids=(73,))
    alone = sampler.generate(canvas(), options, stop_ids=(73,))
    # The first row has what it had at the first look, and stop tokens.
    count = int(np.argmax(np.asarray(state.tokens)[0, -23:] == 73))
    assert count == decided[0] < 5
    answer = np.asarray(state.tokens)[0, -23:]
    np.testing.assert_array_equal(answer[:count], alone.tokens[0, -23:][:count])
    assert set(answer[count:].tolist()) == {73}
    np.testing.assert_array_equal(state.tokens[1:], alone.tokens[1:])


def test_drafts_are_those_of_masks_behind_the_text(tiny_config):
    config = replace(
        tiny_config, model_type="qwen2", block_size=4, is_causal=True, initializer_range=0.12
    )
    model = with_favourites(DreamForCausalLM(config, rngs=nnx.Rngs(0)))
    given = canvas((4,))
    options = DRAFTED.with_settings(temperature=0.5, top_k=3)
    compared, jumps, last = set(), set(), 0
    for seed in range(3):
        for state in Sampler(model).stream(given, options, every=1, seed=seed):
            row = state.extra
            count = 4 + int(row.step[0])
            jumps.add(count - last)
            last = count
            # The text that a pass found decided, and three masks behind it: [a, b, M, M, M]. The first
            # mask is where the pass then decided the next token.
            text = np.asarray(row.tokens)[0, 0, : count - 1].tolist()
            ids = [*text, *[config.mask_token_id] * 3]
            drafts = jnp.argmax(model(jnp.array([ids])), axis=-1)[0, -3:]
            if count < 27:
                np.testing.assert_array_equal(row.extra[0, 0], drafts)
                compared.add(tuple(drafts.tolist()))
    # Different drafts, and passes that kept some of them.
    assert len(compared) > 1
    assert jumps & {2, 3, 4}
