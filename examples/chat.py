"""Ask a question, and ask again about the answer.

    python examples/chat.py --question "Write a function gcd(a, b)."

A conversation is a list of messages; the model's own answer is appended before the next question. The built-in model
saw few conversations and answers them badly: `--model` names a better one.
"""

import tyro

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions


def main(
    question: str = "Write a function gcd(a, b).",
    then: str = "Now write lcm(a, b).",
    model: str | None = None,
    max_new_tokens: int = 64,
) -> None:
    """Print both answers.

    Args:
        question: the first message.
        then: the second.
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: length of each answer's canvas.
    """
    engine = DiffuCoderInference(model)
    options = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    messages = []
    for content in (question, then):
        messages.append({"role": "user", "content": content})
        answer = engine.chat(messages, options)
        messages.append({"role": "assistant", "content": answer})
        print(f"> {content}\n{answer}\n")


if __name__ == "__main__":
    tyro.cli(main)
