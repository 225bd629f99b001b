"""The loss of masked diffusion in its variants, packed rows, and training a tiny model."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.data.batches import Row, collate
from jax_lm.diffusion.masking import mask_tokens, noise_levels, shift_right, visible_prefix
from jax_lm.models.dream import DreamForCausalLM, flatten, parameters
from jax_lm.training.config import (
    NORMALISATIONS,
    WEIGHTINGS,
    LossConfig,
    OptimizerConfig,
    TrainerConfig,
)
from jax_lm.training.masked_diffusion import (
    ByStep,
    diffusion_loss,
    held_out_terms,
    loss_terms,
    partition,
    token_weights,
    train,
)
from jax_lm.training.update import gradient


def settings(**changes):
    options = {
        "max_steps": 10,
        "log_every": 8,
        "save_every": 20,
        "optimizer": OptimizerConfig(learning_rate=1e-3),
    }
    return TrainerConfig(**(options | changes))


@pytest.fixture(scope="module")
def shallow_config(tiny_config):
    return dataclasses.replace(tiny_config, num_hidden_layers=1)


@pytest.fixture(scope="module")
def shallow(shallow_config):
    return nnx.split(DreamForCausalLM(shallow_config, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def batch():
    """Four rows of which the last has a closed canvas in the middle and padding behind."""
    tokens = np.random.default_rng(0).integers(0, 90, (4, 16))
    rows = [Row(tuple(map(int, row)), (False,) * 6 + (True,) * 10) for row in tokens[:3]]
    rows.append(
        Row(tuple(map(int, tokens[3, :12])), (False,) * 6 + (True,) * 3 + (False,) * 3, open=False)
    )
    return collate([[row] for row in rows], 16, 91)


def drawn(seed=0, rows=3, length=8):
    """Losses, a mask and levels for rows of which the last holds two samples."""
    rng = np.random.default_rng(seed)
    samples = np.repeat(np.arange(rows)[:, None], length, axis=1)
    samples[-1, 5:] = rows
    canvas = rng.random((rows, length)) < 0.8
    masked = canvas & (rng.random((rows, length)) < 0.5)
    levels = np.float32([0.2, 0.7, 0.9, 0.4])[samples]
    losses = rng.random((rows, length)).astype(np.float32) * 4
    return [jnp.asarray(array) for array in (losses, masked, canvas, samples, levels)]


def plain_loss(losses, masked, canvas, samples, levels, weight, normalisation):
    """The stated formula, position by position, in float64."""
    sums, normaliser = [], {"token": canvas.sum(), "masked": masked.sum()}
    for number in np.unique(samples):
        mine = samples == number
        size = (canvas & mine).sum()
        total = sum(
            float(losses[i]) * weight(i, size) for i in zip(*np.nonzero(masked & mine), strict=True)
        )
        sums.append(total / size if normalisation == "sequence" else total)
    return sum(sums) / normaliser.get(normalisation, len(sums))


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_loss_equals_the_formula(weighting, normalisation):
    arrays = drawn()
    losses, masked, canvas, samples, levels = (np.asarray(array) for array in arrays)
    counts = [masked[samples == number].sum() for number in np.unique(samples)]
    assert min(counts) == 1 < max(counts)

    def weight(place, size):
        t = float(levels[place])
        row, k = place
        is_only_one = masked[samples == samples[place]].sum() == 1
        unforced = size * t / (size * t + 1 - t) if is_only_one else 1.0
        visible = [
            j
            for j in range(8)
            if j != k and not masked[row, j] and samples[row, j] == samples[place]
        ]
        cart = sum(0.5 * 0.1 * 0.9 ** (abs(k - j) - 1) for j in visible)
        return {
            "1/t": unforced / t,
            "linear": (1 - t) * unforced,
            "cart": unforced * cart,
            "plain": 1.0,
        }[weighting]

    terms = loss_terms(LossConfig(weighting=weighting, normalisation=normalisation), *arrays)
    expected = plain_loss(losses, masked, canvas, samples, levels, weight, normalisation)
    assert float(terms.total / terms.weight) == pytest.approx(expected, rel=3e-6)


def test_bound_of_the_weight_acts_on_low_levels_only():
    samples, masked, sizes = (
        jnp.zeros((1, 4), jnp.int32),
        jnp.ones((1, 4), bool),
        jnp.full((1, 4), 1e9),
    )
    for level, weight in ((0.01, 20), (0.05, 20), (0.1, 10), (1.0, 1)):
        weights = token_weights(
            LossConfig(max_weight=20.0), masked, samples, jnp.full((1, 4), level), sizes
        )
        np.testing.assert_allclose(weights, weight, rtol=1e-6)


def test_unmasked_positions_have_no_loss_even_where_it_is_infinite():
    losses, masked, *rest = drawn()
    first = loss_terms(LossConfig(), losses, masked, *rest)
    second = loss_terms(LossConfig(), jnp.where(masked, losses, jnp.inf), masked, *rest)
    assert float(first.total) == float(second.total) > 0


def test_mean_of_the_estimator_is_the_mean_loss():
    """With 1/t weights the expectation is the plain mean of the losses, although every sample has a
    mask: so canvases of three positions are among these. That all ways to draw levels are uniform
    is in test_masking.py."""
    length, vocabulary = 12, 50
    samples = jnp.repeat(jnp.arange(6)[:, None], length, axis=1).at[5, 6:].set(6)
    canvas = jnp.ones((6, length), bool).at[0, 3:].set(False)
    losses = jnp.asarray(np.random.default_rng(2).random((6, length)), jnp.float32)

    def estimate(key):
        key_level, key_mask = jax.random.split(key)
        levels = noise_levels(key_level, samples)
        _, masked = mask_tokens(
            key_mask, jnp.zeros_like(samples), canvas, samples, levels, vocabulary
        )
        terms = loss_terms(LossConfig(), losses, masked, canvas, samples, levels)
        return terms.total / terms.weight

    values = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(1), 4000)))
    exact, error = float(losses[canvas].mean()), float(values.std()) / 4000**0.5
    assert values.mean() == pytest.approx(exact, abs=4 * error)
    assert error < 0.02 * exact  # so that the bound above is a strict one


def chances(masked, level, *, forced):
    """How likely these masks of one canvas are, in exact arithmetic; with one forced if the level
    gives none.
    """
    n, count = len(masked), sum(masked)
    plain = level**count * (1 - level) ** (n - count)
    return plain + ((1 - level) ** n / n if forced and count == 1 else 0.0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("weighting", ["1/t", "linear", "cart"])
def test_forced_mask_leaves_the_objective_as_it_is(weighting, n):
    """All masks of a canvas, and a loss of each token under each of them: the mean is that without
    a forced mask.

    For 1/t it is also the bound of masked diffusion: for each number of masks the mean loss of a
    masked token, over all such masks, summed up. Integrals over t are exact: these are polynomials
    of low degree.
    """
    subsets = [m for m in itertools.product((False, True), repeat=n) if any(m)]
    # As real ones do, losses grow with the number of masks.
    losses = np.random.default_rng(n).random((len(subsets), n)) + 3 * np.mean(
        subsets, axis=1, keepdims=True
    )
    nodes, quadrature = np.polynomial.legendre.leggauss(8)
    config = LossConfig(weighting=weighting)
    # One token before the canvas is always visible.
    rows, width = len(subsets), n + 1
    closed = np.zeros((rows, 1))
    masked, canvas = (
        np.hstack([closed, subsets]).astype(bool),
        np.hstack([closed, np.ones((rows, n))]).astype(bool),
    )
    totals = jax.jit(jax.vmap(lambda *row: loss_terms(config, *(x[None] for x in row)).total))
    ours = expected = 0.0
    for level, share in zip((nodes + 1) / 2, quadrature / 2, strict=True):
        levels = np.full((rows, width), level, np.float32)
        samples = np.zeros((rows, width), np.int32)
        estimates = totals(np.float32(np.hstack([closed, losses])), masked, canvas, samples, levels)
        for mask, row, estimate in zip(subsets, losses, np.asarray(estimates), strict=True):
            ours += share * chances(mask, level, forced=True) * float(estimate)
            expected += (
                share
                * chances(mask, level, forced=False)
                * plain_total(weighting, mask, row, level)
            )
    assert ours == pytest.approx(expected, rel=2e-6)
    if weighting == "1/t":
        by_count = [
            [losses[i][list(m)].mean() for i, m in enumerate(subsets) if sum(m) == k]
            for k in range(1, n + 1)
        ]
        assert ours == pytest.approx(sum(map(np.mean, by_count)), rel=2e-6)


def plain_total(weighting, mask, losses, level):
    """The stated sum over the masked tokens of a canvas behind one visible token, in float64."""

    def weight(k):
        nearness = [
            0.5 * 0.1 * 0.9 ** (abs(k - j) - 1) for j in (-1, *np.flatnonzero(~np.array(mask)))
        ]
        return {"1/t": 1 / level, "linear": 1 - level, "cart": sum(nearness)}[weighting]

    return sum(losses[k] * weight(k) for k in np.flatnonzero(mask))


def test_nearness_is_that_of_dreams_training_configuration():
    assert LossConfig().cart_p == 0.1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"minimum_level": 0.0}, r"minimum_level=0\.0"),
        ({"max_weight": 0.5}, r"max_weight=0\.5"),
        ({"max_weight": float("nan")}, "max_weight=nan"),
        ({"cart_p": 1.0}, r"cart_p=1\.0"),
        (
            {"confident_share": 0.5},
            r"confident_share=0\.5: must be from 0 to 1, and 0 with a weighting that is not plain",
        ),
        ({"weighting": "plain", "confident_share": 1.5}, r"confident_share=1\.5"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    with pytest.raises(ValueError, match=named):
        LossConfig(**changes)


MIXED = LossConfig(masks_per_query=True, weighting="plain", high_levels=True, confident_share=0.5)


@pytest.fixture(
    scope="module",
    params=[LossConfig(masks_per_query=True), MIXED, LossConfig(block_length=4)],
    ids=["drawn", "half by confidence", "blocks"],
)
def differentiate(request, shallow, shallow_config):
    """Gradient and metrics on a batch, float32."""
    graph, state = shallow
    objective = diffusion_loss(graph, request.param, shallow_config.mask_token_id)
    weights = nnx.to_pure_dict(state)
    compiled = jax.jit(lambda batch, key, parts: gradient(objective, weights, {}, batch, key, parts=parts),
                       static_argnames="parts")  # fmt: skip
    return lambda batch, parts=1: compiled(batch, jax.random.key(4), parts)


def assert_same(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def samples_of(count):
    rng = np.random.default_rng(3)
    for number in range(count):
        size = 5 + number % 3
        yield Row(
            tuple(map(int, rng.integers(0, 90, size))),
            (False,) * 2 + (True,) * (size - 2),
            open=False,
        )


def test_packed_rows_have_the_gradient_of_single_ones(differentiate):
    """Eight samples in eight rows, and in four: neither attention, nor positions, masks or the
    shift cross over.
    """
    samples = list(samples_of(8))
    single = collate([[sample] for sample in samples], 16, 91)
    # Empty rows behind them, so that both share a compilation.
    packed = collate([samples[i : i + 2] for i in range(0, 8, 2)] + [[]] * 4, 16, 91)
    ours, theirs = differentiate(packed), differentiate(single)
    assert float(theirs[1]["loss"]) > 1
    assert_same(ours, theirs)


def test_masks_and_gradient_do_not_depend_on_accumulation(differentiate):
    rows = collate([[sample] for sample in samples_of(8)], 16, 91)
    assert_same(differentiate(rows, 4), differentiate(rows))


def test_samples_masked_by_confidence_show_a_beginning_and_what_is_then_likeliest(
    shallow, shallow_config, batch
):
    """The whole objective against a reading: what is begun, the least likely ceil(t n) of the rest,
    their mean loss.
    """
    graph, state = shallow
    weights, mask_id, key = nnx.to_pure_dict(state), shallow_config.mask_token_id, jax.random.key(2)
    config = LossConfig(
        weighting="plain", normalisation="masked", high_levels=True, confident_share=1.0
    )
    terms = jax.jit(diffusion_loss(graph, config, mask_id))(weights, batch, key)
    model = nnx.merge(graph, weights)

    real = jnp.asarray(batch.samples >= 0)

    @jax.jit
    def logits_of(noisy):
        return model.logits(shift_right(model.model(noisy, real)))

    def losses(noisy):
        logits = np.asarray(logits_of(noisy), np.float64)
        own = np.take_along_axis(logits, np.asarray(batch.tokens)[..., None], axis=-1)[..., 0]
        return np.log(np.exp(logits).sum(axis=-1)) - own

    key_level, key_mask, _ = jax.random.split(key, 3)
    levels = jax.jit(noise_levels)(key_level, batch.samples)
    key_begun = jax.random.split(jax.random.fold_in(key_mask, 0))[1]
    shown = np.asarray(jax.jit(visible_prefix)(key_begun, batch.canvas, batch.samples, levels))
    assert shown.any()
    first = np.where(shown, -np.inf, losses(np.where(batch.canvas & ~shown, mask_id, batch.tokens)))
    masked = np.zeros_like(batch.canvas)
    for row, level in enumerate(np.asarray(levels)[:, 0]):
        places = np.flatnonzero(batch.canvas[row])
        masked[
            row, places[np.argsort(-first[row, places])[: int(np.ceil(level * len(places)))]]
        ] = True
    assert float(terms.weight) == masked.sum()
    expected = losses(np.where(masked, mask_id, batch.tokens))[masked].sum()
    assert float(terms.total) == pytest.approx(expected, rel=1e-5)


def test_held_out_losses_are_those_of_masks_at_random(shallow_config, batch, tmp_path):
    """Masks that follow the weights would compare different tasks."""
    losses, optimizer = {}, OptimizerConfig(learning_rate=1e-20)
    for share in (0.0, 0.5):
        config = LossConfig(weighting="plain", confident_share=share)
        model, out = DreamForCausalLM(shallow_config, rngs=nnx.Rngs(0)), tmp_path / str(share)
        training = settings(max_steps=1, log_every=1, optimizer=optimizer)
        assert train(model, ByStep(lambda step: batch), config, training, out, held_out=[batch])
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[share] = {
            name: next(line[name] for line in lines if name in line)
            for name in ("loss", "eval_loss")
        }
    # The rate moves nothing.
    assert losses[0.5]["eval_loss"] == losses[0.0]["eval_loss"]
    assert losses[0.5]["loss"] != losses[0.0]["loss"]


def test_held_out_losses_are_computed_in_the_parts_of_a_batch(shallow, shallow_config):
    """A batch that an update computes in parts does not fit a device as a whole."""
    graph, state = shallow
    weights = nnx.to_pure_dict(state)
    rows = collate([[sample] for sample in samples_of(8)], 16, 91)
    objective = diffusion_loss(graph, LossConfig(), shallow_config.mask_token_id)
    arguments = weights, {}, rows, jnp.int32(0)
    whole, parted = (
        held_out_terms(objective, "float32", parts).lower(*arguments).compile() for parts in (1, 4)
    )
    np.testing.assert_allclose(parted(*arguments), whole(*arguments), rtol=1e-6)
    sizes = [each.memory_analysis().temp_size_in_bytes for each in (whole, parted)]
    assert sizes[1] < sizes[0] / 2


def test_masks_that_are_drawn_already_cannot_be_chosen_by_confidence(
    shallow, shallow_config, batch
):
    config = LossConfig(weighting="plain", confident_share=0.5)
    drawn = (np.ones(batch.tokens.shape, np.float32),) * 2
    with pytest.raises(
        ValueError, match=r"confident_share=0\.5: must be 0 where masks are drawn already"
    ):
        diffusion_loss(shallow[0], config, shallow_config.mask_token_id)(
            nnx.to_pure_dict(shallow[1]), batch._replace(drawn=drawn), jax.random.key(0)
        )


def test_recomputed_layers_give_the_same_gradient(shallow, shallow_config, batch):
    graph, state = shallow
    results = []
    for remat in (False, True):
        objective = diffusion_loss(graph, LossConfig(remat=remat), shallow_config.mask_token_id)
        step = jax.jit(lambda w, b, k, o=objective: gradient(o, w, {}, b, k))
        lowered = step.lower(nnx.to_pure_dict(state), batch, jax.random.key(0))
        assert ("checkpoint" in lowered.as_text(debug_info=True)) == remat
        results.append(lowered.compile()(nnx.to_pure_dict(state), batch, jax.random.key(0)))
    assert_same(*results)


@pytest.mark.parametrize(("dtype", "is_rounded"), [("float32", False), ("bfloat16", True)])
def test_products_are_computed_in_the_chosen_dtype(
    shallow, shallow_config, batch, dtype, is_rounded
):
    graph, state = shallow
    objective = diffusion_loss(graph, LossConfig(), shallow_config.mask_token_id)
    step = jax.jit(lambda w, b, k: gradient(objective, w, {}, b, k, dtype=dtype))
    text = step.lower(nnx.to_pure_dict(state), batch, jax.random.key(0)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    # Seven products per layer and two of attention, and the head; each with two gradients.
    assert len(products) == 3 * 10
    operands = [line.rsplit(" : ", 1)[1].split("->")[0] for line in products]
    assert all(
        ("bf16" in types) == is_rounded and ("f32" in types) != is_rounded for types in operands
    )


def test_every_gradient_in_bfloat16_is_that_of_float32(shallow, shallow_config):
    """At 16,384 tokens, frequent ones among them as in text, padding and MASK: sums that bfloat16
    cannot hold.
    """
    rows, length, frequent = 64, 256, 400
    tokens = np.random.default_rng(0).zipf(1.3, (rows, length)) % 90
    sizes = [length * (3 + i % 2) // 4 for i in range(rows)]
    answers = [
        Row(tuple(map(int, row[:size])), (False,) * 32 + (True,) * (size - 32))
        for row, size in zip(tokens, sizes, strict=True)
    ]
    batch = collate([[row] for row in answers], length, 91)
    graph, state = shallow
    objective = diffusion_loss(graph, LossConfig(), shallow_config.mask_token_id)
    step = jax.jit(
        lambda w, b, k, dtype: gradient(objective, w, {}, b, k, dtype=dtype)[0],
        static_argnames="dtype",
    )
    weights = nnx.to_pure_dict(state)
    exact, ours = (
        dict(flatten(step(weights, batch, jax.random.key(0), dtype)))
        for dtype in ("float32", "bfloat16")
    )
    errors = {name: relative_error(leaf, exact[name]) for name, leaf in ours.items()}
    embedding = "model.embed_tokens.weight"
    counts = np.bincount(batch.tokens.ravel(), minlength=96)
    chosen = [shallow_config.mask_token_id, *np.flatnonzero(counts > frequent)]
    assert {91, 95} < set(chosen)
    errors |= {
        f"token {row}": relative_error(ours[embedding][row], exact[embedding][row])
        for row in chosen
    }
    assert {name: error for name, error in errors.items() if not error < 0.02} == {}


def relative_error(ours, exact):
    """Norm of the difference, relative to the second."""
    ours, exact = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
    return float(np.linalg.norm(ours - exact) / np.linalg.norm(exact))


@pytest.fixture(scope="module")
def run(tiny_config, batch, tmp_path_factory):
    """Forty steps on one batch, with Muon."""
    optimizer = OptimizerConfig(
        learning_rate=0.05, muon_learning_rate=0.1, warmup_steps=4, min_lr_ratio=0.0
    )
    config, out = (
        settings(max_steps=40, optimizer=optimizer, seed=3),
        tmp_path_factory.mktemp("run"),
    )
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))
    assert train(model, ByStep(lambda step: batch), LossConfig(), config, out, held_out=[batch])
    return model, out


def test_training_lowers_the_loss(run):
    lines = [json.loads(line) for line in (run[1] / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[0] > 3.0  # log(96) = 4.6 before the first step
    assert losses[-1] < 0.5 * losses[0]
    [held_out] = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert held_out < 0.5 * losses[0]


def test_trained_model_predicts_the_next_position(run, batch):
    """With the whole canvas masked it knows the batch, if its rows are read one to the right."""
    tokens, canvas, samples = (jnp.asarray(array) for array in batch[:3])

    @nnx.jit
    def losses(model):
        hidden = model.model(jnp.where(canvas, model.config.mask_token_id, tokens), samples >= 0)
        chosen = [jax.nn.log_softmax(model.logits(rows)) for rows in (shift_right(hidden), hidden)]
        return [-jnp.take_along_axis(x, tokens[..., None], 2)[canvas].mean() for x in chosen]

    aligned, unaligned = losses(run[0])
    assert aligned < 0.5 * np.log(96)
    assert unaligned > aligned + 0.5


def test_frozen_parameters_stay_to_the_bit(shallow_config, batch, tmp_path):
    model = DreamForCausalLM(shallow_config, rngs=nnx.Rngs(0))
    before = {name: np.asarray(value) for name, value in parameters(model).items()}
    train(model, ByStep(lambda step: batch), LossConfig(), settings(stop_after=2, compute_dtype="bfloat16"),
          tmp_path, trained=lambda name: "mlp" in name)  # fmt: skip
    for name, value in parameters(model).items():
        assert value.dtype == np.float32
        assert np.array_equal(value, before[name]) == ("mlp" not in name), name


def test_model_without_mask_token_is_refused(shallow_config, batch, tmp_path):
    model = DreamForCausalLM(dataclasses.replace(shallow_config, mask_token_id=None))
    with pytest.raises(ValueError, match="mask_token_id=None"):
        train(model, ByStep(lambda step: batch), LossConfig(), settings(), tmp_path)


def test_samples_side_by_side_are_refused_where_they_would_see_each_other(shallow_config, tmp_path):
    packed = collate([[Row((5, 6, 7), (False, True, True), open=False)] * 2], 8, 0)
    alone = collate([[Row((5, 6, 7), (False, True, True), open=False)]], 8, 0)
    model = DreamForCausalLM(shallow_config, rngs=nnx.Rngs(0))
    for masks_per_query, batch in ((False, alone), (True, packed)):
        loss = LossConfig(masks_per_query=masks_per_query)
        assert train(
            model,
            ByStep(lambda step, batch=batch: batch),
            loss,
            settings(),
            tmp_path / str(masks_per_query),
        )
    with pytest.raises(ValueError, match="masks_per_query=False: must be True"):
        train(model, ByStep(lambda step: packed), LossConfig(), settings(), tmp_path / "refused")


def test_partition_keeps_what_belongs():
    tree = {"layers": {0: {"a": 1, "b": 2}, 1: {"b": 3}}, "norm": {"b": 4}}
    chosen, others = partition(tree, lambda name: name.endswith("a"))
    assert chosen == {"layers": {0: {"a": 1}}}
    assert others == {"layers": {0: {"b": 2}, 1: {"b": 3}}, "norm": {"b": 4}}
    chosen, _ = partition(tree, lambda name: name == "layers.1.b")
    assert chosen == {"layers": {1: {"b": 3}}}
