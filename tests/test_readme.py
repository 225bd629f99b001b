"""README line by line, as its reader: what each command that a laptop can run prints and leaves is
what it promises.

The commands run one after another in one folder, those of SHORTENED at a size that takes seconds.
Lines that generate are held by test_shown.py, the two of installation by test_release.py and
.ci/run.
"""

import json
import re
import urllib.request

import pytest
from documentation import BENCHMARK, ROOT, Workplace, blocks, commands, is_installation, server_port

import untrusted as sandbox

# What somebody reads in four minutes.
MOST_WORDS = 900

PRINTED = {
    "diffucoder parity check": r"(\d\d) of \1 within bounds",
    "diffucoder plan --model-config 7b --topology v5e:2x2": r"v5e:2x2: 4.*weights per device +3\.55 GiB.*verdict +fits",
    "diffucoder eval builtin": r"2 completions|2 problems|pass@1",
    "diffucoder analyze": r"analysis",
    "diffucoder grpo --config": r"reward",
    "diffucoder sft --config": r"loss",
}
TRAINED = (
    "model/model.safetensors",
    "model/config.json",
    "model/generation_config.json",
    "metrics.jsonl",
)
LEFT = {
    "diffucoder analyze": ("analysis/analysis.json", "analysis/analysis.html"),
    "diffucoder grpo --config": tuple(f"out/grpo/{name}" for name in TRAINED),
    "diffucoder sft --config": tuple(f"out/sft/{name}" for name in TRAINED),
}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS


def chosen():
    """The commands to run, in their order."""
    for block in blocks(ROOT / "README.md"):
        for command in commands(block):
            is_run = (
                block.language == "sh"
                and command.needs is None
                and "diffucoder generate" not in command.text
            )
            if is_run and (server_port(command) or not is_installation(command)):
                yield command


@pytest.fixture
def place(tmp_path):
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.close()


def ask(port, path, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode() if body else None
    )
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def test_every_command_does_what_its_line_says(for_release, place):
    seen = set()
    for command in chosen():
        if server_port(command):
            port = place.serve(command)
            if "sandbox serve" not in command.text:
                assert "<canvas" in ask(port, "/") or "<main" in ask(port, "/")
                body = {"prompt": "def gcd(a, b):", "max_tokens": 64, "temperature": 0}
                text = json.loads(ask(port, "/v1/completions", body))["choices"][0]["text"]
                assert sandbox.run(f"def gcd(a, b):{text}", ["assert gcd(12, 18) == 6"]).passed, (
                    text
                )
            continue
        missing = BENCHMARK.search(command.text)
        (begins,) = [begins for begins in PRINTED if command.text.startswith(begins)]
        seen.add(begins)
        if missing and not (place.folder / missing[0]).exists():
            continue
        printed = place.output(command)
        assert re.search(PRINTED[begins], printed, re.DOTALL), f"{command.text}\n{printed}"
        assert "Traceback" not in printed, printed
        assert [name for name in LEFT.get(begins, ()) if not (place.folder / name).is_file()] == []
    assert seen == PRINTED.keys()


def test_the_top_says_what_was_not_run():
    top = (ROOT / "README.md").read_text().partition("\n## ")[0]
    assert "Not run yet: Apple's trained weights" in top
