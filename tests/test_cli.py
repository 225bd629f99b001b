"""The command line: what it prints, and that wrong input is one line and exit status 2."""

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases.reference import GOLDEN

from jax_lm.checkpoints.huggingface import BUILTIN_MODEL
from jax_lm.cli import main as cli
from jax_lm.cli.arguments.generation import Generate
from jax_lm.options import Decoding, GenerationOptions, advise_preset

QUICK = ["--max-new-tokens", "48", "--temperature", "0"]


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def one_error_line(err):
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    return len(lines) == 1 and "Traceback" not in err


def test_generate_prints_the_program_and_nothing_else(capsys):
    status, out, err = run(capsys, "generate", "def add(a, b):", *QUICK)
    assert status == 0
    compile(out, "generated", "exec")
    assert out.startswith("def add(a, b):")
    assert "demonstration model" in err
    assert "not sure" not in err


@pytest.mark.parametrize(
    ("closed", "prompt", "status", "said"),
    [("<&-", [], 2, "error: prompt: standard input was empty\n"),
     ("2>&-", ["def add(a, b):"], 0, "def add(a, b):\n"), ("<&- 2>&-", ["def add(a, b):"], 0, "def add(a, b):\n")],
)  # fmt: skip
def test_a_closed_stream_is_an_empty_one(closed, prompt, status, said):
    # Without a stream, the pipe of interrupts would take its number, and messages of libraries would end the run.
    words = [sys.executable, "-m", "jax_lm", "generate", *QUICK, *prompt]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == status
    assert (done.stdout + done.stderr).startswith(said)


def test_generate_says_what_the_built_in_model_does_not_know(capsys):
    status, out, err = run(capsys, "generate", "def dijkstra(graph, source):", *QUICK)
    assert status == 0
    assert "warning: the built-in model is not sure of this answer" in err
    assert "not sure" not in out


def test_generate_only_new(capsys):
    _, out, _ = run(capsys, "generate", "def add(a, b):", "--only-new", *QUICK)
    assert "def add" not in out


def test_watch_without_a_terminal_is_plain_text(capsys):
    _, watched, _ = run(capsys, "generate", "def add(a, b):", "--watch", *QUICK)
    _, plain, _ = run(capsys, "generate", "def add(a, b):", *QUICK)
    assert watched == plain
    assert "\x1b" not in watched


@pytest.mark.parametrize("argument", [[], ["-"]])
def test_prompt_from_standard_input(capsys, monkeypatch, argument):
    monkeypatch.setattr(sys, "stdin", io.StringIO("def add(a, b):"))
    status, out, err = run(capsys, "generate", *argument, *QUICK)
    assert (status, "Traceback" in err) == (0, False)
    assert out == run(capsys, "generate", "def add(a, b):", *QUICK)[1]


def test_long_commands_say_how_long_and_what_is_quicker(monkeypatch, capsys, engine):
    monkeypatch.setattr("jax_lm.host.terminal.FIRST_LINE", 0.0)
    monkeypatch.setattr("jax_lm.host.terminal.NEXT_LINE", 0.02)
    long = ["--max-new-tokens", "100", "--no-early-stop"]
    for words, name, total in (
        (["generate", "def add(a, b):"], "generating", 100),
        (["chat"], "generating", 100),
        (["eval", "builtin", "--limit", "2", "--batch-size", "2"], "evaluating", 2),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO("Write add(a, b)."))
        status, _, err = run(capsys, *words, *long)
        assert status == 0
        assert f"{name}: the first call of a size compiles, 0 s so far\n" in err
        # Rows of some more than 100 columns: 100 steps compute all, and blocks of 32 only 4 times.
        line = rf"{name}: \d+/{total}, about \d+ s left  --preset fast: \d\.\dx fewer rows"
        assert re.search(line, err), err
    # 256 steps of 300 rows, or 8 x 300 + 248 x 32
    fast, short = (
        GenerationOptions(decoding=Decoding(preset="fast")),
        GenerationOptions(max_new_tokens=16),
    )
    advised = advise_preset(GenerationOptions(), 300, engine.config)
    assert advised == "--preset fast: 7.4x fewer rows"
    assert advise_preset(fast, 300, engine.config) == ""
    # 16 steps of 23 rows, or 23 + 15 x 17
    assert advise_preset(short, 23, engine.config) == "--preset fast: 1.3x fewer rows"
    # 64 steps of 300 rows, or 8 x 300 + 56 x 32
    several = GenerationOptions(tokens_per_step=4)
    assert advise_preset(several, 300, engine.config) == "--preset fast: 4.6x fewer rows"
    # Nothing is gained, or the preset is refused.
    for options in (GenerationOptions(max_new_tokens=1), GenerationOptions(growth="on")):
        assert advise_preset(options, 300, engine.config) == ""


ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "docs/quickstart.md", "docs/serving.md"))]
SHOWN = re.compile(
    r"""generate (--prefix .*)|(?:infill\(|prompt=)("def.*?"),\s+(?:suffix=)?(".*?"),\s+(?:max_tokens=)?(\d+)"""
)


def test_infills_that_are_shown_write_what_they_should(capsys, engine):
    """Of the help, README and pages: the filled program runs, and does what its name says."""
    texts = [Generate.__doc__ or "", *(page.read_text() for page in PAGES)]
    found = {match.groups() for text in texts for match in SHOWN.finditer(text)}
    assert len(found) >= 2
    for words, prefix, suffix, length in found:
        if words:
            status, program, _ = run(capsys, "generate", *shlex.split(words))
            assert status == 0
        else:
            before, after = ast.literal_eval(prefix), ast.literal_eval(suffix)
            program = before + engine.infill(before, after, int(length)) + after
        names: dict = {}
        exec(program, names)
        assert names["gcd"](12, 18) == 6, program


CRLF = "\ufeffdef gcd(a, b):\r\n    while b:\r\n<|hole:15|>\r\n    return a\r\n\r\n"


def typed_in(monkeypatch, content):
    stream = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", stream)


def test_a_file_keeps_its_line_ends_and_byte_order_mark(capsys, monkeypatch, tmp_path):
    (tmp_path / "draft.py").write_bytes(CRLF.encode())
    (tmp_path / "unix.py").write_bytes(CRLF.lstrip("\ufeff").replace("\r", "").encode())
    words = ["--temperature", "0"]
    _, out, _ = run(capsys, "generate", "--file", str(tmp_path / "draft.py"), *words)
    _, unix, _ = run(capsys, "generate", "--file", str(tmp_path / "unix.py"), *words)
    # the model saw the same text, and every line ends as those of the file
    assert out == "\ufeff" + unix.replace("\n", "\r\n")
    assert unix == "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\n"
    # a prompt from a pipe
    for end in ("\r\n", "\n"):
        typed_in(monkeypatch, f"def add(a, b):{end}    # sum{end}".encode())
        _, out, _ = run(capsys, "generate", "-", *QUICK)
        assert out.startswith(f"def add(a, b):{end}    # sum{end}")
        assert out.count(end) == out.count("\n") > 2


def test_json_text_is_what_would_be_printed(capsys):
    for words in (["--only-new"], ["--chat"]):
        _, plain, _ = run(capsys, "generate", "def add(a, b):", *words, *QUICK)
        _, out, _ = run(capsys, "generate", "def add(a, b):", *words, "--json", *QUICK)
        assert json.loads(out)["text"].rstrip() == plain.rstrip()


def test_standard_input_that_is_not_utf_8_is_one_line(capsys, monkeypatch):
    typed_in(monkeypatch, b"def na\xefve():")
    status, out, err = run(capsys, "generate", "-")
    assert (status, out, one_error_line(err)) == (2, "", True)
    assert "prompt: standard input is not Unicode text: character 7" in err


def test_what_exceeds_the_context_is_refused_before_the_weights(capsys, monkeypatch, tmp_path):
    loaded = []
    monkeypatch.setattr(
        "jax_lm.inference.DreamForCausalLM.from_pretrained", lambda *_, **__: loaded.append(1)
    )
    (tmp_path / "long.jsonl").write_text(json.dumps("word " * 600) + "\n")
    lists = ["--prompts", str(tmp_path / "long.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    analysis = ["analyze", "--max-new-tokens", "600", "--out", str(tmp_path / "analysis")]
    asked = (["word " * 600], lists, ["--prefix", "word " * 600])
    for words in (*(["generate", *words] for words in asked), analysis):
        status, _, err = run(capsys, *words)
        assert (status, one_error_line(err), loaded) == (2, True, [])
        assert "the context holds 512 tokens" in err
        # what was given and what was asked for, apart
        assert " + " in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--max-length", "600"], "max_length=600: must be at most 512, the model's context"),
        (["--data", "absent.jsonl"], "data='absent.jsonl' cannot be read"),
    ],
)
def test_mistakes_in_data_are_reported_before_the_weights(
    options, named, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "jax_lm.models.dream.DreamForCausalLM.from_pretrained",
        lambda *_, **__: pytest.fail("loaded"),
    )
    (tmp_path / "good.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    fields = ["sft", "--data", str(tmp_path / "good.jsonl"), "--out", str(tmp_path / "run")]
    status, _, err = run(capsys, *fields, *options)
    assert (status, one_error_line(err)) == (2, True)
    assert named in err


def test_empty_standard_input_is_refused():
    result = subprocess.run(
        [sys.executable, "-m", "jax_lm", "generate", "-"],
        input="\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == "error: prompt: standard input was empty\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "/no/such/folder"], "/no/such/folder"),
        (["--max-new-tokens", "0"], "max_new_tokens=0"),
        (["--max-new-tokens", "-1"], "max_new_tokens=-1"),
        (["--num-steps", "0"], "num_steps=0"),
        (["--top-p", "0"], "top_p=0.0"),
        (["--top-p", "1.01"], "top_p=1.01"),
        (["--top-k", "0"], "top_k=0"),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--alg", "argmax"], "alg='argmax'"),
        (["--dtype", "float8"], "dtype='float8'"),
        (["--max-new-tokens", "5000"], "the context holds 512 tokens"),
        (["--max-new-tokens", "99999999999999"], "the context holds 512 tokens"),
        (["--watch", "--json"], "watch=True and json=True: give one of them"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(capsys, options, named):
    status, out, err = run(capsys, "generate", "def f():", *options)
    assert status == 2
    assert out == ""
    assert one_error_line(err)
    assert named in err


def test_debug_shows_the_traceback(capsys):
    status, _, err = run(capsys, "generate", "def f():", "--debug", "--alg", "argmax")
    assert status == 2
    assert "Traceback" in err


@pytest.mark.parametrize(
    "words", [["--debug", "--help"], ["--debug", "--version"], ["--debug", "data"]]
)
def test_debug_goes_with_any_command(capsys, words):
    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    assert out.startswith(("usage: diffucoder", "diffucoder "))


@pytest.mark.parametrize("folder", ["", "relative"])
def test_compilations_are_never_kept_in_the_current_folder(capsys, monkeypatch, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    run(capsys, "generate", "--help")
    kept = os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    assert kept == (None if folder else os.path.expanduser("~/.cache/jax-diffucoder/xla"))


def test_options_of_one_prompt_are_refused_with_a_file(capsys):
    for option in ("--stats", "--only-new", "--json"):
        status, _, err = run(capsys, "generate", "--prompts", "p.jsonl", "--out", "o.jsonl", option)
        assert status == 2
        assert f"{option[2:].replace('-', '_')}=True: must be False with prompts" in err


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damaged_weights_are_one_line(capsys, tmp_path, builtin_folder, damage):
    model = shutil.copytree(builtin_folder, tmp_path / "model")
    weights = model / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:100_000])
    status, out, err = run(capsys, "generate", "x", "--model", str(model))
    assert (status, out) == (2, "")
    assert one_error_line(err)
    assert "model.safetensors" in err


def test_info_of_a_folder_with_only_a_config(capsys, tmp_path):
    shutil.copy(GOLDEN / "checkpoint" / "config.json", tmp_path)
    status, out, _ = run(capsys, "info", "--model", str(tmp_path))
    assert status == 0
    assert "in 39 tensors" in out
    assert "MiB weights" in out


def test_info_of_the_built_in_model(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    assert "1,536 tokens" in out
    assert "cpu" in out
    assert "16.5 MiB weights" in out
    assert " 0.0" not in out.partition("memory")[2]


def test_a_doubtful_gap_is_doubted(capsys):
    gap = ["--prefix", "def area(r):", "--suffix", "    return result", "--max-new-tokens", "16"]
    assert "is not sure of this answer" in run(capsys, "generate", *gap)[2]
    gap = ["--prefix", "def gcd(a, b):", "--suffix", "    return a", "--max-new-tokens", "24"]
    assert "not sure" not in run(capsys, "generate", *gap)[2]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_cache_that_cannot_be_written_is_left_out(tmp_path, monkeypatch, capsys, is_file):
    """JAX would warn at each program, with a path of its own."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    folder = tmp_path / "cache"
    if is_file:
        folder.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    assert run(capsys, "data", "show", "absent.jsonl")[0] == 2
    assert ("JAX_COMPILATION_CACHE_DIR" not in os.environ) == is_file
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)


def test_two_holes_of_a_file_are_printed_apart(capsys, tmp_path):
    draft = tmp_path / "draft.py"
    draft.write_text("def gcd(a, b):\n<|hole:20|>\n\n\ndef is_even(n):\n<|hole:10|>\n")
    words = ["generate", "--file", str(draft), "--only-new"]
    holes = json.loads(run(capsys, *words, "--json")[1])["holes"]
    assert len(holes) == 2
    assert run(capsys, *words)[1] == "\n".join(holes) + "\n"


def test_parity_check_prints_a_table_and_fails_when_asked_too_much(capsys, tmp_path, monkeypatch):
    folder = shutil.copytree(GOLDEN, tmp_path / "golden")
    cases = json.loads((folder / "cases.json").read_text())
    monkeypatch.setenv("COLUMNS", "80")
    cases["generate"], cases["fast"] = cases["generate"][:1], cases["fast"][:1]
    (folder / "cases.json").write_text(json.dumps(cases))
    status, out, _ = run(capsys, "parity", "check", str(folder))
    assert status == 0
    assert "14 of 14 within bounds" in out
    # names that differ in their ends are whole, also on a narrow terminal
    assert "forward.hidden_states.3" in out
    status, out, _ = run(capsys, "parity", "check", str(folder), "--tolerance", "1e-9")
    assert status == 1
    assert "FAILED" in out


def test_parity_check_of_no_folder(capsys, tmp_path):
    status, _, err = run(capsys, "parity", "check", str(tmp_path / "nothing"))
    assert status == 2
    assert one_error_line(err)


def test_eval_prints_rates_and_writes_attempts(capsys, tmp_path):
    folder = tmp_path / "results"
    arguments = [
        "--limit",
        "4",
        "--batch-size",
        "2",
        "--max-new-tokens",
        "64",
        "--out",
        str(folder),
    ]
    status, out, _ = run(capsys, "eval", "builtin", *arguments)
    assert status == 0
    assert "pass@1" in out
    lines = (folder / "attempts.jsonl").read_text().splitlines()
    attempts = [json.loads(line) for line in lines]
    assert len(attempts) == 4
    assert {attempt["outcome"] for attempt in attempts} <= {"passed", "failed", "timeout"}
    assert "pass@1" in (folder / "report.md").read_text()
    # As after a kill in the middle of a line.
    (folder / "attempts.jsonl").write_text("\n".join(lines)[:-9])
    status, _, err = run(capsys, "eval", "builtin", *arguments)
    assert status == 0
    assert "resuming after 3 attempts" in err
    redone = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    strip = [
        {name: value for name, value in each.items() if name != "seconds"}
        for each in (*attempts, *redone)
    ]
    assert strip[:4] == strip[4:]
    # What changes answers or verdicts must not change in one folder.
    tokenizer = str(BUILTIN_MODEL)
    for option, named in (
        (["--seed", "1"], "seed=0, not 1"),
        (["--no-canary"], "canary=True, not False"),
        (["--same-process"], "same_process=False, not True"),
        (["--dtype", "int8"], "quantization=None, not 'int8'"),
        (["--tokenizer", tokenizer], f"tokenizer=None, not '{tokenizer}'"),
    ):
        status, _, err = run(capsys, "eval", "builtin", *arguments, *option)
        assert (status, one_error_line(err), named in err) == (2, True, True), err


def test_convert_verify_and_generate_from_the_copy(capsys, tmp_path):
    status, out, _ = run(capsys, "convert", str(GOLDEN / "checkpoint"), str(tmp_path / "copy"))
    assert status == 0
    assert "wrote 39 tensors" in out
    status, out, _ = run(capsys, "verify", str(tmp_path / "copy"))
    assert status == 0
    assert "FAILED" not in out
    status, _, err = run(capsys, "convert", str(GOLDEN / "checkpoint"), str(tmp_path / "copy"))
    assert status == 2
    assert one_error_line(err)
    (tmp_path / "copy" / "config.json").write_text("{}")
    status, out, _ = run(capsys, "verify", str(tmp_path / "copy"))
    assert status == 1
    assert "FAILED" in out


@pytest.mark.parametrize(
    ("dtype", "status", "verdict"), [("bfloat16", 1, "does not fit"), ("int8", 0, "fits")]
)
def test_plan_for_one_chip(capsys, dtype, status, verdict):
    plan = ["plan", "--model-config", "7b", "--topology", "v5e:1x1", "--dtype", dtype, "--estimate"]
    found, out, _ = run(capsys, *plan)
    assert found == status
    assert verdict in out
    assert "arithmetic, an estimate" in out
    assert ("try --dtype int8" in out) == (status == 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--topology", "v9:1"], "topology='v9:1'"),
        (["--topology", "v5e:2x2", "--mesh", "tensor=3"], "tensor=3"),
        (["--topology", "v5e:2x2", "--mesh", "tensor=2"], "takes 2 devices, there are 4"),
        (
            ["--topology", "v5e:2x2", "--model-config", "8b"],
            "--model-config '8b': must be one of small, 7b",
        ),
    ],
)
def test_plan_refuses_what_does_not_go_together(capsys, options, named):
    given = options if "--model-config" in options else ["--model-config", "7b", *options]
    status, _, err = run(capsys, "plan", "--estimate", *given)
    assert status == 2
    assert one_error_line(err)
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["humaneval"], "humaneval needs a file: HumanEval.jsonl.gz"),
        (["builtin", "--data", "x.jsonl"], "builtin takes none"),
        (["builtin", "--n", "2"], "at temperature 0 all samples of a problem are equal"),
        (["builtin", "--k", "2"], "between 1 and n=1"),
        (["builtin", "--chat"], "are programs to complete, not questions"),
        (["mbpp", "--data", "x", "--chat", "--base"], "chat=True and base=True"),
        (["mbpp", "--data", "x", "--middle-length", "auto"], "have no gap"),
        (["builtin", "--timeout", "0"], "timeout=0"),
    ],
)
def test_wrong_options_of_eval_are_one_line(capsys, arguments, named):
    status, out, err = run(capsys, "eval", *arguments)
    assert (status, out) == (2, "")
    assert one_error_line(err)
    assert named in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["builtin"], (144, 0.0)),
        (["--limit", "4", "--out", "mbpp", "builtin", "--model", "m"], (144, 0.0)),
        (["infilling", "--data", "x", "--model", "m"], (144, 0.0)),
        (["humaneval", "--data", "x"], (144, 0.2)),
        (["humaneval+", "--data", "x", "--model", "m"], (512, 0.2)),
        (["humaneval+", "--data", "x", "--adapter", "m"], (512, 0.2)),
        (
            [
                "mbpp",
                "--data",
                "x",
                "--model",
                "m",
                "--max-new-tokens",
                "64",
                "--temperature",
                "0.4",
            ],
            (64, 0.4),
        ),
    ],
)
def test_defaults_of_eval_depend_on_the_suite(words, expected):
    generation = cli.parse(["eval", *words]).generation
    assert (generation.max_new_tokens, generation.temperature) == expected


def test_analyze_decodes_at_temperatures(capsys):
    generation = cli.parse(["analyze"]).generation
    assert (generation.max_new_tokens, generation.alg, generation.top_p) == (
        64,
        "maskgit_plus",
        None,
    )
    status, out, err = run(capsys, "analyze", "--temperature", "0.5")
    assert (status, out) == (2, "")
    assert one_error_line(err)
    assert "temperature=0.5: must be 0.0 as analyze decodes" in err


def test_eval_scores_what_is_known(capsys):
    status, out, _ = run(capsys, "eval", "builtin", "--limit", "6", "--canonical")
    assert (status, "pass@1 100.0%" in out) == (0, True)
    status, out, _ = run(capsys, "eval", "builtin", "--limit", "6", "--empty")
    assert (status, "pass@1 0.0%" in out) == (0, True)
    # Options of a run would be ignored.
    for option in ("--out", "x"), ("--seed", "1"), ("--n", "2"):
        status, _, err = run(capsys, "eval", "builtin", "--empty", *option)
        assert (status, one_error_line(err)) == (2, True)
        assert f"{option[0][2:]}={option[1]}: not with canonical or empty" in err
    status, _, err = run(capsys, "eval", "builtin", "--empty", "--model", "me/model")
    assert (status, "me/model: model and device go without canonical or empty" in err) == (2, True)


def test_analyze_writes_numbers_pictures_and_a_page(capsys, tmp_path):
    # A file of two problems: fewer than the default of `limit`.
    with (tmp_path / "two.jsonl").open("w") as file:
        for number in range(2):
            prompt = f"def add{number}(a, b):\n"
            record = {"task_id": f"Two/{number}", "prompt": prompt, "entry_point": f"add{number}"}
            record |= {"test": "def check(f):\n    assert f(1, 2) == 3", "canonical_solution": ""}
            file.write(json.dumps(record) + "\n")
    arguments = [
        "humaneval",
        "--data",
        str(tmp_path / "two.jsonl"),
        "--temperatures",
        "0",
        "--max-new-tokens",
        "16",
        "--out",
        str(tmp_path / "a"),
    ]
    status, out, _ = run(capsys, "analyze", *arguments)
    assert status == 0
    assert "local@1" in out
    assert "2 of humaneval, 2 samples each" in out
    result = json.loads((tmp_path / "a" / "analysis.json").read_text())
    assert [len(trace["pieces"]) for trace in result["traces"]] == [16, 16]
    assert all(sorted(trace["commit_step"]) == list(range(16)) for trace in result["traces"])
    assert len(result["first_step_confidence"]) == 16
    assert {path.name for path in (tmp_path / "a").glob("*.svg")} == {
        f"{name}.svg" for name in ("order", "local", "global", "confidence", "temperature")
    }
    page = (tmp_path / "a" / "analysis.html").read_text()
    assert page.count("<svg") == 5
    status, _, err = run(capsys, "analyze", *arguments, "--num-steps", "17")
    assert (status, "steps=17" in err) == (2, True)


def test_objects_for_programs(capsys, tmp_path):
    status, out, _ = run(capsys, "generate", "def add(a, b):", "--json", *QUICK)
    found = json.loads(out)
    assert status == 0
    compile(found["text"], "generated", "exec")
    assert found["text"] == "def add(a, b):" + "".join(found["holes"])
    assert len(found["confidence"]) == len(found["token_ids"]) == found["tokens"]
    assert (found["stopped"], found["doubt"]) == (True, None)
    assert found["forwards"] >= found["tokens"] / 48
    status, out, _ = run(
        capsys, "generate", "--prefix", "def area(r):", "--suffix", "return a", "--json", *QUICK
    )
    assert json.loads(out)["text"].startswith("def area(r):")
    status, out, _ = run(capsys, "info", "--json", "--batch-size", "2")
    found = json.loads(out)
    assert (status, found["parameters"], found["config"]["vocab_size"]) == (0, 4_331_776, 1536)
    assert found["memory"]["float32"]["weights"] == 4 * 4_331_776
    words = [
        "--model-config",
        "7b",
        "--topology",
        "v5e:1x1",
        "--preset",
        "turbo",
        "--threshold",
        "0.95",
    ]
    status, out, _ = run(capsys, "plan", *words, "--estimate", "--json")
    found = json.loads(out)
    assert (status, found["fits"]) == (1, False)
    assert "preset turbo, threshold 0.95," in found["plan"]["plan"]
    assert "--dtype int8" in " ".join(found["try"])
    status, out, _ = run(capsys, "verify", str(GOLDEN / "checkpoint"), "--json")
    assert (status, all(check["passed"] for check in json.loads(out))) == (0, True)


def test_stats_show_compilation_apart(capsys):
    words = [
        "generate",
        "def add(a, b):",
        "--stats",
        "--max-new-tokens",
        "41",
        "--temperature",
        "0",
    ]
    _, _, first = run(capsys, *words)
    _, _, second = run(capsys, *words)
    seconds = [
        float(re.search(r"([0-9.]+) s of compilation before", err)[1]) for err in (first, second)
    ]
    assert seconds[0] > 0.05
    assert seconds[1] < seconds[0] / 2


COMMANDS = [
    [],
    ["generate"],
    ["info"],
    ["eval"],
    ["analyze"],
    ["parity", "check"],
    ["plan"],
    ["convert"],
    ["sft"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        sys.exit(cli.main([*command, "--help"]))
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "usage: diffucoder" in text
    assert not command or "Examples" in text or "diffucoder" in text


def test_help_and_version_need_no_dashes(capsys):
    for words, same in ((["help"], ["--help"]), (["help", "data", "show"], ["data", "show", "-h"])):
        assert run(capsys, *words) == run(capsys, *same)
    assert run(capsys, "version") == run(capsys, "--version")
    status, out, _ = run(capsys, "sandbox")
    assert (status, out) == run(capsys, "sandbox", "--help")[:2]
    assert status == 0
    assert "sandbox check" in out
    assert "generate" not in out
    assert run(capsys)[0] == 2


def test_help_lists_the_suites(capsys):
    _, out, _ = run(capsys, "eval", "--help")
    assert (
        "One of builtin, humaneval, humaneval+, mbpp, mbpp+, infilling, livecodebench."
        in " ".join(out.split())
    )


def test_commands_that_need_a_model_know_the_built_in_one_by_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "verify", "builtin", "--json")
    assert (status, all(check["passed"] for check in json.loads(out))) == (0, True)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "def f(): pass"}))
    words = ["--data", "a.jsonl", "--model", "builtin", "--out", "tokens", "--workers", "1"]
    assert run(capsys, "data", "tokenize", *words)[0] == 0
    # a folder of that name comes first
    (tmp_path / "builtin").mkdir()
    assert "has no" in run(capsys, "verify", "builtin")[1:][0] + run(capsys, "verify", "builtin")[2]


def test_the_built_in_model_has_a_name():
    assert cli.parse(["info", "-m", "builtin"]).model is None
    assert cli.parse(["eval", "humaneval", "-m", "builtin"]).generation.max_new_tokens == 144
    assert cli.parse(["adapt", "-m", "builtin", "--data", "d", "-o", "o"]).model == "builtin"


@pytest.mark.parametrize("columns", ["60", "100"])
def test_help_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, "sft", "--help")
    # Commands are shown as they are typed.
    lines = [line for line in out.splitlines() if not line.startswith("    diffucoder ")]
    assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize("status", [0, 2, 130])
def test_the_console_command_leaves_at_once_when_interrupted(status, monkeypatch):
    left = []
    monkeypatch.setattr(cli, "main", lambda: status)
    monkeypatch.setattr(cli.os, "_exit", left.append)
    with pytest.raises(SystemExit) as stop:
        cli.entry()
    assert (stop.value.code, left) == (status, [130] if status == 130 else [])


def test_parsing_imports_nothing_heavy():
    parse = (
        "import sys; from jax_lm.cli import main; main.parse(['sft', '--data', 'x', '--out', 'y'])"
    )
    probe = f"{parse}; print(sorted({{'jax', 'flax', 'numpy', 'tokenizers'}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_module_entry_point():
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "jax_lm.inference",
            "--prompt",
            "def add(a, b):",
            "--max-new-tokens",
            "32",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("def add(a, b):")


def test_a_template_is_read_from_standard_input(capsys, tmp_path, monkeypatch):
    draft = tmp_path / "draft.py"
    draft.write_text("def gcd(a, b):\n    while b:\n<|hole:15|>\n    return a\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(draft.read_text()))
    filled = run(capsys, "generate", "--file", "-", *QUICK)[1]
    assert filled == run(capsys, "generate", "--file", str(draft), *QUICK)[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "standard input was empty" in run(capsys, "generate", "--file", "-")[2]


def test_a_hole_in_a_prompt_is_text_and_that_is_said(capsys):
    assert "<|hole|> is text in a prompt" in run(capsys, "generate", "return <|hole:3|>", *QUICK)[2]
