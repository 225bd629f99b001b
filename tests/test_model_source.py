"""Which base an adapter belongs to: named, proven by a fingerprint, and no other taken without a
word.
"""

import json
import logging
import shutil

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.peft import CONFIG, WEIGHTS, LoraConfig, NamedBase
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.cli.main import main
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.model_source import BUILTIN_MODEL, base_name, find_model, folder_fingerprint
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.lora import adapters, add_lora, save_adapter


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_folder):
    """Two models of one shape, `base` and `other`."""
    folder = tmp_path_factory.mktemp("bases")
    shutil.copytree(tiny_folder, folder / "base")
    shutil.copytree(tiny_folder, folder / "other")
    model = DreamForCausalLM.from_pretrained(folder / "base")
    bias = model.model.layers[1].self_attn.k_proj.bias
    # One number in all of them.
    bias[...] = bias[...].at[3].add(0.01)
    model.save_pretrained(folder / "other")
    return folder


def adapter(folder, base, targets=("q_proj",), size=0.1):
    """An adapter of a model of this shape, which says that this is its base."""
    config = (
        DreamForCausalLM.read_config(folder.parent / "base") if base.name != "builtin" else None
    )
    model = (
        DreamForCausalLM(config, rngs=nnx.Rngs(0))
        if config
        else DreamForCausalLM.from_pretrained(BUILTIN_MODEL)
    )
    add_lora(model, LoraConfig(rank=2, targets=targets), seed=0)
    for _, layer in adapters(model):
        layer.lora_b[...] = layer.lora_b[...] + size
    save_adapter(model, folder, LoraConfig(rank=2, targets=targets), base)
    return folder


@pytest.fixture(scope="module")
def proven(folder):
    return adapter(
        folder / "proven",
        NamedBase(str(folder / "base"), None, folder_fingerprint(folder / "base")),
    )


@pytest.fixture(scope="module")
def foreign(folder):
    return adapter(folder / "foreign", NamedBase("somebody/their-model"))


def test_the_fingerprint_is_that_of_the_numbers(folder, tmp_path, monkeypatch):
    ours = folder_fingerprint(folder / "base")
    convert(folder / "base", tmp_path / "orbax", Conversion())
    assert folder_fingerprint(tmp_path / "orbax") == ours
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 20_000)
    convert(tmp_path / "orbax", tmp_path / "shards", Conversion())
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    assert folder_fingerprint(tmp_path / "shards") == ours
    convert(folder / "base", tmp_path / "half", Conversion(dtype="bfloat16", format="huggingface"))
    assert folder_fingerprint(tmp_path / "half") == ours
    convert(tmp_path / "half", tmp_path / "wide", Conversion(dtype="float32", format="huggingface"))
    assert folder_fingerprint(tmp_path / "wide") == ours
    convert(folder / "base", tmp_path / "int8", Conversion(int8=True, format="huggingface"))
    assert (
        len({ours, folder_fingerprint(folder / "other"), folder_fingerprint(tmp_path / "int8")})
        == 3
    )


def test_every_number_counts(folder, tmp_path):
    shutil.copytree(folder / "base", tmp_path / "one")
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    seen = {folder_fingerprint(tmp_path / "one")}
    for name in tensors:
        changed = {key: value.copy() for key, value in tensors.items()}
        flat = changed[name].reshape(-1)
        flat[-1] = flat[-1] * 1.01 + 0.01
        save_file(changed, tmp_path / "one" / "model.safetensors")
        seen.add(folder_fingerprint(tmp_path / "one"))
    # Names and shapes do too: equal tensors of two layers may not change places.
    swapped = dict(tensors)
    one, two = (f"model.layers.{n}.self_attn.q_proj.weight" for n in (0, 1))
    swapped[one], swapped[two] = tensors[two], tensors[one]
    save_file(swapped, tmp_path / "one" / "model.safetensors")
    seen.add(folder_fingerprint(tmp_path / "one"))
    assert len(seen) == len(tensors) + 2


def test_an_adapter_finds_its_base(folder, proven, caplog):
    found = find_model(None, proven)
    assert (found.folder, found.base) == (folder / "base", found.adapter.base)
    assert find_model(folder / "base", proven).adapter is not None
    built_in = adapter(
        folder / "of-builtin", NamedBase("builtin", None, folder_fingerprint(BUILTIN_MODEL))
    )
    assert find_model(None, built_in).folder == BUILTIN_MODEL
    assert caplog.records == []


def test_another_model_of_the_shape_is_refused(folder, proven):
    with pytest.raises(
        CheckpointError, match=r"proven' was trained on '.*base', and '.*other' has other weights"
    ):
        find_model(folder / "other", proven)
    assert find_model(folder / "other", proven, allow_other_base=True).folder == folder / "other"


def test_a_base_that_changed_or_went_is_refused(folder, proven, tmp_path):
    shutil.copytree(folder / "base", tmp_path / "moved")
    lost = adapter(
        folder / "lost",
        NamedBase(str(tmp_path / "moved"), None, folder_fingerprint(tmp_path / "moved")),
    )
    assert find_model(None, lost).folder == tmp_path / "moved"
    shutil.copy(folder / "other" / "model.safetensors", tmp_path / "moved")
    with pytest.raises(CheckpointError, match="has other weights"):
        find_model(None, lost)
    shutil.rmtree(tmp_path / "moved")
    with pytest.raises(
        CheckpointError, match=r"lost' was trained on '.*moved'.*no such folder.*name the model"
    ):
        find_model(None, lost)
    # Found again at another place, it is the same.
    assert find_model(folder / "base", lost).folder == folder / "base"


def test_what_an_adapter_from_elsewhere_says_is_shown_and_not_followed(
    folder, foreign, caplog, monkeypatch
):
    monkeypatch.setattr(
        huggingface, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub")
    )
    with pytest.raises(
        ValueError,
        match=r"foreign' says that it was trained on 'somebody/their-model', which cannot be verified: name",
    ):
        find_model(None, foreign)
    with caplog.at_level(logging.WARNING):
        assert find_model(folder / "base", foreign).folder == folder / "base"
    assert (
        "says that it was trained on 'somebody/their-model'; it cannot be verified that this is"
        in caplog.text
    )


def test_hub_ids_are_compared(folder, foreign, monkeypatch):
    def download(repo, **_):
        assert repo in ("somebody/Their-Model", "somebody/else")
        return folder / "base"

    monkeypatch.setattr(huggingface, "snapshot_download", download)
    assert find_model("somebody/Their-Model@v2", foreign).name == NamedBase(
        "somebody/Their-Model", "v2"
    )
    with pytest.raises(
        CheckpointError, match="was trained on 'somebody/their-model', not on 'somebody/else'"
    ):
        find_model("somebody/else", foreign)


def test_adapters_come_from_the_hub(folder, proven, monkeypatch):
    asked = []

    def download(repo, *, revision, allow_patterns, **_):
        asked.append((repo, revision, allow_patterns))
        return proven

    monkeypatch.setattr(huggingface, "snapshot_download", download)
    assert find_model(None, "me/my-lora@v1").folder == folder / "base"
    assert asked == [("me/my-lora", "v1", [CONFIG, WEIGHTS])]


def test_a_model_that_is_none_is_named(folder, proven):
    with pytest.raises(CheckpointError, match="proven' is an adapter: give it as adapter"):
        find_model(proven)
    with pytest.raises(CheckpointError, match=f"has no {CONFIG}"):
        find_model(None, folder / "base")
    with pytest.raises(CheckpointError, match="adapter 'absent': no such folder, and not a hub id"):
        find_model(None, "absent")


def merged(tmp_path, *words):
    return main(["merge-lora", "--out", str(tmp_path / "merged"), *map(str, words)])


def test_merging_takes_the_named_base_and_no_other(folder, proven, tmp_path, capsys):
    assert merged(tmp_path, "--adapter", proven, "--model", folder / "other") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: adapter")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "merged").exists()
    assert merged(tmp_path, "--adapter", proven) == 0
    before, after = (
        parameters(DreamForCausalLM.from_pretrained(path))
        for path in (folder / "base", tmp_path / "merged")
    )
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("q_proj.weight")}
    other = ("--model", folder / "other", "--allow-other-base")
    assert merged(tmp_path, "--adapter", proven, *other) == 2
    assert "exists already, and nothing is overwritten" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    assert merged(tmp_path / "other", "--adapter", proven, *other) == 0


def test_merging_never_writes_over_the_base(folder, proven, capsys):
    before = (folder / "base" / "model.safetensors").read_bytes()
    assert main(["merge-lora", "--adapter", str(proven), "--out", str(folder / "base")]) == 2
    assert "exists already, and nothing is overwritten" in capsys.readouterr().err
    assert (folder / "base" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "command", ["generate x", "sft --data x --out y", "serve --port 0", "eval builtin"]
)
def test_every_command_refuses_another_base_in_one_line(
    folder, proven, tmp_path, capsys, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    words = [*command.split(), "--adapter", str(proven), "--model", str(folder / "other")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "has other weights" in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--lora-rank 2", "lora_rank=2: the adapter 'a' has its own"),
        ("--lora-targets q_proj", "the adapter 'a' has its own"),
    ],
)
def test_an_adapter_has_its_own_size(words, named, capsys):
    assert main(["sft", "--data", "x", "--out", "y", "--adapter", "a", *words.split()]) == 2
    assert named in capsys.readouterr().err


def test_training_names_the_base_and_goes_on_from_an_adapter(folder, tmp_path, capsys):
    rows = [{"prompt": f"Add {i}.", "response": f"print({i})"} for i in range(8)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {
        "data": tmp_path / "data.jsonl",
        "max-length": 48,
        "batch-size": 4,
        "max-steps": 2,
        "warmup-steps": 0,
    }
    options |= {"learning-rate": 0.01}
    words = [
        "sft",
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]
    first = [*words, "--model", str(folder / "base"), "--lora-rank", "2"]
    assert main([*first, "--out", str(tmp_path / "first")]) == 0
    found = find_model(None, tmp_path / "first" / "adapter")
    assert found.folder == folder / "base"
    assert found.base.fingerprint == folder_fingerprint(folder / "base")
    # A run in the folder is not continued over another base.
    other = [
        *words,
        "--model",
        str(folder / "other"),
        "--lora-rank",
        "2",
        "--out",
        str(tmp_path / "first"),
    ]
    assert main(other) == 2
    assert "lora.base=" in capsys.readouterr().err
    more = [
        *words,
        "--adapter",
        str(tmp_path / "first" / "adapter"),
        "--out",
        str(tmp_path / "more"),
    ]
    assert main(more) == 0
    again = find_model(None, tmp_path / "more" / "adapter")
    assert again.adapter.config == found.adapter.config
    assert again.adapter.base == found.adapter.base
    one, two = (load_file(tmp_path / name / "adapter" / WEIGHTS) for name in ("first", "more"))
    assert one.keys() == two.keys()
    moved = [float(np.abs(two[name] - one[name]).max()) for name in one if "lora_B" in name]
    # Two steps further, from there and not from zero.
    assert (
        0 < max(moved) < max(float(np.abs(one[name]).max()) for name in one if "lora_B" in name) * 3
    )
    assert (
        main(
            [
                *words,
                "--adapter",
                str(tmp_path / "first" / "adapter"),
                "--out",
                str(tmp_path / "first"),
            ]
        )
        == 2
    )
    assert "write to another folder" in capsys.readouterr().err


def test_generation_uses_the_adapter(folder, tmp_path, capsys):
    """Loaded beside the weights it writes what the merged model writes, and not what the base
    writes.
    """
    path = adapter(
        folder / "speaking",
        NamedBase("builtin", None, folder_fingerprint(BUILTIN_MODEL)),
        ("q_proj", "up_proj"),
        2.0,
    )
    assert main(["merge-lora", "--adapter", str(path), "--out", str(tmp_path / "merged")]) == 0
    texts = {}
    for name, words in {
        "base": [],
        "adapter": ["--adapter", str(path)],
        "merged": ["--model", str(tmp_path / "merged")],
    }.items():
        capsys.readouterr()
        options = ["--max-new-tokens", "24", "--temperature", "0", "--dtype", "float32"]
        assert main(["generate", *words, *options, "def add(a, b):"]) == 0
        texts[name] = capsys.readouterr().out
    assert texts["adapter"] == texts["merged"] != texts["base"]


def test_a_file_is_no_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.gguf").touch()
    assert base_name("m/x.gguf") == NamedBase(str(tmp_path / "m" / "x.gguf"))
    assert base_name("m/y") == NamedBase("m/y")
