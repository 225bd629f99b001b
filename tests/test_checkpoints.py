"""Checkpoints of a run: everything comes back as it was."""

import resource
import signal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_lm.training.checkpoints import RunCheckpoints


def test_state_and_rest_come_back_as_they_were(tmp_path):
    state = {
        "layers": {0: {"weight": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)}},
        "count": jnp.int32(7),
    }
    rest = {
        "number": 0.1 + 0.2,
        "large": 2**100,
        "texts": ["é", "\n", None, {"a": [1]}],
        "empty": {},
        "nested": {"array": np.arange(3), "inner": {"array": {"array": "text"}}},
        "odd/name": np.ones((2, 1), np.float16),
        "rounded": np.ones(3, ml_dtypes.bfloat16),
        "key": jax.random.key_data(jax.random.key(3)),
    }
    with RunCheckpoints(tmp_path / "new", 1) as checkpoints:
        assert checkpoints.latest is None
        checkpoints.save(3, state, rest)
    with RunCheckpoints(tmp_path / "new", 1) as checkpoints:
        assert checkpoints.latest == 3
        loaded, others = checkpoints.load_state(state), checkpoints.load_rest()
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    for place in (("nested", "array"), ("odd/name",), ("rounded",), ("key",)):
        ours, theirs = others, rest
        for name in place:
            ours, theirs = ours[name], theirs[name]
        np.testing.assert_array_equal(ours, np.asarray(theirs), strict=True)
    for name in ("number", "large", "texts", "empty"):
        assert others[name] == rest[name]
    assert others["nested"]["inner"] == rest["nested"]["inner"]


@pytest.mark.parametrize(
    ("like", "named"),
    [
        ({"a": jnp.ones(3), "b": jnp.ones(1)}, r"lacks \['b'\]: of another run"),
        ({}, r"holds the unknown \['a'\]"),
        (
            {"a": jnp.ones(4)},
            r"holds \['a'\] as \[\[3\], 'float32'\], this run has \[\[4\], 'float32'\]",
        ),
        ({"a": jnp.ones(3, jnp.int32)}, r"this run has \[\[3\], 'int32'\]"),
    ],
)
def test_state_of_another_run_is_named(tmp_path, like, named):
    with RunCheckpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(1, {"a": jnp.ones(3)}, {})
        with pytest.raises(ValueError, match=named):
            checkpoints.load_state(like)


@pytest.mark.parametrize("waits", ["save", "end"])
def test_checkpoint_that_fails_in_the_background_leaves_the_one_before(tmp_path, waits):
    """No file may grow beyond 100 kB, as on a full disk; the error comes with the next checkpoint,
    or at the end.
    """
    handler, limits = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )

    def fill(folder):
        with RunCheckpoints(folder, 1, in_background=True) as checkpoints:
            checkpoints.save(3, {"a": jnp.ones(3)}, {"number": 1})
            checkpoints.checkpointer.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            checkpoints.save(
                6, {"a": jax.random.normal(jax.random.key(0), (100_000,))}, {"number": 2}
            )
            if waits == "save":
                checkpoints.save(9, {"a": jnp.ones(3)}, {})

    try:
        with pytest.raises(ValueError, match="File too large"):
            fill(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    with RunCheckpoints(tmp_path, 1) as checkpoints:
        assert checkpoints.latest == 3
        assert checkpoints.load_rest() == {"number": 1}


def test_background_writes_the_state_of_its_step(tmp_path):
    """What the state is overwritten with meanwhile does not come into the checkpoint."""
    state = {"a": jnp.arange(2_000_000.0)}
    overwrite = jax.jit(
        lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0
    )
    with RunCheckpoints(tmp_path, 2, in_background=True) as checkpoints:
        checkpoints.save(1, state, {})
        jax.block_until_ready(overwrite(state))
    with RunCheckpoints(tmp_path, 2) as checkpoints:
        loaded = checkpoints.load_state({"a": jnp.zeros(2_000_000)})
    np.testing.assert_array_equal(loaded["a"], np.arange(2_000_000.0, dtype=np.float32))


def test_best_checkpoint_stays_beside_the_newest(tmp_path):
    with RunCheckpoints(tmp_path, 2) as checkpoints:
        for step in range(1, 7):
            checkpoints.best = 2 if step < 5 else 5
            checkpoints.save(step, {"a": jnp.full(3, step)}, {})
            if step == 4:
                assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "4"]
                np.testing.assert_array_equal(
                    checkpoints.load_state({"a": jnp.zeros(3, jnp.int32)}, 2)["a"], 2
                )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6"]
