"""Requests generated from the server's own schema, right and wrong, and raw nonsense: it answers
each and stays up.

pytest -n 0 tests/test_faults.py --fuzz-cases 350     # cases per endpoint and kind, 1,050 at least
"""

import json
import socket

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import hypothesis
import schemathesis
from cases.server import call, listening, started
from schemathesis import GenerationMode

from jax_lm.serving.api import ENDPOINTS

PATHS = (*ENDPOINTS, "/tokenize", "/detokenize")
GREEDY = {"prompt": "def gcd(a, b):", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def address(tiny_inference):
    with started(tiny_inference) as engine, listening(engine) as address:
        yield address
        assert engine.metrics.rows.labels("error", "")._value.get() == 0
        assert not engine.stopped.is_set()


@pytest.fixture(scope="module")
def answer(address):
    """What a fixed request gives before all others."""
    return call(address, "POST", "/v1/completions", GREEDY)[2]["choices"]


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"]
)
@pytest.mark.parametrize("path", PATHS)
def test_generated_bodies(address, answer, path, mode, request):
    schema = schemathesis.openapi.from_url("http://{}:{}/openapi.json".format(*address))
    strategy = schema[path]["POST"].as_strategy(generation_mode=mode)
    asked = []

    @hypothesis.settings(
        max_examples=request.config.getoption("--fuzz-cases"),
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def ask(case):
        reply = case.call(timeout=60)
        asked.append(reply.status_code)
        # A queue full of generated requests is no fault.
        assert reply.status_code in (200, 400, 404, 413, 415, 422, 429), reply.text
        if reply.status_code != 200:
            assert {"message", "type", "param", "code"} == set(json.loads(reply.text)["error"])

    ask()
    assert len(asked) >= request.config.getoption("--fuzz-cases")
    assert call(address, "POST", "/v1/completions", GREEDY)[2]["choices"] == answer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe\x00",
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt": "x", "max_tokens": 1e400}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "' + b"a" * 2_000_000 + b'"}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_nonsense_is_refused(address, answer, body):
    status, _, text = call(address, "POST", "/v1/completions", body)
    assert status in (400, 413)
    assert "error" in (text if isinstance(text, dict) else json.loads(text))
    assert call(address, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/denoise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["bytes", "version", "length", "half", "long"],
)
def test_broken_requests_do_not_end_the_server(address, raw):
    with socket.create_connection(address, timeout=10) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(100)
        except OSError:
            pass  # It may hang up on us.
    assert call(address, "GET", "/health")[0] == 200
