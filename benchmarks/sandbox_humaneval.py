"""HumanEval's canonical solutions must pass and empty bodies must fail, in every tier of this host.

    python benchmarks/sandbox_humaneval.py HumanEval.jsonl.gz

The file is the published one (https://github.com/openai/human-eval). Prints counts and runs per second; the exit
status is 1 if a solution fails or an empty body passes. `--tier` picks one tier.
"""

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from pathlib import Path

from jax_lm.sandbox import Job, Limits, Local
from jax_lm.sandbox.runner import why_not
from jax_lm.sandbox.tiers import SAFE


def jobs_of(problems: list[dict], body: str | None) -> list[Job]:
    """One job per problem, with its own solution or with `body`."""
    return [
        Job(
            problem["prompt"] + (problem["canonical_solution"] if body is None else body),
            (f"{problem['test']}\ncheck({problem['entry_point']})",),
            Limits(seconds=20),
        )
        for problem in problems
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tier", choices=SAFE)
    options = parser.parse_args()
    with gzip.open(options.file, "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    wrong = 0
    for tier in [options.tier] if options.tier else SAFE:
        if reason := why_not(tier):
            print(f"{tier}: not available: {reason}")
            continue
        for name, body, expected in (("canonical solutions", None, "passed"), ("empty bodies", "    pass\n", "failed")):
            jobs = jobs_of(problems, body)
            start = time.perf_counter()
            results = Local(tier).run_many(jobs)
            seconds = time.perf_counter() - start
            counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(Counter(r.outcome for r in results).items()))
            print(f"{tier}: {len(jobs)} {name}: {counts}; {len(jobs) / seconds:.1f} runs/s")
            for problem, result in zip(problems, results, strict=True):
                if result.outcome != expected:
                    wrong += 1
                    print(f"  {problem['task_id']}: {result.outcome}: {result.detail}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
