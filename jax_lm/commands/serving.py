"""`diffucoder serve`: an OpenAI-compatible server with a page that shows the denoising."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import uvicorn

from jax_lm.arguments.serving import Serve
from jax_lm.inference import BUILTIN_NOTICE, DiffuCoderInference
from jax_lm.serving.api import ServerSettings, create_app
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.guard import LOOPBACK, JsonLines, RequestLimits, read_keys

GRACE_SECONDS = 30
KEEP_ALIVE_SECONDS = 10


def run_serve(arguments: Serve) -> int:
    """Serve until it is told to stop."""
    keys = read_keys(arguments.api_key_file) if arguments.api_key_file else ()
    is_local = arguments.host in LOOPBACK
    if not (is_local or keys or arguments.allow_no_key):
        raise ValueError(f"host={arguments.host}: needs api_key_file on another address than loopback, or allow_no_key")
    if not 0 <= arguments.port < 2**16:
        raise ValueError(f"port={arguments.port}: must lie in [0, 65535]")
    bounds = ("slots", "queue", "context", "max_tokens", "seconds")
    options = EngineOptions(**{name: getattr(arguments, name) for name in bounds})
    configure_logging()
    inference = DiffuCoderInference(arguments.model, arguments.tokenizer, arguments.dtype)
    engine = Engine(inference, options)
    name = arguments.name or (Path(arguments.model).name if arguments.model else "builtin")
    # With a key, a foreign page that gets through to the server is still refused.
    hosts = (
        () if keys else (*LOOPBACK, arguments.host, *arguments.allow_host) if is_local or arguments.allow_host else ()
    )
    settings = ServerSettings(
        model=name, notice=BUILTIN_NOTICE if inference.is_builtin else "", logs_prompts=arguments.log_prompts
    )
    app = create_app(engine, settings, RequestLimits(keys=keys, hosts=hosts))
    engine.start()
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("jax_lm").setLevel(logging.INFO)
