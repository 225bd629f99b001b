"""The documentation: its commands parse, its error messages are what is printed, every page is in
the site.
"""

import os
import re
import shlex
import subprocess
import tomllib

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
    matches,
    pages,
    shortened,
)

from jax_lm.cli import main as cli

NAVIGATION = ROOT / "mkdocs.yml"


def everything():
    return [command for page in pages() for block in blocks(page) for command in commands(block)]


def test_every_command_parses():
    found = everything()
    assert len(found) > 100
    for command in found:
        try:
            check(command)
        except (SystemExit, ValueError, SyntaxError) as error:
            pytest.fail(f"{command.block.name}: {command.text}: {error}")


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
        ("console", "diffucoder info", None, "error: …\n\nmore"),
        ("console", "cat y", None, ""),
    ]
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


def test_the_programs_of_pages_start(tmp_path):
    block = Block(ROOT / "README.md", 1, "sh", "diffucoder --version")
    assert Workplace(tmp_path).output(Command(block, block.text)).startswith("diffucoder 0.")
