"""Turn tasks into token rows for masked-diffusion training: which tokens there are, and which may be masked.

A row is a context that stays visible and a canvas that may be masked. Four kinds teach four uses: complete
a header, continue from anywhere, fill a hole, answer in chat. Spare canvas after the end of the text is a
target too: so the model learns to end. Knows tokens, not models.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from jax_lm.data.batches import Batch, Row, collate
from jax_lm.data.prompts import BuiltinTask
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, DiffuCoderTokenizer
from recipes.builtin.corpus import draw_task

REQUESTS = (
    "Write a Python function named `{name}`. {doc}",
    "Write a function `{name}` in Python: {doc}",
    "{doc} Call it `{name}`.",
    "Implement `{name}` in Python. {doc}",
    "Write Python code for `{name}`. {doc}",
    "Complete this Python code:\n{header}",
)
"""How a user asks for a task in chat."""


def completion_row(task: BuiltinTask, tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show the header, and mask the body."""
    return split_row(task.prompt, task.completion, tokenizer)


def continuation_row(task: BuiltinTask, tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show the text up to any character, and mask the rest."""
    text = task.prompt + task.completion
    cut = rng.randrange(1, len(text))
    return split_row(text[:cut], text[cut:], tokenizer)


def infilling_row(task: BuiltinTask, tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Cut a hole between two visible parts, of the length of what was there."""
    text = task.prompt + task.completion
    start = rng.randrange(0, len(text))
    end = rng.randrange(start + 1, min(len(text), start + 160) + 1)
    parts = [tokenizer.encode(part) for part in (text[:start], text[start:end], text[end:])]
    canvas = [False] * len(parts[0]) + [True] * len(parts[1]) + [False] * len(parts[2])
    return Row((*parts[0], *parts[1], *parts[2]), tuple(canvas), open=False)


def chat_row(task: BuiltinTask, tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show a request in words, and mask its answer, a fenced block of code."""
    header = task.prompt.rstrip("\n")
    request = rng.choice(REQUESTS).format(name=task.entry_point, doc=task.description, header=header)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": request}])
    code = f"{header}\n{task.completion.strip(chr(10))}"
    return split_row(prompt, f"```python\n{code}\n```", tokenizer, end=END_OF_TURN)


def split_row(prompt: str, completion: str, tokenizer: DiffuCoderTokenizer, end: str = END_OF_TEXT) -> Row:
    """Encode prompt and completion apart, as they are when a user's prompt comes alone."""
    fixed = tokenizer.encode(prompt)
    written = [*tokenizer.encode(completion), tokenizer.token_id(end)]
    return Row((*fixed, *written), (False,) * len(fixed) + (True,) * len(written))


SHORTEST_CANVAS = 32
"""On shorter ones hardly any row fits."""

RowKind = Callable[[BuiltinTask, DiffuCoderTokenizer, random.Random], Row]


def stream_batches(
    tokenizer: DiffuCoderTokenizer,
    *,
    seed: int,
    tokens_per_batch: int,
    lengths: Sequence[int],
    shares: Mapping[RowKind, float],
    longer_share: float,
) -> Iterator[Batch]:
    """Draw batches over the training side of the corpus, endlessly, from a seed.

    `shares` weighs the kinds of rows. Each row goes to the shortest of `lengths` that holds it, or with
    `longer_share` to a random longer one (so that the model has seen canvases far longer than its answers);
    a length is emitted when it has `tokens_per_batch` tokens. The few rows that fit no length are drawn anew.

    Raises:
        ValueError: the shortest of `lengths` holds hardly any row.
    """
    if min(lengths, default=0) < SHORTEST_CANVAS:
        raise ValueError(f"lengths={tuple(lengths)}: must hold canvases of at least {SHORTEST_CANVAS} tokens")
    rng = random.Random(seed)
    waiting: dict[int, list[Row]] = {length: [] for length in lengths}
    while True:
        draw_row = rng.choices(list(shares), list(shares.values()))[0]
        row = draw_row(draw_task(rng), tokenizer, rng)
        fitting = [length for length in sorted(lengths) if length >= len(row.ids)]
        if not fitting:
            continue
        is_longer = row.open and rng.random() < longer_share
        length = rng.choice(fitting) if is_longer else fitting[0]
        waiting[length].append(row)
        if len(waiting[length]) * length >= tokens_per_batch:
            yield collate([[row] for row in waiting[length]], length, tokenizer.pad_id)
            waiting[length] = []
