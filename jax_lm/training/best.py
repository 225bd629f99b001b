"""The best evaluation of a run, and how long ago it was. Knows names and numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class BestEvaluation:
    """The best evaluation so far, by one of its metrics.

    Attributes:
        metric: its name, with or without eval_; the higher the better, but for names that end in loss. None where none
            is asked for.
        patience: evaluations in a row that are no better, after which a run ends; None is never.
        value, step: of the best one; None before the first.
        since: evaluations since then.
    """

    metric: str | None
    patience: int | None
    value: float | None = None
    step: int | None = None
    since: int = 0

    def see(self, step: int, results: Mapping[str, float]) -> bool:
        """Take an evaluation in; whether it is the best so far. ValueError if it lacks the metric."""
        if self.metric is None:
            return False
        name = self.metric.removeprefix("eval_")
        if name not in results:
            raise ValueError(f"metric_for_best_model={self.metric!r}: must be one of {', '.join(results)}")
        sign, value = (-1 if name.endswith("loss") else 1), results[name]
        if math.isfinite(value) and (self.value is None or sign * value > sign * self.value):
            self.value, self.step, self.since = value, step, 0
            return True
        self.since += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether the run has lost patience."""
        return self.patience is not None and self.since >= self.patience

    def save(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` gave, if it was by the same metric."""
        if saved["metric"] == self.metric:
            self.value, self.step, self.since = saved["value"], saved["step"], saved["since"]
