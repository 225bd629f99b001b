"""Watch a text being decided: what every step commits, and the text that can no longer change.

    python examples/streaming.py --prompt "def gcd(a, b):"

A masked-diffusion model does not write from left to right: the settled text, what stands before the
first mask, may stay short for long and then grow by a leap.
"""

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions


def main(
    prompt: str = "def is_even(n):", model: str | None = None, max_new_tokens: int = 32
) -> None:
    """Print a line per step and the finished text.

    Args:
        prompt: what to complete.
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: length of the canvas.
    """
    engine = DiffuCoderInference(model)
    text = ""
    for event in engine.stream(
        # With top_p, most positions have one candidate left, and such ties go from left to right.
        [prompt],
        GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0, top_p=None, top_k=None),
    ):
        pieces = [engine.tokenizer.decode([token]) for token in event.token_ids]
        shown = ", ".join(
            f"{position}: {piece!r}"
            for position, piece in zip(event.positions, pieces, strict=True)
        )
        text = event.text
        print(
            f"step {event.step:3}  {shown if len(pieces) < 5 else f'{len(pieces)} positions'}  settled: {text!r}"
        )
    print(prompt + text)


if __name__ == "__main__":
    run_main(main)
