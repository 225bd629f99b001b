"""Arguments of `diffucoder serve`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a model through an OpenAI-compatible HTTP API, with a web page at /.

    Addresses other than loopback require API keys. Connections are not encrypted: use a proxy or a
    tunnel. Ctrl-C or SIGTERM finishes running requests first. Needs the extra: pip install
    'jax-diffucoder[serve]'

    Examples:
        diffucoder serve
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --port 9000
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --adapter me/my-lora --name mine
        diffucoder serve --host 0.0.0.0 --api-key-file keys.txt

    Attributes:
        model: folder or hub id; the built-in model by default.
        adapter: folder or hub id of a LoRA adapter in PEFT's layout. Its base model is used unless
            `model` is given.
        tokenizer: folder of the tokenizer; the model's own by default.
        dtype: float32, bfloat16 or int8 (kernels only); depends on the device by default.
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        name: model name in the API; the last part of `adapter` or `model` by default.
        api_key_file: file of API keys, one per line; clients must send one of them.
        allow_no_key: listen on other addresses than loopback without keys.
        allow_host: host names that clients may use for this server, besides its address.
        slots: maximum number of sequences decoded together.
        queue: maximum number of waiting sequences; more are refused with 429.
        context: maximum tokens of prompt and answer together; by default 2048, or the model's
            context if that is smaller.
        max_tokens: maximum length of an answer.
        timeout: maximum seconds per request.
        draft: number of steps drafted ahead and verified by each forward pass; 0 turns drafts off.
            Answers stay the same.
        grace: seconds from SIGTERM to the end of the process; a supervisor must wait longer before
            it kills the process.
        connections: maximum number of open connections; by default what the limit on open files
            allows, at most 1024.
        log_prompts: log prompts, and answers that are not streamed.
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
