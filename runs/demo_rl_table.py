"""Table and plot of runs/demo_rl.sh, from the attempts and metrics that it leaves.

    python runs/demo_rl_table.py out/demo_rl

Writes table.md and rewards.svg there, and prints the table.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from jax_lm.reports.charts import line_chart

ARMS = ("coupled", "full_mask", "shuffled")
SMOOTHED = 5
"""Rollouts in a point of the plot."""


def passed(folder: Path) -> dict[str, bool]:
    """Which problems were solved."""
    lines = (folder / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["name"]: entry["outcome"] == "passed" for entry in map(json.loads, lines)}


def rewards(run: Path) -> list[float]:
    """Mean reward of each rollout of a run, on training prompts."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["reward"] for entry in map(json.loads, lines) if "reward" in entry]


def error_of_mean(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values))


def table(folder: Path) -> str:
    """Held-out pass@1 with its binomial error, and the change on the same problems with the error of that.

    Raises:
        ValueError: a run was measured on other problems than the start.
    """
    start = passed(folder / "start")
    count, solved = len(start), sum(start.values())
    lines = [
        f"| run | held-out pass@1, {count} tasks | change | training reward, first → second half of the rollouts |",
        "|---|---|---|---|",
        f"| start | {solved / count:.1%} ± {math.sqrt(solved * (count - solved) / count**3):.1%} | | |",
    ]
    for arm in ARMS:
        of_arm = []
        for run in sorted(folder.glob(f"{arm}-*")):
            now = passed(run / "held_out")
            if now.keys() != start.keys():
                raise ValueError(f"{run} was measured on other problems than the start")
            total = sum(now.values())
            changes = [float(now[name]) - start[name] for name in start]
            made = rewards(run)
            half = len(made) // 2
            of_arm.append(mean(changes))
            score = f"{total / count:.1%} ± {math.sqrt(total * (count - total) / count**3):.1%}"
            change = f"{mean(changes):+.1%} ± {error_of_mean(changes):.1%}"
            lines.append(f"| {run.name} | {score} | {change} | {mean(made[:half]):.3f} → {mean(made[half:]):.3f} |")
        spread = f" ± {error_of_mean(of_arm):.1%} between seeds" if len(of_arm) > 1 else ""
        lines.append(f"| **{arm}, mean** | | **{mean(of_arm):+.1%}**{spread} | |")
    return "\n".join(lines) + "\n"


def curves(folder: Path) -> str:
    """Training rewards, the mean of an arm's seeds, smoothed."""
    series = {}
    for arm in ARMS:
        rollouts = list(map(mean, zip(*(rewards(run) for run in sorted(folder.glob(f"{arm}-*"))), strict=True)))
        points = range(SMOOTHED, len(rollouts) + 1)
        series[arm] = [(point, mean(rollouts[point - SMOOTHED : point])) for point in points]
    return line_chart(f"Mean reward of the last {SMOOTHED} rollouts, three seeds", "rollout", "reward", series)


def main(folder: Path) -> None:
    (folder / "table.md").write_text(table(folder), encoding="utf-8")
    (folder / "rewards.svg").write_text(curves(folder), encoding="utf-8")
    print((folder / "table.md").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
