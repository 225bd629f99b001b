"""The table of runs/demo_rl.sh, from the attempts that it leaves.

python runs/demo_rl_table.py out/demo_rl
"""

import json
import math
import sys
from pathlib import Path

from jax_lm.evaluation.estimates import standard_error

ARMS = ("coupled", "full_mask", "shuffled")


def passed(path: Path) -> dict[str, bool]:
    """Which problems were solved."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: line["outcome"] == "passed" for line in lines}


def rewards(run: Path) -> str:
    """Mean reward of the first and the last tenth of a run's rollouts, on training prompts."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    values = [line["reward"] for line in lines if "reward" in line]
    part = max(1, len(values) // 10)
    return f"{sum(values[:part]) / part:.3f} → {sum(values[-part:]) / part:.3f}"


def main(folder: Path) -> None:
    """Print pass@1 with its binomial error, and the change on the same problems with the error of that."""
    start = passed(folder / "start.jsonl")
    count = len(start)
    rate = sum(start.values()) / count
    print(f"| run | held-out pass@1, {count} tasks | change | training reward, first → last tenth |")
    print("|---|---|---|---|")
    print(f"| start | {rate:.1%} ± {standard_error(sum(start.values()), count):.1%} | | |")
    for arm in ARMS:
        for run in sorted(folder.glob(f"{arm}-*")):
            if not (run / "attempts.jsonl").is_file():
                continue
            now = passed(run / "attempts.jsonl")
            if now.keys() != start.keys():
                raise SystemExit(f"error: {run} was measured on other problems than the start")
            total = sum(now.values())
            changes = [now[name] - start[name] for name in start]
            mean = sum(changes) / count
            error = math.sqrt(sum((change - mean) ** 2 for change in changes) / (count - 1) / count)
            score = f"{total / count:.1%} ± {standard_error(total, count):.1%}"
            print(f"| {run.name} | {score} | {mean:+.1%} ± {error:.1%} | {rewards(run)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
