"""Compile the recipes of recipes/ with two and three layers, and write the table of
docs/results/scale.

    pip install '.[plan,plan-gpu]' && python experiments/recipe_table.py

Each compilation is a process of its own (`experiments/recipes.py`), one after the other: half a
minute for GPUs, five minutes and more for TPUs. What is in recipes.jsonl already is kept; --table
writes the table of that alone. Nothing is measured but the time of the compiler.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "results" / "scale"
FOUND = FOLDER / "recipes.jsonl"
MACHINES = ("24gb", "80gb", "h100x8", "v5e-16", "v6e-16", "v5p-8")
SAVINGS = ("remat", "blocks", "lookup")
LAYERS, ALL_LAYERS, GIB = (2, 3), 28, 2**30
COLUMNS = """recipe; machine; mesh; without; kept GiB; working GiB; of GiB; collectives; sent GiB; kernels; traffic GiB;
planned GiB; TFLOP; planned TFLOP; compile s"""
NAMES = COLUMNS.replace("\n", " ").split("; ")
HEADER = f"""# Training updates of the recipes, compiled

For readers who plan training at 7B and want the memory and traffic of each recipe in `recipes/`.

Each recipe is compiled for its machine at full width with two and with three layers, and extrapolated linearly to
{ALL_LAYERS} layers. Compiled, not run: **no time but the compiler's is measured or implied**, and that on two shared
cores. Figures are per device and per update, with all accumulation and chunks.

- **How good the extrapolation is.** For {ALL_LAYERS} layers of grpo_h100x8 it is exact in `kept`, `sent` and
  operations, and within 0.2 % in kernels and traffic (tested). On TPUs it is exact in `kept` and operations, within 2
  % in traffic, and within 17 and 19 % in `sent` and kernels, which that compiler merges freely.
- **`working` is not linear.** Compilers use free memory to hide communication, so the line is between 13 % too low
  and 3.4 times too high. Where all layers were compiled (a third compile time), as for every TPU recipe, that figure
  is used.
- `kept` stays on the device between updates. `working` is what an update needs in addition at its peak. A tenth of a
  card must stay free.
- `plan --estimate` does not ask the compiler. It is within a tenth for sft_h100x8, sft_80gb, sft_v5e-16, grpo_24gb
  and grpo_v5p-8 (tested). Elsewhere it is only a first guess: 24.7 GiB for grpo_h100x8, which takes 32.8; half of
  what both recipes take on v6e. `plan` without `--estimate` compiles.
- `kept` counts the float32 reference of coupled-GRPO since 2026-11-27. Its bytes are exact, and were added to what had
  been compiled. grpo_v5e-16 and grpo_v6e-16 have no reference (`beta` 0): with one they would take 15.8 of 16 and 29.6
  of 32 GiB. They were compiled with `beta` 0.01, which adds a few kilobytes of scores.
- `sent` is the size of the results of collectives, `traffic` what kernels read and write, without caches. **Loops
  whose trip count the compiled text does not state count once**, so on TPUs these two are lower bounds.
- TFLOP counts the products of the traced program. The plan (`jax_lm.planning.memory`) assumes four passes, three with
  adapters, which is slightly more: the last product of a layer is not recomputed.
- sft_v5e-16 and sft_v6e-16 (the rows without `without`) were compiled after two changes: stochastic rounding of the
  bfloat16 copies of weights, and making that copy within the accumulation loop on TPUs. All others were compiled
  before. grpo_v5e-16 with two layers, compiled afterwards, has 0.1 % more `working`, 2 % more `traffic` and the same
  operations.
- Rows with `without` lack these savings: `remat` recomputes layers for the gradient, `blocks` computes the head in
  blocks of the vocabulary, `lookup` looks up the embedding where its parts are instead of gathering it.
"""
FOOTER = """
    pip install '.[plan,plan-gpu]'
    # needs both extras, and hours of two cores:
    python experiments/recipe_table.py
"""


def identity(found: dict[str, Any]) -> tuple:
    """Tell compilations apart."""
    return found["recipe"], found["layers"], tuple(found["without"])


def read_found() -> dict[tuple, dict[str, Any]]:
    """Read what was compiled."""
    lines = FOUND.read_text(encoding="utf-8").splitlines() if FOUND.is_file() else []
    return {identity(found): found for found in map(json.loads, lines)}


def compile_recipe(recipe: str, layers: int, without: tuple[str, ...]) -> None:
    """Compile a recipe with so many layers, and add what is found to the file."""
    command = [
        sys.executable,
        "experiments/recipes.py",
        f"recipes/{recipe}",
        "--layers",
        str(layers),
    ]
    command += ["--without", *without] if without else []
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
    report = json.loads(done.stdout.splitlines()[-1])
    (figures,) = report.pop("by_layers").values()
    report.pop("total", None)
    with FOUND.open("a", encoding="utf-8") as file:
        file.write(json.dumps(report | {"layers": layers} | figures) + "\n")


def line(few: float, more: float) -> float:
    """Continue from what the first and the second number of layers take to all of them."""
    return few + (ALL_LAYERS - LAYERS[0]) * (more - few) / (LAYERS[1] - LAYERS[0])


def sums(found: dict[str, Any]) -> dict[str, float]:
    """Sum up figures of a compilation."""
    # What begins and what ends a collective are two instructions.
    collectives = [
        found["collectives"][kind] for kind in found["collectives"] if not kind.endswith("-done")
    ]
    return {
        "collectives": sum(count for count, _ in collectives),
        "sent": sum(size for _, size in collectives) / GIB,
        "traffic": (found["read"] + found["written"]) / GIB,
        "kernels": found["kernels"],
        "kept": found["kept"] / GIB,
        "working": found["working"] / GIB,
        "operations": found["operations"] / 1e12,
    }


def row(few: dict[str, Any], more: dict[str, Any], whole: dict[str, Any] | None) -> list[str]:
    """List the figures of a recipe, of all layers if they were compiled."""
    at = (
        sums(whole)
        if whole
        else {name: line(sums(few)[name], sums(more)[name]) for name in sums(few)}
    )
    return [
        *(few["recipe"].removesuffix(".yaml"), few["machine"], few["mesh"]),
        ", ".join(few["without"]),
        *(f"{at['kept']:.2f}", f"{at['working']:.2f}", f"{few['memory'] / GIB:.2f}"),
        *(
            f"{at['collectives']:.0f}",
            f"{at['sent']:.1f}",
            f"{at['kernels']:.0f}",
            f"{at['traffic']:.0f}",
        ),
        *(
            f"{few['least_bytes_all'] / GIB:.0f}",
            f"{at['operations']:.0f}",
            f"{few['least_operations_all'] / 1e12:.0f}",
        ),
        ", ".join(str(each["seconds"]) for each in (few, more, whole) if each),
    ]


def table(found: dict[tuple, dict[str, Any]]) -> str:
    """Put the recipes under each other, with and without savings."""
    lines = [f"| {' | '.join(NAMES)} |", f"|{'---|' * len(NAMES)}"]
    for recipe, without in cases():
        few, more, whole = (
            found.get((recipe, layers, without)) for layers in (*LAYERS, ALL_LAYERS)
        )
        if few and more:
            lines.append(f"| {' | '.join(row(few, more, whole))} |")
    return "\n".join(lines)


def cases() -> list[tuple[str, tuple[str, ...]]]:
    """List recipes, with and without the savings."""
    recipes = [f"{kind}_{machine}.yaml" for machine in MACHINES for kind in ("sft", "grpo")]
    return [(recipe, without) for recipe in recipes for without in ((), SAVINGS)]


def versions(found: dict[tuple, dict[str, Any]]) -> str:
    """Say when and by what it was compiled, and what is missing."""
    by = sorted(
        {f"{each['date']} with jax {each['jax']}, {each['compiler']}" for each in found.values()}
    )
    missing = [f"{recipe.removesuffix('.yaml')}{' without' if without else ''}" for recipe, without in cases()
               if any((recipe, n, without) not in found for n in LAYERS)]  # fmt: skip
    left = f" **Not compiled yet: {', '.join(missing)}.**" if missing else ""
    return f"Compiled on {'; '.join(by)}.{left}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="compile nothing")
    arguments = parser.parse_args()
    for recipe, without in cases():
        for layers in LAYERS:
            if not arguments.table and (recipe, layers, without) not in read_found():
                compile_recipe(recipe, layers, without)
    found = read_found()
    (FOLDER / "recipes.md").write_text(f"{HEADER}\n{versions(found)}\n\n{table(found)}\n{FOOTER}")


if __name__ == "__main__":
    main()
