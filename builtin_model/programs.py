"""Write programs of the built-in corpus as samples for fine-tuning, one JSON line each.

    python -m builtin_model.programs --out out/programs.jsonl --count 30000
    diffucoder sft --data out/programs.jsonl --out out/growing --config recipes/expand_builtin.yaml

They are drawn from the training side, never from the held-out tasks.
"""

import json
import random
from pathlib import Path

from builtin_model.layouts import header_prompt
from builtin_model.spelling import draw_spelled
from jax_lm.host.declared import run_main


def main(*, out: Path, count: int = 30_000, seed: int = 0) -> None:
    """Draw and write them.

    Args:
        out: JSONL file; each row is a task in words and the program.
        count: of programs.
    """
    rng = random.Random(seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for _ in range(count):
            task = draw_spelled(rng)
            header, body = header_prompt(task, rng)
            file.write(json.dumps({"prompt": task.description, "completion": header + body}) + "\n")


if __name__ == "__main__":
    run_main(main)
