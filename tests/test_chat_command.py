"""A conversation at the terminal: what is remembered, what the commands with a slash do, what goes wrong."""

import io
import json

import pytest

from jax_lm import cli, interruption
from jax_lm.commands.chat import Dialogue
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


def test_answers_are_those_of_the_engine_and_are_remembered(conversation, tiny_inference, capsys):
    talked = conversation(system="Be brief.")
    assert talked.take("Write gcd.")
    first = capsys.readouterr().out
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write gcd."}]
    answer = tiny_inference.chat(messages, OPTIONS)
    assert first == answer.rstrip("\n") + "\n"
    assert talked.messages == [*messages, {"role": "assistant", "content": answer}]
    assert talked.take("And lcm.")
    again = [*talked.messages[:3], {"role": "user", "content": "And lcm."}]
    assert talked.messages[-1]["content"] == tiny_inference.chat(again, OPTIONS, seed=1)


def test_chat_takes_settings_as_generate_does(tiny_inference):
    expected = tiny_inference.chat("Write gcd.", OPTIONS)
    assert tiny_inference.chat("Write gcd.", max_new_tokens=16, temperature=0.0) == expected
    changed = OPTIONS.changed(preset="turbo", top_k=3)
    assert (changed.decoding.preset, changed.top_k, changed.max_new_tokens) == ("turbo", 3, 16)
    with pytest.raises(TypeError, match="new_tokens"):
        tiny_inference.chat("Write gcd.", new_tokens=16)


def test_the_commands(conversation, capsys, tmp_path):
    talked = conversation("def add(a, b):", "    return <|hole:4|>", ".", "unread", system="Be brief.")
    talked.take("Write gcd.")
    assert talked.take(f"/save {tmp_path / 'chat.json'}")
    assert json.loads((tmp_path / "chat.json").read_text()) == talked.messages
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
        ("/rest", "/rest: no command; perhaps /reset"),
        ("/what", "/what: no command; perhaps /help"),
        ("/save", "/save: needs the name of a file"),
        ("/save /no/such/folder/chat.json", "No such file or directory"),
        ("/infill absent.py", "file='absent.py' cannot be read"),
        ("word " * 600, "the context holds 512 tokens"),
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
    monkeypatch.setattr(interruption, "forgive", lambda: forgiven.append(1))
    talked = conversation()
    monkeypatch.setattr(talked, "write", stopped)
    assert talked.take("Write gcd.")
    assert (talked.messages, forgiven, capsys.readouterr().err) == ([], [1], "stopped\n")


def test_a_piped_conversation(monkeypatch, capsys):
    status, out, err = talk(monkeypatch, capsys, "Write a function \\\ngcd(a, b).\n\n/exit\nnever said\n")
    assert status == 0
    assert out.strip()
    assert "the built-in model saw few conversations" in err
    status, out, err = talk(monkeypatch, capsys, "/nothing\n")
    assert (status, out) == (2, "")
    assert "error: /nothing: no command" in err
