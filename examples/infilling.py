"""Fill gaps: between a text before and one after, of unknown length, and several in one text.

    python examples/infilling.py

Infilling was a twentieth of the built-in model's training: it fills gaps, and seldom well.
"""

import tyro

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions


def main(model: str | None = None, max_new_tokens: int = 16) -> None:
    """Print three filled texts.

    Args:
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: tokens of a gap, at most.
    """
    engine = DiffuCoderInference(model)
    options = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    prefix, suffix = "def area(r):\n", "\n    return result"
    print(prefix + engine.infill(prefix, suffix, max_new_tokens, options=options) + suffix)
    # The length is chosen by likelihood among several that are decoded side by side.
    print(prefix + engine.infill(prefix, suffix, max_new_tokens, middle_length="auto", options=options) + suffix)
    # <|hole:4|> is a gap of four tokens, <|hole|> one of max_new_tokens.
    print(engine.fill("def is_even(n):\n    return <|hole:4|>\n\n\ndef gcd(a, b):\n<|hole|>", options))


if __name__ == "__main__":
    tyro.cli(main)
