"""Several blocks at once under full attention equal d3LLM's own loop (`tools/record_d3llm.py`)."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import count_compilations, tokens_of
from cases.reference import GOLDEN
from cases.sequences import make_sequence
from family_cases import config_fields, random_tensor

from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.commit_rules import below_entropy
from jax_lm.diffusion.delayed_cache import DelayedCache
from jax_lm.diffusion.multi_block import MultiBlock
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM, DreamModel, parameter_shapes
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.training.grpo_config import Estimator, GRPOConfig

RECORDED = json.loads((GOLDEN / "multi_block.json").read_text())
STOP = 2
"""The one stop token of this module, as another one would be another program."""


@pytest.fixture(scope="module")
def sampler():
    """The model that the recording was made with."""
    config = DreamConfig.from_dict(config_fields("dream", 0))
    tensors = {
        name: jnp.asarray(random_tensor(name, shape))
        for name, shape in parameter_shapes(config).items()
    }
    tensors["lm_head.weight"] *= RECORDED["scale"]
    return Sampler(DreamForCausalLM.from_tensors(config, tensors))


def options(name="published", **settings):
    authors = RECORDED["settings"][name]
    decoding = {
        "commit": "low_entropy",
        "entropy_bound": authors["threshold"],
        "add_threshold": authors["block_add_threshold"],
        "block_length": RECORDED["block"],
        "active_blocks": 100,
    }
    changes = {key: settings.pop(key) for key in list(settings) if hasattr(Decoding(), key)}
    order = {"temperature": 0.0, "top_p": None, "top_k": None}
    return GenerationOptions(**order | settings, decoding=Decoding(**decoding | changes))


def exchanged(sampler, token):
    """The model in which a token and STOP have each other's ids, and the ids by their old ones."""
    ids = np.arange(sampler.config.vocab_size)
    ids[[token, STOP]] = STOP, token

    def exchange(path, leaf):
        is_table = any(name in jax.tree_util.keystr(path) for name in ("embed_tokens", "lm_head"))
        return jnp.asarray(np.asarray(leaf)[ids]) if is_table else leaf

    params = jax.tree_util.tree_map_with_path(exchange, sampler.params)
    return sampler.changed(params=params), ids


def decoded(sampler, prompts, settings, mask=None, **more):
    canvas = Canvas.after(np.array(prompts, np.int32), mask, RECORDED["columns"])
    state = sampler.generate(canvas, settings, **more)
    assert not np.asarray(state.masked).any()
    return state


@pytest.mark.parametrize("name", RECORDED["settings"])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_answers_are_those_of_the_published_loop(sampler, name, is_stopped):
    """Token for token, in as many forward passes; where a stop token ends the text, up to it."""
    cases = [
        case
        for case in RECORDED["cases"]
        if case["settings"] == name and (case["stop"] is not None) == is_stopped
    ]
    assert len(cases) == 5
    for case in cases:
        model, ids = exchanged(sampler, case["stop"] if is_stopped else STOP)
        stop_ids = (STOP,) if is_stopped else ()
        state = decoded(model, ids[[case["prompt"]]], options(name), stop_ids=stop_ids)
        found = ids[tokens_of(state)[0, -RECORDED["columns"] :]].tolist()
        # What stands after the stop token is no text.
        end = RECORDED["columns"] if case["stop"] is None else found.index(case["stop"]) + 1
        assert found[:end] == case["tokens"][:end]
        assert set(found[end:]) <= {case["stop"]}
        # Their loop may count a decided token after the stop token as the one that it owes.
        spared = case["forwards"] - int(state.forwards)
        assert spared == 0 or (is_stopped and spared == 1)


def cached(case, **changes):
    """The options of a recorded case with the delayed cache."""
    cache = {"cache_delay": case["cache_delay_iter"], "refresh_steps": case["refresh_interval"]}
    return options(case["settings"], cache="delayed", **cache | changes)


def passes_of(sampler, prompt, settings, **more):
    """The tokens of an answer, and the rows that each of its passes needs."""
    canvas = Canvas.after(np.array([prompt], np.int32), None, RECORDED["columns"])
    width = canvas.tokens.shape[1]
    starts = [0, *range(len(prompt), width, RECORDED["block"])]
    rows = []
    for state in sampler.stream(canvas, settings, **more):
        rows.append(width - starts[int(state.extra.stored[0])])
    assert not np.asarray(state.masked).any()
    return tokens_of(state)[0, len(prompt) :], rows


@pytest.mark.parametrize("is_stopped", [False, True])
def test_answers_with_a_delayed_cache_are_those_of_the_published_loop(sampler, is_stopped):
    """Token for token, and pass for pass as many rows; up to a stop token, and one pass less."""
    cases = [case for case in RECORDED["delayed"] if (case["stop"] is not None) == is_stopped]
    assert len(cases) == 25
    for case in cases:
        model, ids = exchanged(sampler, case["stop"] if is_stopped else STOP)
        stops = (STOP,) if is_stopped else ()
        tokens, rows = passes_of(model, ids[case["prompt"]], cached(case), stop_ids=stops)
        found = ids[tokens].tolist()
        end = RECORDED["columns"] if case["stop"] is None else found.index(case["stop"]) + 1
        assert found[:end] == case["tokens"][:end]
        assert rows == case["rows"][: len(rows)]
        spared = case["forwards"] - len(rows)
        assert spared == 0 or (is_stopped and spared == 1)


def test_a_wrong_delay_or_no_refresh_gives_other_answers(sampler):
    """The comparison above would see it, and neither compiles anything."""
    cases = [case for case in RECORDED["delayed"] if case["stop"] is None]
    refreshed = [case for case in cases if case["refresh_interval"] == 5]

    def differing(cases, **change):
        answers = (
            passes_of(sampler, case["prompt"], cached(case, **change), every=None)[0].tolist()
            for case in cases
        )
        return sum(answer != case["tokens"] for answer, case in zip(answers, cases, strict=True))

    def count():
        assert differing(cases) == 0
        assert differing(cases, cache_delay=3) > 20
        assert differing(refreshed, refresh_steps=None) == len(refreshed) == 5

    passes_of(sampler, cases[0]["prompt"], cached(cases[0]))
    assert count_compilations(count) == 0


def test_keys_that_are_attended_to_twice_count(sampler, monkeypatch):
    """The published loop keeps blocks twice where several wait; once gives other answers."""

    class Once(DelayedCache):
        def advance_pipeline(self, *given):
            following = super().advance_pipeline(*given)
            nowhere = jnp.zeros_like(following.parts.repeated)
            return following._replace(parts=following.parts._replace(repeated=nowhere))

    monkeypatch.setattr("jax_lm.diffusion.sampler.METHODS", (Once,))
    cases = [case for case in RECORDED["delayed"] if case["stop"] is None]
    answers = [passes_of(sampler, case["prompt"], cached(case))[0].tolist() for case in cases]
    assert answers != [case["tokens"] for case in cases]


def test_a_pass_with_a_delayed_cache_computes_fewer_rows(sampler, monkeypatch):
    """The layers of each branch have as many rows as the number of stored parts leaves."""
    compute = DreamModel.recompute
    counts = []

    def counted(self, input_ids, *given, **more):
        counts.append(input_ids.shape[-1])
        return compute(self, input_ids, *given, **more)

    monkeypatch.setattr(DreamModel, "recompute", counted)
    case = RECORDED["delayed"][0]
    # another number of columns is another program
    canvas = Canvas.after(np.array([case["prompt"]], np.int32), None, 40)
    sampler.generate(canvas, cached(case))
    assert set(counts) == {59, 40, 28, 16, 4}


@pytest.mark.parametrize(
    "change",
    [
        {"entropy_bound": 0.9},
        {"add_threshold": 0.9},
        {"active_blocks": 1},
        {"commit": "threshold", "entropy_bound": None},
    ],
    ids=str,
)
def test_every_setting_counts(sampler, change):
    """The comparison above would see another value of each setting, which compiles nothing."""
    prompts = [case["prompt"] for case in RECORDED["cases"][:10:2]]

    def forwards(settings):
        return [int(decoded(sampler, [each], settings).forwards) for each in prompts]

    published = forwards(options())
    other = options(**change)
    if "active_blocks" not in change:
        assert count_compilations(lambda: decoded(sampler, prompts[:1], other)) == 0
    assert forwards(other) != published


def test_rows_of_a_ragged_batch_are_what_they_are_alone(sampler):
    prompts = [case["prompt"] for case in RECORDED["cases"][:3]]
    mask = np.ones((3, len(prompts[0])), np.int32)
    mask[1, :7] = 0
    together = decoded(sampler, prompts, options(), mask, stop_ids=(STOP,))
    for row, start in enumerate([0, 7, 0]):
        alone = decoded(sampler, [prompts[row][start:]], options(), stop_ids=(STOP,))
        np.testing.assert_array_equal(
            tokens_of(alone)[0, -RECORDED["columns"] :],
            tokens_of(together)[row, -RECORDED["columns"] :],
        )


def test_one_block_after_another_is_the_rule_of_dparallel(sampler):
    """With room for one block, it is commit rule `low_entropy` in blocks, without the pipeline."""
    prompts = [case["prompt"] for case in RECORDED["cases"][:4]]
    single = {"active_blocks": 1, "add_threshold": 1.0}
    plain = dict.fromkeys(single)
    for each in prompts:
        pipelined = decoded(sampler, [each], options(**single))
        blocks = decoded(sampler, [each], options(**plain))
        np.testing.assert_array_equal(pipelined.tokens, blocks.tokens)
        np.testing.assert_array_equal(pipelined.commit_step, blocks.commit_step)
        assert int(pipelined.forwards) == int(blocks.forwards) < RECORDED["columns"]


def test_the_rule_takes_what_is_below_its_bound_and_the_first():
    entropy = jnp.array([[0.6, 0.1, 0.9, 0.2], [0.6, 0.7, 0.9, 0.8]])
    masked = jnp.array([[True, True, True, False], [True, True, True, True]])
    rank = jnp.array([[1, 0, 2, 3], [0, 1, 3, 2]])
    chosen = below_entropy(jnp.float32(0.7), rank, entropy, masked)
    assert chosen.tolist() == [[True, True, False, False], [True, False, False, False]]
    # A bound of 0 takes one token a step.
    assert below_entropy(jnp.float32(0), rank, entropy, masked).sum(axis=1).tolist() == [1, 1]


def test_what_does_not_go_together_is_refused_by_name(sampler, tiny_inference):
    with pytest.raises(ValueError, match="commit='steps': must be one of threshold, low_entropy"):
        Decoding(commit="steps", active_blocks=2)
    with pytest.raises(ValueError, match=r"activate_threshold=0\.9: must be None without cache="):
        options(activate_threshold=0.9)
    with pytest.raises(ValueError, match="active_blocks=2: must be None without cache="):
        Decoding(preset="turbo", active_blocks=2)
    with pytest.raises(ValueError, match=r"draft=2: must be 0 with several blocks at once"):
        options(draft=2)
    with pytest.raises(ValueError, match=r"\(active_blocks\): only completes prompts"):
        tiny_inference.infill("def f(x):", "\n", 8, options=options())
    with pytest.raises(ValueError, match=r"\(active_blocks\): not for sequences of a batch"):
        make_sequence(0, options=options(top_k=50))
    with pytest.raises(ValueError, match=r"add_threshold=0\.1: estimator='trace' does not score"):
        GRPOConfig(generation=options(temperature=1.0), masks=Estimator(estimator="trace"))
    delayed = options(cache="delayed")
    with pytest.raises(ValueError, match="cache_delay=2: must be None without cache='delayed'"):
        options(cache_delay=2)
    with pytest.raises(ValueError, match="cache_delay=0: must be at least 1"):
        options(cache="delayed", cache_delay=0)
    with pytest.raises(ValueError, match="refresh_every=2: must be 1 with cache='delayed'"):
        options(cache="delayed", refresh_every=2)
    with pytest.raises(ValueError, match="commit='steps': must be one of threshold, low_entropy"):
        Decoding(cache="delayed", commit="steps")
    with pytest.raises(ValueError, match="cache='delayed': decodes one text at a time"):
        decoded(sampler, [[7, 8], [9, 8]], delayed)
    with pytest.raises(ValueError, match="cache='delayed': must be none or window"):
        make_sequence(0, options=options(cache="delayed", top_k=50))
    sampled = options(cache="delayed", add_threshold=None, active_blocks=None, temperature=1.0)
    with pytest.raises(ValueError, match="cache=delayed: estimator='trace' does not score"):
        GRPOConfig(generation=sampled, masks=Estimator(estimator="trace"))
    # Weights that attend by blocks never saw a canvas that attends to itself.
    config = DreamConfig.from_dict(config_fields("a2d-qwen3-bd3lm", 0))
    canvas = Canvas.after(np.ones((1, 4), np.int32), None, 8)
    with pytest.raises(ValueError, match="not with Tiny-A2D bd3lm, which attends by blocks"):
        MultiBlock.of(canvas, options(), config)


def test_without_the_setting_nothing_is_at_once():
    assert not Decoding(commit="low_entropy").is_pipelined
    assert Decoding(active_blocks=2).settings.commit == "threshold"
    assert replace(options().decoding, add_threshold=None).is_pipelined
