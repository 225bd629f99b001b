"""A conversation at the terminal: what is remembered, what the commands with a slash do, what goes
wrong.
"""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jax_lm.cli import main as cli
from jax_lm.cli.commands.chat import Dialogue, TypedLines
from jax_lm.host import interruption
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions

OPTIONS = GenerationOptions(max_new_tokens=16, temperature=0.0)
QUICK = ["--max-new-tokens", "16", "--temperature", "0"]


@pytest.fixture
def conversation(tiny_inference):
    def make(*lines, system=None):
        return Dialogue(tiny_inference, OPTIONS, 0, system, iter(lines))

    return make


def talk(monkeypatch, capsys, text, *options):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status = cli.main(["chat", *QUICK, *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_line_that_is_not_utf_8_costs_that_line(monkeypatch, capsys):
    # as Python opens standard input in locales such as en_US.UTF-8
    typed = io.TextIOWrapper(io.BytesIO(b"a\xff\nWrite gcd\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", typed)
    assert cli.main(["chat", *QUICK]) == 2
    captured = capsys.readouterr()
    assert "not Unicode text: character 2" in captured.err
    assert "def" in captured.out


def test_answers_are_those_of_the_engine_and_are_remembered(conversation, tiny_inference, capsys):
    talked = conversation(system="Be brief.")
    assert talked.take("Write gcd.")
    first = capsys.readouterr().out
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write gcd."},
    ]
    answer = tiny_inference.chat(messages, OPTIONS)
    assert first == answer.rstrip("\n") + "\n"
    assert talked.messages == [*messages, {"role": "assistant", "content": answer}]
    assert talked.take("And lcm.")
    again = [*talked.messages[:3], {"role": "user", "content": "And lcm."}]
    assert talked.messages[-1]["content"] == tiny_inference.chat(again, OPTIONS, seed=1)


def test_chat_takes_settings_as_generate_does(tiny_inference):
    expected = tiny_inference.chat("Write gcd.", OPTIONS)
    assert tiny_inference.chat("Write gcd.", max_new_tokens=16, temperature=0.0) == expected
    changed = OPTIONS.with_settings(preset="turbo", top_k=3)
    assert (changed.decoding.preset, changed.top_k, changed.max_new_tokens) == ("turbo", 3, 16)
    with pytest.raises(TypeError, match="new_tokens"):
        tiny_inference.chat("Write gcd.", new_tokens=16)


def test_the_commands(conversation, capsys, tmp_path):
    talked = conversation(
        "def add(a, b):", "    return <|hole:4|>", ".", "unread", system="Be brief."
    )
    talked.take("Write gcd.")
    assert talked.take(f"/save {tmp_path / 'chat.json'}")
    assert json.loads((tmp_path / "chat.json").read_text()) == talked.messages
    assert talked.take(f"/save {tmp_path / 'chat.json'}")
    assert "exists already, and nothing is overwritten" in capsys.readouterr().err
    assert talked.take("/reset")
    assert talked.messages == [{"role": "system", "content": "Be brief."}]
    capsys.readouterr()
    assert talked.take("/infill")
    assert capsys.readouterr().out.startswith("def add(a, b):\n    return ")
    assert next(talked.lines) == "unread"
    (tmp_path / "draft.py").write_text("x = <|hole:2|>\n")
    assert talked.take(f"/infill {tmp_path / 'draft.py'}")
    assert capsys.readouterr().out.startswith("x = ")
    assert talked.take("/help")
    assert "/infill" in capsys.readouterr().out
    assert len(talked.messages) == 1
    assert not talked.take("/exit")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "/rest",
            "command='/rest': must be one of /infill, /reset, /save, /help, /exit (perhaps /reset)",
        ),
        ("/what", "command='/what': must be one of"),
        ("/save", "/save: needs a file name"),
        ("/save /dev/null/chat.json", "must be a folder, or not exist yet"),
        ("/infill absent.py", "file='absent.py' cannot be read"),
        ("word " * 600, "the context holds 512 tokens"),
        ("na\udcefve", "not Unicode text: character 3"),
    ],
)
def test_what_goes_wrong_is_one_line_and_changes_nothing(conversation, capsys, line, said):
    talked = conversation()
    assert talked.take(line)
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)
    assert said in captured.err
    assert (talked.messages, talked.failures) == ([], 1)


def test_an_interrupt_takes_the_message_back(conversation, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    forgiven = []
    monkeypatch.setattr(interruption, "mark_handled", lambda: forgiven.append(1))
    talked = conversation()
    monkeypatch.setattr(talked, "write", stopped)
    assert talked.take("Write gcd.")
    assert (talked.messages, forgiven, capsys.readouterr().err) == ([], [1], "stopped\n")


def test_ctrl_c_while_a_text_is_typed_ends_the_text_alone(conversation, capsys, monkeypatch):
    answers = iter(["def f():", KeyboardInterrupt(), "x = <|hole:2|>", ".", "/exit"])

    def typed(_):
        answer = next(answers)
        if isinstance(answer, KeyboardInterrupt):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", typed)
    talked = conversation()
    talked.lines = TypedLines()
    assert talked.take("/infill")
    assert capsys.readouterr().err == "stopped\n"
    assert talked.take("/infill")
    assert capsys.readouterr().out.startswith("x = ")
    assert next(talked.lines) == "/exit"


def test_a_line_of_code_may_end_in_a_backslash(conversation, monkeypatch, capsys):
    answers = iter(["x = 1 + \\", "    <|hole:2|>", "."])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    talked = conversation()
    talked.lines = TypedLines()
    assert talked.take("/infill")
    assert capsys.readouterr().out.startswith("x = 1 + \\\n    ")


def test_a_piped_conversation(monkeypatch, capsys):
    status, out, err = talk(
        monkeypatch, capsys, "Write a function \\\ngcd(a, b).\n\n/exit\nnever said\n"
    )
    assert status == 0
    assert out.strip()
    assert "the built-in model only answers with small Python functions" in err
    status, out, err = talk(monkeypatch, capsys, "/nothing\n")
    assert (status, out) == (2, "")
    assert "error: command='/nothing': must be one of" in err


@pytest.fixture
def screen(tmp_path, for_release):
    """A terminal of tmux, in a folder of its own: types a line, and waits for what is to be seen
    behind it.
    """
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("no tmux: apt-get install tmux")
    socket = [tmux, "-S", str(tmp_path / "tmux"), "-f", os.devnull]
    places = {"PYTHONPATH": str(Path(__file__).parent.parent), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jax_lm", "chat", *QUICK]
    start = [
        "new-session",
        "-d",
        "-x",
        "120",
        "-y",
        "200",
        "-c",
        str(tmp_path),
        shlex.join(command),
    ]
    subprocess.run(
        [*socket, *start], check=True, env={**os.environ, **places, "TERM": "xterm-256color"}
    )

    def seen():
        return subprocess.run(
            [*socket, "capture-pane", "-p", "-t", "0"], check=False, capture_output=True, text=True
        ).stdout.rstrip()

    def typed(line, is_there):
        if line is not None:
            subprocess.run([*socket, "send-keys", "-t", "0", "-l", line], check=True)
            subprocess.run([*socket, "send-keys", "-t", "0", "Enter"], check=True)
        until = time.monotonic() + 120
        while not is_there(now := seen()):
            assert time.monotonic() < until, f"after {line!r} the screen shows:\n{now}"
            time.sleep(0.1)
        return now

    yield typed
    subprocess.run([*socket, "kill-server"], check=False, capture_output=True)


def test_a_conversation_in_a_terminal(screen, tmp_path):
    def asks(count):
        """The prompt is there again, behind so many lines that were typed."""
        return lambda seen: seen.endswith("\n>") and seen.count("\n>") == count + 1

    begun = screen(None, asks(0))
    assert "the built-in model only answers with small Python functions" in " ".join(begun.split())
    assert "/help lists the commands" in begun
    screen("Write gcd.", asks(1))
    screen("And lcm.", asks(2))
    screen("/save chat.json", asks(3))
    engine = DiffuCoderInference(verbose=False)
    messages = json.loads((tmp_path / "chat.json").read_text())
    assert [each["content"] for each in messages[::2]] == ["Write gcd.", "And lcm."]
    assert messages[1]["content"] == engine.chat(messages[:1], OPTIONS)
    assert messages[3]["content"] == engine.chat(messages[:3], OPTIONS, seed=1)
    screen("/reset", asks(4))
    screen("/save empty.json", asks(5))
    assert json.loads((tmp_path / "empty.json").read_text()) == []
    draft = "def add(a, b):\n    return <|hole:4|>\n"
    (tmp_path / "add.py").write_text(draft)
    shown = screen("/infill add.py", asks(6))
    assert [line.rstrip() for line in shown.splitlines() if line.startswith("> ")] == [
        *(
            "> Write gcd.",
            "> And lcm.",
            "> /save chat.json",
            "> /reset",
            "> /save empty.json",
            "> /infill add.py",
        )
    ]
    for each in messages[1::2]:
        for line in filter(None, each["content"].splitlines()):
            assert line.rstrip() in shown
    filled = shown.partition("/infill add.py")[2]
    assert engine.fill(draft, OPTIONS, seed=2) in filled
    assert "forward passes in" in filled
    assert "░" not in shown
