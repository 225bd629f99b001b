"""`diffucoder serve` as a process: what it refuses, and that SIGTERM under load finishes what is in flight."""

import http.client
import json
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("fastapi")

from serving import call

from jax_lm import cli

KEY = "k" * 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs api_key_file"),
        (["--port", "99999"], "port=99999"),
        (["--queue", "0"], "queue=0"),
        (["--api-key-file", "absent"], "api_key_file='absent' cannot be read"),
        (["--context", "4000"], "context=4000: the model holds 512"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, capsys):
    assert cli.main(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def server(tmp_path, tiny_folder):
    """The process and its address; a small one, so that little is compiled."""
    (tmp_path / "keys").write_text(KEY)
    command = [
        sys.executable,
        "-m",
        "jax_lm.cli",
        "serve",
        "--port",
        "0",
        "--model",
        str(tiny_folder),
        "--name",
        "tiny",
    ]
    command += ["--api-key-file", str(tmp_path / "keys"), "--lanes", "1", "--context", "64"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = process.stdout.readline()
    yield process, ("127.0.0.1", int(line.split(";")[0].rsplit(":", 1)[1])), tmp_path / "log"
    process.kill()
    process.wait()
    log.close()
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_sigterm_under_load(server):
    process, address, log = server
    key = {"Authorization": f"Bearer {KEY}"}
    deadline = time.monotonic() + 200
    while call(address, "GET", "/ready")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert call(address, "GET", "/v1/models")[0] == 401
    body = {"prompt": "def gcd(a, b):", "max_tokens": 40, "temperature": 0}
    expected = call(address, "POST", "/v1/completions", body, **key)[2]["choices"]
    statuses, different = [], []

    def client():
        while True:
            try:
                status, _, answer = call(address, "POST", "/v1/completions", body, **key)
            except (OSError, http.client.HTTPException):
                return statuses.append("refused")
            statuses.append(status)
            if status == 200 and answer["choices"] != expected:
                different.append(answer)

    clients = [threading.Thread(target=client) for _ in range(6)]
    for one in clients:
        one.start()
    while statuses.count(200) < 10:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    for one in clients:
        one.join(10)
    assert set(statuses) <= {200, 503, "refused"}
    assert statuses.count("refused") == 6
    assert not different
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert not [line for line in lines if line["level"] == "error"]
    assert {line["status"] for line in lines if line["message"] == "request"} <= {200, 401, 503}
