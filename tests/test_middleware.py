"""What stands before every request: limits, keys, hosts, headers, one log line.

Around an application of the test's.
"""

import asyncio
import json
import logging

import pytest

pytest.importorskip("prometheus_client")

from jax_lm.serving.metrics import Metrics
from jax_lm.serving.middleware import Guard, JsonLines, RequestLimits, read_keys

KEY = "a-key-of-twenty-char"


async def echo(scope, receive, send):
    """Answers with the body it got."""
    message = await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"no-cache")]}
    )
    await send({"type": "http.response.body", "body": message["body"]})


def ask(guard, path="/v1/x", *, method="GET", parts=(b"",), pause=0.0, **headers):
    """Status, headers and body of a request whose body comes in parts."""
    sent, rest = [], list(parts)
    headers = {"host": "localhost:8000"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }

    async def receive():
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}

    async def send(message):
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    asyncio.run(
        guard({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    )
    start, body = sent
    return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body["body"]


def guard(app=echo, **limits):
    return Guard(app, RequestLimits(**limits), Metrics())


JSON = {"method": "POST", "content_type": "application/json"}


def test_what_is_within_the_limits_reaches_the_application():
    status, headers, body = ask(guard(), parts=(b"ab", b"", b"c"), **JSON)
    assert (status, body) == (200, b"abc")
    assert headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "authorization", ["", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"]
)
def test_a_wrong_key_is_refused(authorization):
    status, _, body = ask(guard(keys=("b" * 20, KEY)), authorization=authorization)
    assert status == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert KEY not in body.decode()


def test_each_of_the_keys_is_enough():
    both = guard(keys=("b" * 20, KEY))
    assert [ask(both, authorization=f"Bearer {key}")[0] for key in ("b" * 20, KEY)] == [200, 200]
    assert ask(both, "/health")[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil", 421),
        ("", 421),
    ],
)
def test_only_known_hosts_are_answered(host, status):
    assert ask(guard(), host=host)[0] == status
    assert ask(guard(hosts=()), host=host)[0] == 200


def test_a_body_that_is_too_long_is_refused():
    small = guard(body_bytes=10)
    assert ask(small, parts=(b"x" * 10,), **JSON)[0] == 200
    for parts in ((b"x" * 6, b"x" * 6), (b"x" * 50, b"x" * 50)):
        status, headers, body = ask(small, parts=parts, **JSON)
        assert (status, headers["connection"]) == (413, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_slow_is_refused():
    assert ask(guard(body_seconds=0.05), parts=(b"a", b"b", b"c"), pause=0.04, **JSON)[0] == 408


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_web_page_can_post_unasked_is_refused(kind):
    assert ask(guard(), method="POST", content_type=kind)[0] == 415


def test_too_many_at_once_are_refused():
    statuses = []

    async def nothing():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def nested(scope, receive, send):
        async def outcome(message):
            if "status" in message:
                statuses.append(message["status"])

        for path in ("/v1/completions", "/health") if not statuses else ():
            inner = scope | {"headers": [(b"host", b"localhost")], "path": path}
            await both(inner, nothing, outcome)
        await echo(scope, receive, send)

    both = guard(nested, requests=1)
    assert ask(both)[0] == 200
    # probes are answered all the same: a supervisor would restart a server that is only busy
    assert statuses == [429, 200]
    assert both.open_requests == 0


@pytest.mark.parametrize(
    ("given", "is_kept"), [("req-1_A", True), ("a b", False), ("x" * 65, False), ("", False)]
)
def test_request_ids(given, is_kept):
    identity = ask(guard(), x_request_id=given)[1]["x-request-id"]
    assert (identity == given) == is_kept
    assert identity


def test_each_request_is_one_line_of_json(caplog):
    caplog.set_level(logging.INFO, logger="jax_lm.serving.access")
    ask(guard(), "/secret/path", x_request_id="abc", authorization="Bearer hidden")
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert (line["request_id"], line["status"], line["path"]) == ("abc", 200, "other")
    assert "hidden" not in json.dumps(line)
    ask(guard(), method="HEAD")
    assert caplog.records[-1].fields["method"] == "HEAD"


def test_a_key_has_a_label_and_a_limit(caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="jax_lm.serving.access")
    limited = guard(keys=(f"{KEY} alice 2", "b" * 20))
    asking = {"authorization": f"Bearer {KEY}", "parts": (b"x",)} | JSON
    for left in ("1", "0"):
        status, headers, _ = ask(limited, **asking)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, left)
        assert headers["x-ratelimit-limit-requests"] == "2"
    status, headers, body = ask(limited, **asking)
    assert (status, json.loads(body)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 28 <= int(headers["retry-after"]) <= 30
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"] == "60s"
    # others have limits of their own, or none
    status, headers, _ = ask(limited, **asking | {"authorization": f"Bearer {'b' * 20}"})
    assert (status, "x-ratelimit-limit-requests" in headers) == (200, False)
    keys = [record.fields["key"] for record in caplog.records]
    assert keys == ["alice", "alice", "alice", "key2"]
    page = limited.metrics.page().decode()
    assert 'http_requests_total{key="alice",path="other",status="200"} 2.0' in page
    # read again: the first key is gone; a file that is wrong changes nothing
    path = tmp_path / "keys"
    path.write_text("c" * 20)
    limited.reload_keys(path)
    assert ask(limited, **asking)[0] == 401
    path.write_text("short")
    limited.reload_keys(path)
    assert ask(limited, authorization=f"Bearer {'c' * 20}")[0] == 200
    assert "the keys stay as they were" in caplog.text


def test_keys_come_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# mine\n{KEY}\n\n  {'b' * 16}  \n")
    both = guard(keys=read_keys(path))
    assert [ask(both, authorization=f"Bearer {key}")[0] for key in (KEY, "b" * 16)] == [200, 200]
    for text, message in (
        ("", "must hold keys"),
        ("# none\n", "must hold keys"),
        (f"{KEY}\nshort\n", "line 2: must be a key of at least 16 ASCII characters"),
        (f"{KEY} alice many\n", "line 1: must be"),
        (f"{KEY} alice 5 6\n", "line 1: must be"),
        # A limit without a label would be the label of a key without a limit.
        (f"# mine\n\n{KEY} 60\n", r"line 3: .*\(KEY alice 60\)"),
        # Headers carry no such secret.
        (f"# mine\n{'é' * 20}\n", "line 2: must be"),
        (f"{KEY}\n{KEY} alice 5\n", "line 2: repeats the key of an earlier line"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message) as error:
            read_keys(path)
        assert KEY not in str(error.value)
        assert "é" not in str(error.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_keys(tmp_path / "absent")


def test_a_key_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY} 12 60\n", encoding="utf-8-sig")
    served = guard(keys=("b" * 20,))
    served.reload_keys(path)
    status, headers, _ = ask(served, authorization=f"Bearer {KEY}", parts=(b"x",), **JSON)
    assert (status, headers["x-ratelimit-limit-requests"]) == (200, "60")
