"""Metrics of the server for Prometheus. Knows no HTTP."""

import ctypes
from functools import partial

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jax_lm.host.compile_clock import COMPILE_EVENT
from jax_lm.host.memory import device_memory
from jax_lm.serving.jobs import Event

# Upper bounds of the histograms, in seconds and in tokens per forward pass.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SHARES = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)


class Metrics:
    """All metrics, with their own registry, so that a process can run several servers."""

    def __init__(self, slots: int = 16):
        self.registry = CollectorRegistry()
        # 16 slots: 1, 2, 4, 8, 16
        sizes = tuple(2**power for power in range(slots.bit_length()))

        common = {"namespace": "diffucoder", "registry": self.registry}
        counter = partial(Counter, **common)
        gauge = partial(Gauge, **common)
        histogram = partial(Histogram, **common)
        # counters
        self.http_requests = counter(
            "http_requests", "HTTP requests answered", ["path", "status", "key"]
        )
        self.key_tokens = counter(
            "key_tokens", "Tokens generated, by the label of the key", ["key"]
        )
        self.rows = counter(
            "rows", "Completions that ended, by how they ended", ["outcome", "adapter"]
        )
        self.refused = counter("refused", "Completions refused because the queue was full")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts and suffixes")
        self.tokens = counter(
            "generated_tokens", "Tokens generated, up to stop tokens", ["adapter"]
        )
        self.forwards = counter("row_forwards", "Forward passes, counted once per sequence")
        self.compilations = counter(
            "compilations", "Programs compiled or read from the compilation cache"
        )
        self.compile_seconds = counter("compile_seconds", "Time spent on compilations")
        # gauges
        self.waiting = gauge("queue_rows", "Completions waiting for a slot")
        self.running = gauge("running_rows", "Completions being decoded")
        self.ready = gauge("ready", "1 after warm-up, until shutdown")
        self.device_memory = gauge(
            "device_memory_bytes", "Bytes in use on the device; 0 if it does not report them"
        )
        # histograms
        self.batch_rows = histogram(
            "batch_rows", "Sequences decoded together in one call", buckets=sizes
        )
        self.tokens_per_forward = histogram(
            "tokens_per_forward", "Tokens per forward pass of a completion", buckets=SHARES
        )
        self.queue_seconds = histogram("queue_seconds", "Time in the queue", buckets=SECONDS)
        self.first_text_seconds = histogram(
            "first_text_seconds", "From arrival to the first text that is final", buckets=SECONDS
        )
        self.total_seconds = histogram("total_seconds", "From arrival to the end", buckets=SECONDS)

    def observe_jax(self):
        """Count compilations and the memory of the device from now on."""
        jax.monitoring.register_event_duration_secs_listener(self.count_compilation)
        self.device_memory.set_function(lambda: device_memory().get("bytes_in_use", 0))

    def count_compilation(self, event: str, duration_secs: float, **kwargs: str | int):
        """Count a compilation; JAX reports other durations too."""
        if event == COMPILE_EVENT:
            self.compilations.inc()
            self.compile_seconds.inc(duration_secs)

    def count_end(self, event: Event, seconds: float):
        """Count a completion that ended this many seconds after its arrival."""
        adapter = event.job.request.adapter if event.job else ""
        self.rows.labels(event.reason, adapter).inc()
        self.forwards.inc(event.forwards)
        # jobs that were cancelled or failed would distort the distributions
        if event.is_answer:
            self.tokens.labels(adapter).inc(len(event.tokens))
            self.total_seconds.observe(seconds)
            self.tokens_per_forward.observe(len(event.tokens) / max(event.forwards, 1))

    def page(self) -> bytes:
        """Return the text format that Prometheus reads."""
        return generate_latest(self.registry)


def return_freed_memory():
    """Return memory that a compilation has freed to the operating system.

    glibc would keep it, and it would be most of the memory of the process.
    """
    # glibc only; other C libraries do not have it
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
