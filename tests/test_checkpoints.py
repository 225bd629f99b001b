"""Checkpoints of a run: everything comes back as it was."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_lm.training.checkpoints import RunCheckpoints


def test_state_and_rest_come_back_as_they_were(tmp_path):
    state = {"layers": {0: {"weight": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)}}, "count": jnp.int32(7)}
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
        ({"a": jnp.ones(4)}, r"holds \['a'\] as \[\[3\], 'float32'\], this run has \[\[4\], 'float32'\]"),
        ({"a": jnp.ones(3, jnp.int32)}, r"this run has \[\[3\], 'int32'\]"),
    ],
)
def test_state_of_another_run_is_named(tmp_path, like, named):
    with RunCheckpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(1, {"a": jnp.ones(3)}, {})
        with pytest.raises(ValueError, match=named):
            checkpoints.load_state(like)
