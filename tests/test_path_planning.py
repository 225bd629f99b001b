"""P2: tokens become masks again. That whole answers are those of Open-dLLM, test_family_decoding shows."""

import numpy as np
import pytest
from cases.generation import greedy, tokens_of
from cases.sequences import make_sequence

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.training.grpo_config import Estimator, GRPOConfig

PROMPT, COLUMNS, STEPS = 5, 16, 6


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return Sampler(tiny_model)


@pytest.fixture(scope="module")
def canvas():
    prompts = np.random.default_rng(1).integers(0, 95, (2, PROMPT)).astype(np.int32)
    return Canvas.after(prompts, None, COLUMNS)


def options(**settings):
    return greedy(STEPS, max_new_tokens=COLUMNS, alg="p2", **settings)


@pytest.mark.parametrize("block", [COLUMNS, 8])
def test_an_evenly_growing_share_is_kept_and_tokens_become_masks_again(tiny, canvas, block):
    decoding = Decoding(block_length=block)
    states = list(tiny.stream(canvas, options(decoding=decoding), every=1))
    steps = STEPS * block // COLUMNS
    assert len(states) == STEPS
    again = 0
    for index, state in enumerate(states):
        masked, taken = np.asarray(state.masked), index % steps + 1
        lost = int(block * np.float32(1 - taken / steps))
        left = COLUMNS - block * (index // steps + 1)
        assert masked.sum(axis=1).tolist() == [lost + left] * 2
        assert (np.asarray(state.tokens)[masked] == tiny.mask_id).all()
        if index:
            again += (masked & ~before).sum()
        before = masked
    assert again
    assert not before.any()


def test_a_stop_token_ends_no_later_block(tiny, canvas):
    in_blocks = options(decoding=Decoding(block_length=8))
    whole = tokens_of(tiny.generate(canvas, in_blocks))
    # every token would end the text, as soon as the first one is decided
    stops = tuple(range(tiny.config.vocab_size))
    assert (tokens_of(tiny.generate(canvas, in_blocks, stop_ids=stops)) == whole).all()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"alg_temp": 0.5}, "alg_temp=0.5: must be 0 with alg='p2'"),
        ({"draft": 2}, "draft=2: must be 0 with alg='p2'"),
        ({"grammar": "python"}, "grammar='python': must be None with alg='p2'"),
        ({"growth": "on"}, "alg='p2': not supported where holes grow"),
        ({"decoding": Decoding(commit="factor")}, "commit='factor': must be 'steps' with alg='p2'"),
        (
            {"decoding": Decoding(cache="window", first_token="force")},
            "first_token='force': must be 'rule' with alg='p2'",
        ),
    ],
)
def test_what_cannot_become_masks_again_is_refused(setting, named):
    with pytest.raises(ValueError, match=named):
        GenerationOptions(alg="p2", **setting)


def test_batches_of_sequences_and_traced_scores_refuse_it():
    with pytest.raises(ValueError, match="alg='p2': not for sequences of a batch"):
        make_sequence(1, greedy(alg="p2"))
    with pytest.raises(ValueError, match="alg=p2: estimator='trace' does not score such"):
        GRPOConfig(generation=GenerationOptions(alg="p2"), masks=Estimator(estimator="trace"))
