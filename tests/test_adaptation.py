"""The loss of masked diffusion, its optimizer, and the training loop on a tiny model."""

import dataclasses
import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.checkpoints import huggingface
from jax_lm.data.rows import Batch
from jax_lm.diffusion.masking import forward_process, noise_levels, shift_right
from jax_lm.models.dream import DreamForCausalLM, flatten, parameters
from jax_lm.training import adaptation
from jax_lm.training.adaptation import (
    AdaptationConfig,
    diffusion_loss,
    make_step,
    masked_mean,
    muon_or_adamw,
    optimizer,
    train,
)

MINIMUM = 1e-3
"""Lowest noise level in training."""


def settings(**changes):
    return AdaptationConfig(**({"steps": 10, "learning_rate": 1e-3, "warmup_steps": 0} | changes))


@pytest.fixture(scope="module", autouse=True)
def one_compilation():
    """Runs of the same model with the same settings share their compiled step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptation, "make_step", functools.cache(make_step))
        yield


@pytest.fixture(scope="module")
def batch():
    """Four rows of which the last has a closed canvas in the middle and padding behind."""
    tokens = np.random.default_rng(0).integers(0, 90, (4, 16)).astype(np.int32)
    canvas = np.broadcast_to(np.arange(16) >= 6, (4, 16)).copy()
    canvas[3, 9:] = False
    return Batch(tokens, canvas, np.broadcast_to(np.arange(16) < 12, (4, 16)) | (np.arange(4) < 3)[:, None])


@pytest.fixture(scope="module")
def shallow_config(tiny_config):
    return dataclasses.replace(tiny_config, num_hidden_layers=1)


def plain_loss(logits, tokens, masked, canvas, levels, max_weight):
    """The stated formula, position by position, in float64."""
    total = 0.0
    for row, position in zip(*np.nonzero(masked), strict=True):
        scores = logits[row, position].astype(np.float64)
        nll = np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[tokens[row, position]]
        total += nll * min(1 / levels[row], max_weight)
    return total / canvas.sum()


@pytest.mark.parametrize("max_weight", [1.0, 20.0, 1e9])
def test_loss_equals_the_formula(max_weight):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 8, 11)).astype(np.float32) * 4
    tokens = rng.integers(0, 11, (3, 8)).astype(np.int32)
    canvas = rng.random((3, 8)) < 0.8
    masked = canvas & (rng.random((3, 8)) < 0.5)
    levels = np.array([1e-3, 0.3, 1.0], np.float32)
    ours = diffusion_loss(*map(jnp.asarray, (logits, tokens, masked, canvas, levels)), max_weight)
    assert ours == pytest.approx(plain_loss(logits, tokens, masked, canvas, levels, max_weight), rel=2e-6)


def test_bound_of_the_weight_acts_on_low_levels_only():
    arguments = (jnp.zeros((1, 4, 8)), jnp.zeros((1, 4), jnp.int32), jnp.eye(1, 4, dtype=bool), jnp.ones((1, 4), bool))
    # One masked position of four, each token with probability 1/8.
    for level, weight in ((0.01, 20), (0.05, 20), (0.1, 10), (1.0, 1)):
        expected = weight * np.log(8) / 4
        assert diffusion_loss(*arguments, jnp.array([level]), 20.0) == pytest.approx(expected, rel=1e-6)


def test_unmasked_positions_have_no_loss():
    logits = jax.random.normal(jax.random.key(0), (2, 6, 9))
    tokens, canvas, levels = jnp.ones((2, 6), jnp.int32), jnp.ones((2, 6), bool), jnp.array([0.5, 0.5])
    masked = jnp.arange(6)[None] == jnp.array([[2], [4]])
    changed = jnp.where(masked[..., None], logits, 7.0)
    first, second = (diffusion_loss(x, tokens, masked, canvas, levels, 20.0) for x in (logits, changed))
    assert float(first) == float(second) > 0


def test_bfloat16_logits_are_summed_in_float32():
    logits = jax.random.normal(jax.random.key(0), (2, 6, 9)).astype(jnp.bfloat16)
    arguments = (jnp.ones((2, 6), jnp.int32), jnp.ones((2, 6), bool), jnp.ones((2, 6), bool), jnp.ones(2), 20.0)
    loss = diffusion_loss(logits, *arguments)
    assert loss.dtype == jnp.float32
    assert loss == diffusion_loss(logits.astype(jnp.float32), *arguments)


def test_masked_mean_is_the_mean_over_masked_tokens():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 8, 11)).astype(np.float32) * 4
    tokens = rng.integers(0, 11, (3, 8)).astype(np.int32)
    masked = rng.random((3, 8)) < 0.4
    ours = masked_mean(*map(jnp.asarray, (logits, tokens, masked)))
    # With every weight 1 and the masked positions for a canvas the formula above is a mean.
    assert ours == pytest.approx(plain_loss(logits, tokens, masked, masked, np.ones(3), 1.0), rel=2e-6)


def test_stratified_levels_are_unbiased_and_less_noisy():
    means = jax.vmap(lambda key: jnp.mean(noise_levels(key, 8) ** 2))(jax.random.split(jax.random.key(0), 4000))
    exact = (1 - MINIMUM**3) / (3 * (1 - MINIMUM))
    # Four standard errors of 4000 means. Eight independent draws have a deviation of 0.298 / sqrt(8) = 0.105.
    assert means.mean() == pytest.approx(exact, abs=4 * float(means.std()) / 4000**0.5)
    assert means.std() < 0.105 / 5


def test_expected_loss_of_a_constant_prediction():
    """Masking and weighting together: with equal logits the expectation is an integral over the level."""
    size, vocabulary, max_weight = 64, 7, 20.0
    canvas = jnp.ones((16, size), bool)
    tokens = jnp.zeros((16, size), jnp.int32)

    def estimate(key):
        key_level, key_mask = jax.random.split(key)
        levels = noise_levels(key_level, 16)
        _, masked = forward_process(key_mask, tokens, canvas, levels, vocabulary - 1)
        return diffusion_loss(jnp.zeros((16, size, vocabulary)), tokens, masked, canvas, levels, max_weight)

    losses = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(1), 500))
    levels = MINIMUM + (1 - MINIMUM) * (np.arange(200_000) + 0.5) / 200_000
    # A position is masked by its level, or because its row would else have no mask at all.
    exact = np.mean(np.minimum(1 / levels, max_weight) * (levels + (1 - levels) ** size / size)) * np.log(vocabulary)
    assert losses.mean() == pytest.approx(exact, abs=4 * float(losses.std()) / 500**0.5)
    assert losses.std() / 500**0.5 < 0.01 * exact  # so that the bound above is a strict one


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"warmup_steps": 10}, "warmup_steps=10"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"steps": 0}, "steps=0"),
        ({"stop_after": 0}, "stop_after=0"),
        ({"stop_after": 11}, "stop_after=11"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0"),
        ({"learning_rate": -1e-3}, r"learning_rate=-0\.001"),
        ({"max_weight": 0.5}, r"max_weight=0\.5"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"max_weight": float("nan")}, "max_weight=nan"),
        ({"muon_learning_rate": -0.02}, r"muon_learning_rate=-0\.02"),
        ({"log_every": 0}, "log_every=0"),
        ({"save_every": 0}, "save_every=0"),
        ({"compute_dtype": "int32"}, "compute_dtype='int32'"),
        ({"compute_dtype": "half"}, "compute_dtype='half'"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    with pytest.raises(ValueError, match=named):
        settings(**changes)


@pytest.mark.parametrize("muon_learning_rate", [None, 0.05])
def test_weight_decay_spares_vectors(muon_learning_rate):
    params = {
        "embed": {"weight": jnp.full((4, 6), 2.0)},
        "layers": {0: {"q_proj": {"weight": jnp.full((6, 6), 2.0), "bias": jnp.full(6, 2.0)}}},
        "norm": {"weight": jnp.full(6, 2.0)},
    }
    transform = optimizer(settings(learning_rate=0.1, muon_learning_rate=muon_learning_rate, weight_decay=0.01))
    updates, _ = jax.jit(transform.update)(jax.tree.map(jnp.zeros_like, params), transform.init(params), params)
    layer = updates["layers"][0]["q_proj"]
    # Without a gradient the update is - learning rate * decay * weight.
    np.testing.assert_allclose(updates["embed"]["weight"], -0.1 * 0.01 * 2, rtol=1e-5)
    np.testing.assert_allclose(layer["weight"], -(muon_learning_rate or 0.1) * 0.01 * 2, rtol=1e-5)
    np.testing.assert_array_equal(layer["bias"], 0)
    np.testing.assert_array_equal(updates["norm"]["weight"], 0)


def test_learning_rate_warms_up_and_falls_to_zero():
    params = {"weight": jnp.zeros(1)}
    transform = optimizer(settings(steps=20, learning_rate=0.1, warmup_steps=5))
    state, update, sizes = transform.init(params), jax.jit(transform.update), []
    for _ in range(21):
        updates, state = update({"weight": jnp.ones(1)}, state, params)
        sizes.append(-float(updates["weight"][0]))
    # Adam moves a weight under a constant gradient by the learning rate.
    np.testing.assert_allclose(sizes[:6], np.linspace(0, 0.1, 6), atol=1e-5)
    assert sizes[5:] == sorted(sizes[5:], reverse=True)
    assert sizes[-1] == pytest.approx(0, abs=1e-6)


def test_muon_takes_the_matrices_of_the_layers_alone(tiny_model):
    labels = dict(flatten(muon_or_adamw(nnx.to_pure_dict(nnx.state(tiny_model)))))
    projections = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
    expected = {
        f"model.layers.{layer}.{block}.{name}.weight"
        for layer in range(2)
        for block, names in projections.items()
        for name in names
    }
    assert {name for name, label in labels.items() if label == "muon"} == expected
    assert {name for name, label in labels.items() if label == "adamw"} == set(parameters(tiny_model)) - expected


def test_muon_equalises_the_directions_of_an_update():
    params = {"layers": {0: {"weight": jnp.zeros((16, 16))}}}
    transform = optimizer(settings(muon_learning_rate=1.0, weight_decay=0.0))
    gradient = jax.random.normal(jax.random.key(0), (16, 16)) * jnp.logspace(0, -1, 16)
    updates, _ = jax.jit(transform.update)({"layers": {0: {"weight": gradient}}}, transform.init(params), params)
    values = np.linalg.svd(updates["layers"][0]["weight"], compute_uv=False)
    before = np.linalg.svd(gradient, compute_uv=False)
    assert before[0] / before[-2] > 15
    assert values[0] < 1.3  # Newton-Schulz brings most singular values near 1
    assert values[0] / values[-2] < 4


@dataclasses.dataclass
class Run:
    """What a training run took, and what it left in memory and on disk."""

    given: DreamForCausalLM
    model: DreamForCausalLM
    config: AdaptationConfig
    out: Path
    saves: list[int]
    levels: np.ndarray


def train_recorded(model_config, config, batch, out):
    """A run, with the number of batches before each save and the noise levels of each step."""
    taken, saves, levels = itertools.count(), [], []
    real_save = huggingface.save

    def save(*arguments):
        saves.append(next(taken))
        real_save(*arguments)

    def noise(key, tokens, canvas, rows, mask_id):
        jax.debug.callback(lambda values: levels.append(np.sort(values)), rows)
        return forward_process(key, tokens, canvas, rows, mask_id)

    given = DreamForCausalLM(model_config, rngs=nnx.Rngs(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface, "save", save)
        patch.setattr(adaptation, "forward_process", noise)
        model = train(given, (batch for _ in taken), config, out)
        jax.effects_barrier()
    return Run(given, model, config, out, saves, np.stack(levels))


@pytest.fixture(scope="module")
def run(tiny_config, batch, tmp_path_factory):
    """Forty steps on one batch."""
    config = settings(
        steps=40, learning_rate=0.05, muon_learning_rate=0.1, warmup_steps=4, log_every=8, save_every=20, seed=3
    )
    return train_recorded(tiny_config, config, batch, tmp_path_factory.mktemp("run") / "new")


ROUNDED = {"steps": 10, "stop_after": 3, "log_every": 2, "compute_dtype": "bfloat16", "objective": "masked_mean"}


@pytest.fixture(scope="module")
def rounded_run(shallow_config, batch, tmp_path_factory):
    """Three steps in bfloat16 on the second objective."""
    return train_recorded(shallow_config, settings(**ROUNDED), batch, tmp_path_factory.mktemp("rounded"))


def metrics(run):
    return [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]


def test_training_lowers_the_loss(run):
    losses = [entry["loss"] for entry in metrics(run)]
    assert losses[0] > 3.0  # log(96) = 4.6 before the first step
    assert losses[-1] < 0.5 * losses[0]


def test_trained_model_predicts_the_next_position(run, batch):
    """With the whole canvas masked it knows the batch, if its rows are read one to the right."""

    @nnx.jit
    def losses(model, tokens, canvas, attention_mask):
        hidden = model.model(jnp.where(canvas, model.config.mask_token_id, tokens), attention_mask)
        aligned, unaligned = model.logits(shift_right(hidden)), model.logits(hidden)
        return [diffusion_loss(x, tokens, canvas, canvas, jnp.ones(4), 20.0) for x in (aligned, unaligned)]

    aligned, unaligned = losses(run.model, *map(jnp.asarray, batch))
    assert aligned < 0.5 * np.log(96)
    assert unaligned > aligned + 0.5


def test_metrics_tell_the_progress(run):
    entries = metrics(run)
    assert [entry["step"] for entry in entries] == [8, 16, 24, 32, 40]
    assert [set(entry) for entry in entries] == [{"step", "loss", "tokens_per_second", "seconds"}] * 5
    seconds = [entry["seconds"] for entry in entries]
    assert seconds == sorted(seconds)
    for entry in entries:
        assert entry["tokens_per_second"] * entry["seconds"] == pytest.approx(64 * entry["step"], rel=1e-6)


def test_settings_are_written_down(run):
    written = json.loads((run.out / "adaptation.json").read_text())
    assert AdaptationConfig(**(written | {"betas": tuple(written["betas"])})) == run.config


def test_saved_checkpoint_is_the_returned_model(run):
    loaded = DreamForCausalLM.from_pretrained(run.out)
    assert loaded.config == run.model.config
    ours, theirs = parameters(loaded), parameters(run.model)
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], strict=True)


def test_weights_are_saved_on_the_way_and_at_the_end(run):
    # A save takes a number too: 20 batches, the first save, 20 batches, the last save.
    assert run.saves == [20, 41]


def test_run_stops_before_its_schedule_does(rounded_run):
    assert [entry["step"] for entry in metrics(rounded_run)] == [2, 3]
    assert rounded_run.saves == [3]


def test_noise_levels_of_the_evidence_bound_are_uniform(run):
    assert run.levels.shape == (40, 4)
    np.testing.assert_array_equal(np.floor(run.levels * 4), np.tile(np.arange(4), (40, 1)))


def test_noise_levels_of_the_masked_mean_are_mostly_high(rounded_run):
    # t = 1 - u², with u from each of four strata of (0, 1).
    strata = np.floor((1 - np.sqrt(1 - rounded_run.levels)) * 4)
    np.testing.assert_array_equal(strata, np.tile(np.arange(4), (3, 1)))


def test_bfloat16_products_keep_float32_weights(rounded_run):
    before = parameters(DreamForCausalLM(rounded_run.model.config, rngs=nnx.Rngs(0)))
    for weights in (parameters(rounded_run.model), parameters(DreamForCausalLM.from_pretrained(rounded_run.out))):
        assert {value.dtype for value in weights.values()} == {jnp.dtype("float32")}
        for name, value in weights.items():
            assert not np.array_equal(value, before[name])
            assert not np.array_equal(value, value.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize(("dtype", "is_rounded"), [("float32", False), ("bfloat16", True)])
def test_products_are_computed_in_the_chosen_dtype(shallow_config, batch, dtype, is_rounded):
    config = settings(compute_dtype=dtype)
    graph, state = nnx.split(DreamForCausalLM(shallow_config))
    params = nnx.to_pure_dict(state)
    step = make_step(graph, config, shallow_config.mask_token_id)
    text = step.lower(params, optimizer(config).init(params), jax.random.key(0), batch).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    # Seven products per layer and two of attention, and the head; each with two gradients.
    assert len(products) == 3 * 10
    operands = [line.rsplit(" : ", 1)[1].split("->")[0] for line in products]
    assert all(("bf16" in types) == is_rounded and ("f32" in types) != is_rounded for types in operands)


def test_loss_that_is_not_finite_stops_the_run(shallow_config, batch, tmp_path):
    model = DreamForCausalLM(shallow_config)
    model.model.norm.weight[...] = jnp.full(32, jnp.nan, jnp.float32)
    with pytest.raises(FloatingPointError, match="loss is nan at step 2"):
        train(model, itertools.repeat(batch), settings(**ROUNDED), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_model_without_mask_token_is_refused(shallow_config, batch, tmp_path):
    model = DreamForCausalLM(dataclasses.replace(shallow_config, mask_token_id=None))
    with pytest.raises(ValueError, match="mask_token_id=None"):
        train(model, itertools.repeat(batch), settings(), tmp_path)


def test_training_leaves_the_model_it_was_given(run):
    assert np.isfinite(parameters(run.given)["model.norm.weight"]).all()
