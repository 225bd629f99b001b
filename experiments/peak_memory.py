"""Peak memory of training commands on this machine, with what `plan` says of them and of other machines.

python experiments/peak_memory.py --model Qwen2.5-Coder-0.5B-Instruct --adapted out/adapted/model \
    --out docs/results/measurements/peak_memory.json

`--adapted` is a masked-diffusion model of the same size, as `adapt` saves it: `sft` refuses an autoregressive
base. Each case is a command of its own, ended after its second update; the peak is that of the process, as
the kernel counts it (ru_maxrss). Rows of 7B are planned, not run. A case that is refused or killed
has no peak, and its last line says why. Needs about 18 GB free for the largest case; `--cases` picks
some, and what other cases found stays in the file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from jax_lm.benchmark.machine import about

TEXT = 'def add_{0}(a, b):\n    """Return the sum of a, b and {0}."""\n    return a + b + {0}\n\n\n'
# Name: command, what is trained, options, and what `plan` needs to know besides.
CASES = {
    "adapt 8 x 512": ("adapt", "texts", "--batch-size 8 --max-length 512", ""),
    "adapt 2 x 512": ("adapt", "texts", "--batch-size 2 --max-length 512", ""),
    # noisy and clean tokens side by side
    "adapt 2 x 512, blocks of 4": (
        "adapt",
        "texts",
        "--batch-size 2 --max-length 512 --block-length 4",
        "--max-length 1024",
    ),
    # rows as long as the samples need
    "sft lora, 16 short samples": (
        "sft",
        "samples",
        "--lora-rank 8",
        "--batch-size 8 --max-length 64",
    ),
}
PLANS = {
    "7B, adapt 8 x 512, v5e:4x4": "--topology v5e:4x4 --step adapt --batch-size 8 --max-length 512",
    "7B, adapt 8 x 512, h100:8": "--topology h100:8 --step adapt --batch-size 8 --max-length 512",
    "7B, sft lora over int8, rtx4090:1": (
        "--topology rtx4090:1 --step sft --lora-rank 8 --dtype int8 --batch-size 1 --max-length 512"
    ),
}


def run(words: list[str]) -> tuple[int, int, str]:
    """Run a command; returns its status, the peak of its memory in bytes, and its last line."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        lines = output.read().strip().splitlines()
    code = os.waitstatus_to_exitcode(status)
    return code, usage.ru_maxrss * 1024, lines[-1] if lines else ""


def plan(*words: str) -> dict:
    """Return the plan of an update."""
    command = [sys.executable, "-m", "jax_lm", "plan", "--estimate", "--json", *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def write_data(folder: Path) -> None:
    """Write texts of some 100,000 tokens, and sixteen samples of two lines."""
    texts = ["".join(TEXT.format(100 * n + i) for i in range(20)) for n in range(160)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    samples = [{"prompt": f"Add {n} to x.", "response": f"x + {n}\n"} for n in range(16)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapted", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    command, rows = [sys.executable, "-m", "jax_lm"], {}
    if arguments.out.is_file():
        rows = json.loads(arguments.out.read_text())["rows"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        for number, case in enumerate(arguments.cases):
            kind, data, options, planned = CASES[case]
            model = str((kind == "sft" and arguments.adapted) or arguments.model)
            words = [*command, kind, "--model", model, "--data"]
            words += [str(folder / f"{data}.jsonl"), "--out", str(folder / str(number))]
            words += [*options.split(), "--max-steps", "2", "--stop-after", "2"]
            code, peak, last = run(words)
            found = {"peak_gb": round(peak / 1e9, 2)} if code in (0, 143) else {"why": last}
            # --lora-rank 8 and the rest: options of `plan`, but for blocks
            known = options.replace("--block-length 4", "")
            size = plan(
                *("--model", model, "--topology", "cpu", "--step", kind),
                *f"{known} {planned}".split(),
            )["total_bytes"]
            rows[case] = found | {
                "command": f"{kind} {options}",
                "status": code,
                "planned_gb": round(size / 1e9, 2),
                "about": about(),
            }
            print(case, json.dumps(rows[case]), flush=True)
    for case, options in PLANS.items():
        rows[case] = {"plan": plan("--model-config", "7b", *options.split())}
    record = {"model": arguments.model.name, "rows": rows}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
