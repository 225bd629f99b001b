"""Complete one prompt.

python examples/basic.py
python examples/basic.py --prompt "def gcd(a, b):" --model ./DiffuCoder-7B-Instruct
"""

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference


def main(
    prompt: str = "def is_prime(n):", model: str | None = None, max_new_tokens: int = 64
) -> None:
    """Print the completed function.

    Args:
        prompt: what to complete.
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: length of the canvas.
    """
    engine = DiffuCoderInference(model)
    print(engine.generate(prompt, max_new_tokens=max_new_tokens, temperature=0.0))


if __name__ == "__main__":
    run_main(main)
