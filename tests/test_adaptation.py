"""Adaptation: how attention opens, and how texts vary."""

import numpy as np
import pytest

from jax_lm.data.batches import Row
from jax_lm.training.adaptation import openness, varied
from jax_lm.training.config import AdaptConfig

TEXT = Row(tuple(range(40)), (True,) * 40, open=False)


def test_attention_opens_in_a_line():
    assert [openness(step, 4) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert openness(0, 0) == 1


def test_few_texts_are_cut_or_keep_a_beginning():
    rng = np.random.default_rng(0)
    config = AdaptConfig(cut_share=0.2, prefix_share=0.1)
    rows = [varied(TEXT, 0, rng, config=config) for _ in range(4000)]
    assert all(row.ids == TEXT.ids[: len(row.ids)] and len(row.ids) == len(row.canvas) for row in rows)
    # A cut and a beginning may leave the text as it was: one length of 40.
    cut = np.mean([len(row.ids) < 40 for row in rows])
    visible = [row for row in rows if not all(row.canvas)]
    assert cut == pytest.approx(0.2 * 39 / 40, abs=4 * 0.4 / 4000**0.5)
    assert len(visible) / 4000 == pytest.approx(0.1 * 0.97, abs=4 * 0.3 / 4000**0.5)
    assert all(any(row.canvas) and row.canvas == tuple(sorted(row.canvas)) for row in visible)
    assert all(varied(TEXT, 0, rng, config=AdaptConfig(cut_share=0.0, prefix_share=0.0)) == TEXT for _ in range(50))
