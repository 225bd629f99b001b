"""`diffucoder serve` as a process: what it refuses, and that SIGTERM under load finishes what is in
flight.
"""

import contextlib
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("fastapi")

from cases.server import call

from jax_lm.cli import main as cli
from jax_lm.cli.commands.serving import checkpoint_defaults
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.serving.schemas import DecodingBody

KEY = "k" * 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs api_key_file"),
        (["--port", "99999"], "port=99999"),
        (["--queue", "0"], "queue=0"),
        (["--api-key-file", "absent"], "api_key_file='absent' cannot be read"),
        (["--context", "4000"], "context=4000: must be at most 512, the model's context"),
        (["--grace", "0"], "grace=0.0: must be at least 1"),
        (["--connections", "3"], "connections=3: must be at least 8"),
        (["--keep-alive", "0"], "keep_alive=0: must be at least 1"),
        (["--temperature", "3"], "temperature=3.0: must be less than or equal to 2"),
        (["--preset", "slow"], "preset='slow': must be one of exact, fast, turbo"),
        (["--warm-up", "wide"], "warm_up='wide': must be like 96, 384x4 or exact:96x4"),
        (["--warm-up", "96x99"], "warm_up: 99 sequences must lie in [1, slots=16]"),
        (["--replicas", "2"], "replicas=2: must divide the number of devices, 1"),
    ],
)
def test_wrong_arguments_are_one_line_before_weights_are_read(
    arguments, message, capsys, monkeypatch
):
    monkeypatch.setattr(DreamForCausalLM, "from_pretrained", None)
    # another server of this machine may have the default port
    port = [] if "--port" in arguments else ["--port", "0"]
    assert cli.main(["serve", *port, *arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_defaults_of_a_checkpoint_are_those_that_requests_may_have(tmp_path, caplog):
    def defaults(**fields):
        (tmp_path / "generation_config.json").write_text(json.dumps(fields))
        return checkpoint_defaults(tmp_path)

    assert checkpoint_defaults(tmp_path) == {}
    dream = {"temperature": 0.2, "top_p": 0.9, "top_k": None, "steps": 512, "mask_token_id": 7}
    assert defaults(**dream) == {"temperature": 0.2, "top_p": 0.9}
    assert defaults(temperature=0.7, do_sample=True) == {"temperature": 0.7}
    assert defaults(temperature=0.7, do_sample=False) == {"temperature": 0.0}
    # a request's 0 means all tokens, and so does a checkpoint's
    assert DecodingBody().options(1, defaults(top_k=0)) == DecodingBody().options(1, {})
    assert not caplog.records
    assert defaults(temperature=0.7, top_k=1000) == {}
    (record,) = caplog.records
    assert "generation_config.json is not used: top_k=1000: must be" in record.message


@pytest.fixture
def start(tmp_path, tiny_folder):
    """Starts the process with these options: itself, its address and its log; a small model
    compiles little.
    """
    (tmp_path / "keys").write_text(KEY)
    command = ["serve", "--port", "0", "--model", str(tiny_folder)]
    command += ["--name", "tiny", "--api-key-file", str(tmp_path / "keys"), "--slots", "1"]
    started = []

    def begin(*options, files=None, program=("-m", "jax_lm")):
        def limit():
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *program, *command, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=limit,
            )
        started.append(process)
        address = "127.0.0.1", int(process.stdout.readline().split(";")[0].rsplit(":", 1)[1])
        deadline = time.monotonic() + 500
        while call(address, "GET", "/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return process, address, tmp_path / "log"

    yield begin
    for process in started:
        process.kill()
        process.wait()


def logged(path):
    # every line is a record, but what Python and XLA write past the log
    foreign = re.compile(r"[WEIF]\d{4} |  self.pid = _fork_exec|.*RuntimeWarning")
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if not foreign.match(line)]


def test_sigterm_under_load(start):
    process, address, log = start("--context", "64")
    key = {"Authorization": f"Bearer {KEY}"}
    assert call(address, "GET", "/v1/models")[0] == 401
    # SIGHUP reads the keys again
    (log.parent / "keys").write_text("n" * 20)
    process.send_signal(signal.SIGHUP)
    new, deadline = {"Authorization": f"Bearer {'n' * 20}"}, time.monotonic() + 10
    while call(address, "GET", "/v1/models", **new)[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert call(address, "GET", "/v1/models", **key)[0] == 401
    key = new
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
    lines = logged(log)
    assert [line["message"] for line in lines].count("ready") == 1
    assert not [line for line in lines if line["level"] == "error"]
    assert {line["status"] for line in lines if line["message"] == "request"} <= {200, 401, 503}


def test_sigterm_with_rows_longer_than_the_grace(start):
    """Each request gets an answer, streams an event with the error, and the process is gone in
    time.
    """
    grace = 4.0
    process, address, log = start("--context", "512", "--grace", str(grace))
    key = {"Authorization": f"Bearer {KEY}"}
    body = {"prompt": "def gcd(a, b):", "max_tokens": 300, "ignore_eos": True}
    answers, begun = [], threading.Barrier(13)

    def client(number):
        begun.wait()
        streams = {"stream": True} if number % 3 == 0 else {}
        answers.append(
            call(address, "POST", "/v1/completions", body | {"seed": number} | streams, **key)
        )

    clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for one in clients:
        one.start()
    begun.wait()
    # All have come, and their rows are waiting or running.
    while "diffucoder_queue_rows 11.0" not in call(address, "GET", "/metrics", **key)[2]:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    time.sleep(0.3)
    # Who comes now is told so, until the process is gone.
    assert call(address, "GET", "/ready")[0] == 503
    assert call(address, "POST", "/v1/completions", body, **key)[2]["error"]["code"] == "shutdown"
    assert process.wait(2 * grace) == 0
    assert time.monotonic() - begin < grace
    for one in clients:
        one.join(10)
    assert len(answers) == 12
    ended = 0
    for status, _, answer in answers:
        assert status in (200, 503), answer
        if status == 503:
            ended += answer["error"]["code"] == "shutdown"
        elif isinstance(answer, str):
            ended += '"code": "shutdown"' in answer
            assert '"shutdown"' in answer or "[DONE]" in answer
        else:
            assert answer["usage"]["completion_tokens"] == 300
    assert ended > 6
    assert [line for line in logged(log) if line["level"] == "error"] == []
    assert "Traceback" not in log.read_text()


DYING = """
from jax_lm.cli.main import entry
from jax_lm.serving.worker import EngineWorker

def admit(self, admit=EngineWorker.admit):
    if any(job.request.seed == 13 for job in self.queue.waiting):
        raise RuntimeError("the device is lost")
    admit(self)

EngineWorker.admit = admit
entry()
"""


def test_a_dead_engine_ends_the_process_and_says_so(start):
    process, address, log = start("--context", "512", program=("-c", DYING))
    key = {"Authorization": f"Bearer {KEY}"}
    body = {"prompt": "def gcd(a, b):", "max_tokens": 300, "ignore_eos": True}
    answers = {}

    def client(name, **fields):
        answers[name] = call(address, "POST", "/v1/completions", body | fields, **key)

    clients = [threading.Thread(target=client, args=("whole",))]
    clients += [threading.Thread(target=client, args=("stream",), kwargs={"stream": True})]
    for one in clients:
        one.start()
    while "diffucoder_queue_rows 1.0" not in call(address, "GET", "/metrics", **key)[2]:
        time.sleep(0.005)
    begin = time.monotonic()
    client("deadly", seed=13)
    assert process.wait(5) == 1
    assert time.monotonic() - begin < 2
    for one in clients:
        one.join(5)
    for name in ("whole", "deadly"):
        status, _, answer = answers[name]
        assert (status, answer["error"]["code"]) == (503, "engine_failed")
        assert answer["error"]["message"] == "the engine failed, and the server ends"
    # as an event of a stream that has begun, or with the status of the error
    assert "engine_failed" in str(answers["stream"][2])
    (line,) = [line for line in logged(log) if line["level"] == "critical"]
    assert line["message"] == "the engine failed: the device is lost"
    assert log.read_text().splitlines()[-1].startswith("{")


def test_half_open_connections_do_not_silence_the_server(start):
    """150 of them, where 128 files may be open, each sending a byte of its head now and then."""
    process, address, log = start("--context", "64", files=128)
    key = {"Authorization": f"Bearer {KEY}"}
    dripping, all_tried, stop = [], threading.Event(), threading.Event()

    def drip():
        made = 0
        while not stop.is_set():
            for connection in list(dripping):
                try:
                    connection.send(b"x")
                except OSError:
                    dripping.remove(connection)
            # Not all at once: a client that is slow between its connection and its request would be
            # the oldest.
            for _ in range(min(8, 150 - len(dripping))):
                connection = socket.create_connection(address, timeout=60)
                dripping.append(connection)
                made += 1
                with contextlib.suppress(OSError):
                    connection.send(b"GET /health HTTP/1.1\r\nX-Slow: ")
            if made >= 150:
                all_tried.set()
            time.sleep(0.05)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert all_tried.wait(120)
        body = {"prompt": "def gcd(a, b):", "max_tokens": 8, "temperature": 0}
        end, slowest = time.monotonic() + 6, 0.0
        while time.monotonic() < end:
            begin = time.monotonic()
            assert call(address, "GET", "/health")[0] == 200
            assert call(address, "POST", "/v1/completions", body, **key)[0] == 200
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.05)
        assert slowest < 20
    finally:
        stop.set()
        thread.join(60)
        for connection in dripping:
            connection.close()
    assert [line for line in logged(log) if line["level"] == "error"] == []
    assert process.poll() is None


def test_a_shape_that_cannot_fit_ends_the_process_with_advice(tiny_folder):
    """A real lack of memory: the program needs more than the process may have."""
    shape = 16384
    command = [sys.executable, "-m", "jax_lm", "serve", "--port", "0", "--model", str(tiny_folder)]
    command += ["--slots", str(shape), "--context", "512", "--warm-up", f"exact:512x{shape}"]
    limit = 12 * 2**30
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert process.returncode == 1
    lines = [json.loads(line) for line in process.stderr.splitlines() if line[:1] == "{"]
    (line,) = [line for line in lines if line["level"] in ("error", "critical")]
    message = "the engine failed: out of memory: 16384 x 512 tokens in float32 take about "
    assert line["message"].startswith(message)
    assert "Try " in line["message"]
    assert "`diffucoder plan` shows more" in line["message"]
    assert "exception" not in line
