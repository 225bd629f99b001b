"""Write the prompts of the RL experiments: pipelines longer than any in the corpus.

    python -m builtin_model.pipelines experiments/pipelines

The corpus has pipelines of at most three list steps (`compositions.LENGTHS`), so that no row of these
files was seen in training, under any name or wording. The files are the same bytes each time.
"""

import hashlib
import json
import random
from pathlib import Path

from builtin_model.compositions import draw_composition
from jax_lm.data.prompts import BuiltinTask, task_prompt
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.tokenizer import DiffuCoderTokenizer

SEED = 40_000_000
"""Of pipelines of four steps; that of longer ones is higher by the number of further steps."""
FOLDER = Path("experiments/pipelines")
MAX_PROMPT, NEW_TOKENS = 96, 96
"""Most tokens of a prompt, and of a solution with its stop token."""


def draw_prompts(steps: int, count: int) -> list[BuiltinTask]:
    """Draw distinct pipelines of that many steps that fit a prompt and a canvas."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    rng, tasks = random.Random(SEED + steps - 4), {}
    while len(tasks) < count:
        task = draw_composition(rng, (steps,))
        fits = len(tokenizer.encode(task.prompt)) <= MAX_PROMPT
        if fits and len(tokenizer.encode(task.completion)) < NEW_TOKENS:
            tasks.setdefault(task.key, task)
    return list(tasks.values())


def main(
    out: Positional[Path] = FOLDER, *, test: int = 300, dev: int = 100, train: int = 400
) -> None:
    """Write the files, and print their hashes; no pipeline is in two files.

    Args:
        out: folder.
        test: rows of the test files, which are drawn first.
        dev: rows of the files to choose settings by.
        train: rows of the files to learn from.
    """
    out.mkdir(parents=True, exist_ok=True)
    for steps in (4, 5):
        counts = {"test": test, "dev": dev, "train": train}
        tasks = iter(draw_prompts(steps, sum(counts.values())))
        for name, count in counts.items():
            rows = [json.dumps(task_prompt(next(tasks))) + "\n" for _ in range(count)]
            path = out / f"{name}-{steps}.jsonl"
            path.write_text("".join(rows), encoding="utf-8")
            print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


if __name__ == "__main__":
    run_main(main)
