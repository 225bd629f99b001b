"""Ask a question, begin the answer, and ask again about it.

    python examples/chat.py
    python examples/chat.py --opening "def gcd(a, b):"
    python examples/chat.py --model ./DiffuCoder-7B-Instruct --then "Now write lcm(a, b)."

A conversation is a list of messages; the model's own answer is appended before the next question.
What the answer begins with stands behind the prompt, and the model goes on from there. The built-in
model saw no second questions: `--model` names a better one.
"""

from jax_lm.host.declared import run_main
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions


def main(
    question: str = "Write a function gcd(a, b).",
    opening: str = "",
    then: str | None = None,
    model: str | None = None,
    max_new_tokens: int = 64,
) -> None:
    """Print the conversation.

    Args:
        question: the first message.
        opening: what its answer begins with.
        then: the second message.
        model: folder or hub id; the built-in model if not given.
        max_new_tokens: length of each answer's canvas.
    """
    engine = DiffuCoderInference(model)
    options = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0)
    messages = []
    for content, begun in ((question, opening), (then, "")):
        if content is None:
            continue
        messages.append({"role": "user", "content": content})
        (rest,) = engine.complete([engine.chat_prompt(messages) + begun], options)
        messages.append({"role": "assistant", "content": begun + rest})
        print(f"> {content}\n{begun}{rest}")


if __name__ == "__main__":
    run_main(main)
