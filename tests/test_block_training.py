"""Block diffusion training: noisy and clean tokens side by side, against a loop over the blocks.

Losses and gradients are compared in a child process in which the package computes in float64, on
one device and on two virtual ones.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.cli.main import main
from jax_lm.data.batches import Row, collate
from jax_lm.diffusion import masking
from jax_lm.inference import DiffuCoderInference
from jax_lm.models import lora
from jax_lm.models.attention import attends_by_blocks, limit_to_blocks
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.sharding import MeshShape
from jax_lm.training.config import SFT_LOSS, AdaptConfig, LossConfig, SftConfig
from jax_lm.training.masked_diffusion import (
    diffusion_loss,
    place_rows,
    resolve_blocks,
    token_weights,
)

WIDTH, KEY = 16, jax.random.key(2)
CONFIG = DreamConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    mask_token_id=95,
    initializer_range=0.3,
)
# Everything that the package says is float32 is float64 in the child.
IN_FLOAT64 = """
import runpy, sys
import jax
import jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64
runpy.run_path(sys.argv[1], run_name="__main__")
"""
# Largest difference of a loss or a gradient, relative to the largest entry of the same array. In
# float32 it is 1e-6.
TOLERANCE = 1e-12
# Loss that is compared with a loop over blocks: family, loss, adapters. Shifted and not, all weights
# and adapters, attention by blocks and causal, adapters on masks alone, one
# copy and its complement.
LOOPS = {
    "shifted": ("Fast_dLLM_Qwen", LossConfig(block_length=4), False),
    "not shifted": ("a2d-qwen2", LossConfig(block_length=3, normalisation="sequence"), False),
    "adapters": ("Fast_dLLM_Qwen", LossConfig(block_length=2), True),
    "causal": ("qwen2", LossConfig(block_length=4), False),
    "on masks": ("qwen2", LossConfig(block_length=4), True),
    "complement": (
        "qwen3",
        LossConfig(block_length=4, weighting="plain", complementary_masks=True),
        False,
    ),
}
COMPARISONS = [*LOOPS, "one block", "blocks of 1", "mesh"]


def make_batch():
    """Two rows, the first with two samples and padding on both sides.

    The first tokens of a sample are given, and nothing predicts them.
    """
    rng = np.random.default_rng(0)
    sizes, given = ((7, 6), (11,)), {7: 1, 6: 2, 11: 3}

    def sample(size):
        canvas = (False,) * given[size] + (True,) * (size - given[size])
        return Row(tuple(map(int, rng.integers(0, 90, size))), canvas, open=False)

    batch = collate([[sample(size) for size in row] for row in sizes], WIDTH, 91)
    for rows in (batch.tokens, batch.canvas, batch.samples):
        # [a, b, c, pad, pad, pad] -> [pad, pad, a, b, c, pad]
        rows[0] = np.roll(rows[0], 2)
    return batch


def make_model(kind="Dream", length=None, has_adapters=False):
    # A Qwen2 with blocks attends causally.
    is_causal = True if kind == "qwen2" else None
    config = replace(CONFIG, model_type=kind, block_size=length, is_causal=is_causal)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    if has_adapters:
        lora.add_lora(model, lora.LoraConfig(rank=2, on_masks=bool(is_causal)), seed=0)
        # New adapters begin with factors of zero, whose partners have no gradient.
        for _, adapter in lora.adapters(model):
            adapter.lora_b[...] = 0.1 * jax.random.normal(
                jax.random.key(3), adapter.lora_b[...].shape
            )
    return model


def value_and_gradient(model, loss, batch):
    """Return the total of a loss, its normaliser, and its gradient."""
    graph, state = nnx.split(model)
    objective = diffusion_loss(graph, loss, model.config.mask_token_id)
    rows = place_rows(batch, mesh=model.mesh, parts=1, masks_per_query=True)

    @jax.jit
    def compute(weights, rows):
        return jax.value_and_grad(lambda weights: objective(weights, rows, KEY)[:2], has_aux=True)(
            weights
        )

    (total, weight), gradient = compute(nnx.to_pure_dict(state), rows)
    return total, weight, gradient


def distance(ours, theirs):
    """Return the largest difference of two trees, relative to the largest entry of its array."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    arrays = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    assert all(a.dtype == b.dtype == np.float64 for a, b in arrays)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in arrays)


def compare_one_block(batch):
    """A block as long as the row: the loss of the whole text."""
    model = make_model()
    whole = value_and_gradient(model, LossConfig(masks_per_query=True), batch)
    return distance(value_and_gradient(model, LossConfig(block_length=WIDTH), batch), whole)


def compare_autoregressive(batch):
    """Blocks of one token: the mean of next-token predictions under a causal mask."""
    model = make_model()
    graph, state = nnx.split(model)
    samples = batch.samples
    causal = jnp.asarray(
        (samples[:, :, None] == samples[:, None]) & np.tril(np.ones((WIDTH, WIDTH), bool))
    )
    positions = masking.sample_positions(jnp.asarray(samples))

    @jax.jit
    def next_token_loss(weights):
        logits = nnx.merge(graph, weights)(jnp.asarray(batch.tokens), causal, positions)
        log_probs = jax.nn.log_softmax(logits[:, :-1])
        own = jnp.take_along_axis(log_probs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(own * batch.canvas[:, 1:])

    total, gradient = jax.value_and_grad(next_token_loss)(nnx.to_pure_dict(state))
    expected = total, np.float64(batch.canvas.sum()), gradient
    return distance(value_and_gradient(model, LossConfig(block_length=1), batch), expected)


def compare_loop(batch, kind, loss, has_adapters):
    """Each block of each sample by itself, after the clean text before it."""
    length = loss.block_length
    model = make_model(kind, length, has_adapters)
    assert resolve_blocks(loss, model) == loss
    total, _, gradient = value_and_gradient(model, loss, batch)
    # masks and weights, drawn as the loss draws them
    samples, canvas = jnp.asarray(batch.samples), jnp.asarray(batch.canvas)
    pairs = masking.number_blocks(samples, length)
    key_level, key_mask, _ = jax.random.split(KEY, 3)
    levels = masking.noise_levels(key_level, pairs)
    noisy, masked = masking.mask_tokens(
        key_mask, jnp.asarray(batch.tokens), canvas, pairs, levels, CONFIG.mask_token_id
    )
    pair_sizes = masking.over_samples("sum", canvas.astype(jnp.float32), pairs)
    weights = np.asarray(token_weights(loss, masked, pairs, levels, pair_sizes))
    copies = [(np.asarray(noisy), np.asarray(masked))]
    if loss.complementary_masks:
        others = batch.canvas & ~copies[0][1]
        copies.append((np.where(others, CONFIG.mask_token_id, batch.tokens), others))
    graph, state = nnx.split(model)
    shift = model.config.family.shifts
    present = [(row, n) for row in (0, 1) for n in np.unique(batch.samples[row]) if n >= 0]

    # the text of each block, and where it predicts which masked token
    texts, masks = [], []
    for noisy, masked in copies:
        for row, number in present:
            columns = np.flatnonzero(batch.samples[row] == number)
            share = 1 / batch.canvas[row, columns].sum() if "seq" in loss.normalisation else 1
            for begin in range(0, len(columns), length):
                block = columns[begin : begin + length]
                for offset, column in enumerate(block):
                    if masked[row, column]:
                        place = max(begin + offset - shift, 0)
                        token = batch.tokens[row, column]
                        masks.append((len(texts), place, token, share * weights[row, column]))
                text = np.concatenate([batch.tokens[row, columns[:begin]], noisy[row, block]])
                texts.append(text)
    sizes = np.array([len(text) for text in texts])
    # One call for all texts, padded on the right.
    padded = np.array([np.pad(text, (0, WIDTH - len(text))) for text in texts])
    is_text = np.arange(WIDTH) < sizes[:, None]
    rows, places, tokens = np.array([mask[:3] for mask in masks]).T
    shares = np.array([mask[3] for mask in masks])

    @jax.jit
    def naive(params):
        logits = nnx.merge(graph, params)(jnp.asarray(padded), jnp.asarray(is_text))
        return -jnp.sum(shares * jax.nn.log_softmax(logits)[rows, places, tokens])

    expected = jax.value_and_grad(naive)(nnx.to_pure_dict(state))
    return distance((total, gradient), expected)


def compare_mesh(batch):
    """The same loss and gradient with rows and weights on two devices."""
    kind, loss, has_adapters = LOOPS["adapters"]
    model = make_model(kind, loss.block_length, has_adapters)
    alone = value_and_gradient(model, loss, batch)
    sharded = model.on_mesh(MeshShape(fsdp=2).mesh())
    return distance(value_and_gradient(sharded, loss, batch), alone)


def compare():
    """The child process: prints the distance of each comparison."""
    batch = make_batch()
    found = {name: compare_loop(batch, *case) for name, case in LOOPS.items()}
    found["one block"] = compare_one_block(batch)
    found["blocks of 1"] = compare_autoregressive(batch)
    found["mesh"] = compare_mesh(batch)
    print(json.dumps(found))  # noqa: T201


@pytest.fixture(scope="module")
def distances():
    count = "--xla_force_host_platform_device_count=2"
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {count}", "JAX_PLATFORMS": "cpu"}
    child = subprocess.run(
        [sys.executable, "-c", IN_FLOAT64, __file__],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_loss_and_gradient_in_float64(distances, comparison):
    assert distances[comparison] < TOLERANCE


def test_the_mask_of_training_is_that_of_decoding():
    blocks = np.arange(6) // 2
    noisy = np.arange(12) < 6
    both = jnp.asarray(np.concatenate([blocks, blocks]))
    mask = np.asarray(
        attends_by_blocks(
            both[:, None], both[None], jnp.asarray(noisy)[:, None], jnp.asarray(noisy)[None]
        )
    )
    # Clean tokens attend as the tokens of a text that is decided.
    decided = limit_to_blocks(None, jnp.arange(6)[None], jnp.arange(6)[None], 2)[0]
    np.testing.assert_array_equal(mask[6:, 6:], decided)
    assert not mask[6:, :6].any()
    for query in range(6):
        # A noisy block sees what decoding sees at that block: the clean text before it, and itself.
        block = blocks[query]
        np.testing.assert_array_equal(mask[query, :6], blocks == block)
        np.testing.assert_array_equal(mask[query, 6:], blocks < block)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LossConfig(block_length=0), "block_length=0: must be at least 1"),
        (lambda: LossConfig(block_length=4, weighting="cart"), "block_length=4: must be None"),
        (lambda: LossConfig(complementary_masks=True), "needs weighting='plain', not '1/t'"),
        (
            lambda: AdaptConfig(loss=LossConfig(block_length=4), annealing_steps=3),
            "annealing_steps=3: must be 0 with block_length",
        ),
        (lambda: AdaptConfig(attention="causal"), "attention='causal': needs block_length"),
        (lambda: AdaptConfig(attention="full"), "attention='full': must be one of"),
        (
            lambda: SftConfig(expand_delete=True, loss=replace(SFT_LOSS, block_length=4)),
            "block_length=4: must be None with expand_delete",
        ),
    ],
)
def test_settings_that_contradict_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_other_blocks_than_those_of_the_model_are_refused():
    model = DreamForCausalLM.abstract(replace(CONFIG, model_type="Fast_dLLM_Qwen", block_size=4))
    with pytest.raises(ValueError, match="block_length=8: must be 4, the blocks of Fast-dLLM v2"):
        resolve_blocks(LossConfig(block_length=8), model)
    with pytest.raises(
        ValueError, match="attention='causal': must be 'blocks', as Fast-dLLM v2 has it"
    ):
        resolve_blocks(LossConfig(block_length=4), model, is_causal=True)
    # Without a length, the model's own.
    assert resolve_blocks(LossConfig(), model).block_length == 4
    model = DreamForCausalLM.abstract(replace(CONFIG, model_type="llama"))
    with pytest.raises(
        ValueError, match="block_length=8: must not be given for a model of type llama"
    ):
        resolve_blocks(LossConfig(block_length=8), model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder):
    """The folder of a model that `adapt` has trained on blocks of 4."""
    folder = tmp_path_factory.mktemp("blocks")
    texts = [{"text": f"def f{i}(x):\n    return x + {i}\n" * 2} for i in range(24)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    command = [
        "adapt",
        "--data",
        folder / "texts.jsonl",
        "--model",
        tiny_folder,
        "--out",
        folder / "out",
    ]
    options = ["--block-length", 4, "--max-length", 64, "--batch-size", 4, "--max-steps", 3]
    assert main(list(map(str, [*command, *options, "--learning-rate", 0.01]))) == 0
    return folder / "out" / "model"


def test_a_trained_model_attends_by_its_blocks_and_decodes_with_and_without_a_cache(trained):
    engine = DiffuCoderInference(trained, dtype="float32", verbose=False)
    assert (engine.config.family.name, engine.config.block_size) == ("Fast-dLLM v2", 4)
    options = GenerationOptions(
        max_new_tokens=14,
        temperature=0.0,
        top_p=None,
        early_stop=False,
        decoding=Decoding(commit="threshold", threshold=0.5),
    )
    prompt = "def f(x):\n"
    texts = {
        cache: engine.complete([prompt], options.with_settings(cache=cache))[0]
        for cache in ("none", "prefix", "window")
    }
    # The prompt does not end with a block of the model.
    assert len(engine.tokenizer.encode(prompt)) % 4
    assert len(set(texts.values())) == 1
    assert texts["none"]


def test_adapters_do_not_change_how_a_base_attends(trained, tiny_folder, tmp_path, capsys):
    (tmp_path / "chat.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    command = [
        "sft",
        "--data",
        str(tmp_path / "chat.jsonl"),
        "--lora-rank",
        "2",
        "--max-steps",
        "1",
    ]
    small = ["--max-length", "64", "--batch-size", "2"]
    refused = [*command, *small, "--out", str(tmp_path / "a"), "--model", str(tiny_folder)]
    assert main([*refused, "--block-length", "4"]) != 0
    assert "block_length=4: adapters keep the attention of their base" in capsys.readouterr().err
    assert main([*command, *small, "--out", str(tmp_path / "b"), "--model", str(trained)]) == 0


if __name__ == "__main__":
    compare()
