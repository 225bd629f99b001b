"""What a careless user types: one line, status 2, nothing written.

They type in a folder with a file `taken`, a folder `empty`, a text `words.txt`, a recipe with a
typo, models that are none.
"""

import errno
import json
import os
import resource
import shlex
import shutil
import signal
import socket
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jax_lm.cli import main as cli
from jax_lm.cli.arguments import table
from jax_lm.conversion import convert
from jax_lm.host import terminal
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.training.checkpoints import RunCheckpoints

CARELESS = [
    # Commands and options that do not exist.
    ("genrate 'def f():'", "command='genrate': must be one of generate, chat, info"),
    ("genrate x", "(perhaps generate)"),
    ("data tokenise", "must be one of data prepare-acecode, data show, data tokenize (perhaps data tokenize)"),
    ("sandbox chek", "must be one of sandbox check, sandbox run, sandbox serve (perhaps sandbox check)"),
    ("generate --max-token 8 x", "--max-token: no option of generate (perhaps --max-new-tokens)"),
    ("generate --temprature 0 x", "--temprature: no option of generate (perhaps --temperature)"),
    ("generate --steps 4 x", "--steps: no option of generate (perhaps --num-steps)"),
    ("sft --learning_rat 1 --data d --out o", "--learning_rat: no option of sft (perhaps --learning-rate)"),
    ("sft --epoch 3 --data d --out o", "--epoch: no option of sft"),
    ("grpo --num-generation 4 --out o", "(perhaps --num-generations)"),
    ("serve --prot 80", "--prot: no option of serve (perhaps --port)"),
    ("info -x", "-x: no option of info"),
    ("bench --config words.txt", "--config: no option of bench"),
    # Values of the wrong kind.
    ("generate --max-new-tokens many x", "--max-new-tokens 'many': must be INT"),
    ("generate --max-new-tokens 3.5 x", "--max-new-tokens '3.5': must be INT"),
    ("generate --max-new-tokens", "--max-new-tokens: needs a value"),
    ("generate --model --chat x", "--model: needs a value"),
    ("generate --temperature warm x", "--temperature 'warm': must be FLOAT"),
    ("generate --temperature nan x", "--temperature 'nan': must be a finite number"),
    ("generate --temperature inf x", "--temperature 'inf': must be a finite number"),
    ("sft --learning-rate=-inf --data d --out o", "--learning-rate '-inf': must be a finite number"),
    ("generate --seed 99999999999999999999999 x", "--seed '99999999999999999999999': must be a number of 64 bits"),
    ("bench --batch-sizes 1 99999999999999999999999", "must be a number of 64 bits"),
    ("sft --config endless.yaml --data d --out o", "config='endless.yaml': learning_rate 'inf': must be"),
    ("generate $ODD", r"PROMPT 'def f\udcff(x):': must be UTF-8"),
    ("generate --prefix $ODD", r"--prefix 'def f\udcff(x):': must be UTF-8"),
    ("chat --system $ODD", r"--system 'def f\udcff(x):': must be UTF-8"),
    ("generate --out f.py x", "out=f.py: needs --prompts"),
    ("generate --file marks.py", "hole '<|hole:-3|>': must be <|hole|> or <|hole:12|>"),
    ('generate " "', "prompt=' ': must hold more than blanks"),
    ("generate --preset trubo x", "preset='trubo': must be one of exact, fast, turbo (perhaps turbo)"),
    ("generate --seed -1 x", "seed=-1: must not be negative"),
    ("generate --watch=perhaps x", "--watch 'perhaps': must be true or false"),
    ("generate def f(n):", "'f(n):': generate takes no further argument; put a text with spaces in quotes"),
    ("generate --prefix a --prompts words.txt --out o", "prefix/suffix and prompts given"),
    ("generate --prompts words.txt", "needs --out, a file for the answers"),
    ("generate --prompts absent.jsonl --out o", "absent.jsonl"),
    ("generate --prompts words.txt --out o", "words.txt: line 1: not JSON"),
    ("generate --file absent.py", "absent.py"),
    ("generate --file empty", "Is a directory"),
    ("generate --file words.txt", "template has no hole"),
    ("chat --seed -1", "seed=-1"),
    ("eval humanevil", "SUITE 'humanevil': must be one of builtin, humaneval, humaneval+"),
    ("eval", "eval needs SUITE"),
    ("plan --topology v5e:2x2 --model-config 7b --batch-size 0", "batch_size=0: must be at least 1"),
    ("plan --topology v5e:3x5 --model-config 7b", "topology='v5e:3x5': there is no such slice"),
    ("plan --topology v6e:32x32 --model-config 7b", "topology='v6e:32x32': there is no such slice"),
    ("plan --topology v5p:2x2x3 --model-config 7b", "topology='v5p:2x2x3': there is no such slice"),
    ("generate --preset turbo --commit steps --threshold 0.5 x", "threshold=0.5: has no meaning with commit='steps'"),
    ("generate --factor 2 x", "factor=2.0: has no meaning with commit='steps', only with factor"),
    ("generate --commit entropy --decay 0.5 x", "decay=0.5: has no meaning with commit='entropy'"),
    ("info --max-length 0", "max_length=0: must be at least 1"),
    ("bench --batch-sizes 0", "batch_sizes=(0,): must be at least 1"),
    ("bench --batch-sizes one", "--batch-sizes 'one': must be INT"),
    ("sandbox run words.txt --timeout soon", "--timeout 'soon': must be FLOAT"),
    ("sandbox run words.txt --memory-mib 1", "memory_mib=1: must lie in [64, 2**28]"),
    ("generate --model light --grammar json_schema:{ x", "json_schema='{': is not JSON"),
    ("completion powershell", "SHELL 'powershell': must be one of bash, zsh, fish"),
    # Models that are none.
    ("generate --model taken x", "model 'taken' is a file; expected a folder"),
    ("generate --model empty x", "empty has no config.json"),
    ("info --model run", "run has no config.json (perhaps run/model)"),
    ("generate --adapter run x", "run has no adapter_config.json (perhaps run/adapter)"),
    ("generate --model absent x", "model 'absent': no such folder, and not a hub id"),
    ("generate --model gpt x", "config model_type='gpt2' (gpt): of no known family"),
    ("info --model gpt", "config model_type='gpt2'"),
    ("generate --model qwen --preset fast x", "preset='fast': must be 'exact' as this model is autoregressive"),
    ("generate --model light --preset fast x", "preset='fast': must be 'exact'"),
    ("eval builtin --model light --preset fast --limit 1 --out o", "preset='fast': must be 'exact'"),
    ("generate --prompts good.jsonl --out o --model light --preset fast", "preset='fast': must be 'exact'"),
    ("eval builtin --growth on --limit 1 --out o", "growth='on': this checkpoint has no <|expand|> token"),
    ("info --max-length 5000", "max_length=5000: must be at most 512, the model's context"),
    ("plan --topology h100:1 --model-config 7b --max-length 500000", "max_length=500000: must be at most 131072"),
    ("plan --topology h100:1 --model-config 7b --cache causal", "cache='causal': with several blocks at once"),
    ("data show ./nope", "data='./nope' cannot be read: there is no such file or folder"),
    ("data show words.csv", "data='words.csv' cannot be read: there is no such file or folder"),
    ("analyze --model light --limit 1 --out o", "as this model is autoregressive"),
    ("verify absent", "model 'absent'"),
    ("models --delete me/nothing", "delete='me/nothing': not in the hub's cache"),
    ("models --yes", "yes: needs --delete MODEL"),
    # Places where nothing can be written, or something is.
    ("convert absent words.txt", "model 'absent'"),
    ("experiment --out taken", "out='taken': must be a folder, or not exist yet (is a file)"),
    ("experiment", "experiment needs --out"),
    ("eval builtin --limit 1 --out taken", "out='taken': must be a folder"),
    ("sft --data good.jsonl --out gs://bucket/run --max-steps 1", "--out 'gs://bucket/run': must be a local path; a bucket"),
    ("sft --config bucket.yaml --data good.jsonl", "config='bucket.yaml': out 's3://bucket/run': must be a local path"),
    ("adapt --model builtin --data empty --out gs://bucket/run", "--out 'gs://bucket/run': must be a local path"),
    ("grpo --out gs://bucket/run", "--out 'gs://bucket/run': must be a local path"),
    ("generate --prompts good.jsonl --out gs://bucket/answers.jsonl", "--out 'gs://bucket/answers.jsonl': must be a local"),
    ("generate --animation gs://bucket/a.html x", "--animation 'gs://bucket/a.html': must be a local path"),
    ("convert builtin gs://bucket/copy", "DESTINATION 'gs://bucket/copy': must be a local path"),
    ("data tokenize --data good.jsonl --out file:///tmp/o", "--out 'file:///tmp/o': must be a local path"),
    ("sft --data good.jsonl --out taken --max-steps 1", "out='taken': must be a folder"),
    ("analyze --limit 1 --out taken", "out='taken': must be a folder, or not exist yet (is a file)"),
    ("merge-lora --adapter absent --out held", "out='held': exists already, and nothing is overwritten"),
    ("analyze --limit 1 --out held", "out='held/analysis.json': exists already"),
    ("bench --out held", "out='held/bench.json': exists already"),
    ("plan --model-config 7b --topology h100:1 --estimate --out taken", "out='taken': exists already"),
    ("generate --animation taken x", "animation='taken': exists already"),
    ("generate --animation taken/a.svg x", "animation='taken': must be a folder, or not exist yet (is a file)"),
    ("data prepare-acecode --data good.jsonl --out words.txt", "out='words.txt': exists already"),
    ("data show words.txt --kind text --template chat", "texts are learnt whole"),
    ("merge-lora --adapter absent --out taken", "out='taken': must be a folder, or not exist yet (is a file)"),
    ("merge-lora --adapter absent --out taken/model", "out='taken/model': must be a folder, or not exist yet ("),
    ("sft --data good.jsonl --out taken/run --max-steps 1", "taken is not a writable folder)"),
    ("sft --data absent.jsonl --out o", "absent.jsonl"),
    ("sft --data absent.parquet --out o", "data='absent.parquet' cannot be read: there is no such file"),
    ("grpo --data absent.parquet --out o", "data='absent.parquet' cannot be read: there is no such file"),
    ("sft --data empty --out o", "empty"),
    ("data tokenize --data empty --model builtin --out o", "data='empty'"),
    (
        "data tokenize --data good.jsonl --model builtin --out taken --kind conversations --workers 1",
        "must be a folder",
    ),
    # Recipes and rewards.
    (
        "sft --config typo.yaml --data d --out o",
        "config='typo.yaml': learning_rte: no option of sft (perhaps learning_rate)",
    ),
    ("sft --config nested.yaml --data good.jsonl --out o", "config: a recipe cannot name another recipe"),
    ("sft --config absent.yaml --data d --out o", "config='absent.yaml': cannot be read"),
    ("grpo --reward-funcs code,format --out o", "reward='code,format': must be one of accuracy, "),
    ("grpo --reward-funcs code accuracy --out o", "must have one weight per reward ('code', 'accuracy')"),
    (
        "grpo --reward-funcs mine.py:score --out o --limit 8",
        "reward 'mine.py:score' cannot be imported: [Errno 2] No such file",
    ),
    ("serve --port 70000", "port=70000: must lie in [0, 65535]"),
]  # fmt: skip
assert len(CARELESS) >= 40


@pytest.fixture
def seat(tmp_path, monkeypatch, builtin_folder):
    """The folder in which somebody types."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "taken").write_text("taken")
    (tmp_path / "empty").mkdir()
    (tmp_path / "held").mkdir()
    for name in ("analysis.json", "bench.json"):
        (tmp_path / "held" / name).write_text("{}")
    for name in ("model/config.json", "adapter/adapter_config.json"):
        (tmp_path / "run" / name).parent.mkdir(parents=True)
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "words.txt").write_text("some words\n")
    (tmp_path / "marks.py").write_text("def f(<|hole:-3|>):\n")
    (tmp_path / "good.jsonl").write_text(json.dumps({"prompt": "p", "response": "r"}) + "\n")
    (tmp_path / "typo.yaml").write_text("learning_rte: 1e-4\n")
    (tmp_path / "nested.yaml").write_text("config: typo.yaml\n")
    (tmp_path / "bucket.yaml").write_text("out: s3://bucket/run\n")
    (tmp_path / "endless.yaml").write_text("learning_rate: inf\n")
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 768, "vocab_size": 50257})
    )
    (tmp_path / "qwen").mkdir()
    for path in builtin_folder.iterdir():
        # Nothing in it says which token is the mask.
        if path.name not in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
            (tmp_path / "qwen" / path.name).symlink_to(path)
    fields = json.loads((builtin_folder / "config.json").read_text()) | {
        "model_type": "qwen2",
        "mask_token_id": None,
    }
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(fields))
    # what its options say is known before the weights are
    shutil.copytree(tmp_path / "qwen", tmp_path / "light", ignore=lambda *_: ["model.safetensors"])
    (tmp_path / "builtin").symlink_to(builtin_folder)
    return tmp_path


def listing(folder):
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


def one_line(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1, captured.err
    assert "Traceback" not in captured.err
    assert len(lines[-1]) < 700
    return lines[-1]


@pytest.mark.parametrize(("typed", "said"), CARELESS, ids=[typed for typed, _ in CARELESS])
def test_carelessness_is_one_line(seat, capsys, monkeypatch, typed, said):
    before = listing(seat)
    # the shell hands on a byte that is not UTF-8, which Python reads as a surrogate
    words = ["def f\udcff(x):" if word == "$ODD" else word for word in shlex.split(typed)]
    assert cli.main(words) == 2
    assert said in one_line(capsys)
    assert listing(seat) == before


@pytest.mark.parametrize("command", ["eval builtin", "analyze", "bench", "chat"])
def test_weights_that_are_not_finite_are_named_by_every_command(seat, capsys, command):
    """`generate`, `serve` and `convert` load as these do (test_huggingface)."""
    (seat / "nan").mkdir()
    for path in (seat / "builtin").iterdir():
        (seat / "nan" / path.name).symlink_to(path)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(seat / "builtin" / "model.safetensors")
    tensors[name] = tensors[name].copy()
    tensors[name][3, :2] = np.nan
    (seat / "nan" / "model.safetensors").unlink()
    save_file(tensors, seat / "nan" / "model.safetensors", metadata={"format": "pt"})
    words = [*command.split(), "--model", "nan", *(["--out", "new"] if command != "chat" else [])]
    assert cli.main(words) == 2
    line = one_line(capsys)
    assert f"{name!r} in" in line
    assert "holds 2 numbers that are NaN or infinite" in line
    assert not (seat / "new").exists()


def test_numbers_beyond_float16_are_called_infinite_in_float16(seat, capsys):
    (seat / "large").mkdir()
    for path in (seat / "builtin").iterdir():
        (seat / "large" / path.name).symlink_to(path)
    tensors = load_file(seat / "builtin" / "model.safetensors")
    name = "model.norm.weight"
    tensors[name] = np.full_like(tensors[name], 1e5)
    (seat / "large" / "model.safetensors").unlink()
    save_file(tensors, seat / "large" / "model.safetensors", metadata={"format": "pt"})
    assert cli.main(["convert", "large", "new", "--dtype", "float16"]) == 2
    assert "numbers that are NaN or infinite in float16" in one_line(capsys)
    assert not (seat / "new").exists()


def test_a_taken_port_is_told_before_a_model_is_loaded(seat, capsys, monkeypatch):
    pytest.importorskip("uvicorn")
    loaded = []
    monkeypatch.setattr(
        "jax_lm.cli.commands.serving.DiffuCoderInference", lambda *_: loaded.append(1)
    )
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    line = one_line(capsys)
    refusal = "nothing can listen there (Address already in use); --port 0 takes a free one"
    assert line == f"error: host=127.0.0.1, port={port}: {refusal}"
    assert loaded == []


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
        RuntimeError(
            "INTERNAL: write failed: No space left on device [tensorstore]\n  File x\n  File y"
        ),
    ],
)
def test_a_full_disk_is_one_line_whoever_says_so(capsys, error):
    def command():
        raise error

    assert terminal.run_guarded(command, debug=False) == 2
    assert one_line(capsys).startswith(
        ("error: No space left on device: ", "error: Disk quota exceeded: ")
    )


def test_a_full_disk_during_a_checkpoint_is_one_line(tmp_path, capfd):
    """Orbax's threads would log a thousand lines of tracebacks besides."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    arrays = {"a": jnp.array(np.random.default_rng(0).normal(size=(500, 500)))}

    def command():
        with RunCheckpoints(tmp_path / "run", 2) as checkpoints:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
            checkpoints.save(1, arrays, {"x": 1})
        return 0

    try:
        assert terminal.run_guarded(command, debug=False) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    captured = capfd.readouterr()
    assert captured.err.startswith(f"error: File too large: {tmp_path}/run/1.")
    assert len(captured.err.splitlines()) == 1


def test_a_full_disk_during_a_conversion_is_one_line(tmp_path, capfd):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, hard))
        assert cli.main(["convert", str(BUILTIN_MODEL), str(tmp_path / "copy")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: File too large: ")
    assert not (tmp_path / "copy").exists()


def test_a_full_disk_names_the_file_that_was_written(capsys):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "source", None, "copy")

    def copy():
        raise error

    assert terminal.run_guarded(copy, debug=False) == 2
    assert capsys.readouterr().err.endswith(": copy\n")


def test_a_full_disk_below_another_error_is_found(capsys):
    def command():
        try:
            raise FULL
        except OSError as error:
            raise RuntimeError("a checkpoint was not written") from error

    assert terminal.run_guarded(command, debug=False) == 2
    assert one_line(capsys) == "error: No space left on device: model.safetensors"


def test_a_full_disk_leaves_no_folder_of_a_conversion(seat, capsys, monkeypatch):
    def full(*_):
        raise FULL

    before = listing(seat)
    monkeypatch.setattr(convert, "write_weights", full)
    assert cli.main(["convert", str(BUILTIN_MODEL), "copy"]) == 2
    assert "No space left on device" in one_line(capsys)
    assert listing(seat) == before


def test_what_is_not_installed_is_named_with_its_extra(capsys):
    def command():
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn.config")

    assert terminal.run_guarded(command, debug=False) == 2
    assert (
        one_line(capsys)
        == "error: this needs uvicorn.config, which is not installed: pip install 'jax-diffucoder[serve]'"
    )
    extras = {
        "math_verify": "math",
        "tensorboardX": "tensorboard",
        "torch": "parity",
        "numpy": None,
        "this": None,
    }
    assert {name: terminal.find_extra(name) for name in extras} == extras


def test_a_defect_of_ours_keeps_its_traceback():
    def command():
        raise ModuleNotFoundError("No module named 'jax_lm.absent'", name="jax_lm.absent")

    with pytest.raises(ModuleNotFoundError):
        terminal.run_guarded(command, debug=False)


def test_every_command_is_in_a_module_that_can_be_imported():
    for name, entry in table.COMMANDS.items():
        module = Path(cli.__file__).parent / "commands" / f"{entry.place.partition('.')[0]}.py"
        assert f"def run_{name.replace(' ', '_').replace('-', '_')}(" in module.read_text()
