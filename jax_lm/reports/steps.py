"""A run of named steps that keeps the row of each, survives failures and can be resumed.

Knows nothing about what the steps do. steps.jsonl in its folder has a line when a step begins, and
another when it ends.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from jax_lm.host.interruption import Terminated
from jax_lm.host.terminal import Report
from jax_lm.reports.run_folder import Record, RunLog

BEGUN = "begun"
STOPPED = "stopped"
DONE = "done"
FAILED = "failed"
LEFT_OUT = "left out"
# A step that ended the whole process this many times is not tried again: most likely the system
# killed it for its memory.
PATIENCE = 2


# Rows of the steps that are done, by name.
Rows = Mapping[str, Record]


class LeftOut(Exception):  # noqa: N818
    """Raised by a step that does not apply here; the message says why."""


@dataclass(frozen=True)
class Step:
    """Something to measure.

    Attributes:
        name: in steps.jsonl.
        title: in reports and progress bars.
        action: takes the rows of the steps before, and returns its own.
    """

    name: str
    title: str
    action: Callable[[Rows], Record]


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Attributes:
        state: done, failed or left out.
        row: what it measured if it is done.
        reason: why it failed or was left out.
        seconds: how long it took.
    """

    state: str
    row: Record = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


class Steps(RunLog):
    """The steps of a folder, and how those that were tried ended."""

    name = "steps.jsonl"
    kind = "a step"

    def __init__(self, folder: Path, settings: Record):
        self.outcomes: dict[str, Outcome] = {}
        # Beginnings without an end, by step: each one ended the process.
        self.unfinished: dict[str, int] = {}
        super().__init__(folder, settings)

    def take(self, record: Record):
        name = record["step"]
        state = record["state"]
        if state == BEGUN:
            self.unfinished[name] = self.unfinished.get(name, 0) + 1
            return
        self.unfinished[name] = 0
        # Stopped by the user: neither an outcome nor a reason not to try again.
        if state != STOPPED:
            self.outcomes[name] = Outcome(state, record["row"], record["reason"], record["seconds"])

    def run(self, steps: Sequence[Step], *, on_step: Report | None = None):
        """Run the steps that are not done, in order.

        Steps that failed or were left out in an earlier run are tried again, after those that were
        never tried.
        """
        # The sort is stable: within both groups, the order stays.
        waiting = sorted(
            (step for step in steps if self.state(step) != DONE),
            key=lambda step: self.state(step) != "",
        )
        for done, step in enumerate(waiting, len(steps) - len(waiting)):
            if on_step:
                on_step(done, len(steps), step.title)
            self.attempt(step)
        if on_step:
            on_step(len(steps), len(steps), "")

    def state(self, step: Step) -> str:
        """Return how a step ended; empty if it was never tried."""
        outcome = self.outcomes.get(step.name)
        return "" if outcome is None else outcome.state

    def attempt(self, step: Step):
        """Run one step; an exception becomes its outcome."""
        if self.unfinished.get(step.name, 0) >= PATIENCE:
            reason = f"ended the whole process {PATIENCE} times: perhaps the system killed it for its memory"
            self.outcomes[step.name] = Outcome(FAILED, reason=reason)
            return
        self.append({"step": step.name, "state": BEGUN})
        rows = {
            name: outcome.row for name, outcome in self.outcomes.items() if outcome.state == DONE
        }
        start = perf_counter()
        try:
            outcome = Outcome(DONE, step.action(rows))
        except LeftOut as error:
            outcome = Outcome(LEFT_OUT, reason=str(error))
        except (KeyboardInterrupt, Terminated):
            self.append({"step": step.name, "state": STOPPED})
            raise
        except Exception as error:  # a step's failure is a result of the run
            outcome = Outcome(FAILED, reason=error_text(error))
        outcome = replace(outcome, seconds=round(perf_counter() - start, 3))
        self.append({"step": step.name, **vars(outcome)})


def error_text(error: Exception) -> str:
    """Describe an error in one line; for a defect, with its place in the code."""
    text = " ".join(str(error).split()) or type(error).__name__
    # Errors that a user can fix need no place.
    if isinstance(error, ValueError | OSError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(last.filename).name}, line {last.lineno})"
