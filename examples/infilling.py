"""Fill gaps: between a text before and one after, of unknown length, and several in one text.

    python examples/infilling.py

Infilling was a twentieth of the built-in model's training: it fills gaps in common functions, and
seldom others.
"""

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions


def main(model: str | None = None, max_new_tokens: int = 24) -> None:
    """Print three filled texts.

    Args:
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: tokens of a gap, at most.
    """
    engine = DiffuCoderInference(model)
    options = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    prefix, suffix = "def gcd(a, b):", "    return a"
    print(prefix + engine.infill(prefix, suffix, max_new_tokens, options=options) + suffix)
    # With middle_length="auto" the length is chosen by likelihood among several that are decoded
    # side by side.
    prefix, suffix = (
        "def factorial(n):\n    result = 1\n    for i in range(2, n + 1):\n",
        "\n    return result",
    )
    print(prefix + engine.infill(prefix, suffix, middle_length=6, options=options) + suffix)
    # <|hole:5|> is a gap of five tokens, <|hole|> one of max_new_tokens.
    print(engine.fill("def gcd(a, b):\n<|hole:5|>\n        a, b = b, a % b\n<|hole:4|>\n", options))


if __name__ == "__main__":
    run_main(main)
