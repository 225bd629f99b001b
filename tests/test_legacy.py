"""Pickles of the old port: arrays come out, and nothing else does anything."""

import os
import pickle
import re
import struct

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from flax.core import freeze

from jax_lm.checkpoints.legacy import list_tensors
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.models.dream import DreamForCausalLM, parameters

OLD_NAMES = {
    "model.embed_tokens.weight": "DreamModel_0/Embed_0/embedding",
    "model.norm.weight": "DreamModel_0/DreamRMSNorm_0/weight",
    "lm_head.weight": "Dense_0/kernel",
}
OLD_PARTS = {
    "input_layernorm.weight": "DreamRMSNorm_0/weight",
    "post_attention_layernorm.weight": "DreamRMSNorm_1/weight",
    "mlp.gate_proj.weight": "DreamMLP_0/Dense_0/kernel",
    "mlp.up_proj.weight": "DreamMLP_0/Dense_1/kernel",
    "mlp.down_proj.weight": "DreamMLP_0/Dense_2/kernel",
}


def old_name(name):
    if name in OLD_NAMES:
        return OLD_NAMES[name]
    _, _, layer, part = name.split(".", 3)
    if part not in OLD_PARTS:
        _, projection, kind = part.split(".")
        return f"DreamModel_0/layers_{layer}/DreamAttention_0/{projection}/{kind.replace('weight', 'kernel')}"
    return f"DreamModel_0/layers_{layer}/{OLD_PARTS[part]}"


def old_tree(model, *, with_bias=True):
    """What the old port pickled: nested dicts, kernels [in, out]."""
    tree = {}
    for name, value in parameters(model).items():
        if name.endswith("bias") and not with_bias:
            continue
        *keys, last = old_name(name).split("/")
        place = tree
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = np.asarray(value).T if last == "kernel" else np.asarray(value)
    return {"params": tree}


@pytest.fixture(scope="module")
def biased_model(tiny_config):
    """Biases are not zero here."""
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(1))
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            projection.bias[...] = jnp.arange(projection.bias.shape[0], dtype=jnp.float32)
    return model


@pytest.fixture
def write(tmp_path, tiny_model):
    """Writes a params.pkl with these bytes beside a config.json."""
    tiny_model.save_pretrained(tmp_path / "old")
    (tmp_path / "old" / "model.safetensors").unlink()

    def written(content):
        (tmp_path / "old" / "params.pkl").write_bytes(content)
        return tmp_path / "old"

    return written


def jax_leaves(tree):
    return {
        key: jax_leaves(value) if isinstance(value, dict) else jnp.asarray(value)
        for key, value in tree.items()
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "wrap", [dict, freeze, jax_leaves], ids=["dict", "FrozenDict", "jax.Array"]
)
def test_every_parameter_arrives_out_in(write, biased_model, protocol, wrap):
    folder = write(pickle.dumps(wrap(old_tree(biased_model)), protocol=protocol))
    found, wanted = list_tensors(folder / "params.pkl"), parameters(biased_model)
    assert set(found) == set(wanted)
    assert [name for name in wanted if not np.array_equal(found[name].view(), wanted[name])] == []


def test_converted_model_is_the_model(write, biased_model, tmp_path):
    folder = write(pickle.dumps(old_tree(biased_model)))
    convert(folder, tmp_path / "new", Conversion(format="huggingface"))
    loaded, wanted = (
        parameters(DreamForCausalLM.from_pretrained(tmp_path / "new")),
        parameters(biased_model),
    )
    assert [name for name in wanted if not np.array_equal(loaded[name], wanted[name])] == []


def test_a_converted_pickle_has_the_precision_that_was_asked_for(write, biased_model, tmp_path):
    folder = write(pickle.dumps(old_tree(biased_model)))
    convert(folder, tmp_path / "new", Conversion(format="huggingface", dtype="bfloat16", int8=True))
    assert DreamForCausalLM.is_int8(tmp_path / "new")
    loaded = parameters(DreamForCausalLM.from_pretrained(tmp_path / "new", quantization="int8"))
    assert {str(value.dtype) for value in loaded.values()} >= {"int8", "bfloat16"}


def test_missing_biases_are_refused_unless_allowed(write, biased_model, tmp_path):
    folder = write(pickle.dumps(old_tree(biased_model, with_bias=False)))
    with pytest.raises(CheckpointError, match=r"lacks 6 q, k and v biases.*--allow-missing-bias"):
        convert(folder, tmp_path / "new", Conversion())
    assert not (tmp_path / "new").exists()
    convert(folder, tmp_path / "new", Conversion(format="huggingface", allow_missing_bias=True))
    loaded = parameters(DreamForCausalLM.from_pretrained(tmp_path / "new"))
    assert all(not value.any() for name, value in loaded.items() if name.endswith("bias"))


def test_generation_refuses_pickles(write, biased_model):
    folder = write(pickle.dumps(old_tree(biased_model)))
    with pytest.raises(
        CheckpointError, match="pickle of an old port: convert it with `diffucoder convert`"
    ):
        DreamForCausalLM.from_pretrained(folder)


def test_bfloat16_keeps_its_bits(write):
    values = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    tree = {
        "model": {"norm": {"weight": values}, "embed_tokens": {"embedding": jnp.asarray(values)}}
    }
    found = list_tensors(write(pickle.dumps(tree)) / "params.pkl")
    assert found["model.norm.weight"].view().tobytes() == values.T.tobytes()
    assert found["model.embed_tokens.weight"].view().tobytes() == values.tobytes()


class Runs:
    """Unpickled by pickle.loads, this would leave a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_code_is_refused_by_name_and_does_not_run(write, tmp_path):
    for protocol in range(6):
        folder = write(pickle.dumps({"params": {"a": Runs(tmp_path / "ran")}}, protocol=protocol))
        # Protocols 0 and 1 are refused for how they are written, before the name.
        with pytest.raises(CheckpointError, match=r"names (posix|nt)\.system|uses"):
            list_tensors(folder / "params.pkl")
    assert not (tmp_path / "ran").exists()


def nested(levels):
    """Two entries per level that are the same dict: 2 ** levels paths from a few hundred bytes."""
    tree = {"x": np.zeros(1, np.float32)}
    for _ in range(levels):
        tree = {"a": tree, "b": tree}
    return pickle.dumps(tree)


def short(text):
    return b"\x8c" + bytes([len(text)]) + text


PROTOCOL = b"\x80\x04"
NDARRAY = short(b"numpy") + short(b"ndarray") + b"\x93"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param(
            nested(30), "more than 100,000 entries or 12 levels", id="billion paths, deep"
        ),
        pytest.param(
            lambda: pickle.dumps({str(n): {"a": {"b": {}}} for n in range(60_000)}),
            "more than 100,000 entries",
            id="many dicts",
        ),
        pytest.param(
            lambda: PROTOCOL + b"}(" + b"K\x00K\x00" * 600_000 + b"u.",
            "more than 1,000,000 instructions",
            id="billion entries",
        ),
        pytest.param(PROTOCOL + b"}r\xff\xff\xff\x7f.", "puts memo entry", id="huge memo"),
        pytest.param(
            PROTOCOL + b"\x8e" + struct.pack("<Q", 2**60) + b"x.", "damaged", id="huge bytes"
        ),
        pytest.param(PROTOCOL + NDARRAY + b".", "holds StandIn at ''", id="a name alone"),
        pytest.param(PROTOCOL + NDARRAY + b")R.", "calls ndarray", id="calling ndarray"),
        pytest.param(
            PROTOCOL + NDARRAY + b"}" + short(b"name") + short(b"x") + b"sb.",
            "changes ndarray",
            id="build",
        ),
        pytest.param(
            pickle.dumps({1: np.zeros(1, np.float32)}),
            "keys under '' that are not text",
            id="number key",
        ),
        pytest.param(pickle.dumps({"a": [1]}), "uses EMPTY_LIST", id="list"),
        pytest.param(pickle.dumps({"a": 1}), "holds int at 'a'", id="number"),
        pytest.param(
            pickle.dumps({"a": np.array([{}])}), "uses EMPTY_LIST|dtype 'O8'", id="objects"
        ),
        pytest.param(pickle.dumps({"a": np.arange(3)}), "dtype 'i8'", id="integers"),
        pytest.param(pickle.dumps({"a": np.zeros(3, ">f4")}), "dtype 'f4'", id="other byte order"),
        pytest.param(pickle.dumps(re.compile("a")), r"names re\._compile", id="another class"),
        pytest.param(b"", "damaged", id="empty"),
        pytest.param(b"garbage", "damaged|uses", id="garbage"),
        pytest.param(pickle.dumps({"a": np.zeros(3, np.float32)})[:-5], "damaged", id="truncated"),
    ],
)
def test_hostile_pickles_are_refused(write, content, named):
    """The largest are made when they are needed, not by every process that collects the tests."""
    folder = write(content() if callable(content) else content)
    with pytest.raises(CheckpointError, match=named) as caught:
        list_tensors(folder / "params.pkl")
    assert "params.pkl" in str(caught.value)


def test_huge_empty_array_takes_no_memory(write):
    reconstruct = short(b"numpy.core.multiarray") + short(b"_reconstruct") + b"\x93"
    shape = b"\x8a\x08" + struct.pack("<q", 2**50) + b"\x85"
    content = (
        PROTOCOL + b"}" + short(b"a") + reconstruct + NDARRAY + shape + short(b"b") + b"\x87Rs."
    )
    with pytest.raises(CheckpointError, match="holds NoneType at 'a'"):
        list_tensors(write(content) / "params.pkl")


def test_flipped_bits_never_do_more_than_refuse(write, biased_model):
    content = pickle.dumps(old_tree(biased_model))
    rng = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(content)
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
        try:
            list_tensors(write(bytes(changed)) / "params.pkl")
        except CheckpointError:
            continue
