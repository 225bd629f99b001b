"""Settings of the benchmarks, with their checks.

Imports no JAX, because the arguments of commands nest these settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from jax_lm.config import Ints
from jax_lm.options import require_above_zero, require_sizes

# Default for the largest absolute difference of float32 hidden states and logits in `parity check`.
TOLERANCE = 2e-5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One generation to time.

    Attributes:
        preset: name in `options.PRESETS`.
        batch: rows decoded together.
        prompt_tokens: length of each prompt.
        new_tokens: length of each answer.
    """

    preset: str = "exact"
    batch: int
    prompt_tokens: int
    new_tokens: int

    def require_room(self, context: int):
        """Raise ValueError unless prompt and answer fit the context."""
        if self.prompt_tokens + self.new_tokens > context:
            lengths = f"prompt_tokens={self.prompt_tokens} with new_tokens={self.new_tokens}"
            raise ValueError(f"{lengths}: the context holds {context} tokens")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Generations to time.

    Attributes:
        batch_sizes: rows decoded together.
        new_tokens: lengths of the answers.
        prompt_tokens: lengths of the random prompts.
        repeats: timed calls per measurement; their median counts.
    """

    batch_sizes: Ints = (1, 8)
    new_tokens: Ints = (64, 256)
    prompt_tokens: Ints = (64,)
    repeats: int = 3

    def __post_init__(self):
        require_sizes(self, "batch_sizes", "new_tokens", "prompt_tokens", "repeats")

    def cells(self, presets: Iterable[str]) -> list[Cell]:
        """Return every combination of lengths, batch sizes and presets."""
        return [
            Cell(batch=batch, prompt_tokens=prompt_tokens, new_tokens=new_tokens, preset=preset)
            for new_tokens, prompt_tokens, batch, preset in product(
                self.new_tokens, self.prompt_tokens, self.batch_sizes, presets
            )
        ]

    @property
    def edges(self) -> tuple[Cell, ...]:
        """The cells of two charts.

        They are every prompt length at batch 1, and every batch size at the first prompt length.
        """
        # Both charts share the first cell: `dict.fromkeys` keeps one of each, in order.
        sizes = [(1, length) for length in self.prompt_tokens]
        sizes += [(batch, self.prompt_tokens[0]) for batch in self.batch_sizes]
        return tuple(
            Cell(batch=batch, prompt_tokens=length, new_tokens=new_tokens)
            for new_tokens in self.new_tokens
            for batch, length in dict.fromkeys(sizes)
        )


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """Settings that the results of an experiment depend on.

    Attributes:
        model: folder or hub id; the built-in model if not given.
        dtype: chosen by the device if not given.
        recorded: folder of recorded outputs, for parity without PyTorch.
        new_tokens: length of the answers.
        batch_sizes: batch sizes of the timed forward passes.
        largest_batch: largest batch of the stress test, which ends earlier if it runs out of
            memory.
        tasks: built-in tasks of the quality check.
        repeats: timed calls per measurement.
        timeout: seconds that PyTorch, and JAX on the CPU, may take each.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16", "int8"] | None = None
    recorded: Path | None = None
    new_tokens: int = 64
    batch_sizes: Ints = (1, 2, 4, 8)
    largest_batch: int = 32
    tasks: int = 20
    repeats: int = 3
    timeout: float = 600.0

    def __post_init__(self):
        require_sizes(self, "batch_sizes", "new_tokens", "largest_batch", "tasks", "repeats")
        require_above_zero(self, "timeout")
