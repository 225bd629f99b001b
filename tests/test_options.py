"""What may be asked of a generation: presets and what overrides them, steps, refusals."""

import subprocess
import sys

import pytest

from jax_lm.options import DEFAULTS, PRESETS, Decoding, GenerationOptions


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"num_steps": 0}, "num_steps=0"),
        ({"num_steps": -3}, "num_steps=-3"),
        ({"tokens_per_step": 0}, "tokens_per_step=0"),
        ({"num_steps": 4, "tokens_per_step": 2}, "tokens_per_step=2: must be 1 with num_steps"),
        ({"tokens_per_step": 2, "decoding": Decoding(preset="turbo")}, "tokens_per_step=2"),
        ({"alg": "greedy"}, "alg='greedy'"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"min_p": 1.1}, "min_p=1.1"),
        ({"min_p": float("nan")}, "min_p=nan"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": 1e300}, r"temperature=1e\+300: must lie in \[0, 1e\+06\]"),
        ({"alg_temp": float("inf")}, r"alg_temp=inf: must lie in \[0, 1e\+06\]"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"alg_temp": -1.0}, "alg_temp=-1.0"),
    ],
)
def test_options_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        GenerationOptions(**options)


TYPES = """
import numpy as np
from jax_lm.options import GenerationOptions
from jax_lm.templates import Template

options = GenerationOptions(max_new_tokens=np.int64(4), top_k=np.int32(5), temperature=np.float32(0))
assert Template.completion("f", options.max_new_tokens) == Template(("f", 4))
for settings in ({"top_k": ()}, {"max_new_tokens": 16.0}, {"num_steps": "8"}, {"temperature": "1"}):
    try:
        GenerationOptions(**settings)
    except ValueError as error:
        print(error)
try:
    Template.infilling(None, 4, "")
except TypeError as error:
    print(error)
"""


def test_numbers_of_numpy_are_numbers_and_other_types_are_named():
    # in a process without the tests' type checks
    done = subprocess.run([sys.executable, "-c", TYPES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "top_k=(): must be at least 1",
        "max_new_tokens=16.0: must be at least 1; 'float' object cannot be interpreted as an integer",
        "num_steps='8': must be at least 1; 'str' object cannot be interpreted as an integer",
        "temperature='1': must lie in [0, 1e+06]; "
        "'<=' not supported between instances of 'int' and 'str'",
        "'NoneType' object cannot be interpreted as an integer",
    ]


def test_steps_follow_from_the_options():
    assert DEFAULTS.steps == 256
    assert GenerationOptions(max_new_tokens=10, tokens_per_step=3).steps == 4
    assert GenerationOptions(num_steps=7).steps == 7
    turbo = Decoding(preset="turbo")
    assert GenerationOptions(decoding=turbo).steps is None
    assert GenerationOptions(num_steps=7, decoding=turbo).steps == 7


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_given_overrides_the_preset(preset):
    chosen = Decoding(preset=preset, cache="dual", refresh_every=3).settings
    assert (chosen.cache, chosen.refresh_every) == ("dual", 3)
    assert chosen.commit == PRESETS[preset].get("commit", "steps")


def test_threshold_and_caches_imply_blocks_unless_overridden():
    assert Decoding().block_length_in(100) == 100
    assert Decoding(commit="threshold").block_length_in(100) == 32
    assert Decoding(cache="window").block_length_in(100) == 32
    assert Decoding(commit="threshold", block_length=0).block_length_in(100) == 100
    assert Decoding(block_length=64).block_length_in(40) == 40


def test_presets():
    assert list(PRESETS) == ["exact", "fast", "turbo"]
    assert Decoding(preset="exact").settings == Decoding().settings
    assert (
        Decoding(preset="turbo").settings
        == Decoding(commit="threshold", threshold=0.9, cache="window", block_length=32).settings
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"preset": "best"}, "preset='best'"),
        ({"entropy_bound": -0.1}, "entropy_bound=-0.1"),
        ({"commit": "best"}, "commit='best'"),
        ({"cache": "all"}, "cache='all'"),
        ({"cache": "dual", "first_token": "any"}, "first_token='any'"),
        ({"threshold": 0.0}, "threshold=0.0"),
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"factor": 0.0}, "factor=0.0"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"decay": 1.5}, "decay=1.5"),
        ({"block_length": -1}, "block_length=-1"),
        ({"cache": "window", "refresh_every": 0}, "refresh_every=0"),
        ({"refresh_every": 2}, "refresh_every=2: must be 1 with cache='none'"),
        ({"active_blocks": 2, "first_token": "force"}, "first_token='force': must be 'rule'"),
    ],
)
def test_decodings_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        Decoding(**options)
