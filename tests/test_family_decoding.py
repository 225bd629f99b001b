"""Decoding with the settings of docs/families.md gives the tokens of the authors' own loops
(`tools/record_decoding.py`).
"""

import json
import shlex
from pathlib import Path

import pytest
from cases.families import build, with_rule
from cases.generation import tokens_of
from cases.reference import GOLDEN
from family_cases import config_fields, random_prompt

from jax_lm.cli.arguments.generation import Generate
from jax_lm.cli.parsing import parse_words
from jax_lm.config import FAMILIES, DreamConfig
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.step import empty_cache
from jax_lm.options import GenerationOptions, restrict_options
from jax_lm.tokenizer import pad_left

RECORDED = json.loads((GOLDEN / "decoding.json").read_text())["cases"]
COLUMNS = 64
PAGE = Path(__file__).parent.parent / "docs" / "families.md"
# Where a case has other settings than the page names.
SETTINGS = {
    # half of the steps: the authors' number, and a rule that any probability passes
    "llada, 2 tokens a step": {"threshold": 1e-6, "num_steps": COLUMNS // 2},
    "mdlm in blocks": {"block_length": 32},
    "open-dcoder, maskgit_plus": {"alg": "maskgit_plus"},
    "open-dcoder, 24 steps": {"num_steps": 24},
    "fast-dllm-v2, cache of the block": {"cache": "dual"},
}


# Names of rows of the page that differ from the family's.
ROWS = {"adapted": "Open-dCoder"}
FAMILY_SETTINGS = {family.name: family.settings for family in FAMILIES}


def documented(family):
    """The options that the page names for a family, as the command line reads them."""
    table = PAGE.read_text().split("## What the authors decode with")[1]
    (row,) = [
        line for line in table.splitlines() if line.startswith(f"| {ROWS.get(family, family)} |")
    ]
    flags = row.split("|")[4].split("`")[1]
    return parse_words(Generate, shlex.split(flags), "generate").generation


def options_of(name):
    family = config_of(name).family.name
    settings = {"max_new_tokens": COLUMNS, "temperature": 0.0} | SETTINGS.get(name, {})
    return documented(family).with_settings(**settings)


def config_of(name):
    case = RECORDED[name]
    return DreamConfig.from_dict(config_fields(case["kind"], 0) | case["fields"])


def model_of(name):
    model = build(config_of(name))
    model.model.norm.weight[...] *= RECORDED[name]["factor"]
    return model


def decoded(model, prompts, options, config):
    """The answers to prompts, which have rows of the same width, in the blocks of a configuration."""
    rows = [random_prompt(*prompt).tolist() for prompt in prompts]
    ids, mask = pad_left(rows, 0, multiple_of=COLUMNS)
    canvas = Canvas.after(ids, mask, COLUMNS).with_blocks_of(config)
    state = Sampler(model).generate(canvas, restrict_options(options, config))
    return tokens_of(state)[:, -COLUMNS:]


def test_the_table_of_families_has_the_settings_of_the_page():
    for family in {config_of(name).family.name for name in RECORDED}:
        settings = {
            name: None if value == "none" else value
            for name, value in FAMILY_SETTINGS[family].items()
        }
        assert GenerationOptions().with_settings(**settings) == documented(family)


@pytest.mark.parametrize("name", RECORDED)
def test_tokens_are_those_of_the_authors(name):
    case, model, options = RECORDED[name], model_of(name), options_of(name)
    assert len(case["prompts"]) == 10
    # Blocks that are counted from the start of the text need prompts one at a time.
    is_alone = model.config.attention_block is not None and model.config.family.prompt == "start"
    size = 1 if is_alone else 10
    for first in range(0, 10, size):
        found = decoded(model, case["prompts"][first : first + size], options, model.config)
        for row, answer in zip(found, case["answers"][first : first + size], strict=True):
            # Fast-dLLM's answers end with a block.
            assert row[: len(answer)].tolist() == answer


@pytest.mark.parametrize("cache", ["window", "prefix"])
def test_the_cache_is_exact_where_finished_blocks_see_nothing_after_them(cache):
    """A refresh computes two blocks of attention alone: the rest is final, or not seen."""
    case, model = RECORDED["stable-diffcoder"], model_of("stable-diffcoder")
    options = options_of("stable-diffcoder").with_settings(cache=cache)
    for number in (1, 2):
        (found,) = decoded(model, case["prompts"][number : number + 1], options, model.config)
        assert found.tolist() == case["answers"][number]


def test_without_a_shift_no_token_of_a_block_comes_from_the_last_refresh():
    assert empty_cache(model_of("llada"), (1, 8), has_tail=True).tail is None
    assert empty_cache(model_of("fast-dllm-v2"), (1, 8), has_tail=True).tail is not None


@pytest.mark.parametrize("name", ["llada", "stable-diffcoder"])
def test_a_wrong_shift_or_mask_gives_other_tokens(name):
    case, model, options = RECORDED[name], model_of(name), options_of(name)
    family = model.config.family
    attention = "full" if family.attention == "block_causal" else "causal"
    for change in ({"shifts": not family.shifts}, {"attention": attention}):
        mistaken = with_rule(model, **change)
        # The second prompt ends with a block.
        (found,) = decoded(mistaken, case["prompts"][1:2], options, model.config)
        assert found.tolist() != case["answers"][1]
