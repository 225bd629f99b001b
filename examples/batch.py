"""Complete several prompts together, and see what that took.

    python examples/batch.py
    python examples/batch.py --prompts "def gcd(a, b):" "def lcm(a, b):" --preset exact

A row's draws depend on the seed and its place in the batch, so that the same batch gives the same
answers.
"""

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.templates import Template

PROMPTS = ("def gcd(a, b):", "def factorial(n):", "def word_count(text):", "def transpose(matrix):")


def main(
    prompts: tuple[str, ...] = PROMPTS,
    model: str | None = None,
    max_new_tokens: int = 64,
    preset: str = "turbo",
) -> None:
    """Print every completed function with its mean log-probability per token.

    Args:
        prompts: what to complete.
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: length of each canvas.
        preset: exact, fast or turbo.
    """
    engine = DiffuCoderInference(model)
    options = GenerationOptions(
        max_new_tokens=max_new_tokens, decoding=Decoding(preset=preset), temperature=0.0
    )
    batch = engine.decode(
        [Template.completion(prompt, max_new_tokens) for prompt in prompts], options
    )
    for prompt, row in zip(prompts, batch.rows, strict=True):
        print(f"{prompt}{row.text}\n# {row.mean_log_confidence:.3f} per token\n")
    print(batch.describe())


if __name__ == "__main__":
    run_main(main)
