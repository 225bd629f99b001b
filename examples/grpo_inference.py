"""Before and after: held-out problems answered by a trained policy and by the model that it started
from.

python examples/grpo_inference.py --model out/grpo-example/model --problems 8
"""

from pathlib import Path

from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import load_held_out_problems
from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions
from untrusted import Local


def main(model: Path, problems: int = 8, max_new_tokens: int = 96) -> None:
    """Print each problem with both answers, and whether they pass its tests.

    Args:
        model: folder of the trained policy.
        problems: how many held-out problems; far too few of them to tell which model is better.
        max_new_tokens: length of the canvas.
    """
    options = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    answers = {}
    for name, folder in (("before", None), ("after", model)):
        engine = DiffuCoderInference(folder)
        evaluator = Evaluator(engine=engine, executor=Local(), options=options, batch_size=problems)
        answers[name] = {
            attempt.problem.name: attempt
            for attempt in evaluator.attempts(load_held_out_problems(problems))
        }
    for key, before in answers["before"].items():
        print(f"--- {key}\n{before.problem.prefix}")
        for name, attempts in answers.items():
            print(f"[{name}: {attempts[key].outcome}]{attempts[key].completion}")
    for name, attempts in answers.items():
        print(
            f"{name}: {sum(attempt.passed for attempt in attempts.values())} of {len(attempts)} passed"
        )


if __name__ == "__main__":
    run_main(main)
