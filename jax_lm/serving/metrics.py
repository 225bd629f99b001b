"""Metrics of the server, in Prometheus' terms. Knows neither HTTP nor JAX."""

import ctypes

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SHARES = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)


class Metrics:
    """All instruments, in a registry of their own so that several servers can live in one process."""

    def __init__(self, slots: int = 16) -> None:
        self.registry = CollectorRegistry()
        sizes = tuple(2**power for power in range(slots.bit_length()))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"diffucoder_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"diffucoder_{name}", text, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float | int, ...]) -> Histogram:
            return Histogram(f"diffucoder_{name}", text, buckets=buckets, registry=self.registry)

        self.http_requests = counter("http_requests", "HTTP requests answered", "path", "status")
        self.rows = counter("rows", "Completions that ended, by how they ended", "outcome")
        self.refused = counter("refused", "Completions refused because the queue was full")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts and suffixes")
        self.tokens = counter("generated_tokens", "Tokens generated, up to stop tokens")
        self.forwards = counter("row_forwards", "Model evaluations, counted once for each row in the batch")
        self.compilations = counter("compilations", "Programs compiled or read from the compilation cache")
        self.compile_seconds = counter("compile_seconds", "Time spent on them")
        self.waiting = gauge("queue_rows", "Completions waiting for a place")
        self.running = gauge("running_rows", "Completions being decoded")
        self.ready = gauge("ready", "1 after warm-up, until shutdown")
        self.device_memory = gauge("device_memory_bytes", "Bytes in use on the device; 0 where it does not say")
        self.batch_rows = histogram("batch_rows", "Rows that a call of the device decoded together", sizes)
        self.tokens_per_forward = histogram("tokens_per_forward", "Tokens per model evaluation of a completion", SHARES)
        self.queue_seconds = histogram("queue_seconds", "Time in the queue", SECONDS)
        self.first_text_seconds = histogram(
            "first_text_seconds", "From arrival to the first text that is final", SECONDS
        )
        self.total_seconds = histogram("total_seconds", "From arrival to the end", SECONDS)

    def page(self) -> bytes:
        """The text format that Prometheus reads."""
        return generate_latest(self.registry)


def return_freed_memory() -> None:
    """Hand back to the system what a compilation has freed, which glibc keeps: most of what the process would hold."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def bytes_in_use() -> float:
    """Memory in use on the device; 0 where it does not say, as on a CPU."""
    return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use", 0))
