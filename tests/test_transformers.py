"""What we write, in transformers and peft; and what peft writes, here.

Skipped where they are not installed.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from cases.published_model import publish
from cases.written_folders import KINDS

from jax_lm.checkpoints.peft import LoraConfig, NamedBase, read_adapter
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.tokenizer import DiffuCoderTokenizer

for package in ("torch", "transformers"):
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed", allow_module_level=True)

needs_peft = pytest.mark.skipif(
    not importlib.util.find_spec("peft"), reason="peft is not installed"
)
CHILD = Path(__file__).parent / "cases" / "torch_side.py"
TOLERANCE = 2e-5
"""Largest difference of float32 logits between the two libraries, which round in another order."""


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 1500, size=(2, 17)))
    return path


@pytest.fixture(scope="module")
def torch_side(tmp_path_factory):
    """Run a command beside PyTorch, without the hub, its cache in a folder of its own."""
    home = tmp_path_factory.mktemp("home")

    def run(*words):
        places = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(CHILD), *map(str, words)]
        done = subprocess.run(
            command, env=os.environ | places, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stderr

    return run


def ours(folder, ids, **options):
    model = DreamForCausalLM.from_pretrained(folder, dtype="float32", **options)
    return model, np.asarray(model(jnp.asarray(np.load(ids))))


def check_tokenizer(told, folder):
    """The special tokens, ids and texts are those of our reader."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    text = "def add(a, b):\n    return a + b<|im_end|>"
    assert (told["eos_token"], told["mask_token"]) == ("<|endoftext|>", "<|mask|>")
    assert (told["mask_token_id"], told["pad_token_id"]) == (tokenizer.mask_id, tokenizer.pad_id)
    assert told["eos_token_id"] == tokenizer.token_id("<|endoftext|>")
    assert told["ids"] == tokenizer.encode(text)
    assert told["decoded"] == "def add(a, b):\n    return a + b"
    assert told["size"] == tokenizer.vocab_size
    assert told["chat"] == tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.fixture(scope="module")
def folders(published_folder, written_folders, adapted_folders, builtin_folder):
    return {
        **written_folders,
        "published": published_folder,
        "adapted": adapted_folders[1],
        "built-in": builtin_folder,
    }


HAS_CODE = ("published", "sft", "adapt", "grpo", "merge-lora", "huggingface")


@pytest.mark.parametrize(
    "kind", ["published", *(kind for kind in KINDS if kind != "orbax"), "adapted", "built-in"]
)
def test_every_folder_that_we_write_loads(folders, ids, torch_side, tmp_path, kind):
    folder, out = folders[kind], tmp_path / "out.npz"
    torch_side("load", folder, ids, out)
    found = np.load(out)
    assert ("own" in found.files) == (kind in HAS_CODE)
    _, expected = ours(folder, ids)
    for name in found.files:
        scale = np.abs(expected).max()
        assert np.abs(found[name] - expected).max() < TOLERANCE * max(scale, 1), name
    if "own" in found.files:
        np.testing.assert_array_equal(found["own"], found["qwen2"])
    check_tokenizer(json.loads(Path(f"{out}.json").read_text()), folder)


def test_untouched_weights_give_equal_logits(folders, ids, torch_side, tmp_path):
    """Converted there and back: no logit of transformers differs in a bit."""
    outs = []
    for kind in ("published", "huggingface"):
        torch_side("load", folders[kind], ids, tmp_path / f"{kind}.npz")
        outs.append(np.load(tmp_path / f"{kind}.npz"))
    for name in ("own", "qwen2"):
        np.testing.assert_array_equal(outs[0][name], outs[1][name])
    told = [
        json.loads((tmp_path / f"{kind}.npz.json").read_text())
        for kind in ("published", "huggingface")
    ]
    assert told[0] == told[1]


CONFIGS = {
    "plain": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "rank-stabilised": {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"},
    "patterns": {
        "r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "up_proj"],
        "rank_pattern": {"^model.layers.0.self_attn.q_proj": 2, "up_proj": 8},
        "alpha_pattern": {r"layers\.1\.self_attn\.(q|k)_proj": 3, "k_proj": 12},
    },
    "expression": {"r": 2, "lora_alpha": 1, "target_modules": r".*layers\.\d\.(self_attn\.o_proj|mlp\.gate_proj)"},
    "some layers": {"r": 2, "lora_alpha": 4, "target_modules": ["o_proj"], "layers_to_transform": [1]},
    "excluded": {
        "r": 2, "lora_alpha": 4, "target_modules": "all-linear", "exclude_modules": ["down_proj", "0.mlp.up_proj"],
    },
}  # fmt: skip


@needs_peft
@pytest.mark.parametrize("case", CONFIGS)
def test_adapters_of_peft_compute_the_same_here_and_come_back(
    published_folder, ids, torch_side, tmp_path, case
):
    torch_side("publish", published_folder, json.dumps(CONFIGS[case]), ids, tmp_path / "theirs")
    # Read back: peft sorts patterns when it saves them, and of several that match the first counts.
    torch_side("adapter", published_folder, tmp_path / "theirs", ids, tmp_path / "one.npz")
    one = np.load(tmp_path / "one.npz")
    expected = one["attached"]
    model, plain = ours(published_folder, ids)
    stored = read_adapter(tmp_path / "theirs")
    lora.load_adapter(model, stored)
    found = np.asarray(model(jnp.asarray(np.load(ids))))
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() < TOLERANCE * max(scale, 1)
    assert np.abs(found - plain).max() > 1e-2 * scale
    # Written here, it is what peft computes from again: to the last bit, as files and by logits.
    lora.save_adapter(model, tmp_path / "ours", stored.config, stored.base)
    said = torch_side("adapter", published_folder, tmp_path / "ours", ids, tmp_path / "two.npz")
    assert "nexpected" not in said
    assert "missing" not in said.lower()
    two = np.load(tmp_path / "two.npz")
    for name in one.files:
        np.testing.assert_array_equal(one[name], two[name])
    if case != "patterns":
        np.testing.assert_array_equal(np.load(tmp_path / "theirs" / "logits.npy"), expected)
    # And merged there as here.
    lora.merge(model)
    for name, value in parameters(model).items():
        np.testing.assert_allclose(np.asarray(value), two[name], rtol=2e-6, atol=2e-6)


@needs_peft
def test_a_trained_adapter_is_read_by_peft(
    published_folder, written_folders, ids, torch_side, tmp_path
):
    folder = written_folders["merge-lora"].parent / "lora" / "adapter"
    torch_side("adapter", published_folder, folder, ids, tmp_path / "out.npz")
    model, plain = ours(published_folder, ids)
    lora.load_adapter(model, read_adapter(folder))
    expected = np.asarray(model(jnp.asarray(np.load(ids))))
    found = np.load(tmp_path / "out.npz")
    scale = max(np.abs(expected).max(), 1)
    assert np.abs(found["attached"] - expected).max() < TOLERANCE * scale
    assert np.abs(expected - plain).max() > 0


@needs_peft
def test_what_peft_computes_otherwise_is_refused(published_folder, ids, torch_side, tmp_path):
    """DoRA by peft itself, whose files hold a vector more."""
    config = CONFIGS["plain"] | {"use_dora": True}
    torch_side("publish", published_folder, json.dumps(config), ids, tmp_path / "dora")
    with pytest.raises(ValueError, match=r"lora_magnitude_vector|use_dora"):
        read_adapter(tmp_path / "dora")
    config = CONFIGS["plain"] | {"modules_to_save": ["lm_head"]}
    torch_side("publish", published_folder, json.dumps(config), ids, tmp_path / "head")
    with pytest.raises(ValueError, match=r"lm_head"):
        read_adapter(tmp_path / "head")


@needs_peft
def test_the_published_class_takes_an_adapter_of_ours(tmp_path, ids, torch_side):
    """Another order of layers, rank 1, an alpha that is no integer."""
    folder = publish(tmp_path / "published")
    model, _ = ours(folder, ids)
    config = LoraConfig(rank=1, alpha=0.75, targets=("down_proj", "q_proj"))
    lora.add_lora(model, config, seed=3)
    for number, (_, adapter) in enumerate(lora.adapters(model)):
        adapter.lora_b[...] = jnp.full_like(adapter.lora_b[...], 0.1 * (number + 1))
    lora.save_adapter(model, tmp_path / "adapter", config, NamedBase("somebody/their-model"))
    torch_side("adapter", folder, tmp_path / "adapter", ids, tmp_path / "out.npz")
    expected = np.asarray(model(jnp.asarray(np.load(ids))))
    found = np.load(tmp_path / "out.npz")["attached"]
    assert np.abs(found - expected).max() < TOLERANCE * max(np.abs(expected).max(), 1)
