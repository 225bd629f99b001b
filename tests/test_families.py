"""Every family of models computes what its published code does, as recorded in PyTorch
(`tools/record_families.py`), and its files say which family it is.
"""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cases.families import build, with_rule
from cases.reference import GOLDEN
from family_cases import KINDS, NEW_TOKENS, SHAPES, config_fields, random_rows
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models

from jax_lm.benchmark.parity import BF16_DISTANCE_RATIO
from jax_lm.checkpoints import huggingface
from jax_lm.config import FAMILIES, DreamConfig
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import verify
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.masking import align_rows
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM, parameters, published_parameters
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError
from jax_lm.training.coupled_grpo import require_room_for_completions
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.prompt_set import PromptSet

# The bound of every forward pass in float32.
TOLERANCE = 2e-5
CASES = [(name, shape) for name in KINDS for shape in range(len(SHAPES))]
# What each case must be recognized as, and its attention.
EXPECTED = {
    "autoregressive-qwen2": "autoregressive",
    "autoregressive-qwen3": "autoregressive",
    "autoregressive-llama": "autoregressive",
    "dream": "Dream",
    "open-dcoder": "adapted",
    "adapted-qwen3": "adapted",
    "adapted-llama": "adapted",
    "a2d-qwen2-mdlm": "Tiny-A2D mdlm",
    "a2d-qwen3-mdlm": "Tiny-A2D mdlm",
    "a2d-qwen3-bd3lm": "Tiny-A2D bd3lm",
    "a2d-llama-mdlm": "Tiny-A2D mdlm",
    "fast-dllm-v2": "Fast-dLLM v2",
    "stable-diffcoder": "Stable-DiffCoder",
    "llada": "LLaDA",
}


@pytest.fixture(scope="module")
def recorded():
    return load_file(GOLDEN / "families.safetensors")


def logits(model, name, shape):
    """The logits that predict each position."""
    tokens, present = random_rows(name, shape)
    hidden = model.model(jnp.asarray(tokens), jnp.asarray(present))
    return np.asarray(model.logits(align_rows(hidden, model.config))), present


def distance(model, name, shape, expected):
    """The largest difference at a position that is not padding."""
    found, present = logits(model, name, shape)
    return np.max(np.abs(found - expected)[present[: len(expected)]])


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_forward_is_that_of_the_published_code(recorded, name, shape):
    config = DreamConfig.from_dict(config_fields(name, shape))
    assert config.family.name == EXPECTED[name]
    expected = recorded[f"{name}.{shape}.float32"]
    model = build(config)
    assert distance(model, name, shape, expected) < TOLERANCE
    # A row of the other family would be seen.
    for change in ({"shifts": not config.family.shifts}, other_attention(config)):
        assert distance(with_rule(model, **change), name, shape, expected) > 0.05, change


@pytest.mark.parametrize(
    ("name", "shape"),
    [("autoregressive-qwen2", 0), ("autoregressive-qwen3", 0), ("autoregressive-llama", 1)],
)
def test_greedy_answers_are_those_of_transformers(recorded, name, shape):
    config = DreamConfig.from_dict(config_fields(name, shape))
    expected = recorded[f"{name}.{shape}.greedy"]
    options = GenerationOptions(
        max_new_tokens=NEW_TOKENS, temperature=0.0, top_p=None, top_k=None
    ).left_to_right()
    # The second row has padding on its left.
    canvas = Canvas.after(*random_rows(name, shape), NEW_TOKENS)
    state = Sampler(build(config)).generate(canvas, options)
    np.testing.assert_array_equal(np.asarray(state.tokens)[:, -NEW_TOKENS:], expected)
    assert len(np.unique(expected)) > 5


def other_attention(config):
    return {"attention": "full" if config.attention_block else "causal"}


@pytest.mark.parametrize("name", ["dream", "a2d-qwen3-bd3lm", "llada"])
def test_bfloat16_is_as_far_from_float32_as_pytorch(recorded, name):
    config = DreamConfig.from_dict(config_fields(name, 0))
    rounded = {key: value.astype(jnp.bfloat16) for key, value in parameters(build(config)).items()}
    ours = logits(DreamForCausalLM.from_tensors(config, rounded), name, 0)[0][0]
    exact, theirs = recorded[f"{name}.0.float32"][0], recorded[f"{name}.0.bfloat16"]
    theirs = theirs.astype(np.float32)
    ratio = np.abs(ours - exact).mean() / np.abs(theirs - exact).mean()
    assert ratio < BF16_DISTANCE_RATIO


def write_checkpoint(folder, name, shape=1, **settings):
    """Write a case as its authors publish it: their names of fields and tensors, a tokenizer."""
    fields = config_fields(name, shape) | {"mask_token_id": None}
    config = DreamConfig.from_dict(config_fields(name, shape))
    folder.mkdir()
    tensors = {key: np.asarray(value) for key, value in published_parameters(build(config)).items()}
    save_file(tensors, folder / huggingface.WEIGHTS, metadata={"format": "pt"})
    words = Tokenizer(models.BPE({chr(96 + n): n for n in range(1, 27)} | {"<end>": 0}, []))
    words.add_tokens([f"<extra {n}>" for n in range(27, 61)])
    words.add_special_tokens([AddedToken("<M>", special=True)])
    words.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(fields | settings))
    named = {"eos_token": "<end>", "mask_token": {"content": "<M>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


@pytest.mark.parametrize("name", ["open-dcoder", "a2d-qwen3-mdlm", "fast-dllm-v2", "llada"])
def test_a_published_folder_is_read_checked_and_written_back(tmp_path, name):
    folder = write_checkpoint(tmp_path / "model", name)
    # The mask token is what the tokenizer's files name, whatever its text.
    assert DreamForCausalLM.read_config(folder) == DreamConfig.from_dict(config_fields(name, 1))
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    assert (tokenizer.mask_id, tokenizer.end_id, tokenizer.stop_ids) == (61, 0, (0,))
    checks = {check.name: check for check in verify(folder)}
    assert [check for check in checks.values() if not check.passed] == []
    assert EXPECTED[name] in checks["family"].found
    assert "mask id 61" in checks["family"].found
    # There and back through the other layout, and through a model: the same names and bits.
    convert(folder, tmp_path / "orbax", Conversion())
    convert(tmp_path / "orbax", tmp_path / "back", Conversion())
    model = DreamForCausalLM.from_pretrained(tmp_path / "orbax")
    model.save_pretrained(tmp_path / "saved", tokenizer=tokenizer, source=folder)
    before = load_file(folder / huggingface.WEIGHTS)
    for copy in ("back", "saved"):
        after = load_file(tmp_path / copy / huggingface.WEIGHTS)
        assert after.keys() == before.keys()
        assert all(np.array_equal(after[key], before[key]) for key in before)
    # What was derived names the mask in its config.json too.
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["mask_token_id"] == 61


def test_what_tells_the_families_of_one_model_type_apart(tmp_path, monkeypatch):
    # bd3lm and mdlm publish the same files under other names.
    plain, named = (
        tmp_path / "Qwen3-0.6B-diffusion-v0.1",
        tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1",
    )
    write_checkpoint(plain, "a2d-qwen3-mdlm")
    write_checkpoint(named, "a2d-qwen3-mdlm")
    assert DreamForCausalLM.read_config(plain).attention_block is None
    assert DreamForCausalLM.read_config(named).attention_block == 32
    monkeypatch.chdir(named)
    assert DreamForCausalLM.read_config(Path()).attention_block == 32
    # What was derived from it says so in a field.
    DreamForCausalLM.from_pretrained(named).save_pretrained(tmp_path / "x", source=named)
    assert DreamForCausalLM.read_config(tmp_path / "x").attention_block == 32
    # The mask token decides whether a causal type is one.
    write_checkpoint(tmp_path / "base", "autoregressive-llama")
    assert DreamForCausalLM.read_config(tmp_path / "base").family.name == "adapted"
    (tmp_path / "base" / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    assert DreamForCausalLM.read_config(tmp_path / "base").family.name == "autoregressive"
    with pytest.raises(TokenizerError, match="no mask token"):
        _ = DiffuCoderTokenizer.from_pretrained(tmp_path / "base").mask_id


def test_a_mask_token_that_disagrees_with_the_configuration_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "open-dcoder", mask_token_id=60)
    said = r"tokenizer has <M> at 61, the model's mask_token_id is 60"
    (wrong,) = [check.found for check in verify(folder) if not check.passed]
    assert re.search(said, wrong)
    with pytest.raises(TokenizerError, match=said):
        DiffuCoderInference(folder)


def test_what_no_family_has_is_refused_by_name():
    fields = config_fields("llada", 0)
    with pytest.raises(ValueError, match=r"model_type='mamba' \(no architectures\).*LLaDA: llada"):
        DreamConfig.from_dict(fields | {"model_type": "mamba"})
    for wrong in (
        {"alibi": True},
        {"rope": False},
        {"block_type": "sequential"},
        {"embedding_size": 99},
    ):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"config {name}="):
            DreamConfig.from_dict(fields | wrong)
    with pytest.raises(ValueError, match="attention_bias=True"):
        DreamConfig.from_dict(config_fields("adapted-llama", 0) | {"attention_bias": True})
    with pytest.raises(ValueError, match="block_size=8: Dream has no blocks"):
        DreamConfig.from_dict(config_fields("dream", 0) | {"block_size": 8})
    with pytest.raises(ValueError, match="lacks hidden_size"):
        DreamConfig.from_dict({key: value for key, value in fields.items() if key != "d_model"})


def test_the_page_of_families_has_a_row_for_each():
    page = (Path(__file__).parent.parent / "docs" / "families.md").read_text()
    for family in FAMILIES:
        rows = [line for line in page.splitlines() if line.startswith(f"| {family.name}")]
        assert rows, family.name
        assert ("not shifted" in rows[0]) != family.shifts
        assert family.attention.replace("_", "-") in rows[0]
        assert all(kind in rows[0] for kind in family.types) or "the same" in rows[0]


def test_what_a_family_cannot_do_is_refused_by_name(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "stable-diffcoder")
    engine = DiffuCoderInference(folder, dtype="float32", verbose=False)
    with pytest.raises(ValueError, match="Stable-DiffCoder attends to earlier text alone"):
        engine.infill("abc", "d", 4)
    with pytest.raises(
        ValueError, match=r"block_length=8: must lie in \[1, 4\], the blocks of Stable"
    ):
        engine.fit(GenerationOptions(decoding=Decoding(block_length=8)))
    model = DreamForCausalLM.abstract(engine.config)
    with pytest.raises(ValueError, match="Stable-DiffCoder attends by blocks, which coupled-GRPO"):
        require_room_for_completions(model, PromptSet((), 1), GRPOConfig())
