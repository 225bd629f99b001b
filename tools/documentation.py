"""Runs every shell block, transcript and Python block of the README and the documentation, and the
examples of every `--help`.

    python tools/documentation.py [--only README.md]
    python tools/documentation.py --only help/sft
    python tools/documentation.py --only docs/guides --installed

A shell block is indented or fenced as `sh` and begins with a program of `PROGRAMS`. A transcript is
fenced as `console`: lines after `$ ` are run, and what they print must be what follows, where `…`
stands for anything. All blocks of a page run in one new folder beside what the checkout and
tests/samples hold; `<!-- run: … -->` prepares it unseen. Servers take free ports, which the later
commands of the page get in place of the documented ones.

What a block needs and a laptop lacks is written in it: `# needs the 7B weights`, at the end of a
command for that one, on a line of its own for all below it. Of such commands the arguments are
parsed. A transcript fenced as `text` is the record of a run that took too long to repeat, and its
arguments are parsed too. Commands of `SHORTENED` really run, at a smaller size. Installation is
left to tests/test_release.py and .ci/run; here the extras that it names must exist.

SIGTERM and SIGHUP end the running command and the servers before the tool itself.
"""

import argparse
import ast
import inspect
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_lm.cli import main as cli
from jax_lm.cli.arguments.table import COMMANDS

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "tests" / "samples"
PROGRAMS = (
    "diffucoder",
    "python",
    "pip",
    ".venv/bin",
    "printf",
    "cat",
    "curl",
    "bash",
    "recipes/",
    "builtin_model/",
    "experiments/",
    "sbatch",
    "zensical",
    "gcloud",
    "git",
    "lm_eval",
    "mkdir",
    "pytest",
)
CHECKOUT = ("examples/", "experiments/", "tests/", "tools/", "recipes/", "builtin_model/")
BENCHMARK = re.compile(r"\b(HumanEval|Mbpp|mbpp)[\w-]*\.jsonl(\.gz)?")
NEEDS = re.compile(r"#\s*needs (.+?):?$")
VARIABLE = re.compile(r"^[A-Z_]+=\S*$")
SHORTENED = {
    ("diffucoder", "eval", "builtin"): ("--limit", "2", "--max-new-tokens", "32"),
    ("diffucoder", "eval"): ("--limit", "2", "--max-new-tokens", "32"),
    ("diffucoder", "analyze"): ("--limit", "2", "--max-new-tokens", "16"),
    ("diffucoder", "sft"): ("--max-steps", "4", "--warmup-steps", "0"),
    ("diffucoder", "grpo"): (
        *(
            "--max-steps",
            "1",
            "--warmup-steps",
            "0",
            "--num-generations",
            "4",
            "--prompts-per-step",
            "2",
        ),
        *("--generation-batch-size", "8", "--gradient-accumulation-steps", "1"),
    ),
    ("diffucoder", "experiment"): (
        "--largest-batch",
        "1",
        "--tasks",
        "2",
        "--new-tokens",
        "16",
        "--repeats",
        "1",
    ),
    ("diffucoder", "bench"): ("--batch-sizes", "1", "--new-tokens", "32", "--repeats", "1"),
    ("python", "experiments/full_size.py"): ("--repeats", "1", "--minutes", "0.1"),
    ("python", "examples/grpo_training.py"): ("--steps", "1"),
    ("python", "examples/grpo_inference.py"): ("--problems", "2"),
}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SERVERS = {"diffucoder serve": 8000, "diffucoder sandbox serve": 8700}
SECONDS = 300
# What examples of --help name and this machine lacks: published weights, folders made from them,
# data sets of others.
ABSENT = re.compile(
    r"\b(apple|Qwen|me|owner)/|\./|diffucoder-7b|old-port|-shape 7b|check recorded|corpus/|_paper|fish"
)
PREPARATION = {
    "generate": """cp start.py draft.py && printf '    return <|hole:8|>\\n' >> draft.py
diffucoder sft --data examples.jsonl --out out/lora --lora-rank 4""",
    "eval": "diffucoder sft --data examples.jsonl --out out/lora --lora-rank 4",
    "merge-lora": "diffucoder sft --data examples.jsonl --out out/lora --lora-rank 4",
    "sft": "cp examples.jsonl train.jsonl && cp examples.jsonl more.jsonl",
    "data show": "cp examples.jsonl train.jsonl",
    "data prepare-acecode": "rm hard.jsonl",
    "serve": "openssl rand -hex 16 > keys.txt",
    "sandbox run": """\
rm tests solution.py && mkdir tests cases && cp tests.py tests/test_double.py
echo 3 | tee 1.in cases/1.in && echo 6 | tee 1.out cases/1.out
cat > solution.py <<'END'
import sys


def double(x):
    return 2 * x


for line in sys.stdin:
    print(double(int(line)))
END""",
}


@dataclass(frozen=True)
class Block:
    """A piece of a page: "sh", "console" or "python"."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples() -> Iterator[list[Block]]:
    """The examples of each command's help, which stand in an imagined page `help/COMMAND`."""
    for name, entry in COMMANDS.items():
        about = inspect.getdoc(entry.arguments) or ""
        _, _, lines = re.split(r"\n\n(?=Examples?:\n)|\n\n(?=Attributes:)", about)[1].partition(
            "\n"
        )
        page = ROOT / "help" / name.replace(" ", "_")
        text = "\n".join(
            f"{line}  # needs weights or data" if ABSENT.search(line) else line
            for line in textwrap.dedent(lines).splitlines()
        )
        found = [Block(page, 0, "sh", PREPARATION[name])] if name in PREPARATION else []
        yield [*found, Block(page, 1, "sh", text)]


@dataclass(frozen=True)
class Command:
    """A command of a block, what it needs if that is not here, and what it prints if the page says
    so.
    """

    block: Block
    text: str
    needs: str | None = None
    expected: str | None = None

    @property
    def words(self) -> list[str]:
        """As the shell splits it; without variables before it, and a word for each `$(…)`."""
        words = shlex.split(re.sub(r"\$\(.*?\)", "$value", self.text), comments=True)
        while words and VARIABLE.match(words[0]):
            words.pop(0)
        return words


def pages() -> list[Path]:
    """Every page with commands."""
    others = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [*others, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that are run, in their order."""
    fence, kept, start = None, [], 0
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        mark, hidden = re.match(r"```(\w*)", line), re.fullmatch(r"<!-- run: (.*) -->", line)
        if fence is None and not mark and (line.startswith("    ") or (kept and not line)):
            start, kept = start if kept else number, [*kept, line[4:]]
            continue
        if fence is None and kept:
            yield from chosen(page, start, "indented", kept)
            kept = []
        if hidden:
            yield Block(page, number, "sh", hidden[1])
        elif mark and fence is None:
            fence, start = mark[1] or "text", number + 1
        elif mark:
            yield from chosen(page, start, fence or "text", kept)
            fence, kept = None, []
        elif fence is not None:
            kept.append(line)


def chosen(page: Path, line: int, language: str, lines: list[str]) -> Iterator[Block]:
    """The block, if it is one that can be run."""
    text = "\n".join(lines).rstrip()
    first = [each for each in lines if each.strip() and not each.startswith("#")][:1]
    if language == "indented":
        begin = re.sub(r'^(\s*[A-Z_]+=("[^"]*"|\S*) )+', "", "".join(first)).lstrip()
        language = "sh" if begin.startswith(PROGRAMS) else "text"
    if language == "text" and text.startswith("$ "):
        language = "record"
    language = {"bash": "sh", "shell": "sh"}.get(language, language)
    if language in ("sh", "console", "record", "python") and text:
        yield Block(page, line, language, text)


def commands(block: Block) -> list[Command]:
    """The commands of a block of shell; a Python block is one command."""
    if block.language == "python":
        needs = NEEDS.search(block.text.splitlines()[0])
        return [Command(block, block.text, needs[1] if needs else None)]
    found, lasting, lines = [], None, block.text.splitlines()
    while lines:
        line = lines.pop(0)
        if block.language in ("console", "record"):
            printed = []
            while lines and not lines[0].startswith("$ "):
                printed.append(lines.pop(0))
            found.append(Command(block, line.removeprefix("$ "), None, "\n".join(printed)))
            continue
        while line.endswith("\\"):
            line = f"{line[:-1]} {lines.pop(0).strip()}"
        needs = NEEDS.search(line)
        if line.lstrip().startswith("#"):
            lasting = needs[1] if needs else lasting
        elif line.strip():
            end = re.search(r"<<'(\w+)'", line)
            while end and lines and line.splitlines()[-1] != end[1]:
                line = f"{line}\n{lines.pop(0)}"
            found.append(Command(block, line, needs[1] if needs else lasting))
    return found


def check(command: Command) -> None:
    """What can be said of a command without running it.

    Raises:
        ValueError: an extra or a file that is not there, or what a `diffucoder` command finds
            wrong.
        SyntaxError: Python that cannot be parsed.
    """
    if command.block.language == "python":
        ast.parse(command.text)
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in re.findall(r"(?:jax-diffucoder|\.)\[([\w-]+)\]", command.text):
        if extra not in project["optional-dependencies"]:
            raise ValueError(f"{command.block.name}: there is no extra {extra!r}")
    shell = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True)
    if shell.returncode:
        raise ValueError(f"{command.block.name}: {shell.stderr}")
    for words in calls(command):
        if (
            words[0].endswith("diffucoder")
            and "--help" not in words
            and not any(word.startswith("$") for word in words)
        ):
            try:
                cli.parse(words[1:])
            except ValueError:
                if not (command.expected or "").startswith("error: "):
                    raise
        elif (
            words[0] == "python"
            and words[1].startswith(CHECKOUT)
            and not (ROOT / words[1]).is_file()
        ):
            raise ValueError(f"{command.block.name}: there is no file {words[1]}")


def calls(command: Command) -> Iterator[list[str]]:
    """The programs with their arguments that `&&` and `|` join, without redirections."""
    words: list[str] = []
    given = [*command.words, "&&"]
    for before, word in zip(["", *given], given, strict=False):
        if word in (">", ">>", "<") or before in (">", ">>", "<"):
            continue
        if word in ("&&", "|", "&"):
            if words:
                yield [
                    each
                    for position, each in enumerate(words)
                    if position or not VARIABLE.match(each)
                ]
            words = []
        else:
            words.append(word)


def is_installation(command: Command) -> bool:
    return any(words[0].endswith("pip") or words[1:3] == ["-m", "venv"] for words in calls(command))


def server_port(command: Command) -> int | None:
    """The documented port of a command that serves until it is stopped; none in a transcript, which
    ends.
    """
    for words in calls(command) if command.block.language == "sh" else ():
        for name, port in SERVERS.items():
            if " ".join(words).startswith(name):
                return int(words[words.index("--port") + 1]) if "--port" in words else port
    return None


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_session(process: subprocess.Popen) -> None:
    """End a program and all that it has started in its session; it gets a minute to do so."""
    subprocess.run(["pkill", "-TERM", "-s", str(process.pid)], check=False)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)


def shortened(command: Command) -> str:
    """The command at a size that takes seconds."""
    words = command.words
    for prefix, options in SHORTENED.items():
        if tuple(words[: len(prefix)]) == prefix:
            return f"{NEEDS.sub('', command.text).split(' #')[0].rstrip()} {' '.join(options)}"
    return command.text


def matches(expected: str, printed: str) -> bool:
    """Whether a transcript is what was printed; `…` stands for anything, blanks at line ends for
    nothing.
    """
    expected, printed = (
        re.sub(r"\s+$", "", text, flags=re.MULTILINE) for text in (expected, printed)
    )
    return (
        re.fullmatch(re.escape(expected).replace("…", ".*"), printed, flags=re.DOTALL) is not None
    )


def is_ready(port: int) -> bool:
    """Whether a server answers, and if it has a /ready, whether that says so."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code not in (429, 503)
    except OSError:
        return False
    return True


class Workplace:
    """A folder in which the blocks of a page run, with the servers that they start.

    Args:
        folder: an empty one.
        is_checkout: run the package of this checkout; else the one that is installed.
    """

    def __init__(self, folder: Path, *, is_checkout: bool = True) -> None:
        self.folder = folder
        self.servers: list[subprocess.Popen] = []
        # documented port -> the free one that was taken instead
        self.ports: dict[int, int] = {}
        entries = [
            path
            for path in ROOT.iterdir()
            if not path.name.startswith(".") and path.name not in ("out", "site")
        ]
        data = os.environ.get("DIFFUCODER_BENCHMARKS")
        entries += [*SAMPLES.iterdir(), *(Path(data).glob("*/*.jsonl*") if data else ())]
        for path in entries:
            (folder / path.name).symlink_to(path)
        (folder / ".venv").symlink_to(sys.prefix)
        programs, checkout = folder / ".programs", folder / ".checkout"
        programs.mkdir()
        module = "-m jax_lm" if is_checkout else f"{sys.prefix}/bin/diffucoder"
        for name, target in {"diffucoder": module, "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {target} "$@"\n')
            (programs / name).chmod(0o755)
        # What is not in the wheel; without the current folder, which holds all of the checkout.
        checkout.mkdir()
        for name in ("builtin_model", "examples", "experiments"):
            (checkout / name).symlink_to(ROOT / name)
        path = (
            {"PYTHONPATH": str(ROOT)}
            if is_checkout
            else {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
        )
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            **path,
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "100",
            # What a command writes at home stays in the folder, but compiled programs are kept.
            "HOME": str(folder),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
        }

    def run(self, command: Command) -> str:
        """ "ran", or why it only was checked; AssertionError with what it printed if it failed."""
        check(command)
        if command.block.language == "record":
            return "checked only, the record of a run"
        if command.needs:
            return f"checked only, needs {command.needs}"
        if is_installation(command) and server_port(command) is None:
            return "checked only, an installation"
        missing = BENCHMARK.search(command.text)
        if missing and not (self.folder / missing[0]).exists():
            return f"checked only, no {missing[0]} here"
        if server_port(command):
            return f"serves on port {self.serve(command)}"
        printed = self.output(command)
        if command.expected is not None:
            assert matches(command.expected, printed), f"printed\n{printed}"
            return "ran, printed what the page says"
        text = shortened(command)
        return "ran" if text == command.text else f"ran, as {text}"

    def output(self, command: Command) -> str:
        """What a command prints at a size that takes seconds; AssertionError if it fails and no
        page says so.
        """
        text = shortened(command)
        line = (
            [sys.executable, "-c", text]
            if command.block.language == "python"
            else ["bash", "-c", text]
        )
        process = subprocess.Popen(
            self.with_ports(line), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                end_session(process)
        failed = process.returncode != 0 and command.expected is None
        assert not failed, f"status {process.returncode}, printed\n{printed[-2000:]}"
        return printed

    def with_ports(self, line: list[str]) -> list[str]:
        """The words of a program, with the ports that servers have taken."""
        for documented, taken in self.ports.items():
            line = [
                re.sub(rf"\b(127\.0\.0\.1|localhost):{documented}\b", rf"\1:{taken}", each)
                for each in line
            ]
        return line

    def serve(self, command: Command) -> int:
        """Start a server and wait until it answers; it serves the blocks after it. Returns its port."""
        documented = server_port(command)
        assert documented is not None
        port = self.ports[documented] = free_port()
        text = command.text.split("&&")[-1].partition("  #")[0].strip()
        text = text.replace("=...", "=0123456789abcdef0123456789abcdef")
        text = f"{re.sub(r'--port [0-9]+', '', text)} --port {port}"
        log = self.folder / f"server-{len(self.servers)}.log"
        with log.open("w") as file:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {text}" if "=" not in text.split()[0] else text],
                cwd=self.folder, env=self.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.servers.append(server)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and server.poll() is None:
            if is_ready(port):
                return port
            time.sleep(0.5)
        raise AssertionError(f"does not serve on port {port}:\n{log.read_text()[-2000:]}")

    def close(self) -> None:
        for server in self.servers:
            end_session(server)


def run_blocks(chosen_blocks: list[Block], *, is_checkout: bool = True) -> int:
    """Run blocks of one page, say what became of each command; the number of failures."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="documentation-") as folder:
        place = Workplace(Path(folder), is_checkout=is_checkout)
        try:
            for command in [command for block in chosen_blocks for command in commands(block)]:
                first, start = command.text.splitlines()[0], time.monotonic()
                try:
                    verdict = place.run(command)
                except (
                    AssertionError,
                    ValueError,
                    SyntaxError,
                    SystemExit,
                    subprocess.SubprocessError,
                ) as error:
                    failures, verdict = failures + 1, f"FAILED: {error}"
                seconds = time.monotonic() - start
                print(
                    f"{command.block.name}: {first[:90]}\n    {verdict} ({seconds:.1f} s)",
                    flush=True,
                )
        finally:
            place.close()
    return failures


def stop(*_: object) -> None:
    """End the tool, after the programs that it has started. A signal handler."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        help="blocks whose name, such as README.md:18 or help/sft:1, begins like this",
    )
    parser.add_argument(
        "--installed",
        action="store_true",
        help="run the package that is installed here, as from a wheel, and not this checkout",
    )
    words = parser.parse_args()
    for number in ENDING:
        signal.signal(number, stop)
    every = [*(list(blocks(page)) for page in pages()), *examples()]
    found = [[block for block in page if block.name.startswith(words.only)] for page in every]
    failures = sum(run_blocks(page, is_checkout=not words.installed) for page in found if page)
    print(f"{sum(map(len, found))} blocks, {failures} commands failed")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("ended before the last command")
