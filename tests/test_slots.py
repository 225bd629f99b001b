"""Sequences that share compiled steps: each becomes what it would alone, whatever is beside it and
whenever it came.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases.generation import greedy
from cases.sequences import (
    ALL_TURBO,
    CASES,
    COLUMNS,
    DRAWN,
    DRAWN_FAST,
    FAST,
    GREEDY,
    STOP,
    TURBO,
    finish,
    make_sequence,
)

from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.host.compile_clock import compile_clock
from jax_lm.options import ALGS, Decoding
from jax_lm.serving.pace import Pace
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots

FAST_GREEDY = replace(GREEDY, decoding=FAST)
LONGEST = 11
"""Tokens of the longest prompt."""


class Unhurried(Pace):
    def __init__(self):
        super().__init__()
        self.fixed_rows = 10**6

    """All steps that are asked for in one call, and as many sequences as possible."""

    def steps(self, rows, most):
        return most


@pytest.fixture(scope="module")
def batches(golden_sampler):
    """Slots without and with a cache, shared so that little is compiled."""
    return {
        cached: Slots(
            golden_sampler,
            COLUMNS,
            is_cached=cached,
            count=4,
            sizes=(1, 4),
            stop_ids=(STOP,),
            pace=Unhurried(),
        )
        for cached in (False, True)
    }


def text(sequence):
    """Decided tokens of the hole up to the stop token, as what follows it is never read."""
    tokens = sequence.tokens[sequence.hole.start : sequence.first_open].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


def alone(sampler, sequence, seed=3):
    """What the sampler makes of the same sequence, without slots; padded, so that one width is
    compiled.
    """
    given = sequence.tokens[: sequence.hole.start]
    padding = LONGEST - len(given)
    ids, mask = np.pad(given, (padding, 0))[None], (np.arange(LONGEST) >= padding)[None]
    state = sampler.generate(
        Canvas.after(ids, mask, sequence.hole.length),
        sequence.options,
        seed=seed,
        stop_ids=sequence.stop_ids,
    )
    tokens = np.asarray(state.tokens)[0, LONGEST:].tolist()
    return tokens[: tokens.index(STOP)] if STOP in tokens else tokens


@pytest.fixture(scope="module")
def batched_sequences(batches):
    """All cases, four at a time in one batch."""
    found = {name: make_sequence(number, case) for number, (name, case) in enumerate(CASES.items())}
    for cached, slots in batches.items():
        mine = [sequence for sequence in found.values() if sequence.is_cached == cached]
        for start in range(0, len(mine), 4):
            finish(slots, *mine[start : start + 4])
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_becomes_what_the_sampler_makes_of_it(batched_sequences, golden_sampler, name):
    sequence = batched_sequences[name]
    assert text(sequence) == alone(golden_sampler, sequence)
    assert sequence.confidence[sequence.hole.start : sequence.first_open].min() > 0
    assert (
        sequence.tokens[: sequence.hole.start]
        == make_sequence(list(CASES).index(name)).tokens[: sequence.hole.start]
    ).all()


@pytest.mark.parametrize("name", ["drawn", "fast"])
def test_a_sequence_does_not_depend_on_its_neighbours(batched_sequences, batches, name):
    number = list(CASES).index(name)
    single, beside = make_sequence(number, CASES[name]), make_sequence(number, CASES[name])
    slots = batches[single.is_cached]
    finish(slots, single, steps=7)
    early, others = (
        make_sequence(9, CASES[name]),
        [make_sequence(10 + i, CASES[name], hole=20) for i in range(2)],
    )
    slots.join(early)
    slots.advance(5)
    finish(slots, others[0], beside, others[1])
    finish(slots) if early not in slots.sequences else slots.leave(early)
    assert text(single) == text(beside) == text(batched_sequences[name])
    assert single.forwards == beside.forwards


def test_a_cached_sequence_joins_and_leaves_within_the_blocks_of_others(batched_sequences, batches):
    slots = batches[True]
    first, second = make_sequence(6, CASES["fast"]), make_sequence(7, CASES["turbo"])
    slots.join(first)
    # its refresh, then steps
    for _ in range(3):
        slots.advance(1)
    assert not first.is_between_blocks
    slots.join(second)
    # it has been served least: its refresh, then steps with the other
    assert slots.advance(2) == [second]
    assert (first.forwards, second.forwards) == (3, 1)
    assert first.served_at < second.served_at
    assert set(slots.advance(1)) == {first, second}
    assert (first.forwards, second.forwards) == (4, 2)
    finish(slots, make_sequence(8, DRAWN_FAST), make_sequence(9, ALL_TURBO))
    for sequence in (first, second):
        while not sequence.is_done:
            slots.advance(4)
        slots.leave(sequence)
    assert [text(first), text(second)] == [
        text(batched_sequences["fast"]),
        text(batched_sequences["turbo"]),
    ]


def test_a_call_returns_when_the_first_sequence_ends_its_block(batches):
    slots = batches[True]
    quick, slow = make_sequence(1, FAST_GREEDY, hole=6), make_sequence(2, FAST_GREEDY, hole=40)
    slots.join(quick)
    slots.join(slow)
    slots.advance(20)
    slots.advance(20)
    assert quick.is_done
    assert slow.forwards == quick.forwards < 7
    slots.leave(quick)
    slots.leave(slow)


@pytest.mark.parametrize("is_cached", [False, True])
def test_state_is_uploaded_when_a_sequence_joins_and_not_at_each_step(
    batches, is_cached, monkeypatch
):
    slots, options = batches[is_cached], FAST_GREEDY if is_cached else GREEDY
    first, second, third = (make_sequence(number, options) for number in (1, 2, 3))
    slots.join(first)
    slots.join(second)
    # with a cache, the refresh and a first step
    slots.advance(1)
    slots.advance(1)
    reads, device_get = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: reads.append(tree) or device_get(tree))
    before = first.forwards, second.forwards
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        for _ in range(3):
            assert set(slots.advance(1)) == {first, second}
        assert len(reads) == 3
        slots.join(third)
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            slots.advance(1, third)
    assert (first.forwards, second.forwards) == (before[0] + 3, before[1] + 3)
    for sequence in (first, second, third):
        while not sequence.is_done:
            slots.advance(4)
        slots.leave(sequence)
    others = make_sequence(1, options), make_sequence(2, options), make_sequence(3, options)
    finish(slots, *others)
    assert [text(each) for each in (first, second, third)] == [text(each) for each in others]


def test_settings_do_not_compile_anew(batches):
    # As many sequences at once as below: their number is a shape.
    finish(batches[False], make_sequence(1), make_sequence(2))
    finish(batches[False], make_sequence(1))
    before = compile_clock().count
    finish(
        batches[False],
        make_sequence(3, greedy(11, alg="random", temperature=1.3)),
        make_sequence(4, hole=9),
    )
    decoding = Decoding(commit="threshold", threshold=0.4, block_length=5)
    finish(batches[False], make_sequence(5, greedy(decoding=decoding), hole=33))
    assert compile_clock().count == before


def test_sequences_find_what_was_compiled_ahead(golden_sampler):
    """Also at their second block, which gets the cache back from a step."""
    slots = Slots(golden_sampler, COLUMNS, is_cached=True, count=2, sizes=(), stop_ids=(STOP,))
    for number in range(2):
        slots.compile(number, 1, make_sequence(1, CASES["fast"]))
    sequences = make_sequence(6, CASES["fast"]), make_sequence(7, CASES["fast"])
    before = compile_clock().count
    for sequence in sequences:
        finish(slots, sequence)
        assert len(sequence.blocks) > 1
    assert compile_clock().count == before


def test_a_sequence_that_nothing_ends_fills_its_hole(golden_sampler):
    """Beside one that ends at its first token, as here all are stop tokens."""
    everything = tuple(range(512))
    slots = Slots(
        golden_sampler, COLUMNS, is_cached=False, count=2, sizes=(2,), stop_ids=everything
    )
    endless = make_sequence(2, replace(DRAWN, early_stop=False))
    ending = replace(make_sequence(2, DRAWN), stop_ids=everything)
    finish(slots, endless, ending)
    assert ending.forwards < endless.forwards
    assert endless.tokens[endless.hole.start :].tolist() == alone(golden_sampler, endless)


def test_every_order_differs(batches):
    # Without a single candidate anywhere, `untied` is `maskgit_plus`.
    algs = [alg for alg in ALGS if alg not in ("untied", "p2")]
    sequences = [make_sequence(1, greedy(40, alg=alg, temperature=0.7)) for alg in algs]
    finish(batches[False], *sequences[:4])
    finish(batches[False], *sequences[4:])
    assert len({sequence.commit_step.tobytes() for sequence in sequences}) == len(algs)


def test_a_block_whose_computation_was_lost_can_be_done_again(batched_sequences, batches):
    sequence = make_sequence(6, CASES["fast"])
    batches[True].join(sequence)
    for _ in range(9):
        batches[True].advance(4)
    batches[True].leave(sequence)
    sequence.reopen()
    finish(batches[True], sequence)
    assert text(sequence) == text(batched_sequences["fast"])


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
        make_sequence(1, options)


def test_a_hole_needs_given_text_before_it():
    with pytest.raises(ValueError, match="one given before it"):
        Sequence(
            tokens=np.zeros(4, np.int32),
            hole=Block(0, 4),
            options=GREEDY,
            stop_ids=(),
            key=np.zeros(2),
        )
