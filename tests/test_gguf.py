"""GGUF files: read as folders, written, and equal to what the library `gguf` makes of them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import random_tensor
from flax import nnx

gguf = pytest.importorskip("gguf")

from gguf.quants import dequantize, quantize

from jax_lm.checkpoints import gguf_file
from jax_lm.checkpoints.huggingface import resolve
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.cli.main import main
from jax_lm.config import DreamConfig
from jax_lm.conversion.convert import Conversion, convert
from jax_lm.conversion.verify import verify
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer

KINDS = {
    "Dream": {"model_type": "Dream"},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_size": 32},
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llada": {"model_type": "llada"},
    "causal blocks": {"model_type": "qwen2", "block_size": 4, "is_causal": True},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def publish(folder, **kind):
    """A small random model with the tokenizer of the built-in one."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    shape = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1600, "max_position_embeddings": 256, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "mask_token_id": tokenizer.mask_id, "pad_token_id": tokenizer.pad_id,
        "eos_token_id": tokenizer.end_id, "bos_token_id": tokenizer.end_id,
    }  # fmt: skip
    config = DreamConfig(**(shape | kind))
    # Exact in float16 too, whose smallest numbers have fewer digits.
    drawn = {name: random_tensor(name, size) for name, size in parameter_shapes(config).items()}
    tensors = {
        name: jnp.asarray(value.astype(np.float16).astype(np.float32))
        for name, value in drawn.items()
    }
    model = DreamForCausalLM.from_tensors(config, tensors)
    model.save_pretrained(folder, tokenizer=tokenizer)
    # as some publish it
    file = folder / "config.json"
    file.write_text(file.read_text().replace("1000000.0", "1000000"))
    return model


def logits(model):
    tokens = jnp.arange(3, 19)[None]
    return np.asarray(nnx.jit(lambda model: model(tokens))(model))


def finish(writer):
    """Write what was added to a GGUF file, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_fields(reader, path, without=""):
    """Begin a file with the metadata of another, without one field."""
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", without):
            kinds = field.types
            sub = kinds[1] if len(kinds) > 1 else None
            writer.add_key_value(name, field.contents(), kinds[0], sub)
    return writer


def copy_file(source, target, without):
    """Copy a file without one field of its metadata."""
    reader = gguf.GGUFReader(source)
    writer = with_fields(reader, target, without)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_survives_the_way_there_and_back(tmp_path, kind):
    model = publish(tmp_path / "model", **KINDS[kind])
    assert convert(tmp_path / "model", tmp_path / "m.gguf", Conversion()).format == "gguf"
    # llama.cpp wants a float, whatever config.json holds
    (key,) = (key for key in gguf.GGUFReader(tmp_path / "m.gguf").fields if "freq_base" in key)
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields[key].types == [gguf.GGUFValueType.FLOAT32]
    # The numbers are exact in float16, so every bit comes back, and the logits with them.
    again = DreamForCausalLM.from_pretrained(tmp_path / "m.gguf", dtype="float32")
    assert again.config == model.config
    ours, theirs = parameters(model), parameters(again)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not np.array_equal(ours[name], theirs[name])] == []
    assert np.array_equal(logits(model), logits(again))
    # The tokenizer gives the same ids, and its special tokens are known.
    before, after = (
        DiffuCoderTokenizer.from_pretrained(folder)
        for folder in (tmp_path / "model", resolve(tmp_path / "m.gguf"))
    )
    for text in ("def add(a, b):\n    return a + b\n", "é 漢字 123 don't\r\n\t<|mask|>x"):
        assert after.encode(text) == before.encode(text)
    assert (after.mask_id, after.pad_id, after.stop_ids) == (
        before.mask_id,
        before.pad_id,
        before.stop_ids,
    )
    assert after.chat_template == before.chat_template
    # And from the file to a folder, with every check.
    convert(resolve(tmp_path / "m.gguf"), tmp_path / "back", Conversion(dtype="float32"))
    assert [check for check in verify(tmp_path / "back") if not check.passed] == []
    assert DreamForCausalLM.read_config(tmp_path / "back") == model.config


def test_every_type_is_what_the_library_makes_of_it(tmp_path):
    """A file with one tensor of each type, as its writer quantizes it."""
    publish(tmp_path / "model", **KINDS["llama"])
    convert(tmp_path / "model", tmp_path / "plain.gguf", Conversion())
    types = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    writer = with_fields(reader, tmp_path / "m.gguf")
    expected = {}
    for number, tensor in enumerate(reader.tensors):
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = gguf.GGMLQuantizationType["F32"]
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType[types[number % len(types)]]
        stored = quantize(values, kind)
        expected[tensor.name] = dequantize(stored, kind)
        writer.add_tensor(tensor.name, stored, raw_dtype=kind)
    finish(writer)
    tensors = gguf_file.list_tensors(resolve(tmp_path / "m.gguf"))
    written = gguf.GGUFReader(tmp_path / "m.gguf")
    assert {tensor.tensor_type.name for tensor in written.tensors} == {"F32", *types}
    config = DreamForCausalLM.read_config(resolve(tmp_path / "m.gguf"))
    for name, tensor in tensors.items():
        values = tensor.view()
        if heads := gguf_file.permuted_heads(config, name):
            values = gguf_file.permute_rows(values, heads)
        assert np.array_equal(values, expected[tensor.name]), tensor.name
    # A quantized file is a bfloat16 checkpoint.
    loaded = parameters(DreamForCausalLM.from_pretrained(tmp_path / "m.gguf"))
    assert {str(value.dtype) for value in loaded.values()} == {"bfloat16"}


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_read_in_the_shape_of_the_tensor(tmp_path, kind):
    # The library does not quantize to these types: any bytes are valid blocks of them.
    quantization = gguf.GGMLQuantizationType[kind]
    width = gguf.quant_shape_to_byte_shape((4, 512), quantization)
    data = np.random.default_rng(0).integers(0, 60, width, np.uint8)
    (tmp_path / "data").write_bytes(b"head" + data.tobytes())
    values = gguf_file.read_values(tmp_path / "data", quantization, 4, (4, 512), 0)
    assert np.array_equal(values, dequantize(data, quantization), equal_nan=True)
    assert values.shape == (4, 512)


def test_int8_is_q8_0_of_the_matrices(tmp_path):
    model = publish(tmp_path / "model", **KINDS["Dream"])
    assert (
        main(["convert", str(tmp_path / "model"), str(tmp_path / "m.gguf"), "--quantize", "int8"])
        == 0
    )
    loaded = parameters(DreamForCausalLM.from_pretrained(tmp_path / "m.gguf", dtype="float32"))
    for name, value in parameters(model).items():
        kind = gguf.GGMLQuantizationType["Q8_0" if value.ndim == 2 else "F32"]
        expected = dequantize(quantize(np.asarray(value), kind), kind)
        assert np.array_equal(loaded[name], expected), name


def test_a_file_stands_where_a_folder_does(tmp_path, capsys):
    publish(tmp_path / "model", **KINDS["Dream"])
    convert(tmp_path / "model", tmp_path / "m.gguf", Conversion())
    options = GenerationOptions(max_new_tokens=6, temperature=0.0)
    texts = [
        DiffuCoderInference(folder, dtype="float32", verbose=False).complete(["x = "], options)[0]
        for folder in (tmp_path / "model", tmp_path / "m.gguf")
    ]
    assert texts[0].full == texts[1].full
    assert main(["info", "--model", str(tmp_path / "m.gguf"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0
    assert main(["verify", str(tmp_path / "m.gguf")]) == 0
    convert(tmp_path / "model", tmp_path / "M.GGUF", Conversion())
    assert (tmp_path / "M.GGUF").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    assert main(["verify", str(tmp_path / "M.GGUF")]) == 0


def test_two_processes_may_present_a_file_at_once(tmp_path, monkeypatch):
    """The slower one takes the folder of the faster one, and leaves nothing behind."""
    publish(tmp_path / "model", **KINDS["Dream"])
    convert(tmp_path / "model", tmp_path / "m.gguf", Conversion())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_folder = gguf_file.write_folder

    def meet(path, folder):
        monkeypatch.setattr(gguf_file, "write_folder", write_folder)
        gguf_file.as_folder(path)
        write_folder(path, folder)

    monkeypatch.setattr(gguf_file, "write_folder", meet)
    folder = resolve(tmp_path / "m.gguf")
    assert (folder / "config.json").is_file()
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("int8", [False, True])
def test_what_float16_cannot_hold_is_refused(tmp_path, int8):
    model = publish(tmp_path / "model")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = parameters(model)
    tensors[name] = tensors[name].at[0, 0].set(1e6)
    model = DreamForCausalLM.from_tensors(model.config, tensors)
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    model.save_pretrained(tmp_path / "large", tokenizer=tokenizer)
    with pytest.raises(ValueError, match=rf"'{name}' has values beyond 65504"):
        convert(tmp_path / "large", tmp_path / "m.gguf", Conversion(int8=int8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "model"]


def test_what_has_no_counterpart_is_refused_by_name(tmp_path):
    publish(tmp_path / "model", model_type="a2d-qwen3")
    with pytest.raises(CheckpointError, match=r"no architecture for Tiny-A2D mdlm"):
        convert(tmp_path / "model", tmp_path / "m.gguf", Conversion())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    with pytest.raises(ValueError, match=r"dtype='bfloat16': must be float16"):
        convert(tmp_path / "model", tmp_path / "m.gguf", Conversion(dtype="bfloat16"))
    with pytest.raises(ValueError, match=r"must end in \.gguf"):
        convert(tmp_path / "model", tmp_path / "m", Conversion(format="gguf"))
    convert(BUILTIN_MODEL, tmp_path / "built.gguf", Conversion())
    (tmp_path / "m.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(CheckpointError, match="damaged or not a GGUF file"):
        resolve(tmp_path / "m.gguf")
    for name in ("tokens", "token_type", "merges"):
        copy_file(tmp_path / "built.gguf", tmp_path / f"{name}.gguf", f"tokenizer.ggml.{name}")
        with pytest.raises(CheckpointError, match=rf"lacks the field tokenizer\.ggml\.{name}$"):
            resolve(tmp_path / f"{name}.gguf")
    writer = gguf.GGUFWriter(tmp_path / "g.gguf", "gemma3")
    finish(writer)
    with pytest.raises(CheckpointError, match=r"'gemma3': must be one of llama, qwen2"):
        resolve(tmp_path / "g.gguf")
    assert list((tmp_path / "cache" / "diffucoder" / "gguf").iterdir()) == []
