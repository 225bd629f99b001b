"""`adapt --lora-rank`: adapters that make a causal model a diffusion model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cases.causal import write_causal

from jax_lm.cli.commands import training as commands
from jax_lm.cli.main import main
from jax_lm.inference import DiffuCoderInference
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template


def lora_free(values):
    """The weights below adapters, by their names without adapters."""
    return {
        name.replace(".base.", "."): value
        for name, value in values.items()
        if not lora.is_lora(name)
    }


@pytest.mark.parametrize("options", [["--block-length", "4"], []], ids=["blocks", "whole canvas"])
def test_adapters_make_a_causal_model_a_diffusion_model(
    options, tmp_path, tiny_config, capsys, monkeypatch
):
    models, finish = [], commands.finish
    monkeypatch.setattr(
        commands,
        "finish",
        lambda target, model, **end: models.append(model) or finish(target, model, **end),
    )
    causal = write_causal(tmp_path / "causal", tiny_config)
    rows = [json.dumps({"text": f"def add_{n}(a):\n    return a + {n}\n"}) for n in range(8)]
    (tmp_path / "code.jsonl").write_text("\n".join(rows))
    shared = ["--data", str(tmp_path / "code.jsonl"), "--out", str(tmp_path / "run")]
    shared += ["--max-length", "32", "--batch-size", "2", "--max-steps", "4", "--save-every", "2"]
    arguments = ["adapt", "--model", str(causal), "--lora-rank", "2", *shared, *options]
    assert main([*arguments, "--stop-after", "2"]) == 0
    half = (tmp_path / "run/adapter/adapter_model.safetensors").read_bytes()
    # the same command goes on
    assert main(arguments) == 0
    stored = (tmp_path / "run/adapter/adapter_model.safetensors").read_bytes()
    assert stored != half
    # another model than the run began with is refused, and nothing is lost
    other = write_causal(tmp_path / "other", replace(tiny_config, hidden_size=64))
    weights = (tmp_path / "run/base/model.safetensors").read_bytes()
    assert main([*arguments[:2], str(other), *arguments[3:]]) == 2
    assert "base is not the model of these adapters" in capsys.readouterr().err
    assert (tmp_path / "run/base/model.safetensors").read_bytes() == weights
    # below the adapters are the weights of the causal model, with a mask
    base = DreamForCausalLM.from_pretrained(tmp_path / "run/base")
    assert base.config.attention_block == (4 if options else None)
    assert base.config.mask_token_id is not None
    # which the updates did not change
    trained = lora_free(parameters(models[-1]))
    for name, value in parameters(base).items():
        np.testing.assert_array_equal(trained[name], value, err_msg=name)
    given = dict(parameters(DreamForCausalLM.from_pretrained(causal)))
    for name, value in parameters(base).items():
        np.testing.assert_array_equal(value[: len(given[name])], given[name], err_msg=name)
    # and the adapter finds them
    assert (
        "base"
        in json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
    )
    capsys.readouterr()
    adapter = ["--adapter", str(tmp_path / "run/adapter")]
    assert main(["generate", *adapter, "--max-new-tokens", "8", "--temperature", "0", "def"]) == 0
    assert capsys.readouterr().out.startswith("def")


@pytest.mark.parametrize("on_masks", [["--lora-on-masks"], []], ids=["on masks", "on all"])
def test_a_model_with_causal_blocks_stays_the_causal_model(on_masks, tmp_path, tiny_config, capsys):
    causal = write_causal(tmp_path / "causal", tiny_config)
    rows = [json.dumps({"text": f"def add_{n}(a):\n    return a + {n}\n"}) for n in range(8)]
    (tmp_path / "code.jsonl").write_text("\n".join(rows))
    arguments = ["adapt", "--model", causal, "--data", tmp_path / "code.jsonl"]
    arguments += ["--out", tmp_path / "run", "--max-length", 32, "--batch-size", 2]
    arguments += ["--max-steps", 3, "--lora-rank", 2, "--block-length", 4, "--learning-rate", 1]
    assert main([*map(str, arguments), "--attention", "causal", *on_masks]) == 0
    # another attention is another base
    assert main(list(map(str, arguments))) == 2
    assert "base is not the model of these adapters" in capsys.readouterr().err
    engine, base = (
        DiffuCoderInference(folder, dtype="float32", verbose=False)
        for folder in (causal, tmp_path / "run/base")
    )
    assert base.config.family.name == "adapted to causal blocks"
    options = GenerationOptions(max_new_tokens=14, temperature=0.0, top_p=None, early_stop=False)
    one_by_one = Decoding(commit="threshold", threshold=1.0)
    # The default order of such a model is left to right.
    in_order = replace(options, decoding=one_by_one)
    for prompt in ("def f(x):\n", "def", "a = 11"):
        # Below the adapters, blocks that are filled a token at a time are what the base writes: no
        # token attends to the masks after it.
        text = engine.complete([prompt], options)[0]
        assert text
        for cache in ("none", "prefix", "window", "dual"):
            assert base.complete([prompt], in_order.with_settings(cache=cache))[0] == text
    # It fills a gap as its base does, between the base's own tokens.
    assert base.infill("a", "b", 8, options=in_order) == engine.infill("a", "b", 8, options=options)
    trained = DiffuCoderInference(adapter=tmp_path / "run/adapter", dtype="float32", verbose=False)
    # Adapters on masks alone do not change what follows a text that is decided. Others do.
    text = engine.complete(["def f(x):\n"], options)[0]
    assert (trained.complete(["def f(x):\n"], in_order)[0] == text) == bool(on_masks)
    drafted = replace(options, draft=3, decoding=Decoding(cache="causal"))
    assert (trained.complete(["def f(x):\n"], drafted)[0] == text) == bool(on_masks)
    # Several tokens are decided at once, and no cache changes any.
    several = in_order.with_settings(threshold=0.01)
    decoded = {
        cache: trained.decode(
            [Template.infilling("def f(x):\n", 14, "")], several.with_settings(cache=cache)
        )
        for cache in ("none", "prefix", "window", "dual")
    }
    assert len({tuple(each.rows[0].token_ids) for each in decoded.values()}) == 1
    assert len(set(decoded["none"].rows[0].commit_step)) < 14
    merged = ["merge-lora", "--adapter", tmp_path / "run/adapter", "--out", tmp_path / "merged"]
    assert main(list(map(str, merged))) == (2 if on_masks else 0)
    assert ("act on masks alone cannot be merged" in capsys.readouterr().err) == bool(on_masks)
    # Adapters that learnt with all rows act on masks alone from here on, and nothing else changes.
    (tmp_path / "answers.jsonl").write_text('{"prompt": "def f(a):\\n", "response": " return a"}')
    further = ["sft", "--adapter", tmp_path / "run/adapter", "--data", tmp_path / "answers.jsonl"]
    further += ["--out", tmp_path / "more", "--max-length", 32, "--max-steps", 1]
    assert main([*map(str, further), "--lora-on-masks"]) == 0
    more = DiffuCoderInference(adapter=tmp_path / "more/adapter", dtype="float32", verbose=False)
    for decoding in (in_order, drafted):
        assert more.complete(["def f(x):\n"], decoding)[0] == text


def test_random_weights_have_no_adapters(tmp_path, capsys):
    arguments = ["--data", "x.jsonl", "--out", str(tmp_path / "run"), "--from-scratch"]
    assert main(["adapt", "--model", "builtin", "--lora-rank", "2", *arguments]) == 2
    assert "lora_rank=2: random weights are trained whole" in capsys.readouterr().err


def test_a_folder_that_is_not_ours_stays(tmp_path, tiny_config, capsys):
    causal = write_causal(tmp_path / "causal", tiny_config)
    (tmp_path / "code.jsonl").write_text(json.dumps({"text": "def f(a):\n    return a\n"}))
    (tmp_path / "run/base").mkdir(parents=True)
    (tmp_path / "run/base/config.json").write_text("mine")
    arguments = ["--model", str(causal), "--data", str(tmp_path / "code.jsonl"), "--max-steps", "1"]
    options = ["--out", str(tmp_path / "run"), "--max-length", "32", "--lora-rank"]
    assert main(["adapt", *arguments, *options, "0"]) == 2
    assert "lora_rank=0: a rank must be at least 1" in capsys.readouterr().err
    assert main(["adapt", *arguments, *options, "2"]) == 2
    assert "base is not the model of these adapters" in capsys.readouterr().err
    assert (tmp_path / "run/base/config.json").read_text() == "mine"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["base"]
