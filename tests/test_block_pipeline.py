"""Several blocks at once (D2F) against a reading of it in plain Python: one row, no cache, a mask
for each step.
"""

from dataclasses import replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import (
    count_compilations,
    greedy,
    ragged_prompts,
    tokens_of,
    with_random_weights,
)
from cases.sequences import make_sequence

from jax_lm.diffusion.block_pipeline import BlockPipeline
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import Hooks
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.training.grpo_config import GRPOConfig

PROMPT, COLUMNS, MANY = 5, 22, 100
CAUSAL = Decoding(
    cache="causal", block_length=5, threshold=0.3, activate_threshold=0.8, active_blocks=MANY
)


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return Sampler(tiny_model)


def prompt(seed, rows=1):
    return np.random.default_rng(seed).integers(0, 95, (rows, PROMPT)).astype(np.int32)


def options(decoding=CAUSAL, **settings):
    changes = {name: settings.pop(name) for name in list(settings) if hasattr(decoding, name)}
    order = {"top_p": None, "top_k": None, "alg": "maskgit_plus", "temperature": 0.0}
    return GenerationOptions(**order | settings, decoding=replace(decoding, **changes))


def decoded(sampler, tokens, settings, mask=None, columns=COLUMNS, **more):
    return sampler.generate(Canvas.after(tokens, mask, columns), settings, **more)


def block_of(column, length, start=PROMPT):
    return -1 if column < start else (column - start) // length


@lru_cache
def visible(width, length):
    return np.array(
        [[block_of(k, length) <= block_of(q, length) for k in range(width)] for q in range(width)]
    )


@partial(jax.jit, static_argnames="graph")
def forward(graph, params, tokens, mask):
    positions = jnp.arange(tokens.shape[1])[None]
    return graph.merge(params)(tokens, mask, positions)


def said(sampler, tokens, length):
    """The likeliest token of each column and its probability, without MASK."""
    mask = visible(len(tokens), length)
    logits = forward(
        sampler.graph, sampler.params, jnp.asarray(tokens, jnp.int32)[None], mask[None]
    )
    logits = np.array(logits)[0].astype(np.float64)
    logits = np.concatenate([logits[:1], logits[:-1]])
    logits[:, sampler.mask_id] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits.argmax(axis=1), weights.max(axis=1) / weights.sum(axis=1)


def forced(sampler, given, decoding, stop_ids=(), columns=COLUMNS):
    """Decode greedily: returns the tokens, the forwards, the blocks begun, and the most that were
    active at once.
    """
    chosen, mask = decoding.settings, sampler.mask_id
    length, width = chosen.block_length, PROMPT + columns
    # Blocks that are not begun are masked too; nobody who is begun can see them.
    tokens = [*given, *[mask] * columns]
    blocks = [range(start, min(start + length, width)) for start in range(PROMPT, width, length)]
    begun, forwards, most = 0, 0, 0

    def masks(block):
        return [column for column in block if tokens[column] == mask]

    def share(number):
        return 1.0 if number < 0 else 1 - len(masks(blocks[number])) / len(blocks[number])

    def filled(number, threshold):
        return share(number) >= threshold - 1e-9

    while True:
        finished = 0
        while finished < begun and not masks(blocks[finished]):
            finished += 1
        stopped = any(token in stop_ids for token in tokens[PROMPT:])
        has_room = begun < len(blocks) and begun - finished < chosen.active_blocks
        if has_room and filled(begun - 1, chosen.add_threshold) and not stopped:
            begun += 1
        if finished == begun:
            return tokens, forwards, begun, most
        most = max(most, begun - finished)
        forcing = [filled(number - 1, chosen.activate_threshold) for number in range(begun)]
        likeliest, p = said(sampler, tokens, length)
        forwards += 1
        for number in range(begun):
            left = masks(blocks[number])
            taken = [column for column in left if p[column] > chosen.threshold]
            if not taken and forcing[number] and left:
                taken = [max(left, key=lambda column: (p[column], -column))]
            for column in taken:
                tokens[column] = int(likeliest[column])


@pytest.mark.parametrize("rows", [[5], [3, 9, 6]])
def test_the_mask_is_that_of_the_definition(rows):
    width, start, length = 9 + 7, 9, 3
    present = np.arange(width) >= start - np.array(rows)[:, None]
    queries = np.arange(2, width)
    grid = BlockPipeline(start, width, length, 2)
    found = np.asarray(grid.admitted(jnp.asarray(present), jnp.asarray(queries)))
    for row in range(len(rows)):
        for place, query in enumerate(queries):
            for key in range(width):
                allowed = block_of(key, length, start) <= block_of(query, length, start)
                assert found[row, place, key] == (allowed and present[row, key])


def test_a_block_computed_after_others_is_as_computed_with_all(golden_model):
    """What stays in the cache is what the whole canvas under the mask gives, row by row."""
    ids, mask = ragged_prompts()
    ids = np.concatenate([ids, np.random.default_rng(1).integers(0, 490, (3, 7))], axis=1)
    present = np.concatenate([mask, np.ones((3, 7))], axis=1).astype(bool)
    positions = np.maximum(np.cumsum(present, axis=1) - 1, 0)
    grid, width = BlockPipeline(9, 16, 3, 2), 16
    everything = np.asarray(jax.jit(grid.admitted)(present, np.arange(width)))
    model = golden_model.model
    recompute = jax.jit(model.recompute)
    expected = jax.jit(model.__call__)(ids, everything, positions)
    cache = jax.jit(model.empty_cache, static_argnums=(0, 1))(3, width)
    # The second part again, and the row before it.
    for start, end in ((0, 12), (8, 15), (9, 16)):
        rows = slice(start, end)
        part, cache = recompute(
            ids[:, rows], everything[:, rows], positions[:, rows], cache, np.int32(start)
        )
        real = present[:, rows]
        np.testing.assert_allclose(
            np.asarray(part)[real], np.asarray(expected)[:, rows][real], atol=2e-5
        )


PACES = {
    "many at once": {"add_threshold": 0.2},
    "at every step": {"add_threshold": 0.0, "activate_threshold": 0.0, "threshold": 0.6},
    "waiting for sure tokens": {"add_threshold": 0.2, "activate_threshold": 1.0, "threshold": 0.5},
    "two at once": {"add_threshold": 0.2, "active_blocks": 2},
    "one block after another": {"add_threshold": 1.0, "activate_threshold": 1.0},
    "whole blocks": {"block_length": 11, "add_threshold": 0.1},
}


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES)
def test_it_is_the_published_algorithm(tiny, pace):
    settings, at_once, faster = options(**pace), 0, 0
    for seed in range(10):
        model = with_random_weights(tiny, np.random.default_rng(seed))
        tokens, forwards, begun, most = forced(model, prompt(seed)[0].tolist(), settings.decoding)
        state = decoded(model, prompt(seed), settings)
        assert tokens_of(state)[0].tolist() == tokens
        assert int(state.forwards) == int(state.step) == forwards
        assert (
            int(state.extra.begun[0])
            == begun
            == -(-COLUMNS // settings.decoding.settings.block_length)
        )
        at_once, faster = max(at_once, most), faster + (forwards < COLUMNS)
    # Else the comparison says little.
    assert faster > 3
    limit = 1 if pace.get("add_threshold") == 1.0 else pace.get("active_blocks", MANY)
    assert min(2, limit) <= at_once <= limit


def test_blocks_follow_each_other_if_they_must(tiny):
    model = with_random_weights(tiny, np.random.default_rng(2))
    single = options(add_threshold=1.0, activate_threshold=1.0)
    state = decoded(model, prompt(2), single)
    steps = np.asarray(state.commit_step)[0, PROMPT:]
    for start in range(5, COLUMNS, 5):
        assert steps[:start].max() < steps[start:].min()
    # With room for one block, no threshold says anything.
    for other in (
        {"active_blocks": 1},
        {"active_blocks": 1, "add_threshold": 0.0, "activate_threshold": 0.0},
    ):
        alone = decoded(model, prompt(2), options(**other))
        np.testing.assert_array_equal(alone.tokens, state.tokens)
        np.testing.assert_array_equal(alone.commit_step, state.commit_step)


def test_room_for_as_many_blocks_as_are_begun_is_room_without_an_end(tiny):
    """Five blocks, of which a window holds four; one at a time takes longer."""
    enough, longer = 0, 0
    for seed in range(12):
        model = with_random_weights(tiny, np.random.default_rng(seed))
        many, four, single = (
            options(add_threshold=0.3, active_blocks=each) for each in (MANY, 4, 1)
        )
        *_, most = forced(model, prompt(seed)[0].tolist(), many.decoding)
        if most <= 4:
            endless, bounded = (
                decoded(model, prompt(seed), many),
                decoded(model, prompt(seed), four),
            )
            np.testing.assert_array_equal(bounded.tokens, endless.tokens)
            np.testing.assert_array_equal(bounded.commit_step, endless.commit_step)
            enough += most > 2
            longer += int(decoded(model, prompt(seed), single).forwards) > int(endless.forwards)
    assert enough > 2
    assert longer > 2


def test_a_stop_token_ends_the_row_and_begins_no_block(tiny):
    """The text up to it is the published one, which goes on with the blocks begun; ours is not
    decoded further.
    """
    settings = options(add_threshold=0.2)
    models = [with_random_weights(tiny, np.random.default_rng(seed)) for seed in range(5)]
    wholes = [
        tokens_of(decoded(model, prompt(seed), settings))[0] for seed, model in enumerate(models)
    ]
    # The same for every model, as stop tokens are compiled in: one of each answer.
    stops = tuple(sorted({int(whole[PROMPT + 7]) for whole in wholes}))
    stopped, fewer = 0, 0
    for seed, model in enumerate(models):
        tokens, forwards, begun, _ = forced(
            model, prompt(seed)[0].tolist(), settings.decoding, stops
        )
        state = decoded(model, prompt(seed), settings, stop_ids=stops)
        ours = tokens_of(state)[0].tolist()
        end = next(place for place in range(PROMPT, len(tokens)) if tokens[place] in stops)
        assert ours[: end + 1] == tokens[: end + 1]
        assert set(ours[end:]) <= {*stops, *tokens[end:]}
        assert not np.asarray(state.masked).any()
        assert int(state.extra.begun[0]) == begun
        assert int(state.forwards) <= forwards
        stopped, fewer = stopped + (begun < 5), fewer + (int(state.forwards) < forwards)
    assert stopped > 1
    assert fewer > 0


ROWS = {
    "greedy": options(threshold=0.05, add_threshold=0.2, block_length=4),
    "drawn": options(
        threshold=0.05,
        block_length=4,
        active_blocks=2,
        temperature=0.8,
        top_p=0.9,
        top_k=20,
        alg="entropy",
        alg_temp=0.3,
    ),
}


@pytest.mark.parametrize("settings", ROWS.values(), ids=ROWS)
def test_rows_of_a_ragged_batch_are_what_they_are_alone(golden_sampler, settings):
    ids, mask = ragged_prompts()
    keys = jax.random.split(jax.random.key(7), 3)
    together = decoded(golden_sampler, ids, settings, mask, columns=14, seed=keys)
    assert not np.asarray(together.masked).any()
    np.testing.assert_array_equal(tokens_of(together)[:, :9], ids)
    ends = np.asarray(together.commit_step).max(axis=1)
    assert int(together.forwards) == ends.max() + 1
    # The row with most padding, and without any.
    alone = decoded(golden_sampler, ids[:1, -3:], settings, columns=14, seed=keys[:1])
    np.testing.assert_array_equal(tokens_of(alone)[0, -14:], tokens_of(together)[0, -14:])
    np.testing.assert_array_equal(alone.commit_step[0, -14:], together.commit_step[0, -14:])
    np.testing.assert_allclose(alone.confidence[0, -14:], together.confidence[0, -14:], atol=1e-5)
    assert int(alone.forwards) == ends[0] + 1


@pytest.mark.parametrize("settings", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("every", [1, 3])
def test_a_stream_ends_with_the_same_text_and_tells_every_step(golden_sampler, settings, every):
    canvas = Canvas.after(*ragged_prompts(), 14)
    whole = golden_sampler.generate(canvas, settings, seed=1)
    states = list(golden_sampler.stream(canvas, settings, seed=1, every=every))
    for name in ("tokens", "commit_step", "confidence", "forwards"):
        np.testing.assert_array_equal(getattr(states[-1], name), getattr(whole, name))
    history = whole.history(golden_sampler.mask_id)
    for state in states:
        np.testing.assert_array_equal(tokens_of(state), history[int(state.step) - 1])


def test_it_is_another_computation_than_without_the_mask(golden_sampler):
    """One block after another, each alone: what differs is the attention."""
    canvas = Canvas.after(*ragged_prompts(), 14)
    settings = options(block_length=4, add_threshold=1.0, threshold=1.0)
    causal = golden_sampler.generate(canvas, settings)
    plain = golden_sampler.generate(
        canvas, greedy(alg="maskgit_plus", top_k=None, decoding=Decoding(block_length=4))
    )
    assert (np.asarray(causal.confidence) != np.asarray(plain.confidence)).any()


def test_a_block_may_be_longer_than_the_answer_or_all_of_it(tiny):
    """Everywhere above, the last block is shorter."""
    for columns, length in ((1, 5), (7, 0)):
        settings = options(block_length=length)
        state = decoded(tiny, prompt(1), settings, columns=columns)
        tokens, forwards, _, _ = forced(
            tiny,
            prompt(1)[0].tolist(),
            replace(settings.decoding, block_length=length or columns),
            columns=columns,
        )
        assert tokens_of(state)[0].tolist() == tokens
        assert int(state.forwards) == forwards


@pytest.mark.parametrize(
    "other", [{"add_threshold": 0.7}, {"activate_threshold": 0.5}, {"threshold": 0.8}], ids=str
)
def test_other_thresholds_compile_nothing(tiny, other):
    decoded(tiny, prompt(0), options())
    assert count_compilations(lambda: decoded(tiny, prompt(4), options(**other))) == 0


def test_a_text_is_completed_and_a_hole_refused(tiny_inference):
    settings = options(max_new_tokens=24, threshold=0.9, block_length=8)
    texts = tiny_inference.complete(["def f(x):", "y = 1\nz"], settings)
    assert tiny_inference.complete(["y = 1\nz"], settings) == texts[1:]
    with pytest.raises(ValueError, match="cache='causal': only completes prompts"):
        tiny_inference.infill("def f(x):", "\n", 8, options=settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"add_threshold": 0.1, "cache": "dual"},
            "add_threshold=0.1: must be None without cache='causal', 'delayed' or 'none'",
        ),
        (
            {"active_blocks": 2, "preset": "fast"},
            "active_blocks=2: must be None without cache='causal'",
        ),
        (
            {"cache": "causal", "commit": "steps"},
            "commit='steps': must be 'threshold' with cache='causal'",
        ),
        ({"cache": "causal", "commit": "entropy"}, "commit='entropy': must be 'threshold'"),
        ({"cache": "causal", "refresh_steps": 3}, "refresh_steps=3: must be None"),
        ({"cache": "causal", "refresh_every": 3}, "refresh_every=3: must be 1"),
        ({"cache": "causal", "freeze_prompt": True}, "freeze_prompt=True: must be False"),
        ({"cache": "causal", "first_token": "force"}, "first_token='force': must be 'rule'"),
        ({"cache": "causal", "add_threshold": 1.5}, "add_threshold=1.5: must lie in"),
        ({"cache": "causal", "activate_threshold": -0.1}, "activate_threshold=-0.1: must lie in"),
        ({"cache": "causal", "active_blocks": 0}, "active_blocks=0: must be at least 1"),
    ],
)
def test_decoding_that_does_not_go_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Decoding(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookahead": 2}, "lookahead=2: must be 0 with cache='causal'"),
        ({"grammar": "python"}, "grammar='python': must be None with cache='causal'"),
        ({"num_steps": 8}, "num_steps=8: must be None with cache='causal'"),
        ({"tokens_per_step": 2}, "tokens_per_step=2"),
        ({"growth": "on"}, "must be 'steps' where holes grow"),
    ],
)
def test_options_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        options(**settings)


def test_what_a_canvas_or_a_call_may_not_have_is_refused(tiny):
    canvas = Canvas.after(prompt(0), None, 8)
    between = np.array(canvas.holes)
    between[:, -1] = False
    with pytest.raises(ValueError, match="cache='causal': only completes prompts"):
        tiny.generate(replace(canvas, holes=between), options())
    for given in (
        {"strict_reference": True},
        {"hooks": Hooks(logits=lambda step, tokens, logits: logits)},
    ):
        with pytest.raises(
            ValueError, match="hooks, strict_reference: must not be given with cache='causal'"
        ):
            tiny.generate(canvas, options(), **given)
    state = next(tiny.stream(canvas, options()))
    with pytest.raises(ValueError, match="state: must be None with cache='causal'"):
        tiny.generate(canvas, options(), state=state)


def test_rows_that_share_steps_have_another_cache():
    with pytest.raises(ValueError, match="cache='causal': must be none or window"):
        make_sequence(0, options=greedy(decoding=CAUSAL))


def test_no_policy_is_scored_without_the_mask_that_it_answers_with():
    with pytest.raises(ValueError, match="cache=causal: scores do not know its mask"):
        GRPOConfig(generation=options())


def test_the_published_settings_are_the_defaults():
    chosen = Decoding(cache="causal").settings
    found = (
        chosen.add_threshold,
        chosen.activate_threshold,
        chosen.threshold,
        chosen.block_length,
        chosen.commit,
    )
    assert found == (0.1, 0.95, 0.9, 32, "threshold")
    assert Decoding(preset="turbo", cache="causal").settings == chosen
