"""Measure a model of experiments/pipelines_rl.sh, and print the table of all that were measured.

    python experiments/pipelines_rl.py docs/results/pipelines/counts.json

The 300 prompts of the test file (one greedy answer, one at temperature 1) and 64 held-out tasks
of the corpus (greedy), decoded as in training. Counts go to the file by the run's name, and
the table is computed from them; intervals hold 95 % of 10,000 draws of prompts and seeds.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.demo_rl_table import interval, runs_of
from experiments.one_step import EVALUATION, SAMPLING, Task
from jax_lm.data.prompts import load_tasks, open_prompts, task_prompt
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.prompt_set import PromptSet

START = "start"
ARMS = ("old", "new", "shuffled", "coupled", "sft")
MEASURES = ("sampled", "greedy", "old tasks")
MAX_PROMPT, TESTED, OLD_TASKS = 96, 300, 64
CURVES = (
    "reward",
    "eval_reward",
    "eval_reward_error",
    "eval_kl_start",
    "logprob",
    "rewarded_logprob",
    "rate_scale",
    "zero_variance_groups",
)

Counts = dict[str, Any]


def measure(model: Path, folder: Path) -> dict[str, list[int]]:
    """Return whether the answer to each prompt passes all tests, as 1 or 0."""
    task = Task(folder, OLD_TASKS)
    policy = DreamForCausalLM.from_pretrained(model, dtype=jnp.float32)
    params = Sampler(policy).params
    asked = [*open_prompts(folder / "test-4.jsonl").values()]
    tested = PromptSet.of(asked, task.tokenizer, MAX_PROMPT).prompts[:TESTED]
    corpus = [task_prompt(each) for each in load_tasks(2 * OLD_TASKS)]
    old = PromptSet.of(corpus, task.tokenizer, MAX_PROMPT).prompts[:OLD_TASKS]
    greedy = replace(SAMPLING, temperature=0.0)
    found = {}
    for name, prompts, options in (
        ("sampled", tested, SAMPLING),
        ("greedy", tested, greedy),
        ("old tasks", old, greedy),
    ):
        _, rewards = task.complete(params, prompts, 0, EVALUATION, options)
        found[name] = (rewards == 1).astype(int).tolist()
    return found


def read_curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of the metrics that a run logged, by name."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in map(json.loads, lines):
        for name in CURVES:
            if name in entry:
                found.setdefault(name, []).append((entry["step"], round(entry[name], 4)))
    return found


def rates(counts: Counts, run: str, measure: str) -> np.ndarray:
    """Return whether each prompt passed, as 1 or 0."""
    return np.array(counts["runs"][run][measure])


def table(counts: Counts) -> str:
    """Write pass rates and their changes from the start, by run and by arm."""
    runs = list(counts["runs"])
    if START not in runs:
        return ""
    lines = [
        "| run | " + " | change | ".join(MEASURES) + " | change |",
        "|---|" + "---|---|" * len(MEASURES),
    ]

    def line(name: str, of_runs: list[str], mark: str = "") -> str:
        cells = []
        for measure in MEASURES:
            found = np.array([rates(counts, run, measure) for run in of_runs])
            change = found - rates(counts, START, measure)
            cells += [f"{found.mean():.1%}", f"{mark}{interval(change)}{mark}"]
        return f"| {mark}{name}{mark} | " + " | ".join(cells) + " |"

    start = " | | ".join(f"{rates(counts, START, measure).mean():.1%}" for measure in MEASURES)
    lines.append(f"| start | {start} | |")
    for arm in ARMS:
        names = runs_of(runs, arm)
        lines += [line(name, [name]) for name in names]
        if len(names) > 1:
            lines.append(line(f"{arm}, mean of {len(names)}", names, "**"))
    return "\n".join(lines)


def curves_table(counts: Counts) -> str:
    """Write held-out reward by update, and the mean reward of the first and last three rollouts."""
    curves = {run: counts["curves"][run] for arm in ARMS for run in runs_of(counts["curves"], arm)}
    steps = sorted({step for of_run in curves.values() for step, _ in of_run["eval_reward"]})
    lines = [
        "| run | "
        + " | ".join(f"after {step}" for step in steps)
        + " | reward, 1 to 3 | 10 to 12 |",
        "|---|" + "---|" * (len(steps) + 2),
    ]
    for run, found in curves.items():
        held_out = dict(map(tuple, found["eval_reward"]))
        cells = [f"{held_out[step]:.3f}" if step in held_out else "" for step in steps]
        rewards = [value for _, value in found.get("reward", ())]
        cells += [f"{np.mean(part):.3f}" if part else "" for part in (rewards[:3], rewards[-3:])]
        lines.append(f"| {run} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    counts: Positional[Path],
    run: str | None = None,
    model: Path = BUILTIN_MODEL,
    prompts: Path = Path("experiments/pipelines"),
) -> None:
    """Measure a run that has no counts yet, and print both tables.

    Args:
        counts: JSON file of the counts.
        run: name of the run, whose last part is the seed; "start" for the weights that ship. None
            prints the tables alone.
        model: the model that the run ended with.
        prompts: folder of builtin_model.pipelines.
    """
    found: Counts = {"runs": {}, "curves": {}}
    if counts.is_file():
        found = json.loads(counts.read_text(encoding="utf-8"))
    if run is not None and run not in found["runs"]:
        found["runs"][run] = measure(model, prompts)
        if curves := read_curves(model.parent):
            found["curves"][run] = curves
        counts.parent.mkdir(parents=True, exist_ok=True)
        temporary = counts.with_suffix(".tmp")
        temporary.write_text(json.dumps(found) + "\n", encoding="utf-8")
        temporary.replace(counts)
    print(table(found))
    print()
    print(curves_table(found))


if __name__ == "__main__":
    run_main(main)
