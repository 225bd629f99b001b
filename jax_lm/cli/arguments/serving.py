"""Arguments of `diffucoder serve`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a checkpoint, or the built-in model, over OpenAI's HTTP interface; the page is at /.

    On another address than loopback, clients must show an API key. There is no encryption: put a proxy or a tunnel in
    front. Ctrl-C or SIGTERM finishes what is in flight. Needs the extra: pip install 'jax-diffucoder[serve]'

    Examples:
        diffucoder serve
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --port 9000
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --adapter me/my-lora --name mine
        diffucoder serve --host 0.0.0.0 --api-key-file keys.txt

    Attributes:
        model: folder or hub id; the built-in model if not given.
        adapter: folder or hub id of a LoRA adapter (PEFT's layout); without `model`, of the base that it names.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32, bfloat16 or int8 (kernels only); chosen by the device if not given.
        host: address to listen on.
        port: 0 takes a free one.
        name: under which the model is offered; the last part of `adapter` or `model` if not given.
        api_key_file: file with API keys, one per line; clients must show one of them.
        allow_no_key: listen on another address than loopback without keys.
        allow_host: host names under which clients ask for this server, besides its address.
        slots: sequences decoded together.
        queue: sequences that may wait; more are refused with 429.
        context: tokens that prompt and answer may take together; 2048, or less if the model holds less, if not given.
        max_tokens: longest answer that may be asked for.
        timeout: seconds that a request may take.
        draft: steps that are guessed ahead and checked together by each evaluation of the model; 0 is off. Answers are
            the same.
        grace: seconds from SIGTERM to the end of the process; whoever then kills it must wait for longer.
        connections: connections open at once; as many as the limit on open files leaves, at most 1024, if not given.
        log_prompts: write prompts to the log, and answers that are not streamed.
    """

    FIRST: ClassVar = (
        "model", "host", "port", "api_key_file", "dtype", "slots", "context", "max_tokens", "timeout", "name",
    )  # fmt: skip

    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    api_key_file: Path | None = None
    allow_no_key: bool = False
    allow_host: tuple[str, ...] = ()
    slots: int = 16
    queue: int = 128
    context: int | None = None
    max_tokens: int = 1024
    timeout: float = 120.0
    draft: int = 0
    grace: float = 30.0
    connections: int | None = None
    log_prompts: bool = False
