"""`diffucoder serve`: an OpenAI-compatible server, with a page that shows the denoising."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from jax_lm.cli.arguments.serving import Serve
from jax_lm.inference import BUILTIN_NOTICE, DiffuCoderInference
from jax_lm.serving.api import ServerSettings, create_app
from jax_lm.serving.connections import ConnectionLimits
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.http import HttpServer, ListenOptions, require_free_address
from jax_lm.serving.middleware import LOOPBACK, JsonLines, RequestLimits, read_keys

logger = logging.getLogger("jax_lm.serving")

# Exit status if the engine ended on its own.
ENGINE_FAILED = 1


def run_serve(arguments: Serve) -> NoReturn:
    """Serve until a signal stops the server, then end the process."""
    # check all settings before the model is loaded
    keys = read_keys(arguments.api_key_file) if arguments.api_key_file else ()
    is_local = arguments.host in LOOPBACK
    if not (is_local or keys or arguments.allow_no_key):
        raise ValueError(
            f"host={arguments.host}: needs api_key_file on another address than loopback, or allow_no_key"
        )
    listen = ListenOptions(
        host=arguments.host,
        port=arguments.port,
        grace=arguments.grace,
        connections=ConnectionLimits.here(arguments.connections),
    )
    bounds = ("slots", "queue", "context", "max_tokens", "timeout", "draft")
    options = EngineOptions(**{name: getattr(arguments, name) for name in bounds})
    require_free_address(listen.host, listen.port)
    configure_logging()
    # load
    inference = DiffuCoderInference(
        arguments.model, arguments.tokenizer, arguments.dtype, adapter=arguments.adapter
    )
    engine = Engine(inference, options)
    # "out/model" is offered as "model"
    name = arguments.name or Path(arguments.adapter or arguments.model or "builtin").name
    # Keys already protect the server from foreign web pages.
    hosts = (
        ()
        if keys
        else (*LOOPBACK, arguments.host, *arguments.allow_host)
        if is_local or arguments.allow_host
        else ()
    )
    settings = ServerSettings(
        model=name,
        notice=BUILTIN_NOTICE if inference.is_builtin else "",
        logs_prompts=arguments.log_prompts,
    )
    # serve
    app = create_app(engine, settings, RequestLimits(keys=keys, hosts=hosts))
    engine.start()
    server = HttpServer(app, engine, listen, announce)
    # uvicorn handles the signal only once it has started, and raises it again in the end.
    signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        server.run()
    except BaseException:  # also Ctrl-C: an interpreter exit during a compilation crashes
        engine.close(grace=0.0)
        raise
    # after a failure, a compilation that still runs is not waited for
    if not engine.close(grace=0.0, wait=0.0 if engine.failure else listen.margin / 2):
        logger.warning("the engine is still busy: exiting without it")
    # All requests are answered. A normal interpreter exit takes seconds to free XLA's memory, or
    # crashes during a compilation.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0 if engine.failure is None else ENGINE_FAILED)


def announce(host: str, port: int) -> None:
    # IPv6 addresses stand in brackets: http://[::1]:8000
    print(
        f"listening on http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C ends it",
        flush=True,
    )


def configure_logging() -> None:
    """Log one line of JSON per record on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("jax_lm").setLevel(logging.INFO)
