"""Sequences that share compiled steps: each becomes what it would alone, whatever is beside it and whenever it came."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from conftest import greedy

from jax_lm.benchmark.timer import compilations
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.options import ALGS, Decoding
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots

COLUMNS, SIZES, STOP = 96, (1, 4), 500
FAST, TURBO = Decoding(preset="fast"), Decoding(preset="turbo")
GREEDY = greedy(40)
DRAWN = greedy(40, temperature=0.8, top_p=0.9)
DRAWN_FAST, FAST_GREEDY = replace(DRAWN, decoding=FAST), replace(GREEDY, decoding=FAST)
ALL_TURBO = greedy(decoding=TURBO)


@pytest.fixture(scope="module")
def batches(golden_sampler):
    """Slots without and with a cache, shared so that little is compiled."""
    return {
        cached: Slots(golden_sampler, COLUMNS, is_cached=cached, count=4, sizes=SIZES, stop_ids=(STOP,))
        for cached in (False, True)
    }


def prompt(number, length=7):
    return np.random.default_rng(number).integers(0, 490, length)


def sequence(number, options=GREEDY, *, hole=40, seed=3):
    tokens = np.concatenate([prompt(number, 5 + number % 7), np.zeros(hole, int)]).astype(np.int32)
    steps, start = options.num_steps and min(options.num_steps, hole), len(tokens) - hole
    return Sequence(
        tokens=tokens,
        hole=Block(start, start + hole),
        options=replace(options, num_steps=steps),
        stop_ids=(STOP,) if options.early_stop else (),
        key=np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0))),
    )


def finish(slots, *sequences, steps=4):
    """Take steps until those sequences are done."""
    for one in sequences:
        slots.join(one)
    for _ in range(200):
        for one in [one for one in sequences if one.is_done and one in slots.sequences]:
            slots.leave(one)
        if not any(one in slots.sequences for one in sequences):
            return
        slots.advance(steps)
    raise AssertionError("not done after 200 calls")


def text(one):
    """Decided tokens of the hole up to the stop token, as what follows it is never read."""
    tokens = one.tokens[one.hole.start : one.settled].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


def alone(sampler, one, seed=3):
    """What the sampler makes of the same sequence, without slots."""
    canvas = Canvas.after(one.tokens[None, : one.hole.start], None, one.hole.length)
    state = sampler.generate(canvas, one.options, seed=seed, stop_ids=one.stop_ids)
    tokens = np.asarray(state.tokens)[0, one.hole.start :].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


CASES = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "few steps": greedy(9, alg="topk_margin"),
    "by chance": greedy(20, alg="origin", temperature=1.0),
    "blocks": greedy(40, alg="maskgit_plus", decoding=Decoding(block_length=16)),
    "threshold": greedy(decoding=Decoding(commit="threshold", threshold=0.03)),
    "fast": DRAWN_FAST,
    "turbo": ALL_TURBO,
    "top_k": replace(DRAWN, top_k=3, temperature=1.5),
    "min_p": replace(DRAWN_FAST, min_p=0.2, temperature=1.5),
    "entropy": greedy(decoding=Decoding(commit="entropy", entropy_bound=4.0)),
    "fast, entropy": greedy(decoding=Decoding(preset="fast", commit="entropy", entropy_bound=6.0)),
}


@pytest.fixture(scope="module")
def together(batches):
    """All cases, four at a time in one batch."""
    found = {name: sequence(number, case) for number, (name, case) in enumerate(CASES.items())}
    for cached, slots in batches.items():
        mine = [one for one in found.values() if one.is_cached == cached]
        for start in range(0, len(mine), 4):
            finish(slots, *mine[start : start + 4])
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_becomes_what_the_sampler_makes_of_it(together, golden_sampler, name):
    one = together[name]
    assert text(one) == alone(golden_sampler, one)
    assert one.confidence[one.hole.start : one.settled].min() > 0
    assert (one.tokens[: one.hole.start] == sequence(list(CASES).index(name)).tokens[: one.hole.start]).all()


@pytest.mark.parametrize("name", ["drawn", "fast"])
def test_a_sequence_does_not_depend_on_its_neighbours(together, batches, name):
    number = list(CASES).index(name)
    single, beside = sequence(number, CASES[name]), sequence(number, CASES[name])
    slots = batches[single.is_cached]
    finish(slots, single, steps=7)
    early, others = sequence(9, CASES[name]), [sequence(10 + i, CASES[name], hole=20) for i in range(2)]
    slots.join(early)
    slots.advance(5)
    finish(slots, others[0], beside, others[1])
    finish(slots) if early not in slots.sequences else slots.leave(early)
    assert text(single) == text(beside) == text(together[name])
    assert single.forwards == beside.forwards


def test_a_cached_sequence_joins_and_leaves_within_the_blocks_of_others(together, batches):
    slots = batches[True]
    first, second = sequence(6, CASES["fast"]), sequence(7, CASES["turbo"])
    slots.join(first)
    slots.advance(3)
    assert not first.is_between_blocks
    slots.join(second)
    slots.advance(2)
    assert 0 < second.forwards <= 3
    assert first.forwards == 4 + 2
    finish(slots, sequence(8, DRAWN_FAST), sequence(9, ALL_TURBO))
    for one in (first, second):
        while not one.is_done:
            slots.advance(4)
        slots.leave(one)
    assert [text(first), text(second)] == [text(together["fast"]), text(together["turbo"])]


def test_a_call_returns_when_the_first_sequence_ends_its_block(batches):
    slots = batches[True]
    quick, slow = sequence(1, FAST_GREEDY, hole=6), sequence(2, FAST_GREEDY, hole=40)
    slots.join(quick)
    slots.join(slow)
    slots.advance(20)
    assert quick.is_done
    assert slow.forwards == quick.forwards < 7
    slots.leave(quick)
    slots.leave(slow)


def test_settings_do_not_compile_anew(batches):
    # As many sequences at once as below: their number is a shape.
    finish(batches[False], sequence(1), sequence(2))
    finish(batches[False], sequence(1))
    before = compilations().count
    finish(batches[False], sequence(3, greedy(11, alg="random", temperature=1.3)), sequence(4, hole=9))
    decoding = Decoding(commit="threshold", threshold=0.4, block_length=5)
    finish(batches[False], sequence(5, greedy(decoding=decoding), hole=33))
    assert compilations().count == before


def test_sequences_find_what_was_compiled_ahead(golden_sampler):
    """Also at their second block, which gets the cache back from a step."""
    slots = Slots(golden_sampler, COLUMNS, is_cached=True, count=2, sizes=(), stop_ids=(STOP,))
    slots.compile(1, sequence(1, CASES["fast"]))
    sequences = sequence(6, CASES["fast"]), sequence(7, CASES["fast"])
    before = compilations().count
    for one in sequences:
        finish(slots, one)
        assert len(one.blocks) > 1
    assert compilations().count == before


def test_a_sequence_that_nothing_ends_fills_its_hole(golden_sampler):
    """Beside one that ends at its first token, as here all are stop tokens."""
    everything = tuple(range(512))
    slots = Slots(golden_sampler, COLUMNS, is_cached=False, count=2, sizes=(2,), stop_ids=everything)
    endless = sequence(2, replace(DRAWN, early_stop=False))
    ending = replace(sequence(2, DRAWN), stop_ids=everything)
    finish(slots, endless, ending)
    assert ending.forwards < endless.forwards
    assert endless.tokens[endless.hole.start :].tolist() == alone(golden_sampler, endless)


def test_every_order_differs(batches):
    sequences = [sequence(1, greedy(40, alg=alg, temperature=0.7)) for alg in ALGS]
    finish(batches[False], *sequences[:4])
    finish(batches[False], *sequences[4:])
    assert len({one.commit_step.tobytes() for one in sequences}) == len(ALGS)


def test_a_block_whose_computation_was_lost_can_be_done_again(together, batches):
    one = sequence(6, CASES["fast"])
    batches[True].join(one)
    for _ in range(9):
        batches[True].advance(4)
    batches[True].leave(one)
    one.reopen()
    finish(batches[True], one)
    assert text(one) == text(together["fast"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (greedy(4, top_k=51), "top_k=51"),
        (greedy(4, top_k=None), "top_k=None"),
        (greedy(4, alg_temp=0.5), "alg_temp=0.5"),
        (greedy(4, decoding=Decoding(cache="window", refresh_every=2)), "refresh_every=2"),
        (greedy(4, decoding=Decoding(cache="prefix")), "cache='prefix'"),
        (greedy(4, decoding=TURBO), "steps=4"),
        (greedy(4, decoding=Decoding(cache="window", block_length=8)), "block_length=8"),
    ],
)
def test_settings_that_sequences_cannot_differ_in_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sequence(1, options)


def test_a_hole_needs_given_text_before_it():
    with pytest.raises(ValueError, match="one given before it"):
        Sequence(tokens=np.zeros(4, np.int32), hole=Block(0, 4), options=GREEDY, stop_ids=(), key=np.zeros(2))
