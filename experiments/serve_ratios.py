"""What an answer of `diffucoder serve` costs beside another: the ratios that an operator cares about.

    python experiments/serve_ratios.py --out docs/results/measurements/serve_ratios.json
    python experiments/serve_ratios.py --model FOLDER

Starts `serve` as typed with an empty folder for compilations and measures, one after the other:

- two clients that never pause, from `/ready` on and after a pause for compilations: the server's own
  processor seconds per answer (goal: at most 3 times as many);
- two choices in one request and one (at most 2.2 times the processor seconds);
- a nested JSON schema of five fields and a plain answer (at most 3 times the seconds);
- a request of 8 tokens beside four long ones and alone (at most 5 times the seconds);
- `/health` while a conversation of 1 MB is encoded (at most 100 ms).
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from experiments.serve_load import PROMPTS, request, server, wait_for_compilations
from experiments.serve_load import Arguments as Load
from jax_lm.host.declared import run_main

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "role": {"enum": ["admin", "user"]},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "zip": {"type": "string", "maxLength": 6},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "role", "address"],
    "additionalProperties": False,
}
NESTED = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": SCHEMA},
    }
}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure what answers of a server cost beside each other.

    Attributes:
        model: folder of the model; the built-in one if not given.
        tokens: of an answer.
        repeats: requests of each kind.
        out: file for the results.
    """

    model: str | None = None
    tokens: int = 64
    repeats: int = 9
    out: Path | None = None

    def run(self) -> int:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            with server(Load(model=self.model, as_typed=True), folder, log) as (pid, port, _):
                ratios = Server(pid, port, self).ratios()
        found = {
            "ratios": ratios,
            "model": self.model or "built-in",
            "tokens": self.tokens,
            "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
            "jax": version("jax"),
        }
        print(json.dumps(found, indent=1))
        if self.out:
            self.out.write_text(json.dumps(found, indent=1) + "\n")
        return 0


@dataclass(frozen=True)
class Server:
    """A running server, asked in the ways that are compared."""

    pid: int
    port: int
    arguments: Arguments

    def ratios(self) -> dict[str, dict[str, float]]:
        busy = self.processor_per_answer()
        wait_for_compilations(self.port)
        settled = self.processor_per_answer()
        return {
            "two clients without a pause": compare(
                "processor seconds", after_a_pause=settled, from_ready_on=busy
            ),
            "two choices": self.two_choices(),
            "nested schema of five fields": self.schema(),
            "8 tokens beside four long answers": self.fairness(),
            "health while 1 MB is encoded": self.health(),
        }

    def ask(self, prompt: str = PROMPTS[0], **fields: object) -> dict:
        body = {"prompt": prompt, "max_tokens": self.arguments.tokens, "ignore_eos": True} | fields
        status, text = request(self.port, "POST", "/v1/completions", body)
        if status != 200:
            raise OSError(f"{status}: {text}")
        return json.loads(text)

    def processor_seconds(self) -> float:
        """What the process has used of the processors since it began."""
        # fields 14 and 15, counted from 1, are user and system time in ticks
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def processor_per_answer(self) -> float:
        """Processor seconds per answer of two clients that ask again as soon as they are answered."""
        before = self.processor_seconds()

        def client(number: int) -> None:
            for turn in range(self.arguments.repeats):
                self.ask(PROMPTS[(number + turn) % len(PROMPTS)])

        threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (self.processor_seconds() - before) / (2 * self.arguments.repeats)

    def two_choices(self) -> dict[str, float]:
        def processor(count: int) -> Callable[[int], float]:
            def cost(seed: int) -> float:
                before = self.processor_seconds()
                self.ask(n=count, temperature=0.8, seed=seed)
                return self.processor_seconds() - before

            return cost

        one, two = (self.median_after_a_pause(processor(count)) for count in (1, 2))
        return compare("processor seconds", one=one, two=two)

    def schema(self) -> dict[str, float]:
        plain = self.median_after_a_pause(lambda seed: timed(lambda: self.converse(seed)))
        nested = self.median_after_a_pause(
            lambda seed: timed(lambda: self.converse(seed, **NESTED))
        )
        return compare("seconds", plain=plain, nested=nested)

    def converse(self, seed: int, **fields: object) -> None:
        """Ask in a conversation; with a schema, the answer must be an object of its fields."""
        message = {"role": "user", "content": "Describe a user as JSON."}
        body = {"messages": [message], "max_tokens": self.arguments.tokens, "seed": seed}
        # a plain answer is as long as it may be
        body |= fields or {"ignore_eos": True}
        status, text = request(self.port, "POST", "/v1/chat/completions", body)
        if status != 200:
            raise OSError(f"{status}: {text}")
        if fields:
            answer = json.loads(json.loads(text)["choices"][0]["message"]["content"])
            if set(answer) != set(SCHEMA["properties"]):
                raise ValueError(f"{answer}: not what the schema asks for")

    def fairness(self) -> dict[str, float]:
        alone = self.median_after_a_pause(lambda _: timed(lambda: self.ask(max_tokens=8)))
        ended = threading.Event()

        def long(number: int) -> None:
            while not ended.is_set():
                self.ask(PROMPTS[number], max_tokens=4 * self.arguments.tokens)

        threads = [threading.Thread(target=long, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            beside = self.median_after_a_pause(lambda _: timed(lambda: self.ask(max_tokens=8)))
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        return compare("seconds", alone=alone, beside=beside)

    def health(self) -> dict[str, float]:
        """The slowest answer of `/health` until a conversation of 1 MB is encoded, and refused."""
        # the server takes bodies of up to 1 MiB and texts of up to 200,000 characters
        text = "total = total + value; " * 7_500
        roles = ("user", "assistant") * 3
        messages = [{"role": role, "content": text} for role in roles[:-1]]
        body = {"messages": [*messages, {"role": "user", "content": text[:150_000]}]}
        status: list[int] = []

        def chat() -> None:
            status.append(request(self.port, "POST", "/v1/chat/completions", body)[0])

        thread = threading.Thread(target=chat)
        thread.start()
        found = []
        while thread.is_alive():
            found.append(timed(lambda: request(self.port, "GET", "/health")))
            time.sleep(0.002)
        thread.join()
        return {"seconds at most": round(max(found), 4), "asked": len(found), "status": status[0]}

    def median_after_a_pause(self, cost: Callable[[int], float]) -> float:
        """The median cost of requests after what they need has been compiled."""
        cost(0)
        wait_for_compilations(self.port)
        return statistics.median(cost(seed) for seed in range(1, self.arguments.repeats + 1))


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(unit: str, **values: float) -> dict[str, float]:
    """Two values, and how many times the first the second is."""
    first, second = values.values()
    named = {f"{unit}, {name.replace('_', ' ')}": round(value, 4) for name, value in values.items()}
    return named | {"times": round(second / first, 2)}


if __name__ == "__main__":
    sys.exit(run_main(Arguments).run())
