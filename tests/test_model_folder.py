"""A model that leaves the house is whole: tokenizer, settings, licence, fields of config.json, the
publisher's code.

That transformers loads it all: test_transformers.py.
"""

import json
import logging
import shutil

import numpy as np
import pytest
from cases.published_model import CODE_NAMES, TOKENIZER
from cases.written_folders import COMMANDS, KINDS
from safetensors.numpy import load_file

from jax_lm.checkpoints.description import code_files, copy_files
from jax_lm.cli.main import main
from jax_lm.config import DreamConfig
from jax_lm.conversion.push import prepare_upload
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer

SETTINGS = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_beside_the_weights_comes_along(published_folder, written_folders, kind):
    folder = written_folders[kind]
    for name in (*TOKENIZER, *SETTINGS, *CODE_NAMES, "LICENSE"):
        assert (folder / name).read_bytes() == (published_folder / name).read_bytes(), name
    others = {path.name for path in folder.iterdir()} - {
        path.name for path in published_folder.iterdir()
    }
    assert others <= {"model.safetensors", "weights.orbax", "SHA256SUMS"}
    if kind not in ("orbax", "huggingface"):
        # The card says what the publisher's weights can do; who trains others writes one.
        assert not {"README.md", "stray.py", "metrics.json"} & {
            path.name for path in folder.iterdir()
        }


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_configuration_comes_along(published_folder, written_folders, kind):
    before, after = (
        json.loads((folder / "config.json").read_text())
        for folder in (published_folder, written_folders[kind])
    )
    dtype = "float32" if kind in COMMANDS else "bfloat16"
    assert after == before | {"torch_dtype": dtype}
    assert {
        "auto_map",
        "architectures",
        "transformers_version",
        "max_window_layers",
    } <= after.keys()


@pytest.mark.parametrize("kind", ["sft", "merge-lora", "huggingface"])
def test_a_push_sends_the_code_that_is_named(published_folder, written_folders, kind):
    upload = prepare_upload(written_folders[kind], "me/model")
    sent = {path.name for path in upload.files}
    assert {
        *TOKENIZER,
        *SETTINGS,
        *CODE_NAMES,
        "LICENSE",
        "config.json",
        "model.safetensors",
    } <= sent
    assert "stray.py" not in sent


def test_every_file_has_the_permissions_of_any_other(written_folders, tmp_path):
    (tmp_path / "any").touch()
    usual = (tmp_path / "any").stat().st_mode
    files = [path for path in written_folders["merge-lora"].parent.rglob("*") if path.is_file()]
    assert {"model.safetensors", "adapter_model.safetensors", "config.json"} <= {
        path.name for path in files
    }
    assert [str(path) for path in files if path.stat().st_mode != usual] == []


def test_a_push_of_an_adapter_sends_its_two_files(written_folders):
    folder = written_folders["merge-lora"].parent / "lora" / "adapter"
    (folder / "optimizer.pt").write_bytes(b"secret")
    upload = prepare_upload(folder, "me/my-lora", "mit")
    assert sorted(path.name for path in upload.files) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert [path.name for path in upload.left_out] == ["optimizer.pt"]
    assert upload.card is not None
    assert "library_name: peft" in upload.card
    assert "--adapter me/my-lora" in upload.card
    assert "license: mit" in upload.card


def test_an_adapted_model_has_the_tokens_that_it_was_given(adapted_folders):
    before, after = adapted_folders
    tokenizer = DiffuCoderTokenizer.from_pretrained(after)
    config = DreamForCausalLM.read_config(after)
    tokenizer.require_ids(config)
    settings = json.loads((after / "tokenizer_config.json").read_text())
    assert (settings["mask_token"], settings["pad_token"]) == ("<|mask|>", "<|dlm_pad|>")
    assert settings["added_tokens_decoder"][str(tokenizer.mask_id)]["content"] == "<|mask|>"
    assert settings["model_max_length"] == 32768
    special = json.loads((after / "special_tokens_map.json").read_text())
    assert special == {
        "eos_token": "<|endoftext|>",
        "pad_token": "<|dlm_pad|>",
        "mask_token": "<|mask|>",
    }
    generation = json.loads((after / "generation_config.json").read_text())
    assert (generation["mask_token_id"], generation["pad_token_id"]) == (
        tokenizer.mask_id,
        tokenizer.pad_id,
    )
    assert tokenizer.chat_template == "{{ messages[0].content }}"
    for name in ("vocab.json", "merges.txt", "LICENSE"):
        assert (after / name).read_bytes() == (before / name).read_bytes()
    texts = ["def add(a, b):\n    return a + b\n", "é 漢字"]
    # Without the mask, the tokenizer that it came from cannot be read here; the words are the same.
    assert [tokenizer.encode(text) for text in texts] == [
        DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL).encode(text) for text in texts
    ]


def test_an_adapted_model_is_configured_as_dream(adapted_folders):
    before, after = (json.loads((folder / "config.json").read_text()) for folder in adapted_folders)
    assert (after["model_type"], after["architectures"]) == ("Dream", ["DreamModel"])
    # Code that is not there is not named.
    assert "auto_map" not in after
    assert after["transformers_version"] == before["transformers_version"]
    assert after["max_window_layers"] == 21
    assert after["rope_theta"] == before["rope_theta"]


def test_fields_of_another_name_for_the_dtype_and_the_rotation_are_kept():
    fields = DreamConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, rope_theta=1e4,
                         rms_norm_eps=1e-6, mask_token_id=95).to_dict()  # fmt: skip
    theirs = {name: value for name, value in fields.items() if name != "rope_theta"}
    theirs |= {
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
        "dtype": "bfloat16",
        "head_dim": 8,
    }
    config = DreamConfig.from_dict(theirs)
    assert config.update_fields(theirs) == theirs
    as_qwen2 = theirs | {"model_type": "qwen2", "layer_types": ["full_attention"] * 2}
    changed = config.update_fields(as_qwen2)
    assert DreamConfig.from_dict(changed) == config
    # Dream's published class knows the rotation by this name alone.
    assert changed["rope_theta"] == 1e4
    assert not {"rope_parameters", "layer_types"} & changed.keys()


def test_a_folder_of_version_0_1_gets_what_it_lacks(published_folder, tmp_path):
    """It held weights, config.json, tokenizer.json and the template."""
    old = tmp_path / "old"
    model, tokenizer = (
        DreamForCausalLM.from_pretrained(published_folder),
        DiffuCoderTokenizer.from_pretrained(published_folder),
    )
    model.save_pretrained(old)
    tokenizer.backend.save(str(old / "tokenizer.json"))
    shutil.copy(published_folder / "chat_template.jinja", old)
    model.save_pretrained(
        tmp_path / "new", source=old, tokenizer=DiffuCoderTokenizer.from_pretrained(old)
    )
    assert main(["convert", str(old), str(tmp_path / "copy")]) == 0
    for folder in (tmp_path / "new", tmp_path / "copy"):
        settings, special, generation = (json.loads((folder / name).read_text()) for name in (
            "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"))  # fmt: skip
        names = {"eos_token": "<|endoftext|>", "pad_token": "<|dlm_pad|>", "mask_token": "<|mask|>"}
        assert special == names
        assert names.items() <= settings.items()
        assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert generation["mask_token_id"] == tokenizer.mask_id
        assert not (old / "tokenizer_config.json").exists()


def test_the_builtin_model_is_whole(builtin_folder):
    settings = json.loads((builtin_folder / "tokenizer_config.json").read_text())
    assert (settings["mask_token"], settings["pad_token"], settings["eos_token"]) == (
        "<|mask|>", "<|dlm_pad|>", "<|endoftext|>"
    )  # fmt: skip
    assert settings["tokenizer_class"] == "Qwen2Tokenizer"
    assert code_files(builtin_folder) == []
    assert "auto_map" not in json.loads((builtin_folder / "config.json").read_text())


def test_what_another_model_left_is_not_taken_for_this_one(published_folder, tmp_path):
    for name in ("tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_text("{}")
    copy_files(published_folder, tmp_path, same_model=True)
    assert not (tmp_path / "tokenizer.json").exists()
    assert (tmp_path / "generation_config.json").read_bytes() == (
        published_folder / "generation_config.json"
    ).read_bytes()


def test_code_is_found_by_name_and_never_outside(published_folder, tmp_path, caplog):
    assert [path.name for path in code_files(published_folder)] == list(CODE_NAMES)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "auto_map": {
                    "a": "../../evil.X",
                    "b": "owner/repo--theirs.X",
                    "c": "absent.X",
                    "d": 3,
                    "e": "here.X",
                }
            }
        )
    )
    (tmp_path / "here.py").write_text(
        "from .other import x\nfrom .third import v\nfrom ..up import y\nfrom .other import z\n"
    )
    (tmp_path / "other.py").write_text("from .here import w\nraise RuntimeError('executed')\n")
    (tmp_path / "third.py").write_bytes(b"\xff\xfe")
    with caplog.at_level(logging.WARNING):
        assert [path.name for path in code_files(tmp_path)] == ["here.py", "other.py", "third.py"]
    assert [record.getMessage().split(" lacks ")[1].split(",")[0] for record in caplog.records] == [
        "absent.py"
    ]


def test_training_over_its_own_source_is_refused_before_it_begins(
    published_folder, written_folders, capsys
):
    out = written_folders["sft"].parent
    data = published_folder.parent / f"{published_folder.name}.jsonl"
    words = [
        "--data",
        str(data),
        "--model",
        str(out / "model"),
        "--out",
        str(out),
        "--max-steps",
        "1",
    ]
    before = (out / "model" / "model.safetensors").read_bytes()
    assert main(["sft", *words]) == 2
    assert "is the source of this model: write to another folder" in capsys.readouterr().err
    assert (out / "model" / "model.safetensors").read_bytes() == before


def test_untouched_weights_are_the_same_bits(published_folder, written_folders):
    tensors = {
        name: value
        for path in published_folder.glob("*.safetensors")
        for name, value in load_file(path).items()
    }
    back = load_file(written_folders["huggingface"] / "model.safetensors")
    assert {name: value.tobytes() for name, value in back.items()} == {
        n: v.tobytes() for n, v in tensors.items()
    }
    merged = load_file(written_folders["merge-lora"] / "model.safetensors")
    same = [name for name in tensors if np.array_equal(merged[name], tensors[name])]
    assert set(tensors) - set(same) <= {name for name in tensors if name.endswith("proj.weight")}
