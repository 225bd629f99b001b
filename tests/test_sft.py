"""Fine-tuning through the command: what it writes, that a killed run ends as the uninterrupted one,
and adapters.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import config_fields, random_tensor
from flax import nnx
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from jax_lm.cli.main import main, parse
from jax_lm.data.batches import Row
from jax_lm.data.conversations import conversation_rows, read_samples
from jax_lm.models.dream import DreamConfig, DreamForCausalLM, parameter_shapes, parameters
from jax_lm.reports.run_folder import exclusive
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import (
    AdaptConfig,
    LossConfig,
    OptimizerConfig,
    SftConfig,
    TrainerConfig,
)
from jax_lm.training.sft import cut_or_reveal, longest_allowed, openness, reveal_prompts, split

STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory, builtin_folder):
    """A model of one layer with the built-in tokenizer, and conversations."""
    folder = tmp_path_factory.mktemp("sft")
    tokenizer = DiffuCoderTokenizer.from_pretrained(builtin_folder)
    config = DreamConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id,
    )
    DreamForCausalLM(config, rngs=nnx.Rngs(0)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [
        {"prompt": f"Add {i} to {i % 3}.", "response": f"print({i} + {i % 3})"} for i in range(30)
    ]
    (folder / "data.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "?"}])
    )
    return folder


def arguments(folder, out, **changes):
    options = {
        "data": folder / "data.jsonl", "model": folder / "model", "out": out, "max-length": 48, "batch-size": 4,
        "max-steps": STEPS, "learning-rate": 0.01, "save-every": 7, "log-every": 10, "gradient-accumulation-steps": 2,
        "condition-share": 0.5,
    } | changes  # fmt: skip
    return ["sft", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.fixture(scope="module")
def whole(folder):
    """A run that nobody disturbs."""
    assert main(arguments(folder, folder / "whole")) == 0
    return folder / "whole"


def test_run_leaves_a_model_metrics_and_what_it_refused(whole, folder):
    model = DreamForCausalLM.from_pretrained(whole / "model")
    before = parameters(DreamForCausalLM.from_pretrained(folder / "model"))
    assert all(not np.array_equal(value, before[name]) for name, value in parameters(model).items())
    DiffuCoderTokenizer.from_pretrained(whole / "model").require_ids(model.config)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(10, STEPS + 1, 10))
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert json.loads((whole / "refused.json").read_text()) == [
        ["line 31", "has no response that is text"]
    ]


def test_rows_are_as_long_as_the_longest_sample_needs(folder, caplog):
    """Without --max-length: 2,048 would take gigabytes for these samples of some tokens."""
    caplog.set_level("INFO")
    words = arguments(folder, folder / "fitting", **{"max-length": None, "max-steps": 2})
    start = words.index("--max-length")
    del words[start : start + 2]
    assert main(words) == 0
    settings = json.loads((folder / "fitting" / "settings.json").read_text())
    samples = read_samples(folder / "data.jsonl", conversation_rows(tokenizer_of(folder), 128))
    longest = max(len(row.ids) for row in samples.rows)
    assert settings["max_length"] == 32 * -(-(longest + 16) // 32) < 128
    # two updates teach nothing, and that is said
    assert "30 samples: 2 updates of 4 rows, 0.2 passes over them" in caplog.messages
    assert any(
        line.startswith("2 updates of 4 rows: too few to learn from. A smaller batch_size")
        for line in caplog.messages
    )


def tokenizer_of(folder):
    return DiffuCoderTokenizer.from_pretrained(folder / "model")


def test_two_runs_do_not_share_a_folder(folder, capsys):
    with exclusive(folder / "shared"):
        assert main(arguments(folder, folder / "shared")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"error: out='{folder / 'shared'}': another run is writing there"
    assert not (folder / "shared" / "metrics.jsonl").exists()


def test_a_model_that_is_there_is_not_overwritten(folder, capsys):
    out = folder / "taken"
    (out / "model").mkdir(parents=True)
    (out / "model" / "config.json").write_text("mine")
    assert main(arguments(folder, out)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"error: out='{out / 'model'}': exists already, and nothing is overwritten"
    assert (out / "model" / "config.json").read_text() == "mine"


def test_the_guide_teaches_its_examples(tmp_path, capsys, for_release):
    """The recipe and the commands of docs/guides/fine_tuning.md, with the sample file."""
    root, out = Path(__file__).parent, tmp_path / "guide"
    recipe = str(root.parent / "recipes" / "sft_builtin.yaml")
    data = str(root / "samples" / "examples.jsonl")
    words = ["generate", "--temperature", "0", "--max-new-tokens", "32", "def double(x):"]
    assert main(words) == 0
    assert capsys.readouterr().out != "def double(x):\n    return 2 * x\n"
    assert main(["sft", "--config", recipe, "--data", data, "--out", str(out)]) == 0
    assert "too few to learn from" not in capsys.readouterr().err
    assert main([*words, "--model", str(out / "model")]) == 0
    assert capsys.readouterr().out == "def double(x):\n    return 2 * x\n"
    adapters = ["--lora-rank", "16", "--learning-rate", "3e-3", "--out", str(tmp_path / "lora")]
    assert main(["sft", "--config", recipe, "--data", data, *adapters]) == 0
    capsys.readouterr()
    assert main([*words, "--adapter", str(tmp_path / "lora" / "adapter")]) == 0
    assert capsys.readouterr().out == "def double(x):\n    return 2 * x\n"


def test_killed_run_ends_with_the_weights_of_the_uninterrupted_one(whole, folder):
    """Killed as soon as its first checkpoint appears, and once more a little later; see
    experiments/kill_resume.py.
    """
    out = folder / "killed"
    command = [sys.executable, "-m", "jax_lm", *arguments(folder, out)]
    for step, wait in ((7, 0.0), (28, 0.1)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while newest(out) < step and process.poll() is None:
            time.sleep(0.02)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert 28 <= newest(out) < STEPS
    assert main(arguments(folder, out)) == 0
    for name in ("model/model.safetensors", "model/tokenizer.json", "refused.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = ((path / "metrics.jsonl").read_text().splitlines() for path in (out, whole))
    timeless = [
        [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]
        for lines in (ours, theirs)
    ]
    assert timeless[0] == timeless[1]


def newest(out: Path):
    """Step of the newest whole checkpoint."""
    folder = out / "checkpoints"
    steps = (
        [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        if folder.is_dir()
        else []
    )
    return max(steps, default=0)


def tokenised(folder, kind, data):
    """The folder that `data tokenize` writes of a file."""
    out = folder / f"tokens-{data}"
    words = [
        "--data",
        str(folder / data),
        "--model",
        str(folder / "model"),
        "--out",
        str(out),
        "--kind",
        kind,
    ]
    if not out.exists():
        assert (
            main(
                [
                    "data",
                    "tokenize",
                    *words,
                    "--max-length",
                    "48",
                    "--workers",
                    "1",
                    "--num-shards",
                    "3",
                ]
            )
            == 0
        )
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_tokenised_conversations_train_as_their_file_does(folder, packed):
    weights = []
    for name, data in (
        ("file", folder / "data.jsonl"),
        ("folder", tokenised(folder, "conversations", "data.jsonl")),
    ):
        out = folder / f"{name}-{packed}"
        changes = {
            "data": data,
            "packed": packed,
            "held-out-share": 0.2,
            "max-steps": 9,
            "evaluate-every": 4,
        }
        assert main(arguments(folder, out, **changes)) == 0
        weights.append((out / "model" / "model.safetensors").read_bytes())
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        weights.append([{k: v for k, v in line.items() if "second" not in k} for line in lines])
    assert weights[:2] == weights[2:]


def test_tokenised_data_of_another_run_are_refused(folder, tmp_path, capsys):
    data = tokenised(folder, "conversations", "data.jsonl")
    assert main(arguments(folder, tmp_path, data=data, **{"max-length": 4})) == 2
    assert "longer than max_length=4" in capsys.readouterr().err
    words = ["--data", str(data), "--model", str(folder / "model"), "--out", str(tmp_path)]
    assert main(["adapt", *words, "--max-length", "256"]) == 2
    assert "max_length=256: must be at most 128, the model's context" in capsys.readouterr().err
    assert main(["adapt", *words]) == 2
    assert "tokenised with kind='conversations', not 'text'" in capsys.readouterr().err
    assert main(["sft", *words, "--turns", "all"]) == 2
    assert "is tokenised: --turns and --template are options of `diffucoder data tokenize`" in (
        capsys.readouterr().err
    )


def adaptation(folder, out, **changes):
    options = {
        "data": tokenised(folder, "text", "many.jsonl"), "model": folder / "model", "out": out, "max-length": 32,
        "batch-size": 4, "max-steps": 40, "annealing-steps": 20, "warmup-steps": 1, "learning-rate": 0.01,
        "save-every": 5, "log-every": 10, "held-out-share": 0.1, "cut-share": 0.2, "prefix-share": 0.2,
    } | changes  # fmt: skip
    return [
        "adapt",
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
    ]


def test_adaptation_on_tokenised_texts_is_resumed_after_sigkill(folder):
    texts = (
        json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n" * (i % 4 + 1)})
        for i in range(200)
    )
    (folder / "many.jsonl").write_text("\n".join(texts))
    assert main(adaptation(folder, folder / "adapted-whole")) == 0
    out = folder / "adapted-killed"
    command = [sys.executable, "-m", "jax_lm", *adaptation(folder, out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while newest(out) < 10 and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 10 <= newest(out) < 40
    assert main(adaptation(folder, out)) == 0
    names = (path / "model" / "model.safetensors" for path in (out, folder / "adapted-whole"))
    ours, theirs = (name.read_bytes() for name in names)
    assert ours == theirs
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    # What a CPU could do at most is not known, hence not how much of it was used.
    assert not any("mfu" in line for line in lines)


def test_adapter_is_trained_and_merged(folder):
    out = folder / "lora"
    changes = {"lora-rank": 2, "max-steps": 3, "packed": True, "held-out-share": 0.1}
    assert main(arguments(folder, out, **changes)) == 0
    assert not (out / "model").exists()
    assert main(["merge-lora", "--adapter", str(out / "adapter"), "--model", str(folder / "model"), "--out",
                 str(folder / "merged")]) == 0  # fmt: skip
    before, after = (
        parameters(DreamForCausalLM.from_pretrained(folder / name)) for name in ("model", "merged")
    )
    changed = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert changed == {name for name in before if name.endswith("proj.weight")}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert "eval_loss" in lines[-1]


def test_only_the_targets_carry_adapters(folder):
    out = folder / "targets"
    words = arguments(folder, out, **{"lora-rank": 2, "max-steps": 3})
    assert main([*words, "--lora-targets", "q_proj", "down_proj"]) == 0
    held = load_file(out / "adapter" / "adapter_model.safetensors")
    assert {name.split(".")[-3] for name in held} == {"q_proj", "down_proj"}
    assert all(np.abs(value).max() > 0 for value in held.values())
    assert main([*words, "--lora-targets", "k_proj"]) == 2


def test_the_best_weights_of_a_run_are_written(folder):
    """A learning rate far too high makes one of the evaluations worse than the one before, on any
    machine.
    """
    out = folder / "best"
    changes = {
        "held-out-share": 0.2, "evaluate-every": 2, "max-steps": 40, "learning-rate": 0.5, "warmup-steps": 0,
        "metric-for-best-model": "eval_loss", "load-best-model-at-end": True, "early-stopping-patience": 1, "keep": 1,
    }  # fmt: skip
    assert main(arguments(folder, out, **changes)) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}
    best = min(losses, key=losses.__getitem__)
    last = max(losses)
    assert last == best + 2 < 40
    assert sorted(int(path.name) for path in (out / "checkpoints").iterdir()) == [best, last]
    # The same run, ended where its best evaluation was.
    again = folder / "best-again"
    words = arguments(
        folder,
        again,
        **{k: v for k, v in changes.items() if "best" not in k and "patience" not in k},
    )
    assert main([*words, "--stop-after", str(best)]) == 0
    written = [(path / "model" / "model.safetensors").read_bytes() for path in (out, again)]
    assert written[0] == written[1]
    # A run that has ended is not trained again.
    before = (out / "metrics.jsonl").read_bytes()
    assert main(arguments(folder, out, **changes)) == 0
    assert (out / "metrics.jsonl").read_bytes() == before
    assert (out / "model" / "model.safetensors").read_bytes() == written[0]


@pytest.fixture(scope="module")
def rounded(folder):
    """The model as it is published: in bfloat16.

    Also texts and prompts, and a reward, to train it in every way.
    """
    model, path = DreamForCausalLM.from_pretrained(folder / "model"), folder / "rounded"
    model.save_pretrained(path, dtype="bfloat16")
    DiffuCoderTokenizer.from_pretrained(folder / "model").save_pretrained(path)
    (folder / "few.jsonl").write_text(
        "".join(json.dumps({"text": f"x = {i}", "prompt": f"{i}"}) + "\n" for i in range(8))
    )
    return path


SMALL = {"learning-rate": 1e-6, "warmup-steps": 0, "weight-decay": 0.0}
COMMANDS = {
    "sft": {"max-length": 48, "batch-size": 4, "max-steps": 2},
    "adapt": {"max-length": 16, "batch-size": 4, "max-steps": 2, "annealing-steps": 0},
    "grpo": {
        "max-steps": 1, "num-generations": 2, "prompts-per-step": 2, "max-new-tokens": 4, "num-steps": 2,
        "reward-funcs": "test_sft:first", "reward-weights": 1.0, "num-iterations": 1, "max-grad-norm": 1.0,
    },
}  # fmt: skip


def first(prompts, completions, **columns):
    """A reward that differs between completions."""
    return [float(number % 2) for number in range(len(completions))]


@pytest.mark.parametrize("command", COMMANDS)
def test_small_updates_survive_saving_and_loading(folder, rounded, command):
    """Updates of 1e-6, far below half a step of bfloat16 for most weights; unless bfloat16 is asked
    for.
    """
    data = folder / ("data.jsonl" if command == "sft" else "few.jsonl")
    before = parameters(DreamForCausalLM.from_pretrained(rounded, dtype="float32"))
    shares = {}
    for dtype in ("float32", "bfloat16"):
        out = folder / f"{command}-{dtype}"
        options = COMMANDS[command] | SMALL | {"data": data, "model": rounded, "out": out}
        options |= {} if dtype == "float32" else {"save-dtype": dtype}
        assert (
            main(
                [
                    command,
                    *(
                        word
                        for name, value in options.items()
                        for word in (f"--{name}", str(value))
                    ),
                ]
            )
            == 0
        )
        after = parameters(DreamForCausalLM.from_pretrained(out / "model"))
        assert {value.dtype.name for value in after.values()} == {dtype}
        assert json.loads((out / "model" / "config.json").read_text())["torch_dtype"] == dtype
        moves = [np.abs(np.float32(after[name]) - np.float32(before[name])) for name in before]
        kernels = np.concatenate(
            [move.ravel() for name, move in zip(before, moves, strict=True) if "proj" in name]
        )
        shares[dtype] = float((kernels > 0).mean())
        assert dtype == "bfloat16" or kernels.max() < 3e-6
    assert shares["float32"] > 0.9
    assert shares["bfloat16"] < 0.5 * shares["float32"]


def test_merged_adapters_keep_what_bfloat16_would_round_away(folder, rounded):
    out, options = (
        folder / "small-lora",
        {"lora-rank": 2, "max-steps": 1, "model": rounded, "learning-rate": 1e-5},
    )
    assert main(arguments(folder, out, **options)) == 0
    words = ["merge-lora", "--adapter", str(out / "adapter"), "--model", str(rounded), "--out"]
    before, shares = parameters(DreamForCausalLM.from_pretrained(rounded, dtype="float32")), {}
    for dtype, more in (("float32", []), ("bfloat16", ["--save-dtype", "bfloat16"])):
        assert main([*words, str(folder / f"merged-{dtype}"), *more]) == 0
        after = parameters(DreamForCausalLM.from_pretrained(folder / f"merged-{dtype}"))
        assert {value.dtype.name for value in after.values()} == {dtype}
        kernels = [name for name in before if name.endswith("proj.weight")]
        shares[dtype] = np.mean(
            [np.mean(np.float32(after[name]) != before[name]) for name in kernels]
        )
    assert shares["float32"] > 0.9
    assert shares["bfloat16"] < 0.5 * shares["float32"]


@pytest.mark.parametrize(
    ("name", "options", "family"),
    [
        ("autoregressive-llama", [], "adapted"),
        ("autoregressive-qwen3", ["--block-length", "4"], "adapted to blocks"),
    ],
)
def test_a_base_with_a_full_vocabulary_is_adapted_by_the_defaults(folder, name, options, family):
    base, out = folder / name, folder / f"{name}-adapted"
    # 64 rows, all of them used, and none of our special tokens.
    write_base(base, name)
    before = load_file(base / "model.safetensors")
    (folder / "few.jsonl").write_text(
        "".join(json.dumps({"text": "abc def" * i}) + "\n" for i in range(1, 9))
    )
    command = [
        "adapt",
        "--data",
        str(folder / "few.jsonl"),
        "--model",
        str(base),
        "--out",
        str(out),
    ]
    small = ["--max-length", "32", "--batch-size", "2", "--learning-rate", "0.001"]
    assert main([*command, *small, *options, "--max-steps", "2"]) == 0
    config = DreamForCausalLM.read_config(out / "model")
    tokenizer = DiffuCoderTokenizer.from_pretrained(out / "model")
    tokenizer.require_ids(config)
    assert (config.family.name, config.vocab_size) == (family, 128)
    assert (tokenizer.mask_id, tokenizer.pad_id, tokenizer.encode("abc")) == (64, 65, [1, 2, 3])
    after = load_file(out / "model" / "model.safetensors")
    assert after.keys() == before.keys()
    # The old rows moved by two small updates, the new ones from the mean of the old.
    for table in {"model.embed_tokens.weight", "lm_head.weight"} & before.keys():
        old = before[table].astype(np.float32)
        assert after[table].shape == (128, 32)
        assert 0 < np.abs(after[table][:64] - old).max() < 0.01
        assert np.abs(after[table][64:] - old.mean(axis=0)).max() < 0.01


def write_base(folder, name):
    """Write a causal base whose tokenizer uses every row of its vocabulary."""
    config = DreamConfig.from_dict(config_fields(name, 0))
    shapes = parameter_shapes(config).items()
    tensors = {key: jnp.asarray(random_tensor(key, shape)) for key, shape in shapes}
    DreamForCausalLM.from_tensors(config, tensors).save_pretrained(folder)
    words = {"<end>": 0} | {chr(96 + n): n for n in range(1, 27)} | {"Ġ": 27}
    words |= {f"<extra {n}>": n for n in range(28, 64)}
    backend = Tokenizer(models.BPE(words, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))


def test_adaptation_from_nothing_of_a_tokenizer_without_a_mask(folder, builtin_folder):
    tokenizer = DiffuCoderTokenizer.from_pretrained(builtin_folder)
    shape = folder / "shape"
    tokenizer.save_pretrained(shape)
    fields = json.loads((shape / "tokenizer.json").read_text())
    kept = [
        token
        for token in fields["added_tokens"]
        if token["content"] not in ("<|mask|>", "<|dlm_pad|>")
    ]
    (shape / "tokenizer.json").write_text(json.dumps(fields | {"added_tokens": kept}))
    config = json.loads((folder / "model" / "config.json").read_text())
    config |= {"model_type": "qwen2", "mask_token_id": None, "vocab_size": 1600}
    (shape / "config.json").write_text(json.dumps(config))
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"text": f"x = {i}\n" * i}) + "\n" for i in range(1, 30))
    )
    out = folder / "adapted"
    command = [
        "adapt",
        "--data",
        str(folder / "texts.jsonl"),
        "--model",
        str(shape),
        "--out",
        str(out),
    ]
    options = {
        "from-scratch": True,
        "max-length": 48,
        "batch-size": 4,
        "max-steps": 4,
        "annealing-steps": 2,
        "warmup-steps": 1,
    }
    assert (
        main(
            [
                *command,
                *(word for name, value in options.items() for word in (f"--{name}", str(value))),
            ]
        )
        == 0
    )
    adapted = DiffuCoderTokenizer.from_pretrained(out / "model")
    config = DreamForCausalLM.read_config(out / "model")
    adapted.require_ids(config)
    assert config.model_type == "Dream"
    assert adapted.pad_id != adapted.token_id("<|endoftext|>")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lora-alpha": 2.0}, "lora_alpha=2.0: needs lora_rank"),
        ({"lora-targets": "q_proj"}, "lora_targets=('q_proj',): needs lora_rank"),
        (
            {"lora-rank": 2, "lora-targets": "head"},
            "lora_targets=('head',): must be some of q_proj",
        ),
        (
            {"metric-for-best-model": "loss"},
            "metric_for_best_model='loss': nothing is held out to evaluate",
        ),
        (
            {"metric-for-best-model": "reward", "held-out-share": 0.2, "evaluate-every": 1},
            "='reward': must be loss",
        ),
        ({"early-stopping-patience": 2}, "early_stopping_patience=2: needs metric_for_best_model"),
        ({"optim": "sgd"}, "optim='sgd': must be one of adafactor"),
        ({"data": "deploy"}, "has no dataset.json that can be read"),
        ({"max-length": 4}, "longer than max_length=4"),
        ({"batch-size": 2**22}, "of working memory per device"),
        ({"max-length": 129}, "max_length=129: must be at most 128, the model's context"),
        ({"data": "absent.jsonl"}, "data='absent.jsonl' cannot be read"),
        ({"max-steps": None}, "max_steps=None: must be given"),
        ({"held-out-share": 0.99}, "held_out_share=0.99: holds out 30 of 30 samples"),
    ],
)
def test_wrong_input_is_one_line(folder, tmp_path, capsys, changes, named):
    assert main(arguments(folder, tmp_path, **changes)) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "recipe"), [("sft", "sft_paper"), ("sft", "sft_builtin"), ("adapt", "adapt_paper")]
)
def test_recipes_are_options_of_their_command(folder, tmp_path, capsys, command, recipe):
    path = Path(__file__).parent.parent / "recipes" / f"{recipe}.yaml"
    absent = tmp_path / "absent.jsonl"
    words = ["--model", str(folder / "model"), "--data", str(absent), "--out", str(tmp_path)]
    # the context of this model is shorter than the recipes' rows
    assert main([command, "--config", str(path), *words, "--max-length", "64"]) == 2
    assert "absent.jsonl' cannot be read" in capsys.readouterr().err


def test_prompts_come_to_be_visible():
    sample = Row((1, 2, 3), (False, False, True))
    vary = reveal_prompts(10)
    rng = np.random.default_rng(0)
    # the first token stays visible: nothing before it can predict it
    assert vary(sample, 0, rng).canvas == (False, True, True)
    shares = [
        np.mean([vary(sample, step, rng) == sample for _ in range(400)]) for step in (0, 5, 10)
    ]
    assert shares[0] == 0
    assert shares[1] == pytest.approx(0.5, abs=4 * 0.5 / 20)
    assert shares[2] == 1


TEXT = Row(tuple(range(40)), (False, *[True] * 39), open=False)


def test_attention_opens_in_a_line():
    assert [openness(step, 4) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    assert openness(0, 0) is None


def test_few_texts_are_cut_or_keep_a_beginning():
    rng = np.random.default_rng(0)
    config = AdaptConfig(cut_share=0.2, prefix_share=0.1)
    rows = [cut_or_reveal(TEXT, 0, rng, config=config) for _ in range(4000)]
    assert all(
        row.ids == TEXT.ids[: len(row.ids)] and len(row.ids) == len(row.canvas) for row in rows
    )
    # A cut and a beginning may leave the text as it was: one length of 40.
    cut = np.mean([len(row.ids) < 40 for row in rows])
    assert not any(row.canvas[0] for row in rows)
    visible = [row for row in rows if not all(row.canvas[1:])]
    assert cut == pytest.approx(0.2 * 39 / 40, abs=4 * 0.4 / 4000**0.5)
    assert len(visible) / 4000 == pytest.approx(0.1 * 0.95, abs=4 * 0.3 / 4000**0.5)
    assert all(row.canvas == tuple(sorted(row.canvas)) for row in visible)
    assert all(
        cut_or_reveal(TEXT, 0, rng, config=AdaptConfig(cut_share=0.0, prefix_share=0.0)) == TEXT
        for _ in range(50)
    )


def test_held_out_samples_are_not_learnt():
    learnt, held_out = (part.tolist() for part in split(20, 0.25, seed=0))
    assert len(held_out) == 5
    assert sorted([*learnt, *held_out]) == list(range(20))
    assert split(20, 0.25, seed=0)[1].tolist() == held_out != split(20, 0.25, seed=1)[1].tolist()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SftConfig(batch_size=0), "batch_size=0"),
        (lambda: SftConfig(num_train_epochs=0.0), "num_train_epochs=0.0"),
        (lambda: SftConfig(condition_share=1.5), "condition_share=1.5"),
        (lambda: SftConfig(spare_pads=-1), "spare_pads=-1"),
        (lambda: AdaptConfig(max_length=0), "max_length=0"),
        (lambda: AdaptConfig(annealing_steps=-1), "annealing_steps=-1"),
        (lambda: AdaptConfig(cut_share=-0.1), "cut_share=-0.1"),
    ],
)
def test_settings_out_of_range_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


OPTIONS = {
    "--max-length": "48", "--batch-size": "4", "--held-out-share": "0.1", "--weighting": "cart",
    "--normalisation": "token",
    "--level-draws": "antithetic", "--high-levels": "True", "--minimum-level": "0.01", "--max-weight": "9",
    "--cart-p": "0.4", "--masks-per-query": "True", "--remat": "True", "--max-steps": "7", "--stop-after": "6",
    "--gradient-accumulation-steps": "2", "--compute-dtype": "bfloat16", "--seed": "3", "--log-every": "4",
    "--save-every": "5",
    "--evaluate-every": "6", "--keep": "3", "--resume": "never", "--track": "wandb", "--profile": "steps=1:2",
    "--learning-rate": "0.5", "--warmup-ratio": "0.2", "--warmup-steps": "1", "--min-lr-ratio": "0.3",
    "--adam-beta1": "0.8", "--adam-beta2": "0.95", "--adam-epsilon": "1e-6", "--weight-decay": "0.05",
    "--max-grad-norm": "0.7",
    "--muon-learning-rate": "0.01",
}  # fmt: skip
"""Options that `sft` and `adapt` share, with values that are not the defaults."""

LOSS = LossConfig(
    weighting="cart", normalisation="token", level_draws="antithetic", high_levels=True, minimum_level=0.01,
    max_weight=9.0, cart_p=0.4, masks_per_query=True, remat=True,
)  # fmt: skip
OPTIMIZER = OptimizerConfig(
    learning_rate=0.5, warmup_ratio=0.2, warmup_steps=1, min_lr_ratio=0.3, adam_beta1=0.8, adam_beta2=0.95,
    adam_epsilon=1e-6, weight_decay=0.05, max_grad_norm=0.7, muon_learning_rate=0.01,
)  # fmt: skip
TRAINING = TrainerConfig(
    max_steps=7, optimizer=OPTIMIZER, stop_after=6, gradient_accumulation_steps=2, compute_dtype="bfloat16", seed=3,
    log_every=4, save_every=5, evaluate_every=6, keep=3, resume="never", track=("wandb",), profile="steps=1:2",
)  # fmt: skip
SHARED = {
    "max_length": 48,
    "batch_size": 4,
    "held_out_share": 0.1,
    "loss": LOSS,
    "training": TRAINING,
}
TRAINED_BY = {
    "sft": (
        {"--packed": "True", "--spare-pads": "8", "--condition-share": "0.5"},
        SftConfig(packed=True, spare_pads=8, condition_share=0.5, **SHARED),
    ),
    "adapt": (
        {"--annealing-steps": "9", "--cut-share": "0.2", "--prefix-share": "0.3", "--model": "x"},
        AdaptConfig(annealing_steps=9, cut_share=0.2, prefix_share=0.3, **SHARED),
    ),
}


@pytest.mark.parametrize("command", TRAINED_BY)
def test_options_reach_their_settings(command, tmp_path):
    more, settings = TRAINED_BY[command]
    options, words = OPTIONS | more, [command, "--data", "x", "--out", "y"]
    typed = [word for option in options.items() for word in option]
    assert parse([*words, *typed]).settings == settings
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "".join(f"{name[2:].replace('-', '_')}: {value}\n" for name, value in options.items())
    )
    assert parse([*words, "--config", str(recipe)]).settings == settings
    # What is typed wins.
    assert (
        parse([*words, "--config", str(recipe), "--max_steps=8"]).settings.training.max_steps == 8
    )


def test_lengths_that_nobody_gives_fit_the_context():
    assert longest_allowed(AdaptConfig(), 8192) == 4096
    assert longest_allowed(AdaptConfig(), 512) == 512
    assert longest_allowed(SftConfig(), 8192) == 2048
    assert longest_allowed(AdaptConfig(max_length=64), 512) == 64
    with pytest.raises(ValueError, match="max_length=600: must be at most 512"):
        longest_allowed(AdaptConfig(max_length=600), 512)


def test_rows_that_parts_do_not_divide_are_filled_up(folder, tmp_path):
    """Three rows in two parts on one device: the loss is that of three rows."""
    data = tmp_path / "three.jsonl"
    data.write_text(
        "".join(
            json.dumps({"prompt": f"Add {i}.", "response": f"x = {i}"}) + "\n" for i in range(3)
        )
    )
    options = ["--max-steps", "1", "--batch-size", "3", "--max-length", "32", "--warmup-steps", "0"]
    options += ["--model", str(folder / "model")]
    losses = []
    for parts in ("1", "2"):
        words = [*options, "--gradient-accumulation-steps", parts, "--out", str(tmp_path / parts)]
        assert main(["sft", "--data", str(data), *words]) == 0
        (line,) = (tmp_path / parts / "metrics.jsonl").read_text().splitlines()
        losses.append(json.loads(line)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
