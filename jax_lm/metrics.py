"""Numbers of a run: their means, and where they go (console and metrics.jsonl always, TensorBoard and W&B on request).

Knows names, steps and numbers, nothing of training.
"""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

logger = logging.getLogger(__name__)

TRACKERS = ("tensorboard", "wandb")
METRICS_FILE = "metrics.jsonl"
LARGEST = "max_"
"""Metrics whose name starts like this are combined by their maximum, all others by their mean."""

Metrics = Mapping[str, float]


class Meter:
    """Metrics since the last entry, and time; what it has counted survives a restart."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}
        self.tokens, self.seconds, self.earlier = 0, 0.0, 0.0
        self.clock = time.monotonic()

    def add(self, metrics: Mapping[str, float], tokens: int) -> None:
        """Count a step."""
        self.tokens += tokens
        for name, value in metrics.items():
            total, count = self.sums.get(name, (value, 0))
            if name.startswith(LARGEST):
                self.sums[name] = [max(total, value), 1]
            else:
                self.sums[name] = [total + value if count else value, count + 1]

    def entry(self) -> dict[str, float]:
        """Average since the last entry (of max_… the largest), add tokens per second and seconds; start anew."""
        elapsed = self.elapsed()
        names = sorted(self.sums, key=lambda name: (name != "loss", name))
        metrics = {name: self.sums[name][0] / self.sums[name][1] for name in names}
        speed = {"tokens_per_second": self.tokens / max(elapsed, 1e-9), "seconds": self.earlier + elapsed}
        self.sums, self.tokens, self.seconds, self.earlier = {}, 0, 0.0, self.earlier + elapsed
        self.clock = time.monotonic()
        return metrics | speed

    def elapsed(self) -> float:
        """Measure the seconds since the last entry."""
        return self.seconds + time.monotonic() - self.clock

    def save(self) -> dict[str, Any]:
        return {"sums": self.sums, "tokens": self.tokens, "seconds": self.elapsed(), "earlier": self.earlier}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Meter":
        meter = cls()
        meter.sums, meter.tokens = dict(saved["sums"]), saved["tokens"]
        meter.seconds, meter.earlier = saved["seconds"], saved["earlier"]
        return meter


@runtime_checkable
class Writer(Protocol):
    """Takes the metrics of a step."""

    def write(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class ConsoleWriter:
    """One line per entry, through `logging`."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def write(self, step: int, metrics: Metrics) -> None:
        logger.info("step %d/%d  %s", step, self.steps, "  ".join(f"{k} {v:.4g}" for k, v in metrics.items()))

    def close(self) -> None: ...


class JsonLinesWriter:
    """One JSON object per entry, flushed at once; a resumed run drops the entries after its checkpoint."""

    def __init__(self, path: Path, *, resumed_at: int) -> None:
        kept = entries_until(path, resumed_at)
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        temporary.replace(path)
        self.file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Metrics) -> None:
        self.file.write(json.dumps({"step": step, **metrics}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


class TensorBoardWriter:
    """Event files in a folder; needs the extra `tensorboard`."""

    def __init__(self, folder: Path, *, resumed_at: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ValueError("track=tensorboard: needs pip install 'jax-diffucoder[tensorboard]'") from error
        self.writer = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def write(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """A W&B run, which a resumed run continues; needs the extra `wandb`. Its key comes from the environment."""

    def __init__(self, folder: Path, config: Mapping[str, object]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError("track=wandb: needs pip install 'jax-diffucoder[wandb]'") from error
        file = folder / "wandb.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        project = os.environ.get("WANDB_PROJECT", "diffucoder")
        self.run = wandb.init(project=project, dir=str(folder), config=dict(config), resume="allow", **known)
        file.write_text(json.dumps({"id": self.run.id}) + "\n", encoding="utf-8")

    def write(self, step: int, metrics: Metrics) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class Writers:
    """Several writers as one; closes them when its block ends."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self.writers = writers

    def write(self, step: int, metrics: Metrics) -> None:
        for writer in self.writers:
            writer.write(step, metrics)

    def __enter__(self) -> "Writers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self.writers:
            writer.close()


def open_writers(
    out: Path, track: Sequence[str], *, steps: int, resumed_at: int, config: Mapping[str, object]
) -> Writers:
    """Open console and metrics.jsonl, and the trackers asked for.

    Args:
        out: folder of the run.
        track: any of `TRACKERS`.
        steps: of the whole run.
        resumed_at: step of the checkpoint that the run continues from, 0 for a new one.
        config: settings of the run, for trackers that show them.

    Raises:
        ValueError: an unknown tracker, or one that is not installed.
    """
    writers: list[Writer] = []
    for name in track:
        if name not in TRACKERS:
            raise ValueError(f"track={name!r}: must be one of {', '.join(TRACKERS)}")
        if name == "tensorboard":
            writers.append(TensorBoardWriter(out / "tensorboard", resumed_at=resumed_at))
        else:
            writers.append(WandbWriter(out, config))
    return Writers([ConsoleWriter(steps), JsonLinesWriter(out / METRICS_FILE, resumed_at=resumed_at), *writers])


def entries_until(path: Path, step: int) -> list[str]:
    """Read the lines of a metrics file up to a step; a last line cut short by a kill is dropped."""
    if not path.is_file() or step == 0:
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry["step"] <= step:
            kept.append(line)
    return kept
