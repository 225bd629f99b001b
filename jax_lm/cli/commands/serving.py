"""`diffucoder serve`: an OpenAI-compatible server, with a page that shows the denoising."""

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import jax
from huggingface_hub.utils import disable_progress_bars
from pydantic import ValidationError

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.serving import Serve
from jax_lm.config import Fields, Names
from jax_lm.host import terminal
from jax_lm.host.memory import free_memory
from jax_lm.inference import BUILTIN_NOTICE, DiffuCoderInference
from jax_lm.options import Decoding
from jax_lm.planning.memory import estimate_memory
from jax_lm.planning.roofline import gib
from jax_lm.planning.serving import CONTEXTS, SLOTS, describe_limits, fitting_limits
from jax_lm.serving.admission import served_options
from jax_lm.serving.api import ServerSettings, create_app
from jax_lm.serving.connections import ConnectionLimits
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.http import HttpServer, ListenOptions, require_free_address
from jax_lm.serving.middleware import LOOPBACK, JsonLines, RequestLimits, read_keys
from jax_lm.serving.pace import Pace
from jax_lm.serving.schemas import SERVER_DEFAULTS, DecodingBody, error_line

logger = logging.getLogger("jax_lm.serving")

# Share of a host's free memory that a server may use, because other programs use it, too.
HOST_SHARE = 0.5
# Preset of requests that name none, unless the operator chooses one.
DEFAULT_PRESET = "turbo"
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
        connections=ConnectionLimits.for_process(arguments.connections, arguments.keep_alive),
    )
    given = given_fields(arguments, EngineOptions.__dataclass_fields__)
    options = EngineOptions(**given)
    # the checkpoint may have further defaults, which are known later; these override them
    defaults = given_fields(arguments, SERVER_DEFAULTS)
    require_defaults(defaults)
    # "out/model" is offered as "model"
    source = arguments.engine.adapter or arguments.engine.model or "builtin"
    name = arguments.name or Path(os.path.abspath(source)).name
    adapters = parse_adapters(arguments.adapters, name)
    require_free_address(listen.host, listen.port)
    configure_logging()
    # load; JAX would leave a quarter of the GPU unused, but a server has it for itself
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    model = arguments.engine.settings | {"adapters": adapters, "replicas": arguments.replicas}
    inference = DiffuCoderInference(**model, verbose=False, before_weights=options.require_fitting)
    logger.info(inference.describe())
    if arguments.preset is None:
        # what is decoded from left to right has no presets
        defaults["preset"] = "exact" if inference.config.is_unidirectional else DEFAULT_PRESET
    options = fit_options(inference, replace(options, preset=defaults["preset"]), given)
    engine = Engine(inference, options)
    hosts = ()
    # Keys already protect the server from foreign web pages.
    if not keys and (is_local or arguments.allow_host):
        hosts = (*LOOPBACK, *map(str.lower, (arguments.host, *arguments.allow_host)))
    settings = ServerSettings(
        model=name,
        adapters=adapters,
        notice=BUILTIN_NOTICE if inference.is_builtin else "",
        logs_prompts=arguments.log_prompts,
        defaults=checkpoint_defaults(inference.source.folder) | defaults,
    )
    # refuse defaults that the model cannot follow now, not at every request
    served_options(inference, DecodingBody.model_validate({}).options(1, settings.defaults))
    # serve
    limits = RequestLimits(keys=keys, hosts=hosts, is_lenient=arguments.lenient)
    app = create_app(engine, settings, limits)
    if key_file := arguments.api_key_file:
        signal.signal(signal.SIGHUP, lambda *_: app.reload_keys(key_file))
    engine.start()
    server = HttpServer(app, engine, listen, announce)
    # uvicorn handles the signal only once it has started, and raises it again in the end.
    signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        server.run()
    except BaseException:  # also Ctrl-C: an interpreter exit during a compilation crashes
        engine.close(grace=0.0)
        raise
    # after a failure, do not wait for a running compilation
    if not engine.close(grace=0.0, wait=0.0 if engine.failure else listen.margin / 2):
        logger.warning("the engine is still busy: exiting without it")
    # All requests are answered. A normal interpreter exit takes seconds to free XLA's memory, or
    # crashes during a compilation.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0 if engine.failure is None else ENGINE_FAILED)


def given_fields(arguments: Serve, names: Iterable[str]) -> Fields:
    """Return the options that were given, by name."""
    return {name: value for name in names if (value := getattr(arguments, name)) not in (None, ())}


def parse_adapters(texts: Sequence[str], model: str) -> Names:
    """Parse `name=folder` texts. Raises ValueError for one that is malformed, or not unique."""
    adapters = {}
    for text in texts:
        name, _, place = text.partition("=")
        # after @, a name has a preset
        if not (name and place) or "@" in name or name in (model, *adapters):
            raise ValueError(f"adapters={text!r}: must be name=folder, with a new name without @")
        adapters[name] = place
    return adapters


def require_defaults(defaults: Fields):
    """Raise ValueError for defaults that a request could not have, naming the option."""
    try:
        DecodingBody.model_validate(defaults)
    except ValidationError as problem:
        raise ValueError(error_line(problem.errors()[0])[0]) from problem


def checkpoint_defaults(folder: Path) -> Fields:
    """Return the defaults in a checkpoint's generation_config.json, if it has one."""
    if not (folder / "generation_config.json").is_file():
        return {}
    config = huggingface.read_json(folder, "generation_config.json")
    defaults = {name: config[name] for name in SERVER_DEFAULTS if config.get(name) is not None}
    # Transformers samples only with do_sample; Dream's files have no such field
    if config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    try:
        require_defaults(defaults)
    except ValueError as problem:
        logger.warning("generation_config.json is not used: %s", problem)
        return {}
    return defaults


def fit_options(
    inference: DiffuCoderInference, options: EngineOptions, given: Fields
) -> EngineOptions:
    """Choose the slots and the context that are not given by the free memory, and log them."""
    # a model that is decoded left to right has the cache of `fast`
    preset = "fast" if inference.config.is_unidirectional else options.preset
    planned = replace(inference.split()[0].planned, decoding=Decoding(preset=preset))
    memory = math.inf
    may_use = "unknown"
    if (free := free_memory()) is not None:
        share = HOST_SHARE if jax.default_backend() == "cpu" else 1.0
        # the weights are loaded already
        memory = share * free + estimate_memory(planned).weights
        may_use = gib(memory)
    plan, need = fitting_limits(
        planned,
        memory,
        Pace().fixed_rows,
        slots=(given["slots"],) if "slots" in given else SLOTS,
        contexts=(given["context"],) if "context" in given else CONTEXTS,
        adapters=len(inference.adapters),
    )
    limits = {"preset": options.preset, **describe_limits(plan, need), "may_use": may_use}
    logger.info("limits", extra={"fields": limits})
    return replace(options, slots=plan.batch, context=given.get("context", plan.canvas))


def announce(host: str, port: int):
    # IPv6 addresses stand in brackets: http://[::1]:8000
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on http://{shown}:{port}; Ctrl-C ends it", flush=True)


def configure_logging():
    """Log one line of JSON per record on standard error. Off a terminal, nothing else is written there."""
    handler = terminal.CurrentStderr()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # people read plain lines and watch progress; collectors of logs want records
    if not sys.stderr.isatty():
        terminal.LINES.handlers = [handler]
        disable_progress_bars()
    logging.getLogger("jax_lm").setLevel(logging.INFO)
    # warnings and exceptions of threads become lines of JSON as well
    logging.captureWarnings(capture=True)
    threading.excepthook = lambda failed: logger.error("a thread failed", exc_info=failed.exc_value)
