"""Metrics of a run: averaging, and writing to console, metrics.jsonl, TensorBoard and W&B.

Console and metrics.jsonl are always written, trackers on request. Knows names, steps and numbers,
but nothing about training.
"""

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic

from jax_lm.config import Fields
from jax_lm.host.files import whole_lines, write_rows_whole

logger = logging.getLogger(__name__)

# The trackers, and the library that each needs; the extra has the tracker's name.
TRACKERS = {"tensorboard": "tensorboardX", "wandb": "wandb"}
METRICS_FILE = "metrics.jsonl"
# Metrics whose name starts with this are combined by maximum, all others by mean.
LARGEST = "max_"

# Metrics on the console, in addition to those of evaluations.
SHOWN = """
    loss reward rewarded_logprob zero_variance_groups gradient_norm learning_rate
    tokens_per_second
""".split()  # noqa: SIM905 (a table, not a list)

# Values by name.
Metrics = dict[str, float]
# Takes a step and its metrics.
Write = Callable[[int, Metrics], None]


@dataclass
class Meter:
    """Sums of metrics and seconds since the last entry; a checkpoint stores them.

    Attributes:
        sums: sum and count of each metric; for names in max_, the maximum and 1.
        tokens: tokens since the last entry.
        seconds: seconds since the last entry, as measured by earlier processes of the run.
        earlier: seconds of the run up to the last entry.
        clock: when this process began to count.
    """

    sums: dict[str, list[float | int]] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    earlier: float = 0.0
    clock: float = field(default_factory=monotonic)

    def add(self, metrics: Metrics, tokens: int):
        """Count a step."""
        self.tokens += tokens
        for name, value in metrics.items():
            # mean of losses 3 and 1: sums [4, 2]; maximum of 3 and 1: [3, 1]
            total, count = self.sums.get(name, (value, 0))
            if name.startswith(LARGEST):
                self.sums[name] = [max(total, value), 1]
            else:
                self.sums[name] = [total + value if count else value, count + 1]

    def entry(self) -> Metrics:
        """Return averages since the last entry (maxima of max_...), speed and seconds; then reset."""
        elapsed = self.elapsed()
        # The loss first, then by name.
        names = sorted(self.sums, key=lambda name: (name != "loss", name))
        metrics = {name: self.sums[name][0] / self.sums[name][1] for name in names}
        self.earlier += elapsed
        speed = {"tokens_per_second": self.tokens / max(elapsed, 1e-9), "seconds": self.earlier}
        # reset
        self.sums = {}
        self.tokens = 0
        self.seconds = 0.0
        self.clock = monotonic()
        return metrics | speed

    def elapsed(self) -> float:
        """Measure the seconds since the last entry."""
        return self.seconds + monotonic() - self.clock

    def save(self) -> Fields:
        """Return the arguments of a `Meter` that continues from here."""
        return {
            "sums": self.sums,
            "tokens": self.tokens,
            "seconds": self.elapsed(),
            "earlier": self.earlier,
        }


def require_trackers(names: Sequence[str]):
    """Raise ValueError for a tracker whose library is not installed."""
    for name in names:
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise ValueError(f"track={name}: needs pip install 'jax-diffucoder[{name}]'")


@contextmanager
def open_writers(
    out: Path, track: Sequence[str], *, steps: int, resumed_at: int, config: Mapping[str, object]
) -> Iterator[Write]:
    """Open metrics.jsonl and the requested trackers; yields a function that writes to all and logs.

    Args:
        out: folder of the run.
        track: names of trackers.
        steps: steps of the whole run.
        resumed_at: step of the checkpoint that the run continues from, 0 for a new one.
        config: settings of the run, for trackers that show them.
    """
    openers = {
        "tensorboard": lambda: tensorboard_writer(out / "tensorboard", resumed_at),
        "wandb": lambda: wandb_writer(out, config),
    }
    logger.info("all metrics: %s", out / METRICS_FILE)
    with ExitStack() as stack:
        trackers = [stack.enter_context(openers[name]()) for name in track]
        lines = stack.enter_context(lines_writer(out / METRICS_FILE, resumed_at))

        def write(step, metrics):
            # the console shows some metrics, the file and trackers get all
            shown = [name for name in metrics if name in SHOWN or name.startswith("eval_")]
            text = "  ".join(f"{name} {metrics[name]:.4g}" for name in shown)
            logger.info("step %d/%d  %s", step, steps, text)
            for other in (lines, *trackers):
                other(step, metrics)

        yield write


@contextmanager
def lines_writer(path: Path, resumed_at: int) -> Iterator[Write]:
    """Write one JSON object per entry, flushed at once.

    A resumed run drops the entries after its checkpoint. Numbers that are not finite become null,
    as JSON cannot hold them.
    """
    # Resumed at step 20: entries of steps 10 and 20 stay, those of 30 are dropped.
    lines = whole_lines(path).splitlines() if resumed_at and path.is_file() else ()
    try:
        entries = [json.loads(line) for line in lines]
    except ValueError as error:
        raise ValueError(f"{path}: a line is not JSON ({error})") from error
    # Written to a temporary file first, so that a kill never leaves half of the entries.
    write_rows_whole(path, (entry for entry in entries if entry["step"] <= resumed_at))
    with path.open("a", encoding="utf-8") as file:

        def write(step, metrics):
            numbers = {name: value if isfinite(value) else None for name, value in metrics.items()}
            file.write(json.dumps({"step": step, **numbers}) + "\n")
            file.flush()

        yield write


@contextmanager
def tensorboard_writer(folder: Path, resumed_at: int) -> Iterator[Write]:
    """Write event files to a folder; needs the extra `tensorboard`."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None) as writer:

        def write(step, metrics):
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        yield write


@contextmanager
def wandb_writer(folder: Path, config: Mapping[str, object]) -> Iterator[Write]:
    """Write to a W&B run, which a resumed run continues.

    Needs the extra `wandb`, and a key in the environment.
    """
    import wandb  # pyright: ignore[reportMissingImports]

    file = folder / "wandb.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "diffucoder"),
        dir=str(folder),
        config=dict(config),
        resume="allow",
        **known,
    )
    file.write_text(json.dumps({"id": run.id}) + "\n", encoding="utf-8")
    try:
        yield lambda step, metrics: run.log(dict(metrics), step=step)
    finally:
        run.finish()
