"""AdamW, Muon, the schedule, and what weight decay spares."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jax_lm.models.dream import flatten, parameters
from jax_lm.training.config import OptimizerConfig
from jax_lm.training.optimizer import make_optimizer, muon_or_adamw, schedule


def settings(**changes):
    return OptimizerConfig(**({"learning_rate": 1e-3} | changes))


@pytest.mark.parametrize("optim", [None, "adafactor"])
@pytest.mark.parametrize("muon_learning_rate", [None, 0.05])
def test_weight_decay_spares_vectors_and_adapters(muon_learning_rate, optim):
    params = {
        "embed": {"weight": jnp.full((4, 6), 2.0)},
        "layers": {
            0: {
                "q_proj": {"weight": jnp.full((6, 6), 2.0), "bias": jnp.full(6, 2.0)},
                "o_proj": {"lora_a": jnp.full((2, 6), 2.0), "lora_b": jnp.full((6, 2), 2.0)},
            }
        },
        "norm": {"weight": jnp.full(6, 2.0)},
    }
    config = settings(
        learning_rate=0.1, muon_learning_rate=muon_learning_rate, weight_decay=0.01, optim=optim
    )
    transform = make_optimizer(config, 10)
    updates, _ = jax.jit(transform.update)(
        jax.tree.map(jnp.zeros_like, params), transform.init(params), params
    )
    layer = updates["layers"][0]["q_proj"]
    # Without a gradient the update is - learning rate * decay * weight.
    np.testing.assert_allclose(updates["embed"]["weight"], -0.1 * 0.01 * 2, rtol=1e-5)
    np.testing.assert_allclose(layer["weight"], -(muon_learning_rate or 0.1) * 0.01 * 2, rtol=1e-5)
    np.testing.assert_array_equal(layer["bias"], 0)
    for factor in updates["layers"][0]["o_proj"].values():
        np.testing.assert_array_equal(factor, 0)
    np.testing.assert_array_equal(updates["norm"]["weight"], 0)


def test_learning_rate_table():
    """The published recipe: 10 % of the steps up, a cosine down to 10 %."""
    rate = schedule(settings(warmup_ratio=0.1), 100, 1e-5)
    # Nothing is lost: the first of ten updates of warm-up has a tenth of the peak.
    expected = {0: 1e-6, 1: 2e-6, 4: 5e-6, 9: 1e-5, 100: 1e-6, 150: 1e-6}
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-5, abs=1e-12), step
    assert settings(warmup_ratio=0.1, warmup_steps=3).warmup(100) == 3


def test_updates_follow_the_schedule():
    params = {"weight": jnp.zeros(1)}
    transform = make_optimizer(settings(learning_rate=0.1, warmup_steps=5, min_lr_ratio=0.0), 20)
    state, update, sizes = transform.init(params), jax.jit(transform.update), []
    for _ in range(21):
        updates, state = update({"weight": jnp.ones(1)}, state, params)
        sizes.append(-float(updates["weight"][0]))
    # Adam moves a weight under a constant gradient by the learning rate.
    np.testing.assert_allclose(sizes[:5], np.linspace(0.02, 0.1, 5), atol=1e-5)
    assert sizes[4:] == sorted(sizes[4:], reverse=True)
    assert sizes[-1] == pytest.approx(0, abs=1e-6)


def test_gradient_is_clipped_by_its_global_norm():
    """Adam forgets scale, so that the moments tell what came through."""
    params = {"a": jnp.zeros(4), "b": jnp.zeros(9)}
    transform = make_optimizer(settings(max_grad_norm=0.5), 10)
    _, state = transform.update(
        {"a": jnp.full(4, 3.0), "b": jnp.full(9, 4.0)}, transform.init(params), params
    )
    first = next(leaf for leaf in jax.tree.leaves(state) if leaf.shape == (4,))
    # Norm of the gradient: sqrt(4 * 9 + 9 * 16).
    np.testing.assert_allclose(first, 0.1 * 3 * 0.5 / 180**0.5, rtol=1e-5)


def test_adafactor_learns_without_moments_of_the_size_of_the_weights():
    """A least-squares fit of a matrix and a bias, as AdamW fits it; updates have a root mean square
    of 1 at most.
    """
    rng = np.random.default_rng(0)
    x, truth = (
        rng.normal(size=(256, 160)).astype(np.float32),
        rng.normal(size=(160, 130)).astype(np.float32),
    )
    y = x @ truth + 0.5

    def loss(params):
        return jnp.mean((x @ params["layer"]["weight"] + params["layer"]["bias"] - y) ** 2)

    sizes, losses = {}, {}
    for optim in (None, "adafactor"):
        params = {"layer": {"weight": jnp.zeros((160, 130)), "bias": jnp.zeros(130)}}
        transform = make_optimizer(
            settings(learning_rate=0.05, optim=optim, weight_decay=0.0, max_grad_norm=1e9), 300
        )
        state = transform.init(params)
        sizes[optim] = sum(leaf.size for leaf in jax.tree.leaves(state))

        @jax.jit
        def step(params, state, transform=transform):
            updates, state = transform.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        first, _ = step(params, state)
        assert float(jnp.sqrt(jnp.mean(first["layer"]["weight"] ** 2))) <= 0.05 * 1.001
        for _ in range(300):
            params, state = step(params, state)
        losses[optim] = float(loss(params)) / float(jnp.mean(y**2))
    assert losses["adafactor"] < 1e-2
    assert losses[None] < 1e-2
    assert sizes["adafactor"] < 0.03 * sizes[None]


def test_muon_takes_the_matrices_of_the_layers_alone(tiny_model):
    labels = dict(flatten(muon_or_adamw(nnx.to_pure_dict(nnx.state(tiny_model)))))
    projections = {
        "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    expected = {
        f"model.layers.{layer}.{block}.{name}.weight"
        for layer in range(2)
        for block, names in projections.items()
        for name in names
    }
    assert {name for name, label in labels.items() if label == "muon"} == expected
    assert {name for name, label in labels.items() if label == "adamw"} == set(
        parameters(tiny_model)
    ) - expected


def test_muon_equalises_the_directions_of_an_update():
    params = {"layers": {0: {"weight": jnp.zeros((16, 16))}}}
    transform = make_optimizer(settings(muon_learning_rate=1.0, weight_decay=0.0), 10)
    gradient = jax.random.normal(jax.random.key(0), (16, 16)) * jnp.logspace(0, -1, 16)
    updates, _ = jax.jit(transform.update)(
        {"layers": {0: {"weight": gradient}}}, transform.init(params), params
    )
    values = np.linalg.svd(updates["layers"][0]["weight"], compute_uv=False)
    before = np.linalg.svd(gradient, compute_uv=False)
    assert before[0] / before[-2] > 15
    assert values[0] < 1.3  # Newton-Schulz brings most singular values near 1
    assert values[0] / values[-2] < 4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 0.0}, r"learning_rate=0\.0"),
        ({"optim": "sgd"}, "optim='sgd': must be one of adafactor"),
        ({"learning_rate": -1e-3}, r"learning_rate=-0\.001"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"muon_learning_rate": -0.02}, r"muon_learning_rate=-0\.02"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm=0\.0"),
        ({"adam_epsilon": 0.0}, r"adam_epsilon=0\.0"),
        ({"weight_decay": -0.1}, r"weight_decay=-0\.1"),
        ({"warmup_ratio": 1.5}, r"warmup_ratio=1\.5"),
        ({"min_lr_ratio": -0.5}, r"min_lr_ratio=-0\.5"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"adam_beta1": -0.1}, r"adam_beta1=-0\.1"),
        ({"adam_beta2": 1.0}, r"adam_beta2=1\.0"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    with pytest.raises(ValueError, match=named):
        settings(**changes)


def test_warm_up_must_end_before_the_run():
    with pytest.raises(ValueError, match="warmup_steps=10"):
        settings(warmup_steps=10).warmup(10)
