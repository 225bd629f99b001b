"""Load on `diffucoder serve`: many clients on the loopback address; is each answer the one it would
get alone?

    python experiments/serve_load.py --out docs/results/measurements/serve_load.json
    python experiments/serve_load.py --model FOLDER --as-typed --clients 1 4 --tokens 32 --prompts 6

Starts a server of its own with the built-in model (twice: the second finds its compilations in a
cache), asks each prompt once by itself, then lets 1, 16 and 32 clients ask the same prompts,
greedy, for a bounded time. Exits with 1 if a request failed, was lost, or was answered otherwise, or
if the server logged an error.

With `--as-typed` the server gets no options but the model, and is asked from `/ready` on, without a
pause for its compilations: what an operator sees who types `diffucoder serve`. Each answer has all of
its tokens then, as nothing ends it.
"""

import http.client
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from jax_lm.host.declared import run_main

PROMPTS = (
    "def fibonacci(n):",
    "def is_prime(n):",
    "def gcd(a, b):",
    "def factorial(n):",
    "def quicksort(arr):",
    "def binary_search(arr, target):",
    "def word_count(text):",
    "def transpose(matrix):",
    "def running_sum(nums):",
    "def reverse_string(s):",
    "def count_vowels(s):",
    "def bubble_sort(arr):",
)
START_SECONDS, ANSWER_SECONDS = 900, 120


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure a server under load.

    Attributes:
        clients: numbers of clients, one after the other.
        seconds: how long the first ones ask.
        last_seconds: how long the last number of clients asks.
        tokens: of each answer.
        preset: how answers are decoded.
        dtype: of the weights.
        model: folder of the model; the built-in one if not given.
        as_typed: start the server without options, and ask it from `/ready` on.
        prompts: how many of the prompts are asked.
        slots: sequences that the server decodes together.
        context: tokens that prompt and answer may take together.
        cache: folder for compilations; one of its own, empty at first, if not given.
        out: file for the results.
    """

    clients: tuple[int, ...] = (1, 16, 32)
    seconds: float = 20.0
    last_seconds: float = 60.0
    tokens: int = 64
    preset: str = "turbo"
    model: str | None = None
    as_typed: bool = False
    prompts: int = len(PROMPTS)
    dtype: str = "float32"
    slots: int = 16
    context: int = 128
    cache: Path | None = None
    out: Path | None = None

    def run(self) -> int:
        with tempfile.TemporaryDirectory() as fresh:
            cache, log = str(self.cache or fresh), Path(fresh) / "log"
            with server(self, cache, log) as (_, _, cold_seconds):
                pass
            with server(self, cache, log) as (pid, port, ready_seconds):
                resident = {"ready": resident_megabytes(pid)}
                alone = self.ask_each(port)
                phases = self.phases(port, {prompt: answer for prompt, answer, _ in alone})
                resident["at the end"] = resident_megabytes(pid)
            logged = [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
        errors = [line for line in logged if line["level"] in ("error", "critical")]
        base = phases[0]["tokens_per_second"]
        for phase in phases:
            phase["times_one_client"] = round(phase["tokens_per_second"] / base, 2)
        results = {
            "settings": {
                name: str(value) if isinstance(value, Path) else value
                for name, value in asdict(self).items()
                if name not in ("out", "cache")
            },
            "limits": next((line for line in logged if line["message"] == "limits"), None),
            "errors_in_the_log": errors,
            "one_after_another": [
                {"tokens": answer[1], "seconds": round(seconds, 2)} for _, answer, seconds in alone
            ],
            "ready_seconds": {
                "first start": round(cold_seconds, 1),
                "with a cache": round(ready_seconds, 1),
            },
            "resident_megabytes": resident,
            "phases": phases,
            "machine": {
                "cores": os.cpu_count(),
                "processor": platform.machine(),
                "python": platform.python_version(),
            },
            "jax": version("jax"),
        }
        print(json.dumps(results, indent=1))
        if self.out:
            self.out.write_text(json.dumps(results, indent=1) + "\n")
        bad = (phase[name] for phase in phases for name in ("failed", "lost", "different"))
        return int(bool(errors) or any(bad))

    def ask_each(self, port: int) -> list[tuple[str, tuple[str, int], float]]:
        """Each prompt by itself: the prompt, the answer with its tokens, and the seconds."""
        found = []
        for prompt in PROMPTS[: self.prompts]:
            start = time.monotonic()
            answer = ask(port, self, prompt)
            found.append((prompt, answer, time.monotonic() - start))
        return found

    def phases(self, port: int, alone: dict[str, tuple[str, int]]) -> list[dict]:
        """What each number of clients got."""
        if not self.as_typed:
            # What would have answered faster is compiled from now on; a measurement waits for it.
            wait_for_compilations(port)
        return [
            load(
                port,
                self,
                count,
                self.last_seconds if count == self.clients[-1] else self.seconds,
                alone,
            )
            for count in self.clients
        ]


@contextmanager
def server(arguments: Arguments, cache: str, log: Path) -> Iterator[tuple[int, int, float]]:
    """Its process, its port, and how long it took until it was ready."""
    command = [sys.executable, "-m", "jax_lm", "serve", "--port", "0"]
    command += ["--model", arguments.model] if arguments.model else []
    if not arguments.as_typed:
        command += ["--slots", str(arguments.slots), "--dtype", arguments.dtype]
        command += ["--context", str(arguments.context)]
    start = time.monotonic()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise OSError(f"the server has ended: {log.read_text()}")
        port = int(line.split(";")[0].rsplit(":", 1)[1])
        while request(port, "GET", "/ready")[0] != 200:
            if time.monotonic() - start > START_SECONDS:
                raise TimeoutError("the server does not become ready")
            time.sleep(0.05)
        ready = time.monotonic() - start
        yield process.pid, port, ready
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def resident_megabytes(pid: int) -> dict[str, int]:
    """Memory of a process now and at its most; nothing where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = dict(line.split(":") for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return {name: int(size.split()[0]) // 1024 for name, size in found.items()}


def wait_for_compilations(port: int) -> None:
    """Until twenty seconds pass without a new one; one takes ten."""
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < 20:
        lines = request(port, "GET", "/metrics")[1].splitlines()
        now = next(
            float(line.split()[1])
            for line in lines
            if line.startswith("diffucoder_compilations_total")
        )
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.5)


def request(port: int, method: str, path: str, body: dict | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(
            method, path, content, {"Content-Type": "application/json"} if content else {}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ask(port: int, arguments: Arguments, prompt: str) -> tuple[str, int]:
    """The greedy answer and its tokens."""
    options: dict = {"max_tokens": arguments.tokens, "temperature": 0}
    options |= {"ignore_eos": True} if arguments.as_typed else {"preset": arguments.preset}
    status, text = request(port, "POST", "/v1/completions", {"prompt": prompt} | options)
    if status != 200:
        raise OSError(f"{status}: {text}")
    answer = json.loads(text)
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def load(
    port: int, arguments: Arguments, clients: int, seconds: float, alone: dict[str, tuple[str, int]]
) -> dict:
    """What so many clients got in that time; each asks again as soon as it has its answer."""
    latencies: list[float] = []
    tokens, asked, failed, different = [], [], [], []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        for prompt in itertools.islice(itertools.cycle(alone), number, None):
            if time.monotonic() > end:
                return
            asked.append(prompt)
            start = time.monotonic()
            try:
                answer = ask(port, arguments, prompt)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failed.append(repr(error))
                continue
            latencies.append(time.monotonic() - start)
            tokens.append(answer[1])
            if answer != alone[prompt]:
                different.append(prompt)

    start = time.monotonic()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "clients": clients,
        "seconds": round(took, 1),
        "requests": len(asked),
        "failed": len(failed),
        "lost": len(asked) - len(latencies) - len(failed),
        "different": len(different),
        "tokens_per_second": round(sum(tokens) / took, 1),
        "requests_per_second": round(len(latencies) / took, 2),
        "latency_seconds": {
            "p50": round(cuts[49], 3),
            "p95": round(cuts[94], 3),
            "max": round(max(latencies), 3),
        },
    }


if __name__ == "__main__":
    sys.exit(run_main(Arguments).run())
