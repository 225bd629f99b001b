"""What XLA makes of a step of the 7B model, for machines that are not here: the tables of
docs/results/compiled.

    pip install '.[plan,plan-gpu]' && python experiments/compiled_steps.py

Compiles every step with `explain_plan.py`, in a process of its own, one after the other (some
minutes each where the processor is shared), and writes what it says as JSON and as a table. A file
that is there is kept; --again compiles anew. Nothing is measured: times are none of a compiler's
business.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "results" / "compiled"
TARGETS = ("v5e:2x2", "v6e:1x1", "v5p:2x2x1", "h200:1", "h100:8")
PRESETS = ("exact", "fast")
GIB = 2**30
HEADER = """# Compiled denoising steps

For readers who want to know what XLA makes of a 7B step on TPUs and GPUs that we do not have.

The 7B shape in bfloat16, one sequence of 512 tokens, 256 of them new. Compiled, not run: **no time is measured or
implied.**

- A `step` is one denoising step. Presets with a cache begin each block of 32 with a `refresh` of all rows, and
  continue with steps over 32 rows.
- Bytes are those that all kernels of a step read and write on one device; its caches are not modelled. `least` is
  what a step must read: weights, keys and values once.
- On TPUs, most weights reach the chip's own memory by copies that run in parallel with the kernels; these are counted
  as well.
"""
FOOTER = """
`turbo` commits by probability, which is a number to the program, so it runs the program of `fast` (tested). Where
`read again` is 0, every weight is read once per step. Each file next to this page has the full list: kernels by kind,
communication, sorts, and large buffers with their source.

On GPUs the compiler gets the description of the card with its driver, so it records conditions into CUDA graphs, as
on a card. Three things still differ from what a card runs:

- nothing is autotuned (products take the first tiles that fit, and sums of their parts are counted as separate
  kernels);
- products use Triton where a card may choose cuBLAS;
- attention is computed in full unless cuDNN is installed here.

A step has one loop, over the steps; the host may have to read its condition, and nothing else.

Products without a bias write bfloat16 directly. A model that is loaded onto a GPU computes q, k and v in one product, and
gate and up in another: XLA would join q, k and v itself, but for cuBLAS it copies their weights at every step. TPUs keep the
products apart: there, the output of a joined gate and up is written to memory, on v6e 10 % of the bytes of a step in
`exact` (compiled on 2026-11-27).

    pip install '.[plan,plan-gpu]'
    # needs both extras, and an hour of two cores:
    python experiments/compiled_steps.py --again
"""


def path_of(target: str, preset: str) -> Path:
    return FOLDER / f"{target.replace(':', '-')}-{preset}.json"


def compile_target(target: str, preset: str) -> None:
    """Compile the steps of a preset for a machine, and write what `plan` finds."""
    place = ("--model-config", "7b", "--topology", target, "--preset", preset)
    script, out = Path(__file__).with_name("explain_plan.py"), path_of(target, preset)
    command = [sys.executable, str(script), *place, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n", flush=True)
    if not path_of(target, preset).is_file():
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")


def written() -> list[tuple[str, str]]:
    """List the targets and presets that there is a file of."""
    return [
        (target, preset)
        for target in TARGETS
        for preset in PRESETS
        if path_of(target, preset).is_file()
    ]


def table() -> str:
    """Put all that was found side by side."""
    heads = "target, mesh, preset, pass, rows, memory GiB of GiB, kernels, products, communication, read GiB, least GiB, "
    heads += "written GiB, read again, moves, sorts, widest sort, logits arrays, widest rows"
    names = heads.split(", ")
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for target, preset in written():
        found = json.loads(path_of(target, preset).read_text())
        lines += [f"| {' | '.join(row(found, target, preset, name))} |" for name in found["passes"]]
    return "\n".join(lines)


def row(found: dict, target: str, preset: str, name: str) -> list[str]:
    """List the figures of a pass."""
    one = found["passes"][name]
    read = one["explanation"]
    mesh = found["plan"]["devices"].partition("mesh ")[2]
    memory = one["arguments_bytes"] + one["working_bytes"]

    def count(kind: str) -> str:
        return f"{sum(each['count'] for each in read[kind]):g}"

    columns = [
        int(each["shape"].strip("]").split("[")[-1].split(",")[-1] or 1) for each in read["sorts"]
    ]
    logit_rows = [int(each["what"].split()[0]) for each in read["logits"]]
    return [
        *(target, mesh, preset, name, str(one["rows"])),
        f"{memory / GIB:.2f} of {found['memory_limit'] / GIB:.2f}",
        *(
            str(sum(read["kernels"].values())),
            str(read["kernels"].get("product", 0)),
            count("collectives"),
        ),
        *(
            f"{read['read'] / GIB:.2f}",
            f"{one['least_bytes'] / GIB:.2f}",
            f"{read['written'] / GIB:.3f}",
        ),
        *(
            str(len(read["read_again"])),
            count("moves"),
            count("sorts"),
            str(max(columns, default=0)),
        ),
        *(count("logits"), str(max(logit_rows, default=0))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--again", action="store_true", help="compile what is there already")
    parser.add_argument("--only", choices=TARGETS, help="one target")
    arguments = parser.parse_args()
    for target in TARGETS:
        for preset in PRESETS:
            if arguments.only in (None, target) and (
                arguments.again or not path_of(target, preset).is_file()
            ):
                compile_target(target, preset)
    (FOLDER / "README.md").write_text(f"{HEADER}\n{versions()}\n\n{table()}\n{FOOTER}")


def versions() -> str:
    """Say when and by what each file was compiled, and which are missing."""
    about = [json.loads(path_of(*place).read_text()) for place in written()]
    found = sorted({f"{each['date']} with jax {each['jax']}, {each['compiler']}" for each in about})
    missing = [
        f"{target} {preset}"
        for target in TARGETS
        for preset in PRESETS
        if (target, preset) not in written()
    ]
    left = f" **Not compiled yet: {', '.join(missing)}.**" if missing else ""
    return f"Compiled on {'; '.join(found)}.{left}"


if __name__ == "__main__":
    main()
