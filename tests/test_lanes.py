"""Rows that share compiled steps: each becomes what it would alone, whoever sits beside it and whenever it came."""

import jax
import numpy as np
import pytest

from jax_lm.diffusion import lanes as module
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.decoding import PRESETS, Decoding
from jax_lm.diffusion.lanes import Lanes
from jax_lm.diffusion.row import Row
from jax_lm.diffusion.unmasking import ALGS, SamplingConfig
from jax_lm.evaluation.machine import compilations

COLUMNS, SIZES, STOP = 96, (1, 4), 500
GREEDY = SamplingConfig(steps=40)
DRAWN = SamplingConfig(steps=40, temperature=0.8, top_p=0.9)
TURBO = SamplingConfig(steps=None)


@pytest.fixture(scope="module")
def places(golden_sampler):
    """Lanes without and with a cache, shared so that little is compiled."""
    return {
        cached: Lanes(golden_sampler, COLUMNS, is_cached=cached, seats=4, sizes=SIZES, stop_ids=(STOP,))
        for cached in (False, True)
    }


def prompt(number, length=7):
    return np.random.default_rng(number).integers(0, 490, length)


def row(number, sampling=GREEDY, decoding=PRESETS["exact"], *, hole=40, seed=3):
    tokens = np.concatenate([prompt(number, 5 + number % 7), np.zeros(hole, int)]).astype(np.int32)
    steps = sampling.steps and min(sampling.steps, hole)
    config = SamplingConfig(**{**vars(sampling), "steps": steps, "stop_ids": (STOP,)})
    start = len(tokens) - hole
    return Row(
        tokens=tokens, hole=Block(start, start + hole), sampling=config, decoding=decoding,
        key=np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0))),
    )  # fmt: skip


def finish(lanes, *rows, steps=4):
    """Take steps until those rows are done."""
    for one in rows:
        lanes.join(one)
    for _ in range(200):
        for one in [one for one in rows if one.is_done and one in lanes.rows]:
            lanes.leave(one)
        if not any(one in lanes.rows for one in rows):
            return
        lanes.advance(steps)
    raise AssertionError("not done after 200 calls")


def text(one):
    """Decided tokens of the hole up to the stop token, as what follows it is never read."""
    tokens = one.tokens[one.hole.start : one.settled].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


def alone(sampler, one, seed=3):
    """What the sampler makes of the same row, without lanes."""
    canvas = Canvas.after(one.tokens[None, : one.hole.start], None, one.hole.length)
    state = sampler.generate(canvas, one.sampling, one.decoding, seed=seed)
    tokens = np.asarray(state.tokens)[0, one.hole.start :].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


CASES = {
    "greedy": (GREEDY, PRESETS["exact"]),
    "drawn": (DRAWN, PRESETS["exact"]),
    "few steps": (SamplingConfig(steps=9, alg="topk_margin"), PRESETS["exact"]),
    "by chance": (SamplingConfig(steps=20, alg="origin", temperature=1.0), PRESETS["exact"]),
    "blocks": (SamplingConfig(steps=40, alg="maskgit_plus"), Decoding(block_length=16)),
    "threshold": (SamplingConfig(steps=None), Decoding(commit="threshold", threshold=0.03)),
    "fast": (DRAWN, PRESETS["fast"]),
    "turbo": (TURBO, PRESETS["turbo"]),
}


@pytest.fixture(scope="module")
def together(places):
    """All cases, four at a time in one batch."""
    rows = {name: row(number, *case) for number, (name, case) in enumerate(CASES.items())}
    for cached, lanes in places.items():
        mine = [one for one in rows.values() if one.is_cached == cached]
        for start in range(0, len(mine), 4):
            finish(lanes, *mine[start : start + 4])
    return rows


@pytest.mark.parametrize("name", CASES)
def test_a_row_becomes_what_the_sampler_makes_of_it(together, golden_sampler, name):
    one = together[name]
    assert text(one) == alone(golden_sampler, one)
    assert one.confidence[one.hole.start : one.settled].min() > 0
    assert (one.tokens[: one.hole.start] == row(list(CASES).index(name)).tokens[: one.hole.start]).all()


@pytest.mark.parametrize("name", ["drawn", "fast"])
def test_a_row_does_not_depend_on_its_neighbours(together, places, name):
    number = list(CASES).index(name)
    single, beside = row(number, *CASES[name]), row(number, *CASES[name])
    lanes = places[single.is_cached]
    finish(lanes, single, steps=7)
    early, others = row(9, *CASES[name]), [row(10 + i, *CASES[name], hole=20) for i in range(2)]
    lanes.join(early)
    lanes.advance(5)
    finish(lanes, others[0], beside, others[1])
    finish(lanes) if early not in lanes.rows else lanes.leave(early)
    assert text(single) == text(beside) == text(together[name])
    assert single.forwards == beside.forwards


def test_a_cached_row_joins_and_leaves_within_the_blocks_of_others(together, places):
    lanes = places[True]
    first, second = row(6, *CASES["fast"]), row(7, *CASES["turbo"])
    lanes.join(first)
    lanes.advance(3)
    assert not first.is_between_blocks
    lanes.join(second)
    lanes.advance(2)
    assert 0 < second.forwards <= 3
    assert first.forwards == 4 + 2
    finish(lanes, row(8, DRAWN, PRESETS["fast"]), row(9, TURBO, PRESETS["turbo"]))
    for one in (first, second):
        while not one.is_done:
            lanes.advance(4)
        lanes.leave(one)
    assert [text(first), text(second)] == [text(together["fast"]), text(together["turbo"])]


def test_a_call_returns_when_the_first_row_ends_its_block(places):
    lanes = places[True]
    quick, slow = row(1, GREEDY, PRESETS["fast"], hole=6), row(2, GREEDY, PRESETS["fast"], hole=40)
    lanes.join(quick)
    lanes.join(slow)
    lanes.advance(20)
    assert quick.is_done
    assert slow.forwards == quick.forwards < 7
    lanes.leave(quick)
    lanes.leave(slow)


def test_settings_do_not_compile_anew(together, places):
    before = module.run_lanes._cache_size()
    finish(places[False], row(3, SamplingConfig(steps=11, alg="random", temperature=1.3, top_p=None)), row(4, hole=9))
    finish(places[False], row(5, TURBO, Decoding(commit="threshold", threshold=0.4, block_length=5), hole=33))
    assert module.run_lanes._cache_size() == before


def test_rows_find_what_was_compiled_ahead(golden_sampler):
    """Also at their second block, which gets the memory back from a step."""
    lanes = Lanes(golden_sampler, COLUMNS, is_cached=True, seats=2, sizes=(), stop_ids=(STOP,))
    lanes.compile(1, row(1, *CASES["fast"]))
    rows = row(6, *CASES["fast"]), row(7, *CASES["fast"])
    before = compilations().count
    for one in rows:
        finish(lanes, one)
        assert len(one.blocks) > 1
    assert compilations().count == before


def test_every_order_differs(places):
    rows = [row(1, SamplingConfig(steps=40, alg=alg, temperature=0.7)) for alg in ALGS]
    finish(places[False], *rows[:4])
    finish(places[False], *rows[4:])
    assert len({one.commit_step.tobytes() for one in rows}) == len(ALGS)


def test_a_block_whose_computation_was_lost_can_be_done_again(together, places):
    one = row(6, *CASES["fast"])
    places[True].join(one)
    for _ in range(9):
        places[True].advance(4)
    places[True].leave(one)
    one.reopen()
    finish(places[True], one)
    assert text(one) == text(together["fast"])


@pytest.mark.parametrize(
    ("sampling", "decoding", "message"),
    [
        (SamplingConfig(steps=4, top_k=7), Decoding(), "top_k=7"),
        (SamplingConfig(steps=4, alg_temp=0.5), Decoding(), "alg_temp=0.5"),
        (SamplingConfig(steps=4), Decoding(cache="window", refresh_every=2), "refresh_every=2"),
        (SamplingConfig(steps=4), Decoding(cache="prefix"), "cache='prefix'"),
        (SamplingConfig(steps=None), Decoding(), "steps=None"),
        (SamplingConfig(steps=4), Decoding(cache="window", block_length=8), "block_length=8"),
    ],
)
def test_settings_that_rows_cannot_differ_in_are_refused(sampling, decoding, message):
    with pytest.raises(ValueError, match=message):
        row(1, sampling, decoding)


def test_a_hole_needs_given_text_before_it():
    with pytest.raises(ValueError, match="one given before it"):
        Row(tokens=np.zeros(4, np.int32), hole=Block(0, 4), sampling=GREEDY, decoding=Decoding(), key=np.zeros(2))
