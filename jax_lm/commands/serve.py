"""`diffucoder serve`: an OpenAI-compatible server with a page that shows the denoising."""

import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE_SECONDS = 30
KEEP_ALIVE_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a checkpoint, or the built-in model, over OpenAI's HTTP interface; the page is at /.

    On another address than loopback, clients must show an API key. There is no encryption: put a proxy or a tunnel in
    front. Ctrl-C or SIGTERM finishes what is in flight. Needs the extra: pip install 'jax-diffucoder[serve]'

    Examples:
        diffucoder serve
        diffucoder serve --model apple/DiffuCoder-7B-Instruct --port 9000
        diffucoder serve --host 0.0.0.0 --api-key-file keys.txt

    Attributes:
        model: folder or hub id; the built-in model if not given.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        host: address to listen on.
        port: 0 takes a free one.
        name: under which the model is offered; the last part of `model` if not given.
        api_key_file: file with API keys, one per line; clients must show one of them.
        allow_no_key: listen on another address than loopback without keys.
        allow_host: host name under which clients ask for this server, besides its address; may be given repeatedly.
        lanes: rows decoded together.
        queue: rows that may wait; more are refused with 429.
        context: tokens that prompt and answer may take together; 2048, or less if the model holds less, if not given.
        max_tokens: longest answer that may be asked for.
        seconds: time that a request may take.
        log_prompts: write prompts to the log, and answers that are not streamed.
    """

    model: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    api_key_file: Path | None = None
    allow_no_key: bool = False
    allow_host: tuple[str, ...] = ()
    lanes: int = 16
    queue: int = 128
    context: int | None = None
    max_tokens: int = 1024
    seconds: float = 120.0
    log_prompts: bool = False

    def run(self) -> int:
        try:
            import fastapi
            import prometheus_client
            import uvicorn

            del fastapi, prometheus_client
        except ImportError as missing:
            raise ValueError(f"{missing.name} is not installed: pip install 'jax-diffucoder[serve]'") from missing
        from jax_lm.inference import BUILTIN_NOTICE, DiffuCoderInference
        from jax_lm.serving.api import Settings, create_app
        from jax_lm.serving.engine import Engine, EngineOptions
        from jax_lm.serving.guard import LOOPBACK, Limits, read_keys

        keys = read_keys(self.api_key_file) if self.api_key_file else ()
        is_local = self.host in LOOPBACK
        if not (is_local or keys or self.allow_no_key):
            raise ValueError(f"host={self.host}: needs api_key_file on another address than loopback, or allow_no_key")
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port}: must lie in [0, 65535]")
        options = EngineOptions(
            lanes=self.lanes, queue=self.queue, context=self.context, max_tokens=self.max_tokens, seconds=self.seconds
        )  # fmt: skip
        configure_logging()
        inference = DiffuCoderInference(self.model, self.tokenizer, self.dtype)
        engine = Engine(inference, options)
        name = self.name or (Path(self.model).name if self.model else "builtin")
        # With a key, a foreign page that gets through to the server is still refused.
        hosts = () if keys else (*LOOPBACK, self.host, *self.allow_host) if is_local or self.allow_host else ()
        settings = Settings(
            model=name, notice=BUILTIN_NOTICE if inference.is_builtin else "", logs_prompts=self.log_prompts
        )
        app = create_app(engine, settings, Limits(keys=keys, hosts=hosts))
        engine.start()
        config = uvicorn.Config(
            app, host=self.host, port=self.port, log_config=None, access_log=False, server_header=False, lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        # uvicorn ends what is in flight when it gets SIGTERM, then raises it again: by then everything is done.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            announcing(uvicorn.Server(config), engine).run()
        finally:
            engine.close(grace=0.0)
        return 0


def announcing(server: Any, engine: Any) -> Any:
    """The server, which says where it listens, and lets the engine take nothing new once it is told to stop."""
    startup, shutdown = server.startup, server.shutdown

    async def start(sockets: Any = None) -> None:
        await startup(sockets)
        for listener in server.servers:
            for socket in listener.sockets:
                host, port = socket.getsockname()[:2]
                print(f"listening on http://{host}:{port}; Ctrl-C ends it", flush=True)

    async def stop(sockets: Any = None) -> None:
        engine.refuse_new(float(GRACE_SECONDS))
        await shutdown(sockets)

    server.startup, server.shutdown = start, stop
    return server


def configure_logging() -> None:
    """One line of JSON per record on standard error."""
    from jax_lm.serving.guard import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("jax_lm").setLevel(logging.INFO)
