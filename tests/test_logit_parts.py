"""Logits in parts: a decoding step and a likelihood hold those of a fixed number of bytes."""

import dataclasses
from dataclasses import replace

import jax
import numpy as np
import pytest
from cases.generation import greedy
from flax import nnx

from jax_lm.compilation.programs import generation_programs
from jax_lm.config import DIFFUCODER_7B
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models import token_likelihood
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.token_likelihood import column_parts
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape

PROMPT = np.array([[3, 5, 8, 13], [2, 7, 1, 9]])
OPTIONS = {
    "entropy": {"temperature": 0.7, "top_p": 0.9},
    "whole": {"alg": "topk_margin", "temperature": 0.7, "top_p": 0.9, "top_k": None},
    "turbo": {"decoding": Decoding(preset="turbo", block_length=11)},
    "draft": {"draft": 2},
    "causal": {"decoding": Decoding(cache="causal", block_length=4)},
}


def in_parts(config, limit, monkeypatch):
    """Return a sampler whose steps hold `limit` bytes of logits."""
    monkeypatch.setattr(token_likelihood, "DECODING_LOGIT_BYTES", limit)
    # Another limit needs another compilation: the configuration is a part of its key, and this
    # number changes neither weights nor texts.
    config = replace(config, max_position_embeddings=limit)
    return Sampler(DreamForCausalLM(config, rngs=nnx.Rngs(0)))


def decoded(sampler, columns, options):
    return sampler.generate(Canvas.after(PROMPT, None, columns), options, seed=1)


def require_equal(ours, theirs):
    for name in ("tokens", "commit_step", "confidence"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_change_no_text(tiny_config, monkeypatch, name):
    # 11 columns in parts of 3, for which one is filled up; canvases of drafts count as sequences.
    canvases = 2 * (1 + OPTIONS[name].get("draft", 0))
    options = greedy(**{"num_steps": None} | OPTIONS[name])
    limit = 4 * 96 * 3 * canvases
    ours = decoded(in_parts(tiny_config, limit, monkeypatch), 11, options)
    require_equal(decoded(in_parts(tiny_config, 2**29, monkeypatch), 11, options), ours)


def test_parts_change_no_text_at_the_published_vocabulary(tiny_config, monkeypatch):
    config = replace(tiny_config, vocab_size=152_064)
    ours, theirs = (
        decoded(in_parts(config, limit, monkeypatch), 8, greedy(3))
        for limit in (4 * 152_064 * 2 * 3, 2**29)
    )
    require_equal(ours, theirs)


def test_parts_change_no_likelihood(tiny_model, monkeypatch):
    settings = {"samples": 5, "seed": 0}
    ours, theirs = (
        log_likelihood(
            in_parts(tiny_model.config, limit, monkeypatch), [3, 5, 8], [13, 21, 34], **settings
        )
        for limit in (4 * 96 * 8 * 5, 2**29)
    )
    # Some processors sum parts of other lengths in another order: float32's rounding.
    assert dataclasses.astuple(ours) == pytest.approx(
        dataclasses.astuple(theirs), rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize(
    ("batch", "columns", "parts"), [(1, 512, 1), (1, 883, 2), (16, 1024, 19), (10**4, 7, 7)]
)
def test_columns_are_cut_as_the_limit_says(batch, columns, parts):
    assert column_parts(DreamForCausalLM.abstract(DIFFUCODER_7B), batch, columns) == parts


def test_no_batch_makes_a_step_hold_the_logits_of_all_its_rows():
    """One layer of the published width, as compiled for this machine."""
    config = replace(DIFFUCODER_7B, num_hidden_layers=1)
    planned = PlannedStep(config, batch=16, canvas=1024, new_tokens=768)
    mesh = MeshShape().mesh(jax.devices()[:1])
    options = GenerationOptions(max_new_tokens=planned.new_tokens)
    program = generation_programs(planned, mesh, options)["step"]
    memory = program.lower().compile().memory_analysis()
    # The feed-forward branches, or two forms of a part's logits. With those of all rows, 15.1 GB.
    assert memory.temp_size_in_bytes < 3e9
