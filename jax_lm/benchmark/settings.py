"""What may be asked of a benchmark, checked in one place. Imports no JAX: the arguments of commands nest these."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal


def require_at_least_one(settings: object, *names: str) -> None:
    """Raise ValueError for the first number, or tuple of numbers, that is not at least 1 or is empty."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, tuple) and not (value and min(value) >= 1):
            raise ValueError(f"{name}={value}: must name at least one number, each at least 1")
        if not isinstance(value, tuple) and not value >= 1:
            raise ValueError(f"{name}={value}: must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One generation to time: rows decoded together, length of each prompt and answer, a name in `options.PRESETS`."""

    preset: str = "exact"
    batch: int
    prompt_tokens: int
    new_tokens: int

    def require_room(self, context: int) -> None:
        """Raise ValueError unless prompt and answer fit the context."""
        if self.prompt_tokens + self.new_tokens > context:
            asked = f"prompt_tokens={self.prompt_tokens} with new_tokens={self.new_tokens}"
            raise ValueError(f"{asked}: the context holds {context} tokens")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Generations to time.

    Attributes:
        batch_sizes: rows decoded together.
        new_tokens: lengths of the answers.
        prompt_tokens: lengths of the random prompts.
        repeats: timed calls per measurement, of which the median counts.
    """

    batch_sizes: tuple[int, ...] = (1, 8)
    new_tokens: tuple[int, ...] = (64, 256)
    prompt_tokens: tuple[int, ...] = (64,)
    repeats: int = 3

    def __post_init__(self) -> None:
        require_at_least_one(self, "batch_sizes", "new_tokens", "prompt_tokens", "repeats")

    def cells(self, presets: Iterable[str]) -> list[Cell]:
        """List every combination."""
        combinations = product(self.new_tokens, self.prompt_tokens, self.batch_sizes, presets)
        return [
            Cell(batch=batch, prompt_tokens=prompt_tokens, new_tokens=new_tokens, preset=preset)
            for new_tokens, prompt_tokens, batch, preset in combinations
        ]

    @property
    def edges(self) -> tuple[Cell, ...]:
        """Every prompt length at batch 1, and every batch size at the first prompt length: two lines of a chart."""
        sizes = [(1, length) for length in self.prompt_tokens]
        sizes += [(batch, self.prompt_tokens[0]) for batch in self.batch_sizes]
        return tuple(
            Cell(batch=batch, prompt_tokens=length, new_tokens=new_tokens)
            for new_tokens in self.new_tokens
            for batch, length in dict.fromkeys(sizes)
        )


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """What the results of an experiment depend on.

    Attributes:
        model: folder or hub id; the built-in model if not given.
        dtype: chosen by the device if not given.
        recorded: folder of `diffucoder parity record`, for parity without PyTorch.
        new_tokens: length of the answers.
        batch_sizes: of the timed forward passes.
        largest_batch: where the stress test ends, if memory does not end before.
        tasks: built-in tasks of the quality check.
        repeats: timed calls per measurement.
        limit: seconds that PyTorch, and JAX on the CPU, may take each.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16", "int8"] | None = None
    recorded: Path | None = None
    new_tokens: int = 64
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    largest_batch: int = 32
    tasks: int = 20
    repeats: int = 3
    limit: float = 600.0

    def __post_init__(self) -> None:
        require_at_least_one(self, "batch_sizes", "new_tokens", "largest_batch", "tasks", "repeats", "limit")


@dataclass(frozen=True, kw_only=True)
class RecordingShape:
    """How large a recording is.

    Attributes:
        prompt_length: tokens of the recorded prompts.
        max_new_tokens: length of the recorded answers.
        batch: rows of each recording.
        seed: of the random prompts.
    """

    prompt_length: int = 13
    max_new_tokens: int = 24
    batch: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least_one(self, "batch", "prompt_length", "max_new_tokens")
