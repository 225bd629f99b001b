"""Servers on a free port of the loopback address, their engines, listeners and requests."""

import http.client
import json
import socket
import threading
from contextlib import contextmanager
from unittest.mock import patch

import uvicorn

from jax_lm.serving import worker
from jax_lm.serving.api import ServerSettings, create_app
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.middleware import RequestLimits
from jax_lm.serving.slots import Slots

OPTIONS = EngineOptions(
    slots=1, queue=12, context=96, max_tokens=80, timeout=60.0, warm_up=("1", "fast:1")
)
"""One slot compiles least; test_engine.py has several."""

PROMPT = "def gcd(a, b):\n"
COMPLETION = {"model": "tiny", "max_tokens": 24, "temperature": 0}
"""Fields of a greedy completion."""


class RecordingListener:
    """Keeps the events of jobs, and waits for their ends."""

    def __init__(self):
        self.events, self.ended = [], threading.Semaphore(0)

    def __call__(self, event):
        self.events.append(event)
        if event.reason:
            self.ended.release()

    def finished(self, count=1, seconds=60):
        """Wait for the ends of `count` jobs; returns the last event of every ended job."""
        for _ in range(count):
            assert self.ended.acquire(timeout=seconds), f"no end after {seconds} s"
        return {event.job: event for event in self.events if event.reason}


def make_engine(inference, options, slots_type):
    """Make an engine whose batches run in slots of a type."""
    with patch.object(worker, "Slots", slots_type):
        return Engine(inference, options)


@contextmanager
def started(inference, options=OPTIONS, slots_type=Slots):
    """Start an engine and wait until it has compiled."""
    engine = make_engine(inference, options, slots_type)
    engine.start()
    try:
        while not engine.ready.wait(0.2):
            assert not engine.stopped.is_set(), engine.failure
        yield engine
    finally:
        engine.close(grace=0.0)


@contextmanager
def listening(engine, settings=None, limits=None):
    """Serve an engine; yields host and port."""
    app = create_app(engine, settings or ServerSettings(model="tiny"), limits or RequestLimits())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(20)


def call(address, method, path, body=None, **headers):
    """Send a request; returns status, headers and body.

    A body that is no string is sent as JSON.
    """
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        content = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request(
            method, path, content, kind | {name.replace("_", "-"): v for name, v in headers.items()}
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = (answer.headers.get("content-type") or "").startswith("application/json")
        return answer.status, answer.headers, json.loads(text) if is_json and text else text
    finally:
        connection.close()
