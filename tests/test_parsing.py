"""The words of a command line: what they become, and which option of the command a mistake is near
to.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from jax_lm.cli import main as cli
from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.cli.parsing import parse_words
from jax_lm.host.declared import SHORT, SYNONYMS, Positional, help_text, list_options, run_main


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Say how.

    Attributes:
        rate: speed.
        batch_size: several.
    """

    rate: float
    batch_size: tuple[int, ...] = (1, 8)

    def __post_init__(self) -> None:
        if not all(size > 0 for size in self.batch_size):
            raise ValueError(f"batch_size={self.batch_size}: must be positive")


HALF = Inner(rate=0.5)


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Do it.

    Attributes:
        prompt: what.
        out: where to.
        kind: which, of two
            kinds.
        length: number or auto.
        watch: look on.
        wait: do, or not, or as it comes.
        inner: how.
    """

    prompt: Positional[str | None] = None
    out: Path
    kind: Literal["fast", "slow"] = "fast"
    length: int | Literal["auto"] | None = None
    watch: bool = False
    wait: bool | None = None
    inner: Inner = HALF


# Class of the arguments of each command.
KINDS = {name: entry.arguments for name, entry in COMMANDS.items()}
TOO_MANY = "do takes no further argument; put a text with spaces in quotes"


def read(*words):
    return parse_words(Outer, words, "do")


def test_every_kind_of_value():
    words = [
        "a text",
        "--out",
        "x",
        "--kind=slow",
        "--length",
        "3",
        "--watch",
        "--rate",
        "-1e-3",
        "--batch-size",
        "2",
        "4",
    ]
    found = read(*words)
    assert found == Outer(
        prompt="a text",
        out=Path("x"),
        kind="slow",
        length=3,
        watch=True,
        inner=Inner(rate=-1e-3, batch_size=(2, 4)),
    )


def test_forms_that_mean_the_same():
    for words in (
        ["--prompt", "p", "--out", "o"],
        ["-p", "p", "-o", "o"],
        ["--output=o", "p"],
        ["p", "--output_dir", "o"],
    ):
        assert read(*words) == Outer(prompt="p", out=Path("o"))
    assert read("--out=o", "--", "--watch") == Outer(prompt="--watch", out=Path("o"))
    assert read("--out=o", "--prompt=--watch") == Outer(prompt="--watch", out=Path("o"))
    assert read("--out", "o", "- a list") == Outer(prompt="- a list", out=Path("o"))
    assert read("--out", "o", "-") == Outer(prompt="-", out=Path("o"))
    assert read("--out", "a", "--out", "b").out == Path("b")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], False),
        (["--watch"], True),
        (["--watch", "true"], True),
        (["--watch=False"], False),
        (["--no-watch"], False),
    ],
)
def test_flags(words, value):
    assert read("--out", "o", *words).watch is value


@pytest.mark.parametrize(
    ("words", "value"), [(["--wait"], True), (["--no-wait"], False), (["--wait=none"], None)]
)
def test_a_flag_that_may_be_left_open(words, value):
    assert read("--out", "o", *words).wait is value


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("none", None), ("7", 7)])
def test_a_union_takes_the_first_type_that_fits(text, value):
    assert read("--out", "o", "--length", text).length == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["p"], "do needs --out; see diffucoder do --help"),
        (["--out"], "--out: needs a value"),
        (["--out", "--watch"], "--out: needs a value"),
        (["--out", "o", "--wacth"], "--wacth: no option of do (perhaps --watch)"),
        (["--out", "o", "--bacth_size", "1"], "--bacth_size: no option of do (perhaps --batch-size)"),
        (["--out", "o", "--output-dri", "1"], "--output-dri: no option of do (perhaps --out)"),
        (["--out", "o", "--zzz"], "--zzz: no option of do; see diffucoder do --help"),
        (["--out", "o", "-x"], "-x: no option of do; see diffucoder do --help"),
        (["--out=o", "--kind=x"], "--kind 'x': must be one of fast, slow"),
        (["--out", "o", "--length", "x"], "--length 'x': must be INT|{auto}"),
        (["--out", "o", "--rate", "x"], "--rate 'x': must be FLOAT"),
        (["--out", "o", "--watch=x"], "--watch 'x': must be true or false"),
        (["--out", "o", "--batch-size", "1.5"], "--batch-size '1.5': must be INT ..."),
        (["--out", "o", "--batch-size", "0"], "batch_size=(0,): must be positive"),
        (["--out", "o", "p", "q"], f"'q': {TOO_MANY}"),
        (["--out", "o", "--prompt", "q", "r"], f"'r': {TOO_MANY}"),
    ],
)  # fmt: skip
def test_mistakes(words, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(*words)


def test_what_is_declared():
    options = {option.name: option for option in list_options(Outer)}
    assert set(options) == {
        "PROMPT", "--out", "--kind", "--length", "--watch", "--wait", "--rate", "--batch-size",
    }  # fmt: skip
    assert options["--kind"].help == "which, of two kinds."
    assert [name for name, option in options.items() if option.is_required] == ["--out"]
    assert (options["--rate"].default, options["--batch-size"].default) == ("0.5", "1 8")
    assert [options[name].metavar for name in ("--out", "--length", "--watch", "--batch-size", "--kind")] == [
        "PATH", "INT|{auto}", "", "INT ...", "{fast,slow}",
    ]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_explained_and_counted_once(command):
    kind = COMMANDS[command].arguments
    options = list_options(kind)
    assert [option.name for option in options if not option.help] == []
    first = getattr(kind, "FIRST", "").split()
    assert len(first) <= 10
    text = help_text(kind, f"diffucoder {command}")
    assert text.startswith(f"usage: diffucoder {command}")
    assert "Examples:" in text or "Example:" in text
    assert "{None" not in text
    shown = re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+|[A-Z]+)(?![\w-])", text, re.MULTILINE)
    names = [option.name for option in options]
    assert sorted(name for name in shown if name in names) == sorted(names)
    named = [name for name in shown if name.startswith("--")]
    assert named[: len(first)] == [f"--{name.replace('_', '-')}" for name in first]


def test_foreign_names_lead_somewhere():
    names = {option.name for kind in KINDS.values() for option in list_options(kind)}
    assert set(SYNONYMS.values()) <= names
    assert {"--model", "--out"} <= set(SHORT.values()) & names
    # What is another name somewhere is a name of its own nowhere.
    assert not set(SYNONYMS) & names


def test_one_name_means_one_kind_of_value():
    """`--model` is always text, `--timeout` always a number: a name that changes its kind is two
    names.
    """
    kinds = {}
    for command, kind in KINDS.items():
        for option in list_options(kind):
            kinds.setdefault(option.name, {}).setdefault(
                option.metavar.removesuffix(" ..."), []
            ).append(command)
    known = {"--data", "--dtype", "--executor", "--kind", "--middle-length", "--presets", "SUITE"}
    # Of sft, plain text is what `auto` takes; of grpo it is asked for.
    known.add("--template")
    assert {
        name: found for name, found in kinds.items() if len(found) > 1 and name not in known
    } == {}


@pytest.mark.parametrize(
    "given", [{}, {"suite": "builtin"}, {"suite": "humaneval", "model": "m"}, {"max_length": 64}]
)
def test_the_defaults_that_are_shown_are_those_that_options_imply(given):
    for kind in KINDS.values():
        implied = kind.implied(given) if hasattr(kind, "implied") else {}
        shown = {option.field: option.default for option in list_options(kind)}
        for option, value in implied.items():
            assert (
                shown[option] == "half of --max-length"
                or (value is None and shown[option] == "")
                or f"{value:g}" in shown[option].replace(";", "").split()
            )


def test_a_short_run_needs_no_other_warm_up():
    words = ["adapt", "--data", "d", "--model", "m", "--out", "o", "--max-steps", "2"]
    training = cli.parse(words).settings.training
    assert training.optimizer.warmup(training.max_steps) == 0


def program(out: Path, *, rows: int = 2, inner: Inner = Inner(rate=0.5)) -> tuple:
    """Do it.

    Args:
        out, rows: two parameters
            with one text.
        inner: how.
    """
    return out, rows, inner


def test_a_function_is_a_program(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["do.py", "-o", "x", "--rate", "2"])
    assert run_main(program) == (Path("x"), 2, Inner(rate=2.0))
    monkeypatch.setattr("sys.argv", ["do.py", "--row", "1"])
    with pytest.raises(SystemExit, match="2"):
        run_main(program)
    assert "do.py: error: --row: no option of do.py (perhaps --rows)" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["do.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        run_main(program)
    out = capsys.readouterr().out
    assert out.startswith("usage: do.py --out PATH [OPTIONS]\n\nDo it.\n\noptions:\n")
    assert out.count("two parameters with one text.") == 2
    assert "inner:\n  how.\n" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_option(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for kind in KINDS.values():
        for option in list_options(kind):
            assert option.is_positional or option.name in script
