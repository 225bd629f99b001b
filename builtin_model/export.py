"""Write the tasks that ship with the built-in model: the same bytes each time.

    python -m builtin_model.export

Held-out tasks come in the order in which `diffucoder eval builtin` counts them, training tasks in
that of `diffucoder grpo --data builtin`. Another order is another measurement, and another run.
"""

import gzip
import json
import random
from dataclasses import asdict
from pathlib import Path

from builtin_model.corpus import draw_task
from jax_lm.data.prompts import TASKS_FILE, BuiltinTask
from jax_lm.host.declared import Positional, run_main

HELD_OUT_SEED, HELD_OUT_COUNT = 20_000_000, 2000
TRAINING_SEED, TRAINING_COUNT = 10_000_000, 4000
"""Far from the seeds that the built-in model was trained with; the split itself does not depend on seeds."""


def held_out(count: int) -> list[BuiltinTask]:
    """Draw the first held-out tasks that ship."""
    return distinct_tasks(HELD_OUT_SEED, count, held_out=True)


def training(count: int) -> list[BuiltinTask]:
    """Draw the first training tasks that ship."""
    return distinct_tasks(TRAINING_SEED, count, held_out=False)


def distinct_tasks(seed: int, count: int, *, held_out: bool) -> list[BuiltinTask]:
    """Draw tasks until there are `count` keys, and keep the first task of each."""
    rng = random.Random(seed)
    tasks: dict[str, BuiltinTask] = {}
    while len(tasks) < count:
        task = draw_task(rng, held_out=held_out)
        tasks.setdefault(task.key, task)
    return list(tasks.values())


def main(
    out: Positional[Path] = TASKS_FILE,
    *,
    held_out_count: int = HELD_OUT_COUNT,
    training_count: int = TRAINING_COUNT,
) -> None:
    """Write the tasks.

    Args:
        out: gzipped JSONL file.
        held_out_count: how many held-out tasks.
        training_count: how many training tasks.
    """
    records = [{"split": "held-out"} | asdict(task) for task in held_out(held_out_count)]
    records += [{"split": "training"} | asdict(task) for task in training(training_count)]
    # Neither the time nor the file's name goes into the header.
    with (
        out.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
    ):
        packed.write("".join(f"{json.dumps(record)}\n" for record in records).encode())
    print(f"{out}: {len(records)} tasks, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_main(main)
