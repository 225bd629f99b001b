"""Tasks as token rows, their batches, and the stream of batches."""

import ast
import itertools
import random
import re

import numpy as np
import pytest

from builtin_model import rows
from builtin_model.rows import (
    chat_row,
    completion_row,
    continuation_row,
    infilling_row,
    stream_batches,
)
from builtin_model.spelling import draw_spelled
from builtin_model.tasks import is_held_out
from builtin_model.train import build_tokenizer
from jax_lm.templates import AUTO_LENGTHS
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, START_OF_TURN

LENGTH = 384
SHARES = {completion_row: 0.6, continuation_row: 0.1, infilling_row: 0.1, chat_row: 0.2}


@pytest.fixture(scope="module")
def tokenizer():
    """That of the recipe, from a tenth of its texts."""
    return build_tokenizer(0, 2000)


def draw(kind, tokenizer, count=80):
    rng = random.Random(6)
    return [kind(tokenizer, rng) for _ in range(count)]


def parts(row, tokenizer):
    """Text of what stays visible, and text of the canvas."""
    visible, canvas = (
        [i for i, c in zip(row.ids, row.canvas, strict=True) if c == kind] for kind in (False, True)
    )
    return tokenizer.decode(visible), tokenizer.decode(canvas)


def starts_and_ends(canvas):
    """How often the canvas begins or stops along the row."""
    return int(np.abs(np.diff(np.concatenate([[0], np.asarray(canvas, int), [0]]))).sum())


@pytest.mark.parametrize("kind", SHARES)
def test_canvas_is_one_piece_of_every_row(tokenizer, kind):
    for row in draw(kind, tokenizer):
        assert len(row.ids) == len(row.canvas)
        assert starts_and_ends(row.canvas) == 2


@pytest.mark.parametrize("kind", [completion_row, continuation_row])
def test_prompt_is_encoded_as_it_is_alone_and_the_rest_is_canvas(tokenizer, kind):
    for row in draw(kind, tokenizer):
        visible, canvas = parts(row, tokenizer)
        prompt = tokenizer.encode(visible)
        assert list(row.ids[: len(prompt)]) == prompt
        assert row.canvas == (False,) * len(prompt) + (True,) * (len(row.ids) - len(prompt))
        assert canvas.endswith(END_OF_TEXT)
        assert row.open


def test_completions_make_programs(tokenizer):
    for row in draw(completion_row, tokenizer):
        ast.parse("".join(parts(row, tokenizer)).removesuffix(END_OF_TEXT))


def test_continuation_goes_on_from_anywhere(tokenizer):
    cuts = []
    for row in draw(continuation_row, tokenizer):
        visible, canvas = parts(row, tokenizer)
        assert visible
        assert canvas != END_OF_TEXT
        cuts.append(len(visible) / len(visible + canvas))
    # Anywhere: four standard errors of the mean of 80 uniform draws, and cuts in every third.
    assert np.mean(cuts) == pytest.approx(0.5, abs=4 * 0.032)
    assert set(np.floor(np.multiply(cuts, 3))) == {0, 1, 2}


def test_what_fills_a_hole_makes_a_program_and_then_ends(tokenizer):
    is_exact, between = [], 0
    for row in draw(infilling_row, tokenizer, 400):
        first = row.canvas.index(True)
        size = sum(row.canvas)
        hole = list(row.ids[first : first + size])
        stops = [i for i, token in enumerate(hole) if token in tokenizer.stop_ids]
        text = tokenizer.decode(row.ids[:first]) + tokenizer.decode_until_stop(hole)
        ast.parse(text + tokenizer.decode(row.ids[first + size :]))
        assert not row.open
        # Behind its end, a hole holds nothing.
        assert stops == list(range(size - len(stops), size))
        assert not stops or hole[stops[0]] == tokenizer.token_id(END_OF_TEXT)
        assert set(hole[size - len(stops) + 1 :]) <= {tokenizer.pad_id}
        is_exact.append(not stops)
        between += not row.canvas[0] and not row.canvas[-1]
    assert 0.3 < np.mean(is_exact) < 0.6
    assert between > 200


def test_holes_have_the_lengths_that_are_tried():
    rng = random.Random(0)
    drawn = {rows.draw_hole_length(9, rng) for _ in range(2000)}
    assert drawn == {9, *range(10, 10 + rows.MAX_SPARE), *AUTO_LENGTHS[2:]}
    assert rows.draw_hole_length(500, random.Random(1)) >= 500


def test_chat_answers_with_fenced_code(tokenizer):
    for row in draw(chat_row, tokenizer):
        prompt, answer = parts(row, tokenizer)
        assert row.ids[-1] == tokenizer.token_id(END_OF_TURN)
        assert row.open
        assert prompt.startswith(f"{START_OF_TURN}user\n")
        assert prompt.endswith(f"{END_OF_TURN}\n{START_OF_TURN}assistant\n")
        match = re.fullmatch(rf"```python\n(.*)```{re.escape(END_OF_TURN)}", answer, re.DOTALL)
        assert match
        ast.parse(match[1])


@pytest.mark.parametrize("kind", SHARES)
def test_rows_depend_on_the_seed_alone(tokenizer, kind):
    assert draw(kind, tokenizer, 20) == draw(kind, tokenizer, 20)


def take(count, tokenizer, **options):
    settings = {
        "seed": 3,
        "tokens_per_batch": 3 * LENGTH,
        "length": LENGTH,
        "shares": SHARES,
        "longer_share": 0.15,
    } | options
    return list(itertools.islice(stream_batches(tokenizer, **settings), count))


def equal(first, second):
    return all(
        np.array_equal(ours, theirs)
        for a, b in zip(first, second, strict=True)
        for ours, theirs in zip(a, b, strict=True)
    )


def test_stream_depends_on_the_seed_alone(tokenizer):
    first = take(8, tokenizer)
    random.seed(99)
    assert equal(first, take(8, tokenizer))
    assert not equal(first, take(8, tokenizer, seed=4))


@pytest.mark.parametrize("count", [1, 3])
def test_batches_have_as_many_rows_as_their_tokens_allow(tokenizer, count):
    for batch in take(5, tokenizer, tokens_per_batch=(count + 1) * LENGTH - 1):
        assert batch.tokens.shape == (count, LENGTH)


def test_a_batch_that_holds_no_row_is_refused(tokenizer):
    with pytest.raises(ValueError, match="tokens_per_batch=383: must hold a row of 384 tokens"):
        take(1, tokenizer, tokens_per_batch=LENGTH - 1)


def samples_of(batches):
    """Ids and canvas of every sample, in the order in which they stand."""
    return [
        (batch.tokens[batch.samples == number], batch.canvas[batch.samples == number])
        for batch in batches
        for number in range(batch.samples.max() + 1)
    ]


def test_every_sample_is_in_a_row_as_it_was_drawn(tokenizer, monkeypatch):
    """None is cut, and none lost between two batches; spare canvas aside."""
    drawn = []

    def recorded(tokenizer, rng):
        drawn.append(completion_row(tokenizer, rng))
        return drawn[-1]

    batches = take(6, tokenizer, shares={recorded: 1.0})
    texts = [tuple(ids[ids != tokenizer.pad_id]) for ids, _ in samples_of(batches)]
    assert len(texts) == len(drawn) - 1
    # The one that fits no more is the first of the next batch; within one, samples go where there
    # is room.
    assert sorted(texts) == sorted(row.ids for row in drawn[:-1])


def test_rows_are_nearly_full(tokenizer):
    assert (
        np.mean([batch.samples >= 0 for batch in take(20, tokenizer, tokens_per_batch=10 * LENGTH)])
        > 0.85
    )


@pytest.mark.parametrize(("longer_share", "bound"), [(0.0, rows.MAX_SPARE), (1.0, LENGTH)])
def test_open_samples_end_with_spare_canvas(tokenizer, longer_share, bound):
    shares = {completion_row: 1.0}
    spare = []
    for ids, canvas in samples_of(take(30, tokenizer, longer_share=longer_share, shares=shares)):
        pads = ids == tokenizer.pad_id
        spare.append(int(pads.sum()))
        assert canvas[pads].all()
        assert pads[len(pads) - spare[-1] :].all()
    assert max(spare) <= bound
    # Uniform up to the bound, or up to what is left of a row.
    assert bound / 4 < np.mean(spare) < bound / 2 + 4


def test_samples_longer_than_a_row_are_drawn_anew(tokenizer):
    for batch in take(5, tokenizer, length=48, tokens_per_batch=480):
        assert batch.tokens.shape == (10, 48)
        assert (batch.samples >= 0).any(axis=1).all()


def test_only_the_training_side_is_streamed(tokenizer, monkeypatch):
    drawn = []

    def recorded(rng, **options):
        drawn.append(draw_spelled(rng, **options))
        return drawn[-1]

    monkeypatch.setattr(rows, "draw_spelled", recorded)
    batches = take(30, tokenizer)
    assert len(drawn) >= len(samples_of(batches))
    assert [program.key for program in drawn if is_held_out(program.key)] == []


@pytest.mark.parametrize("weight", [1, 10])
def test_stream_mixes_kinds_by_their_shares(tokenizer, weight):
    shares = {kind: weight * share for kind, share in SHARES.items()}
    samples = samples_of(take(40, tokenizer, tokens_per_batch=10 * LENGTH, shares=shares))
    start, ending = (
        tokenizer.token_id(START_OF_TURN),
        (tokenizer.token_id(END_OF_TURN), tokenizer.token_id(END_OF_TEXT)),
    )
    seen = {
        chat_row: [start in ids for ids, _ in samples],
        # The only kind that may show something behind its canvas, and does but for holes at the
        # very end.
        infilling_row: [not canvas[-1] or not set(ids) & set(ending) for ids, canvas in samples],
    }
    for kind, rows_of_kind in seen.items():
        # Four standard errors of a share.
        tolerance = 4 * (SHARES[kind] * (1 - SHARES[kind]) / len(samples)) ** 0.5
        assert np.mean(rows_of_kind) == pytest.approx(SHARES[kind], abs=tolerance)


def test_stream_of_one_kind(tokenizer):
    for ids, canvas in samples_of(take(5, tokenizer, shares={infilling_row: 1.0})):
        assert len(ids) == len(canvas)
        assert starts_and_ends(canvas) == 2
