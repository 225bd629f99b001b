"""Checkpoints on disk: bits in and out, and everything that is refused."""

import fnmatch
import json
import pickle
import random
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases.reference import GOLDEN
from flax import nnx
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import INDEX, WEIGHTS, resolve
from jax_lm.checkpoints.loading import LoadSpec, load_tensors, open_checkpoint
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import verify
from jax_lm.models.dream import DreamConfig, DreamForCausalLM, parameter_shapes, parameters

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
UP, KEY_BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.2.self_attn.k_proj.bias"
FIRST_SHARD_NAME = "model.embed_tokens.weight"
HUB_NAME = "apple/DiffuCoder-7B-Instruct"


def bits(array):
    """What makes two arrays the same: NaN equals NaN here, 0.0 differs from -0.0."""
    array = np.asarray(array)
    return str(array.dtype), array.shape, array.tobytes()


def stored(folder):
    """All tensors of a folder, as safetensors reads them."""
    return {
        name: value
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def assert_same_bits(ours, theirs):
    assert set(ours) == set(theirs)
    assert [name for name in ours if bits(ours[name]) != bits(theirs[name])] == []


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the recorded checkpoint, to be damaged."""
    return Path(shutil.copytree(GOLDEN / "checkpoint", tmp_path / "checkpoint"))


@pytest.fixture(scope="module")
def odd_model(tiny_config):
    """Float32 weights with the values that careless copying changes."""
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42, 3.4e38, 1 + 2**-23, -1.5], np.float32)
    model.model.norm.weight[...] = jnp.asarray(np.tile(odd, 4))
    return model


def test_sharded_checkpoint_is_read_bit_for_bit(golden_model):
    assert_same_bits(parameters(golden_model), stored(GOLDEN / "checkpoint"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_keeps_every_bit(odd_model, tmp_path, dtype):
    first, second = tmp_path / "new" / "first", tmp_path / "second"
    odd_model.save_pretrained(first, dtype=dtype)
    loaded = DreamForCausalLM.from_pretrained(first, allow_nonfinite=True)
    assert loaded.dtype == jnp.dtype(dtype)
    assert_same_bits(parameters(loaded), stored(first))
    assert_same_bits(
        stored(first), {k: np.asarray(v).astype(dtype) for k, v in parameters(odd_model).items()}
    )
    loaded.save_pretrained(second)
    for name in (WEIGHTS, "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_saved_folder_holds_one_weight_file_that_pytorch_accepts(odd_model, tmp_path):
    odd_model.save_pretrained(tmp_path, dtype="bfloat16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", WEIGHTS]
    with safe_open(tmp_path / WEIGHTS, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert odd_model.dtype == jnp.float32


def test_config_round_trip(odd_model, tmp_path):
    odd_model.save_pretrained(tmp_path, dtype="bfloat16")
    fields = json.loads((tmp_path / "config.json").read_text())
    assert (
        DreamConfig.from_dict(fields) == DreamForCausalLM.read_config(tmp_path) == odd_model.config
    )
    assert (fields["architectures"], fields["torch_dtype"]) == (["DreamModel"], "bfloat16")


def test_dtype_argument_rounds_to_nearest():
    loaded = parameters(DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", dtype="bfloat16"))
    expected = {
        name: value.astype(ml_dtypes.bfloat16)
        for name, value in stored(GOLDEN / "checkpoint").items()
    }
    assert_same_bits(loaded, expected)


def test_dtype_argument_widens_exactly(odd_model, tmp_path):
    odd_model.save_pretrained(tmp_path, dtype="bfloat16")
    loaded = parameters(
        DreamForCausalLM.from_pretrained(tmp_path, dtype="float32", allow_nonfinite=True)
    )
    assert_same_bits(
        loaded, {name: value.astype(np.float32) for name, value in stored(tmp_path).items()}
    )


def test_dtype_argument_must_be_a_float():
    with pytest.raises(ValueError, match="int32"):
        DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", dtype="int32")


def test_progress_rises_to_the_total():
    calls = []
    DreamForCausalLM.from_pretrained(
        GOLDEN / "checkpoint", on_progress=lambda *call: calls.append(call)
    )
    reads, totals = zip(*calls, strict=True)
    size = sum(tensor.nbytes for tensor in stored(GOLDEN / "checkpoint").values())
    assert set(totals) == {size}
    assert list(reads) == sorted(reads)
    assert reads[-1] == size
    assert len(set(reads)) >= 39  # one step for each tensor


def test_errors_of_the_callback_are_not_taken_for_damage():
    def hung_up(read, total):
        raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", on_progress=hung_up)


def failures(folder):
    return [check.found for check in verify(folder) if not check.passed]


def test_tied_model_takes_a_head_in_the_file_that_equals_the_table_alone(tiny_config, tmp_path):
    model = DreamForCausalLM(
        DreamConfig.from_dict(tiny_config.to_dict() | {"tie_word_embeddings": True})
    )
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    table = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": table.copy()}, tmp_path / WEIGHTS)
    assert_same_bits(parameters(DreamForCausalLM.from_pretrained(tmp_path)), tensors)
    assert failures(tmp_path) == []
    # One number of another head.
    other = table.copy()
    other[7, 3] += 1
    save_file(tensors | {"lm_head.weight": other}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"ties 'lm_head.weight' to 'model.embed_tokens"):
        DreamForCausalLM.from_pretrained(tmp_path)
    assert "tie_word_embeddings to false" in failures(tmp_path)[0]


def test_one_file_beside_an_index_holds_the_same_weights(checkpoint):
    tensors = stored(checkpoint)
    save_file(tensors, checkpoint / WEIGHTS)
    assert_same_bits(parameters(DreamForCausalLM.from_pretrained(checkpoint)), tensors)
    tensors[KEY_BIAS] = tensors[KEY_BIAS] + 1
    save_file(tensors, checkpoint / WEIGHTS)
    said = re.escape(f"are two models: {KEY_BIAS!r} differs")
    with pytest.raises(CheckpointError, match=said):
        DreamForCausalLM.from_pretrained(checkpoint)
    assert re.search(said, failures(checkpoint)[0])


@pytest.mark.parametrize(("value", "int8"), [(np.nan, False), (-np.inf, True)])
def test_weights_that_are_not_finite_are_refused_by_name(checkpoint, tmp_path, value, int8):
    tensors = load_file(checkpoint / SHARDS[1])
    tensors[UP] = tensors[UP].copy()
    tensors[UP][3, :2] = value
    save_file(tensors, checkpoint / SHARDS[1], metadata={"format": "pt"})
    said = f"{UP!r} in .*holds 2 numbers that are NaN or infinite"
    with pytest.raises(CheckpointError, match=said):
        DreamForCausalLM.from_pretrained(checkpoint, quantization="int8" if int8 else None)
    assert re.search(said, failures(checkpoint)[0])
    with pytest.raises(CheckpointError, match=said):
        convert(checkpoint, tmp_path / "orbax", Conversion())
    assert not (tmp_path / "orbax").exists()
    # Whoever must can; also through Orbax, whose check is the same.
    loaded = DreamForCausalLM.from_pretrained(checkpoint, allow_nonfinite=True)
    assert np.sum(~np.isfinite(np.asarray(parameters(loaded)[UP]))) == 2
    convert(checkpoint, tmp_path / "orbax", Conversion(allow_nonfinite=True))
    with pytest.raises(CheckpointError, match=f"{UP!r} in"):
        DreamForCausalLM.from_pretrained(tmp_path / "orbax")


def test_saving_replaces_what_the_folder_held(odd_model, tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    odd_model.save_pretrained(tmp_path)
    loaded = DreamForCausalLM.from_pretrained(tmp_path, allow_nonfinite=True)
    assert_same_bits(parameters(loaded), parameters(odd_model))


def test_saving_replaces_a_sharded_checkpoint(checkpoint):
    model = DreamForCausalLM.from_pretrained(checkpoint)
    model.model.norm.weight[...] = jnp.full(64, 7.0)
    model.save_pretrained(checkpoint)
    assert_same_bits(parameters(DreamForCausalLM.from_pretrained(checkpoint)), parameters(model))


@pytest.mark.parametrize(
    "error", [OSError("disk full"), KeyboardInterrupt()], ids=["disk full", "interrupted"]
)
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_interrupted_save_leaves_the_old_files(
    odd_model, tiny_model, tmp_path, monkeypatch, error, name
):
    tiny_model.save_pretrained(tmp_path)
    before = (tmp_path / name).read_bytes()

    def half(target, *arguments, **options):
        Path(target).write_bytes(b"half")
        raise error

    if name == WEIGHTS:
        monkeypatch.setattr(
            "jax_lm.checkpoints.stored.save_file", lambda tensors, path, **options: half(path)
        )
    else:
        monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(type(error)):
        odd_model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", WEIGHTS]
    assert (tmp_path / name).read_bytes() == before


def write(name, text):
    """A damage: the file now holds this text."""
    return lambda folder: (folder / name).write_text(text)


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def place(name, shard):
    """A damage: the index says that `name` lies in `shard`; None takes the name out of the index."""

    def damage(folder):
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"][name] = shard
        if shard is None:
            del index["weight_map"][name]
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def put(name, change):
    """A damage: the second shard's tensor becomes `change(tensor)`; None takes it out."""

    def damage(folder):
        tensors = load_file(folder / SHARDS[1])
        value = change(tensors.pop(name, None))
        save_file(tensors if value is None else tensors | {name: value}, folder / SHARDS[1])

    return damage


def both(*damages):
    return lambda folder: [damage(folder) for damage in damages]


def leaves(shard):
    return pytest.param(
        place(UP, shard),
        f"names {shard!r}, which is not a file of this folder",
        id=f"shard {shard!r}",
    )


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(remove(INDEX, *SHARDS), f"has neither {WEIGHTS} nor {INDEX}", id="no weights"),
        pytest.param(remove("config.json"), "has no config.json", id="no config"),
        pytest.param(
            write("config.json", "{"), "config.json is not valid JSON", id="config cut off"
        ),
        pytest.param(
            write("config.json", "[]"),
            "config.json must hold a JSON object, not list",
            id="config list",
        ),
        pytest.param(
            lambda f: (f / "config.json").write_bytes(b"\xff{}"),
            "config.json is not valid",
            id="config bytes",
        ),
        pytest.param(write(INDEX, "nonsense"), f"{INDEX} is not valid JSON", id="index no JSON"),
        pytest.param(
            write(INDEX, "[]"), f"{INDEX} must hold a JSON object, not list", id="index list"
        ),
        pytest.param(write(INDEX, "{}"), f"{INDEX} has no weight_map", id="index empty"),
        pytest.param(
            write(INDEX, '{"weight_map": []}'), f"{INDEX} has no weight_map", id="map list"
        ),
        pytest.param(remove(SHARDS[1]), f"names {SHARDS[1]!r}, which is absent", id="absent shard"),
        pytest.param(
            place(UP, "other.safetensors"),
            "names 'other.safetensors', which is absent",
            id="renamed shard",
        ),
        pytest.param(
            place(UP, "config.json"),
            "config.json is damaged or not a safetensors file",
            id="shard of JSON",
        ),
        leaves("../x.safetensors"),
        leaves("/etc/passwd"),
        leaves("a/b.safetensors"),
        leaves(""),
        leaves(".."),
        pytest.param(
            both(put(UP, lambda t: None), place(UP, None)),
            f"lacks tensor '{UP}'",
            id="missing tensor",
        ),
        pytest.param(
            both(put(KEY_BIAS, lambda t: None), place(KEY_BIAS, None)),
            f"lacks tensor '{KEY_BIAS}'",
            id="missing bias",
        ),
        pytest.param(
            both(
                put("extra.weight", lambda t: np.ones(3, np.float32)),
                place("extra.weight", SHARDS[1]),
            ),
            "holds the unknown tensor 'extra.weight'",
            id="unknown tensor",
        ),
        pytest.param(
            put("extra.weight", lambda t: np.ones(3, np.float32)),
            f"{SHARDS[1]} holds 'extra.weight'",
            id="not in index",
        ),
        pytest.param(put(UP, lambda t: None), f"{SHARDS[1]} lacks '{UP}'", id="not in shard"),
        pytest.param(place(UP, SHARDS[0]), f"{SHARDS[0]} lacks '{UP}'", id="in another shard"),
        pytest.param(
            place(FIRST_SHARD_NAME, SHARDS[1]),
            f"{SHARDS[0]} holds '{FIRST_SHARD_NAME}'",
            id="in an earlier shard",
        ),
        pytest.param(put(UP, lambda t: t.T.copy()), f"'{UP}' in", id="transposed"),
        pytest.param(
            put(UP, lambda t: t.T.copy()),
            "shape (64, 160), the config asks for (160, 64)",
            id="shapes",
        ),
        pytest.param(put(UP, lambda t: t[None]), "shape (1, 160, 64)", id="one dimension more"),
        pytest.param(put(UP, lambda t: t.astype(np.int32)), f"'{UP}' in", id="integer tensor"),
        pytest.param(put(UP, lambda t: t.astype(np.int32)), "dtype int32", id="integer dtype"),
        pytest.param(put(UP, lambda t: t.astype(bool)), "dtype bool", id="boolean dtype"),
        pytest.param(
            write(SHARDS[1], "garbage" * 99), f"{SHARDS[1]} is damaged", id="garbage shard"
        ),
        (place(UP, "x" * 300), "x" * 300),
        (write("config.json", "[" * 100_000), "config.json"),
        (write("config.json", "1" * 5000), "config.json"),
    ],
)
def test_damage_is_refused_by_name(checkpoint, damage, named):
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=re.escape(named)):
        DreamForCausalLM.from_pretrained(checkpoint)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"garbage" * 99, b"\xff" * 8 + b"{}", pickle.dumps({"a": 1})]
)
def test_file_that_is_no_safetensors_is_refused(checkpoint, content):
    (checkpoint / INDEX).unlink()
    (checkpoint / WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} is damaged or not a safetensors file"):
        DreamForCausalLM.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def whole(odd_model, tmp_path_factory):
    """One file, its shapes, and what it holds."""
    folder = tmp_path_factory.mktemp("whole")
    odd_model.save_pretrained(folder)
    return (folder / WEIGHTS).read_bytes(), parameter_shapes(odd_model.config), stored(folder)


def test_truncated_files_are_refused(whole, tmp_path):
    content, shapes, _ = whole
    data = 8 + int.from_bytes(content[:8], "little")
    edges = [0, 1, 7, 8, 9, data - 1, data, data + 1, len(content) - 4, len(content) - 1]
    for length in [*edges, *random.Random(0).sample(range(len(content)), 50)]:
        (tmp_path / WEIGHTS).write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=WEIGHTS):
            load_tensors(open_checkpoint(tmp_path), LoadSpec(shapes=shapes))


def test_flipped_header_bits_are_refused_or_change_nothing(whole, tmp_path):
    content, shapes, expected = whole
    data = 8 + int.from_bytes(content[:8], "little")
    rng, refused = random.Random(1), 0
    for _ in range(150):
        position, bit = rng.randrange(data), rng.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        (tmp_path / WEIGHTS).write_bytes(damaged)
        try:
            loaded = load_tensors(open_checkpoint(tmp_path), LoadSpec(shapes=shapes))
        except CheckpointError:
            refused += 1
        else:
            assert_same_bits(loaded, expected)
    assert refused >= 100  # the others hit the metadata or the spaces that pad the header


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(
        CheckpointError, match=re.escape(f"{str(tmp_path / 'none')!r}: no such folder")
    ):
        resolve(tmp_path / "none")


def test_file_in_place_of_a_folder_is_named():
    path = GOLDEN / "checkpoint" / "config.json"
    with pytest.raises(CheckpointError, match=re.escape(f"{str(path)!r} is a file")):
        DreamForCausalLM.from_pretrained(path)


@pytest.mark.parametrize(
    "name",
    [
        "no/such/thing",
        "name",
        "a b/c",
        "https://huggingface.co/a/b",
        "/no/where",
        "~nobody-of-this-name/x",
        "x" * 300,
        "",
    ],
)
def test_text_that_is_no_hub_id_never_reaches_the_hub(monkeypatch, name):
    monkeypatch.setattr(
        huggingface, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub")
    )
    with pytest.raises(CheckpointError, match=re.escape(f"model {name!r}")):
        resolve(name)


@pytest.mark.parametrize("error", [LocalEntryNotFoundError, ConnectionError, ValueError])
def test_hub_id_that_cannot_be_had_is_named_with_the_reason(monkeypatch, error):
    def offline(repo_id, **options):
        raise error("no network, and\nnot in the cache")

    monkeypatch.setattr(huggingface, "snapshot_download", offline)
    with pytest.raises(CheckpointError) as caught:
        DreamForCausalLM.from_pretrained(HUB_NAME)
    assert HUB_NAME in str(caught.value)
    assert str(caught.value).endswith("(no network, and)")


def test_only_what_is_read_or_passed_on_is_downloaded(monkeypatch, golden_model):
    calls = []

    def download(repo_id, *, allow_patterns, **options):
        calls.append((repo_id, allow_patterns))
        return str(GOLDEN / "checkpoint")

    monkeypatch.setattr(huggingface, "snapshot_download", download)
    assert_same_bits(
        parameters(DreamForCausalLM.from_pretrained(HUB_NAME)), parameters(golden_model)
    )
    ((repo_id, patterns),) = calls
    assert repo_id == HUB_NAME
    names = (
        "config.json",
        INDEX,
        *SHARDS,
        "vocab.json",
        "merges.txt",
        "added_tokens.json",
        "chat_template.jinja",
    )
    # The publisher's code goes along with what is trained, as a file; it is not executed.
    names = (*names, "modeling_dream.py", "LICENSE")
    others = ("pytorch_model.bin", "model.pt", "weights.pkl", "model.ckpt", "run.sh")
    for name in (*names, *others):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns) == (name in names)


def test_weights_stay_on_the_hub_when_only_the_description_is_wanted(monkeypatch):
    calls = []
    monkeypatch.setattr(
        huggingface,
        "snapshot_download",
        lambda _, allow_patterns, **options: calls.append(allow_patterns) or ".",
    )
    resolve(HUB_NAME, with_weights=False)
    assert not any(fnmatch.fnmatch(SHARDS[0], pattern) for pattern in calls[0])
    assert any(fnmatch.fnmatch("config.json", pattern) for pattern in calls[0])


class Trap:
    """Unpickling this writes the marker."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_code_of_a_checkpoint_is_never_executed(checkpoint, tmp_path):
    marker = tmp_path / "executed"
    for name in (
        "modeling_dream.py",
        "configuration_dream.py",
        "__init__.py",
        "conftest.py",
        "sitecustomize.py",
    ):
        (checkpoint / name).write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    for name in ("pytorch_model.bin", "model.pkl", "training_args.bin"):
        (checkpoint / name).write_bytes(pickle.dumps(Trap(marker)))
    DreamForCausalLM.from_pretrained(checkpoint)
    remove(INDEX, *SHARDS)(checkpoint)
    with pytest.raises(CheckpointError, match=WEIGHTS):
        DreamForCausalLM.from_pretrained(checkpoint)
    assert not marker.exists()
    pickle.loads((checkpoint / "model.pkl").read_bytes())
    assert marker.exists()  # the trap works
