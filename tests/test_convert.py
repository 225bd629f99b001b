"""Conversions and their verification: every bit survives, and a killed run leaves nothing that
loads.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases.reference import GOLDEN
from safetensors.numpy import load_file, save_file

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import INDEX, WEIGHTS
from jax_lm.checkpoints.loading import ORBAX_FOLDER
from jax_lm.checkpoints.stored import CheckpointError, quantize
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import verify
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM, parameters

CHECKPOINT = GOLDEN / "checkpoint"
CHILD = """
import sys
from pathlib import Path
from jax_lm.conversion.convert import Conversion, convert
print("ready", flush=True)
def told(done, total):
    print(done, total, flush=True)
convert(Path(sys.argv[1]), Path(sys.argv[2]), Conversion(), on_progress=told)
print("done", flush=True)
"""


def stored(folder):
    """Every tensor of a folder with safetensors: dtype, shape and bytes."""
    values = {
        name: value
        for path in folder.glob("*.safetensors")
        for name, value in load_file(path).items()
    }
    return {
        name: (str(value.dtype), value.shape, value.tobytes()) for name, value in values.items()
    }


def failures(folder):
    return [check.found for check in verify(folder) if not check.passed]


@pytest.fixture(scope="module")
def orbax_copy(tmp_path_factory):
    """The recorded checkpoint in the Orbax layout."""
    folder = tmp_path_factory.mktemp("orbax") / "copy"
    convert(CHECKPOINT, folder, Conversion())
    return folder


def test_round_trip_through_orbax_keeps_every_bit(orbax_copy, tmp_path):
    done = convert(orbax_copy, tmp_path / "back", Conversion())
    assert done.format == "huggingface"
    assert stored(tmp_path / "back") == stored(CHECKPOINT)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads(
        (CHECKPOINT / "config.json").read_text()
    )
    assert failures(orbax_copy) == failures(tmp_path / "back") == []


def test_built_in_model_survives_the_round_trip(builtin_folder, tmp_path):
    convert(builtin_folder, tmp_path / "orbax", Conversion())
    convert(tmp_path / "orbax", tmp_path / "back", Conversion())
    assert stored(tmp_path / "back") == stored(builtin_folder)
    names = {path.name for path in builtin_folder.iterdir()}
    assert {path.name for path in (tmp_path / "back").iterdir()} == names | {"SHA256SUMS"}


def test_orbax_loads_as_it_is_and_in_another_dtype(orbax_copy, golden_model):
    loaded, rounded = (
        parameters(DreamForCausalLM.from_pretrained(orbax_copy)),
        parameters(golden_model),
    )
    assert all(np.array_equal(loaded[name], rounded[name]) for name in rounded)
    loaded = parameters(DreamForCausalLM.from_pretrained(orbax_copy, dtype="bfloat16"))
    expected = {
        name: np.asarray(value).astype(ml_dtypes.bfloat16) for name, value in rounded.items()
    }
    assert [name for name in expected if loaded[name].tobytes() != expected[name].tobytes()] == []


def test_dtype_of_the_copy(tmp_path):
    convert(CHECKPOINT, tmp_path / "half", Conversion(format="huggingface", dtype="bfloat16"))
    assert {dtype for dtype, _, _ in stored(tmp_path / "half").values()} == {"bfloat16"}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("form", ["huggingface", "orbax"])
def test_int8_copy_is_what_quantising_on_the_way_gives(tmp_path, form):
    convert(CHECKPOINT, tmp_path / "int8", Conversion(format=form, int8=True))
    ours = parameters(DreamForCausalLM.from_pretrained(tmp_path / "int8"))
    theirs = parameters(DreamForCausalLM.from_pretrained(CHECKPOINT, quantization="int8"))
    assert set(ours) == set(theirs)
    assert all(
        ours[name].dtype == theirs[name].dtype and np.array_equal(ours[name], theirs[name])
        for name in ours
    )
    assert failures(tmp_path / "int8") == []
    assert sum(value.nbytes for value in ours.values()) < 0.4 * 781_568


def test_a_pickle_beside_shards_or_orbax_is_not_read(orbax_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 200_000)
    convert(orbax_copy, tmp_path / "shards", Conversion())
    shutil.copytree(orbax_copy, tmp_path / "orbax")
    for name in ("shards", "orbax"):
        (tmp_path / name / "params.pkl").write_text("no pickle")
        convert(tmp_path / name, tmp_path / f"{name}.copy", Conversion(format="huggingface"))
        assert stored(tmp_path / f"{name}.copy").keys() == stored(tmp_path / "shards").keys()


def test_large_checkpoints_are_written_in_shards(orbax_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 200_000)
    convert(orbax_copy, tmp_path / "back", Conversion())
    files = sorted(path.name for path in (tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert not (tmp_path / "back" / WEIGHTS).exists()
    assert (tmp_path / "back" / INDEX).is_file()
    assert stored(tmp_path / "back") == stored(CHECKPOINT)
    assert failures(tmp_path / "back") == []


def test_existing_target_is_refused_and_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        convert(CHECKPOINT, tmp_path, Conversion())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_bucket_is_no_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"destination='gs:/bucket/copy': must be a local path"):
        convert(CHECKPOINT, Path("gs://bucket/copy"), Conversion())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", [{"format": "pickle"}, {"dtype": "int4"}])
def test_unknown_formats_are_refused(field):
    with pytest.raises(ValueError, match=next(iter(field.values()))):
        Conversion(**field)


def test_what_is_not_read_back_as_written_never_appears(tmp_path, monkeypatch):
    def careless(tensors, path, **options):
        first = next(iter(tensors))
        save_file(tensors | {first: np.zeros_like(tensors[first])}, path, **options)

    monkeypatch.setattr("jax_lm.checkpoints.stored.save_file", careless)
    with pytest.raises(CheckpointError, match="were not read back as they were written"):
        convert(CHECKPOINT, tmp_path / "copy", Conversion(format="huggingface"))
    assert list(tmp_path.iterdir()) == []


def damaged(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "damaged"))


def test_verify_finds_a_changed_bit_of_the_weights(orbax_copy, tmp_path):
    folder = damaged(orbax_copy, tmp_path)
    largest = max((folder / ORBAX_FOLDER).rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert failures(folder) == [f"{largest.name} changed since it was written"]


def test_verify_finds_a_missing_part(orbax_copy, tmp_path):
    folder = damaged(orbax_copy, tmp_path)
    shutil.rmtree(folder / ORBAX_FOLDER / "state")
    assert len(failures(folder)) == 1
    with pytest.raises(CheckpointError):
        DreamForCausalLM.from_pretrained(folder)


def test_verify_finds_what_the_config_does_not_ask_for(tmp_path):
    folder = damaged(CHECKPOINT, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    (found,) = failures(folder)
    assert "unknown tensor 'model.layers.2" in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vocab.json", ""),
        ("vocab.json", "[]"),
        ("added_tokens.json", "[]"),
        ("tokenizer_config.json", "{"),
        ("chat_template.jinja", "{% for %}"),
    ],
)
def test_verify_finds_a_tokenizer_that_cannot_be_read(tmp_path, name, text):
    shutil.copytree(BUILTIN_MODEL, tmp_path / "copy")
    assert failures(tmp_path / "copy") == []
    (tmp_path / "copy" / name).write_text(text)
    assert len(failures(tmp_path / "copy")) == 1


def test_verify_takes_weights_without_a_tokenizer(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((BUILTIN_MODEL / name).read_bytes())
    assert failures(tmp_path) == []
    assert "none" in [check.found for check in verify(tmp_path)]


def test_verify_refuses_sums_of_files_outside(orbax_copy, tmp_path):
    folder = damaged(orbax_copy, tmp_path)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../etc/passwd\n")
    (found,) = failures(folder)
    assert "names '../../etc/passwd'" in found


def test_int8_model_generates(tmp_path, builtin_folder):
    convert(builtin_folder, tmp_path / "int8", Conversion(int8=True))
    engine = DiffuCoderInference(tmp_path / "int8", verbose=False)
    assert engine.quantization == "int8"
    written = engine.generate("def add(a, b):", max_new_tokens=32, temperature=0.0)
    assert written.startswith("def add(a, b):\n    return a + b")
    # The kernels are the same whether they were quantised by the conversion or while loading.
    quantised = DiffuCoderInference(dtype="int8", verbose=False)
    assert written == quantised.generate("def add(a, b):", max_new_tokens=32, temperature=0.0)


def test_quantised_rows_are_within_half_a_step():
    weight = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    weight[2] = 0
    parts = quantize(jnp.asarray(weight))
    values, scale = np.asarray(parts["weight"]), np.asarray(parts["scale"])
    assert values.dtype == np.int8
    assert np.abs(values).max(axis=1).tolist() == [127, 127, 0, 127, 127, 127]
    assert (np.abs(values * scale[:, None] - weight) <= scale[:, None] / 2 * 1.0001).all()


def run_conversion(folder, lines=None, delay=0.0):
    """Convert in another process, killed `delay` seconds after its line of that number; when each
    line came, and said.

    Counting lines instead of seconds alone hits the same work on a machine that is slower at times.
    """
    command = [sys.executable, "-c", CHILD, str(CHECKPOINT), str(folder)]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said.append((time.monotonic(), line.strip()))
            if len(said) == lines:
                time.sleep(delay)
                child.send_signal(signal.SIGKILL)
    return said


def kill_at_random_moments(folder, times, seed=0):
    """How often a conversion was killed at what, and what was left: nothing or a whole checkpoint,
    nothing else.
    """
    whole = run_conversion(folder / "whole")
    assert whole[-1][1] == "done"
    start, end = whole[0][0], whole[-1][0]
    rng, counts = random.Random(seed), Counter()
    for n in range(times):
        target = folder / f"copy{n % 2}"
        moment = rng.uniform(start, end + 0.05 * (end - start))
        before = [at for at, _ in whole if at <= moment]
        said = run_conversion(target, len(before), moment - before[-1])
        numbers = [int(number) for number in said[-1][1].split() if number.isdecimal()]
        share = numbers[0] / numbers[1] if numbers else float(said[-1][1] == "done")
        stage = (
            "reading"
            if share < 0.5
            else "writing"
            if share == 0.5
            else "reading back"
            if share < 1
            else "the end"
        )
        if target.exists():
            assert failures(target) == []
            counts[stage, "complete"] += 1
            shutil.rmtree(target)
        else:
            with pytest.raises(ValueError, match="copy"):
                DreamForCausalLM.from_pretrained(target)
            counts[stage, "absent"] += 1
    convert(CHECKPOINT, folder / "copy0", Conversion())
    assert failures(folder / "copy0") == []
    assert not (folder / ".copy0.converting").exists()
    return counts


def test_killed_conversion_leaves_all_or_nothing(tmp_path):
    assert sum(kill_at_random_moments(tmp_path, 2).values()) == 2


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        print(dict(kill_at_random_moments(Path(name), int(sys.argv[1]))))  # noqa: T201
