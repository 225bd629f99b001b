"""Arguments of the commands that decode: `diffucoder generate`, `diffucoder serve`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jax_lm.arguments.hosts import ONE_HOST, Hosts
from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Complete a prompt, or fill the holes of a text, with a DiffuCoder checkpoint or the built-in model.

    Examples:
        diffucoder generate "def fibonacci(n):"
        diffucoder generate --watch "def is_prime(n):"
        diffucoder generate --preset turbo --stats "def is_prime(n):"
        diffucoder generate --model apple/DiffuCoder-7B-Instruct --chat "Reverse a linked list."
        diffucoder generate --adapter out/lora/adapter "def fibonacci(n):"
        diffucoder generate --prefix "def area(r):" --suffix "    return result" --max-new-tokens 16
        diffucoder generate --file draft.py        (with <|hole|> or <|hole:12|> where code is missing)
        cat start.py | diffucoder generate -

    Attributes:
        prompt: what to complete; - or nothing reads standard input.
        model: folder or hub id; the built-in model if not given.
        adapter: folder or hub id of a LoRA adapter (PEFT's layout); without `model`, of the base that it names.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32, bfloat16 or int8 (kernels only); chosen by the device if not given.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        chat: take the prompt as a user's message and answer it.
        watch: show the canvas while it fills in, coloured by confidence.
        prefix: text before a hole, instead of a prompt.
        suffix: text after the hole.
        file: text file with <|hole|> or <|hole:12|> markers to fill, instead of a prompt.
        middle_length: tokens of the hole between prefix and suffix; auto tries a few and keeps the likeliest.
        hosts: several hosts as one (multi_host, or coordinator, num_processes and process_id); the first one prints.
        stats: say on standard error how many tokens and forwards it took, and how long.
        generation: how to answer; max_new_tokens is also the length of a hole.
        seed: of the draws; those of a row depend on it and on the place in the batch.
        only_new: print the completion without the prompt.
    """

    prompt: tyro.conf.Positional[str | None] = None
    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    mesh: str | None = None
    chat: bool = False
    watch: bool = False
    prefix: str | None = None
    suffix: str | None = None
    file: Path | None = None
    middle_length: str | None = None
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = ONE_HOST
    stats: bool = False
    generation: tyro.conf.OmitArgPrefixes[GenerationOptions] = DEFAULTS
    seed: int = 0
    only_new: bool = False
