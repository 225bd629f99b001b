"""Arguments of `diffucoder serve`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path

from jax_lm.cli.arguments.engine import EngineArguments
from jax_lm.config import Texts


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
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --adapters sql=me/sql-lora docs=out/lora/adapter
        diffucoder serve --host 0.0.0.0 --api-key-file keys.txt
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --replicas 8 --warm-up 192 192x16 768

    Attributes:
        engine: the model, and the devices that it runs on.
        adapters: LoRA adapters that a request selects by its model name, as name=folder or name=hub
            id. They share the weights of the model, which is offered as well; `adapter` instead
            changes the model itself.
        replicas: number of copies of the model, each on its own group of devices, that take
            requests from one queue; `mesh` is the shape of one group.
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        name: model name in the API; the last part of `adapter` or `model` by default.
        api_key_file: file of API keys, one per line, of which clients must send one. A label for logs
            and metrics may follow, and the requests per minute. SIGHUP reads the file again.
        allow_no_key: listen on other addresses than loopback without keys.
        allow_host: host names that clients may use for this server, in addition to its address.
        preset: preset of requests that name none: exact, fast or turbo (the default). A client may
            also name a preset as the model: name@fast. Autoregressive models have none.
        temperature: temperature of requests that set none; by default that of the checkpoint's
            generation_config.json, else 0.3. `top_p` (0.95) and `top_k` (50) work alike.
        top_p: probability mass of nucleus sampling.
        top_k: number of candidate tokens per position, at most 50.
        min_p: lowest probability of a candidate, as a share of the most likely one.
        alg: order of unmasking, as in `generate`.
        lenient: ignore unknown fields of requests, and name them in the header x-ignored-fields and
            the log; by default they are refused.
        slots: maximum number of sequences decoded together; by default 16, or what fits the device.
        queue: maximum number of waiting sequences; more are refused with 429.
        context: maximum tokens of prompt and answer together; by default 2048, or what the model
            holds and the device fits.
        max_tokens: maximum length of an answer.
        default_tokens: length of answers to requests without `max_tokens`; chat clients that write
            whole files need more than 128.
        timeout: maximum seconds per request.
        draft: number of steps drafted ahead and verified by each forward pass; 0 turns drafts off.
            Answers stay the same. With causal blocks, number of tokens that masks draft.
        warm_up: shapes to compile before the server is ready, as tokens, tokensxsequences or
            preset:tokensxsequences: 192, 384x4, exact:96x16. All others are compiled when requests
            need them.
        grace: seconds from SIGTERM to the end of the process; a supervisor must wait longer before
            it kills the process.
        connections: maximum number of open connections; by default what the limit on open files
            allows, at most 1024.
        keep_alive: seconds that a connection may idle between two requests.
        log_prompts: log prompts, and answers that are not streamed.
    """

    FIRST = "model host port api_key_file dtype slots context max_tokens timeout name"

    engine: EngineArguments
    adapters: Texts = ()
    replicas: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    api_key_file: Path | None = None
    allow_no_key: bool = False
    allow_host: Texts = ()
    preset: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    alg: str | None = None
    lenient: bool = False
    slots: int | None = None
    queue: int = 128
    context: int | None = None
    max_tokens: int = 1024
    default_tokens: int = 128
    timeout: float = 120.0
    draft: int = 0
    warm_up: Texts = ()
    grace: float = 30.0
    connections: int | None = None
    keep_alive: int = 10
    log_prompts: bool = False
