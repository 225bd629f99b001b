"""What README, the quick start and the guides show for the built-in model prints programs that pass
their tests.
"""

import io
import json
import shlex
import shutil
import subprocess

import pytest
from cases.programs import check_program
from documentation import ROOT, SAMPLES, blocks, commands

from jax_lm.cli import main as cli
from untrusted.runner import why_not
from untrusted.tiers import SAFE

PAGES = ["README.md", "docs/quickstart.md", "docs/guides/editor.md"]
pytestmark = [
    pytest.mark.usefixtures("for_release"),
    pytest.mark.skipif(all(map(why_not, SAFE)), reason="this host contains nothing"),
]


def shown(page):
    """The commands of a page that prepare a file, or generate with what is here."""
    for block in blocks(ROOT / page):
        for command in commands(block):
            if command.needs is None and command.expected is None and block.language == "sh":
                yield command.text.partition("  #")[0].strip()


@pytest.mark.parametrize("page", PAGES)
def test_every_line_prints_what_is_right(page, capsys, monkeypatch, tmp_path):
    for path in SAMPLES.glob("*.*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    seen = 0
    for text in shown(page):
        if text.startswith("printf") and "> " in text and "|" not in text.rpartition("'")[2]:
            subprocess.run(["bash", "-c", text], check=True)
        # What a page trains first is shown by the tests of that training.
        if "diffucoder generate" not in text or "--model out/" in text:
            continue
        words = shlex.split(text[text.index("diffucoder generate") :])[1:]
        piped = (
            shlex.split(text)[1]
            if text.startswith("cat ")
            else words.pop()
            if words[-2:-1] == ["<"]
            else None
        )
        words = [word for word in words if word != "<"]
        if piped:
            monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / piped).read_text()))
        assert cli.main(words) == 0
        seen += 1
        printed = capsys.readouterr().out
        if "--prompts" in words:
            for line in (tmp_path / "answers.jsonl").read_text().splitlines():
                answer = json.loads(line)
                check_program(answer["prompt"] + answer["completion"])
        else:
            check_program(printed)
    assert seen >= 1


@pytest.mark.parametrize(("page", "streams"), [("README.md", False), ("docs/quickstart.md", True)])
def test_the_lines_of_python(page, streams):
    (block, *_) = [block for block in blocks(ROOT / page) if block.language == "python"]
    printed = []
    exec(
        compile(block.text, block.name, "exec"),
        {"print": lambda *words: printed.append(" ".join(map(str, words)))},
    )
    first, filled, *steps = printed
    check_program(first)
    check_program(f"def gcd(a, b):\n    while b:\n{filled}\n    return a\n")
    assert (len(steps) > 1) == streams
