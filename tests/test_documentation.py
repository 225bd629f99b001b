"""The documentation: its commands parse, its error messages are what is printed, every page is in
the site.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import options
import pytest
import yaml
from documentation import (
    ROOT,
    SAMPLES,
    Block,
    Command,
    Workplace,
    blocks,
    check,
    commands,
    examples,
    is_ready,
    matches,
    pages,
    shortened,
)

from jax_lm.cli import main as cli

NAVIGATION = ROOT / "mkdocs.yml"


def everything():
    places = [*map(blocks, pages()), *examples()]
    return [command for place in places for block in place for command in commands(block)]


def test_concepts_embed_the_page_of_the_server():
    """By links to its files: the site has a copy of each."""
    page = ROOT / "docs" / "page"
    served = ROOT / "jax_lm" / "serving" / "page"
    assert sorted(each.name for each in page.iterdir()) == sorted(
        each.name for each in served.iterdir()
    )
    assert all(each.resolve() == (served / each.name).resolve() for each in page.iterdir())
    assert 'src="page/index.html"' in (ROOT / "docs" / "concepts.md").read_text()


def test_every_command_parses():
    found = everything()
    assert len(found) > 100
    for command in found:
        try:
            check(command)
        except (SystemExit, ValueError, SyntaxError) as error:
            pytest.fail(f"{command.block.name}: {command.text}: {error}")


def test_options_in_the_text_exist():
    """Commands within a sentence, such as `diffucoder serve --draft N`, are parsed as well."""
    seen, wrong = 0, []
    for page in pages():
        text = re.sub(r"(?ms)^```.*?^```$|^    .*?$", "", page.read_text())
        for words in map(
            str.split, re.findall(r"`(?:\S*/)?diffucoder ([a-z][^`|…]* --[^`|…]*)`", text)
        ):
            if "--help" in words:
                continue
            # what stands for a number or is left out is no mistake
            words = ["1" if word == "N" else word for word in words]
            try:
                cli.parse(shlex.split(" ".join(words)))
            except ValueError as error:
                wrong.append(f"{page.name}: {' '.join(words)}: {error}")
            seen += 1
    # a command is often named without its required arguments
    assert [line for line in wrong if not re.search(r"needs (a value|[A-Z-])", line)] == []
    assert seen >= 15


def test_every_page_can_be_found():
    named = set(re.findall(r"([\w/]+\.md)", NAVIGATION.read_text()))
    folder = ROOT / "docs"
    missing = [name for name in named if not (folder / name).is_file()]
    assert missing == []
    texts = {page: page.read_text() for page in [ROOT / "README.md", *folder.rglob("*.md")]}
    for page in folder.rglob("*.md"):
        name = str(page.relative_to(folder))
        is_linked = any(name in text for other, text in texts.items() if other != page)
        assert name in named or is_linked, (
            f"docs/{name} is neither in mkdocs.yml nor linked from a page"
        )


def test_long_lines_of_code_wrap():
    """What runs out of its box is neither read nor found by a browser's search."""
    (name,) = re.findall(r"(?m)^extra_css: \[(.*)\]$", NAVIGATION.read_text())
    style = (ROOT / "docs" / name).read_text()
    assert "white-space: pre-wrap" in style
    assert "overflow-wrap: anywhere" in style


def test_forks_run_what_developers_run():
    """The workflow is YAML that GitHub takes, runs .ci/run, and has the Pythons of pyproject.toml."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    # YAML 1.1 reads the word on as true.
    assert set(workflow) == {"name", True, "permissions", "jobs"}
    assert set(workflow[True]) == {"push", "pull_request"}
    (job,) = workflow["jobs"].values()
    assert [step.get("run") or step["uses"].partition("@")[0] for step in job["steps"]] == [
        "actions/checkout", "actions/setup-python", ".ci/run",
    ]  # fmt: skip
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == stated
    assert len(stated) == 3
    assert job["steps"][1]["with"]["python-version"] == "${{ matrix.python }}"


def test_error_messages_are_those_of_the_troubleshooting_page(capsys, monkeypatch, tmp_path):
    page = ROOT / "docs" / "troubleshooting.md"
    for name in ("jax_lm", "untrusted"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("solution.py", "adapters"):
        (tmp_path / name).symlink_to(SAMPLES / name)
    monkeypatch.chdir(tmp_path)
    seen = 0
    for command in [command for block in blocks(page) for command in commands(block)]:
        if command.block.language == "record":
            continue
        if command.expected is None:
            if "diffucoder" not in command.text:
                subprocess.run(["bash", "-c", command.text], check=True)
            continue
        if command.text.startswith("HF_HUB_OFFLINE") or "--out scores" in command.text:
            continue
        cli.main(shlex.split(command.text)[1:])
        assert matches(command.expected, capsys.readouterr().err), command.block.name
        seen += 1
    assert seen >= 15


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("diffucoder generate --no-such-option 1 x", ValueError),
        ("pip install 'jax-diffucoder[nothing]'", ValueError),
        ("python examples/nothing.py", ValueError),
        ("diffucoder generate 'x", ValueError),
    ],
)
def test_what_is_wrong_in_a_page_is_found(text, reason, capsys):
    with pytest.raises(reason):
        check(Command(Block(ROOT / "README.md", 1, "sh", text), text))


def test_blocks_and_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    diffucoder info  # needs a lake\n    # needs a hill:\n    diffucoder verify \\\n        x\n\n"
        "Text\n\n    a tree of processes\n<!-- run: cat x -->\n"
        '    SEEDS="0 1" experiments/run.sh  # needs an hour\n'
        "```console\n$ diffucoder info\nerror: …\n\nmore\n$ cat y\n```\n```text\n$ rm z\n```\n"
    )
    found = [
        (c.block.language, c.text.split(" #")[0], c.needs, c.expected)
        for b in blocks(page)
        for c in commands(b)
    ]
    assert found == [
        ("sh", "diffucoder info ", "a lake", None),
        ("sh", "diffucoder verify  x", "a hill", None),
        ("sh", "cat x", None, None),
        ("sh", 'SEEDS="0 1" experiments/run.sh ', "an hour", None),
        ("console", "diffucoder info", None, "error: …\n\nmore"),
        ("console", "cat y", None, ""),
        ("record", "rm z", None, ""),
    ]
    (*_, record) = [command for block in blocks(page) for command in commands(block)]
    record = Command(Block(ROOT / "README.md", 1, "record", "$ rm z"), record.text)
    assert Workplace(tmp_path).run(record) == "checked only, the record of a run"
    assert matches("error: …\n\nmore", "error: some\n\nmore\n")
    assert not matches("error: …\nmore", "error: some\nless\n")


def test_long_commands_are_run_at_a_smaller_size():
    command = next(
        command
        for command in everything()
        if command.words[:3] == ["diffucoder", "eval", "builtin"]
    )
    assert shortened(command).endswith("--limit 2 --max-new-tokens 32")


def test_the_page_of_options_is_that_of_the_code():
    assert options.PAGE.read_text(encoding="utf-8") == options.page(), (
        "python tools/options.py writes it anew"
    )


ENDED = """
import signal, sys
from documentation import ENDING, ROOT, Block, run_blocks, stop
for number in ENDING:
    signal.signal(number, stop)
text = "diffucoder sandbox serve --port 8700\\ncurl -s http://127.0.0.1:8700/health > {seen}\\nsleep 97"
run_blocks([Block(ROOT / "README.md", 1, "sh", text.replace("{seen}", sys.argv[1]))])
"""


def test_what_the_tool_has_started_ends_with_it(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DIFFUCODER_SANDBOX_TOKEN": "0123456789abcdef",
    }
    tool = subprocess.Popen(
        [sys.executable, "-c", ENDED, tmp_path / "seen"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    port = int(
        re.search(r"serves on port (\d+)", tool.stdout.readline() + tool.stdout.readline())[1]
    )
    # The documented port was not taken, and what follows asks the one that was.
    assert port != 8700
    assert is_ready(port)
    assert "ran" in tool.stdout.readline() + tool.stdout.readline()
    assert "ok" in (tmp_path / "seen").read_text()
    time.sleep(0.3)
    children = running_below(tool.pid)
    assert len(children) >= 2
    tool.send_signal(signal.SIGTERM)
    _, err = tool.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert not is_ready(port)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def running_below(pid):
    """Process ids of the children of a process, of theirs, and so on."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *running_below(int(child))]
    return found


def test_the_programs_of_pages_start(tmp_path):
    block = Block(ROOT / "README.md", 1, "sh", "diffucoder --version")
    assert Workplace(tmp_path).output(Command(block, block.text)).startswith("diffucoder 0.")
