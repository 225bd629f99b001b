"""Other places than this process: a real HTTP worker, a real local Ray, a recording of E2B's
client.
"""

import functools
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request

import pytest

from untrusted import Case, Limits, Local, Program
from untrusted.e2b import E2B, HOME
from untrusted.http import MAX_BODY, TOKEN_VARIABLE, HttpWorkers, Worker
from untrusted.ray import RayCluster
from untrusted.results import Executor

TOKEN = "a-token-of-the-tests-0123456789"
PROGRAMS = [
    Program("def f(): return 1", ("assert f() == 1", "assert f() == 2")),
    Program("def f(:", ("assert f() == 1",)),
    Program("while True: pass", (), Limits(seconds=0.5)),
    Program(
        "import sys\nprint(sys.stdin.read()[::-1])\ndef f(x): return x",
        ("assert f(1) == 1", Case("é\r\na", "a\né", "exact"), Case("[1]", "[1]", "exact", "f")),
    ),
]
OUTCOMES = [("failed", 0.5), ("failed", 0.0), ("timeout", 0.0), ("passed", 1.0)]


def outcomes(results):
    return [(result.outcome, result.share) for result in results]


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    return TOKEN


@pytest.fixture
def worker(token):
    with Worker(("127.0.0.1", 0), Local(workers=2, allow_unsafe=True), queue_size=8) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def url(worker):
    return f"http://127.0.0.1:{worker.server_address[1]}"


def ask(url, path="/run", body=None, **headers):
    """Status and content of a request by hand."""
    request = urllib.request.Request(
        url + path, body, {"Authorization": f"Bearer {TOKEN}", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_worker_gives_what_the_local_sandbox_gives(url):
    seen = []
    workers = HttpWorkers(urls=(url,), batch=2)
    results = workers.run_many(PROGRAMS, on_progress=lambda done, total: seen.append((done, total)))
    local = Local(allow_unsafe=True).run_many(PROGRAMS)
    assert outcomes(results) == outcomes(local) == OUTCOMES
    assert [result.tests for result in results] == [result.tests for result in local]
    assert [result.tier for result in results] == [result.tier for result in local]
    assert seen == [(2, 4), (4, 4)]
    assert all(isinstance(place, Executor) for place in (workers, Local(), RayCluster(), E2B()))


def test_a_worker_refuses_what_it_was_not_started_with(url, monkeypatch):
    other = HttpWorkers(urls=(url,), packages=("secrets_of_the_host",))
    with pytest.raises(ValueError, match=r"packages=.*secrets_of_the_host.*must be among"):
        other.run_many([Program("x = 1")])
    jobs = {"jobs": [], "executor": "unsafe", "allow_unsafe": True}
    status, answer = ask(url, body=json.dumps(jobs).encode())
    assert status == 400
    assert "request: must be an object with packages, same_process, not" in answer["error"]


# What each field of a request changes: the programs, the settings, and how the local executor judges.
SUBCLASS = Program("class Base: pass", ("class Mine(Base): pass\nassert Mine()",))
NUMPY = Program("import numpy\ndef f(): return 1", ("assert f() == 1",))
SLEEP = "import time\ndef f(n):\n    time.sleep(n)\n    return n"
FILL = "def f(n): return len(bytearray(n * 2**20)) > 0"
OTHER = {"packages": (), "same_process": True}
FIELDS = {
    "tests": (PROGRAMS[0], {}, "failed"),
    "packages: none": (NUMPY, OTHER, "failed"),
    "packages: numpy": (NUMPY, {}, "passed"),
    "same_process: no": (SUBCLASS, {}, "cannot_judge"),
    "same_process: yes": (SUBCLASS, OTHER, "passed"),
    "seconds": (Program(SLEEP, ("assert f(2) == 2",), Limits(seconds=0.5)), {}, "timeout"),
    "total_seconds": (
        Program(SLEEP, ("assert f(0.5) == 0.5",) * 3, Limits(total_seconds=0.8)),
        {},
        "timeout",
    ),
    "memory_bytes: little": (
        Program(FILL, ("assert f(300) == 1",), Limits(memory_bytes=2**28)),
        {},
        "out_of_memory",
    ),
    "memory_bytes: enough": (Program(FILL, ("assert f(300) == 1",)), {}, "passed"),
    "output_bytes": (Program("print('long')", (), Limits(output_bytes=2)), {}, "untested"),
    "input and output": (PROGRAMS[3], {}, "passed"),
}


@pytest.fixture(scope="module")
def local_results():
    return run_fields(functools.partial(Local, allow_unsafe=True))


def run_fields(make):
    """Run each program with its settings in an executor that `make` makes; results by field."""
    found = {}
    for settings in ({}, OTHER):
        names = [name for name, (_, chosen, _) in FIELDS.items() if chosen == settings]
        results = make(**settings).run_many([FIELDS[name][0] for name in names])
        found |= dict(zip(names, results, strict=True))
    return found


def judged(result):
    tests = [(test.outcome, test.border) for test in result.tests]
    return tests, result.stdout, result.tier


class RecordedRay(types.ModuleType):
    """Ray's client as this project calls it: a task is a process of its own that gets text."""

    def __init__(self):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=subprocess.CalledProcessError)

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 1.0}

    def remote(self, *, num_cpus, max_retries):
        return lambda function: types.SimpleNamespace(
            remote=functools.partial(self.start, function)
        )

    def start(self, function, text):
        code = f"import sys\nfrom {function.__module__} import {function.__name__} as f\n"
        code += "sys.stdout.write(f(sys.stdin.read()))"
        return subprocess.run(
            [sys.executable, "-c", code], input=text, capture_output=True, text=True
        )

    def wait(self, references, timeout):
        return references, []

    def get(self, reference):
        reference.check_returncode()
        return reference.stdout


@pytest.mark.parametrize("place", ["http", "ray", "e2b"])
def test_every_executor_carries_the_whole_request(place, url, tmp_path, monkeypatch, local_results):
    monkeypatch.setenv("E2B_API_KEY", "key-of-the-tests")
    monkeypatch.setitem(sys.modules, "ray", RecordedRay())
    monkeypatch.setitem(sys.modules, "e2b", RecordedE2B(tmp_path))

    executors = {
        "http": functools.partial(HttpWorkers, urls=(url,), batch=4),
        "ray": functools.partial(RayCluster, allow_unsafe=True, batch=32),
        "e2b": functools.partial(E2B, allow_unsafe=True),
    }
    found = run_fields(executors[place])
    assert {name: result.outcome for name, result in found.items()} == {
        name: outcome for name, (_, _, outcome) in FIELDS.items()
    }
    # Details tell times.
    assert {name: judged(result) for name, result in found.items()} == {
        name: judged(result) for name, result in local_results.items()
    }


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Bearer", f"bearer {TOKEN}", "Bearer é"])
def test_a_wrong_token_gets_nothing(url, given):
    assert ask(url, body=b'{"jobs": []}', Authorization=given.encode().decode("latin-1"))[0] == 401
    assert ask(url, "/health", Authorization=given.encode().decode("latin-1"))[0] == 401


def test_a_client_with_a_wrong_token_says_so(url, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-0123456789")
    with pytest.raises(ValueError, match=r"answered 401.*DIFFUCODER_SANDBOX_TOKEN") as caught:
        HttpWorkers(urls=(url,)).run_many(PROGRAMS)
    assert "another-token" not in str(caught.value)


@pytest.mark.parametrize("given", [None, "short"])
def test_without_a_token_nothing_starts(monkeypatch, given):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if given:
        monkeypatch.setenv(TOKEN_VARIABLE, given)
    with pytest.raises(ValueError, match=TOKEN_VARIABLE):
        Worker(("127.0.0.1", 0), Local())
    with pytest.raises(ValueError, match=TOKEN_VARIABLE):
        HttpWorkers(urls=("http://127.0.0.1:1",)).run_many(PROGRAMS)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"jobs": 1}', 400), (b'{"jobs": [{"code": 1}]}', 400), (b"[" * 10**5, 400),
     (b'{"jobs": [{"code": "", "limits": {"seconds": -1}}]}', 400), (b"\xff", 400), (b'{"jobs": []}', 200),
     (json.dumps({"jobs": [{"code": "x = 1"}] * 9}).encode(), 413)],
)  # fmt: skip
def test_bad_requests_are_answered(url, worker, body, status):
    assert ask(url, body=body)[0] == status
    assert worker.accepted == 0
    assert ask(url, "/health") == (200, {"tier": worker.tier, "accepted": 0})
    assert ask(url, "/other")[0] == 404


def test_a_body_that_is_too_large_is_not_read(url):
    assert ask(url, body=b"{}", **{"Content-Length": str(MAX_BODY + 1)})[0] == 400


def test_batches_that_are_too_large_for_a_request_are_sent_in_parts(url, monkeypatch):
    case = Case("x" * 1000, "x" * 1000)
    right, wrong = Program("print(input())", (case,)), Program("print(1)", (case,))
    monkeypatch.setattr("untrusted.http.MAX_BODY", 5000)
    too_large = Program("print(input())", (case,) * 3)
    results = HttpWorkers(urls=(url,), batch=4).run_many([right, wrong, too_large, right])
    assert [result.outcome for result in results] == ["passed", "failed", "sandbox_error", "passed"]
    assert re.fullmatch(r"\d+ bytes with its tests: a worker takes 5000", results[2].detail)


def test_a_full_queue_refuses_and_the_client_waits(url, worker):
    slow = [Program("import time\ntime.sleep(1)", (), Limits(seconds=10))] * 8
    background = threading.Thread(target=HttpWorkers(urls=(url,)).run_many, args=(slow,))
    background.start()
    while worker.accepted < 8:
        pass
    status, answer = ask(url, body=json.dumps({"jobs": [{"code": "x = 1"}]}).encode())
    assert (status, answer) == (503, {"error": "the queue is full"})
    assert (
        HttpWorkers(urls=(url,), attempts=6).run_many([Program("x = 1")])[0].outcome == "untested"
    )
    background.join()


def test_a_worker_that_is_not_there_is_no_wrong_answer(token):
    places = HttpWorkers(urls=("http://127.0.0.1:9",), attempts=2, pause=0.01)
    results = places.run_many(PROGRAMS)
    assert [result.outcome for result in results] == ["sandbox_error"] * 4
    assert [len(result.tests) for result in results] == [2, 1, 1, 3]
    assert "127.0.0.1:9" in results[0].detail


def test_a_secret_with_a_line_break_is_the_secret(url, monkeypatch):
    """As mounted files have it; a header with it would be refused, and printed."""
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}\n")
    assert outcomes(HttpWorkers(urls=(url,)).run_many(PROGRAMS[:1])) == OUTCOMES[:1]


def test_an_address_in_use_is_named(worker):
    with pytest.raises(OSError, match="Address already in use"):
        Worker(worker.server_address, Local(allow_unsafe=True))


def test_what_does_not_speak_http_is_a_sandbox_error(token):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak():
            for _ in range(2):
                with server.accept()[0] as connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=speak, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        (result,) = HttpWorkers(urls=(url,), attempts=2, pause=0.01).run_many([Program("x = 1")])
    assert result.outcome == "sandbox_error"
    assert "SSH-2.0" in result.detail


def test_a_failure_whose_explanation_is_cut_off_is_tried_again(token):
    """As from a proxy that loses its connection: the chunk is shorter than it says."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak():
            for _ in range(2):
                with server.accept()[0] as connection:
                    connection.recv(1000)
                    head = b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n"
                    connection.sendall(head + b"ff\r\nno")

        threading.Thread(target=speak, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        (result,) = HttpWorkers(urls=(url,), attempts=2, pause=0.01).run_many([Program("x = 1")])
    assert result.outcome == "sandbox_error"
    assert "answered 502" in result.detail


def test_a_batch_larger_than_the_queue_says_so(url):
    """The address and the token are right, so the message does not blame them."""
    with pytest.raises(ValueError, match="9 jobs: at most 8, the worker's --queue") as caught:
        HttpWorkers(urls=(url,), batch=9).run_many([Program("x = 1")] * 9)
    assert "check the address" not in str(caught.value)


def test_a_thread_that_does_not_start_keeps_no_connection(url, worker, monkeypatch):
    def fail(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("http.server.ThreadingHTTPServer.process_request", fail)
        with pytest.raises(ConnectionError, match=r"closed|reset"):
            ask(url, "/health")
    free = worker.connections._value
    assert ask(url, "/health")[0] == 200
    assert free == 64


def test_from_a_worker_that_fails_to_the_next(url):
    places = HttpWorkers(urls=("http://127.0.0.1:9", url), pause=0.01)
    assert outcomes(places.run_many(PROGRAMS)) == OUTCOMES


@pytest.mark.parametrize(
    ("name", "value"), [("urls", ()), ("urls", ("ftp://a",)), ("batch", 0), ("attempts", 0)]
)
def test_clients_refuse_bad_values(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        HttpWorkers(**{"urls": ("http://127.0.0.1:1",), name: value})


def test_as_a_command_it_reads_and_writes_json():
    request = json.dumps(
        {
            "allow_unsafe": True,
            "jobs": [{"code": "def f(): return 1", "tests": ["assert f() == 1"]}],
        }
    )
    finished = subprocess.run([sys.executable, "-m", "untrusted"], input=request, capture_output=True, text=True,
                              check=True)  # fmt: skip
    assert json.loads(finished.stdout)["results"][0]["outcome"] == "passed"


def test_a_local_ray_runs_programs():
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        seen = []
        cluster = RayCluster(batch=2, allow_unsafe=True)
        assert (
            outcomes(cluster.run_many(PROGRAMS, on_progress=lambda *pair: seen.append(pair)))
            == OUTCOMES
        )
        assert seen == [(2, 4), (4, 4)]
        cancel = threading.Event()
        cancel.set()
        assert [result.detail for result in cluster.run_many(PROGRAMS, cancel=cancel)] == [
            "cancelled"
        ] * 4
        # An exception of a task is Ray's word for a host that broke.
        broken = RayCluster(executor="unsafe", allow_unsafe=False, pause=0.01).run_many(PROGRAMS)
        assert [result.outcome for result in broken] == ["sandbox_error"] * 4
    finally:
        ray.shutdown()


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "e2b", None)
    with pytest.raises(ValueError, match=r"jax-diffucoder\[ray\]"):
        RayCluster().run_many(PROGRAMS)
    with pytest.raises(ValueError, match=r"jax-diffucoder\[e2b\]"):
        E2B().run_many(PROGRAMS)


class RecordedE2B(types.ModuleType):
    """E2B's client as this project calls it: its machines are folders, and its commands run here."""

    def __init__(self, root, failures=0):
        super().__init__("e2b")
        self.root, self.failures, self.calls = root, failures, []
        self.Sandbox = self.files = self.commands = self

    def create(self, **options):
        self.calls.append(("create", options))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no machine is free")
        return self

    def write(self, path, data):
        target = self.root / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data, encoding="utf-8")

    def run(self, command, timeout):
        self.calls.append(("run", timeout))
        here = command.replace(HOME, f"{self.root}{HOME}").replace("python3", sys.executable)
        # With nothing but the files that were sent: the command must not find this checkout.
        finished = subprocess.run(here, shell=True, capture_output=True, text=True, check=True,
                                  env={"PATH": os.environ["PATH"], "PYTHONSAFEPATH": ""})  # fmt: skip
        return types.SimpleNamespace(stdout=finished.stdout, exit_code=0)

    def kill(self):
        self.calls.append(("kill",))
        return True


def test_e2b_machines_get_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", "key-of-the-tests")
    recorded = RecordedE2B(tmp_path, failures=1)
    monkeypatch.setitem(sys.modules, "e2b", recorded)
    assert outcomes(E2B(batch=3, pause=0.01, allow_unsafe=True).run_many(PROGRAMS)) == OUTCOMES
    names = [call[0] for call in recorded.calls]
    assert names == ["create", "create", "run", "kill", "create", "run", "kill"]
    assert all(
        call[1]["allow_internet_access"] is False for call in recorded.calls if call[0] == "create"
    )
    assert not any(
        b"key-of-the-tests" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_e2b_failures_are_no_wrong_answers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "e2b", RecordedE2B(tmp_path, failures=100))
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(ValueError, match="E2B_API_KEY"):
        E2B().run_many(PROGRAMS)
    monkeypatch.setenv("E2B_API_KEY", "key-of-the-tests")
    results = E2B(attempts=2, pause=0.01).run_many(PROGRAMS)
    assert [(result.outcome, result.detail) for result in results] == [
        ("sandbox_error", "E2B: no machine is free")
    ] * 4


def test_the_recording_has_the_signatures_of_the_client():
    e2b = pytest.importorskip("e2b", reason="needs the extra e2b")
    from e2b.sandbox_sync.commands.command import Commands
    from e2b.sandbox_sync.filesystem.filesystem import Filesystem

    inspect.signature(e2b.Sandbox.create).bind(
        template=None, timeout=1, allow_internet_access=False
    )
    inspect.signature(Filesystem.write).bind(None, "/path", "data")
    inspect.signature(Commands.run).bind(None, "command", timeout=1)
    inspect.signature(e2b.Sandbox.kill).bind(None)
