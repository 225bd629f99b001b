"""Settings of the benchmarks, with their checks.

Imports no JAX, because the arguments of commands nest these settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from jax_lm.options import Decoding, GenerationOptions


def require_at_least_one(settings: object, *names: str) -> None:
    """Raise ValueError for the first setting that is below 1.

    Tuples of numbers must not be empty.
    """
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, tuple) and not (value and min(value) >= 1):
            raise ValueError(f"{name}={value}: must name at least one number, each at least 1")
        if not isinstance(value, tuple) and not value >= 1:
            raise ValueError(f"{name}={value}: must be at least 1")


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
        """Return every combination of lengths, batch sizes and presets."""
        combinations = product(self.new_tokens, self.prompt_tokens, self.batch_sizes, presets)
        return [
            Cell(batch=batch, prompt_tokens=prompt_tokens, new_tokens=new_tokens, preset=preset)
            for new_tokens, prompt_tokens, batch, preset in combinations
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
        recorded: folder of `diffucoder parity record`, for parity without PyTorch.
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
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    largest_batch: int = 32
    tasks: int = 20
    repeats: int = 3
    timeout: float = 600.0

    def __post_init__(self) -> None:
        require_at_least_one(
            self, "batch_sizes", "new_tokens", "largest_batch", "tasks", "repeats", "timeout"
        )


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """Settings of a full experiment, in addition to `ExperimentSettings`.

    Attributes:
        random_shape: shape of the weights: 7b (the published shape) or small (its vocabulary, 8
            layers of width 512).
        canvas: tokens of a row, prompt and answer.
        rows: batch sizes: rows decoded together.
        clients: numbers of clients of the server, each with one request at a time.
        training_rows: rows of a training update.
        minutes: time after which no step begins; the same command then resumes with the steps that
            are left.
    """

    random_shape: Literal["small", "7b"] = "7b"
    canvas: int = 512
    rows: tuple[int, ...] = (1, 4, 16, 64)
    clients: tuple[int, ...] = (1, 16, 64)
    training_rows: int = 8
    minutes: float = 8.0

    def __post_init__(self) -> None:
        require_at_least_one(self, "canvas", "rows", "clients", "training_rows")
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes:g}: must be positive")


@dataclass(frozen=True, kw_only=True)
class RecordingShape:
    """Size of a recording.

    Attributes:
        prompt_tokens: length of the recorded prompts.
        max_new_tokens: length of the recorded answers.
        batch_size: rows of each recording.
        seed: seed of the random prompts.
    """

    prompt_tokens: int = 13
    max_new_tokens: int = 24
    batch_size: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least_one(self, "batch_size", "prompt_tokens", "max_new_tokens")


@dataclass(frozen=True)
class FrontierSetting:
    """A way of decoding whose speed and quality are measured together."""

    family: str
    decoding: Decoding
    tokens_per_step: int = 1
    draft: int = 0
    lookahead: int = 0

    def options(self, quality: "QualitySettings") -> GenerationOptions:
        """Return the options of an answer."""
        return GenerationOptions(
            max_new_tokens=quality.max_new_tokens,
            temperature=quality.temperature,
            tokens_per_step=self.tokens_per_step,
            draft=self.draft,
            lookahead=self.lookahead,
            decoding=self.decoding,
        )


def frontier_settings() -> dict[str, FrontierSetting]:
    """Return all settings of the frontier by name, each rule from careful to hasty."""

    # Decoding in a window of the canvas, from the cache.
    def in_window(**options: Any) -> Decoding:
        return Decoding(preset="fast", **options)

    # Fixed numbers of tokens per step
    settings = {"exact": FrontierSetting("steps, whole canvas", Decoding())}
    for count in (2, 3, 4):
        settings[f"exact, {count} per step"] = FrontierSetting(
            "steps, whole canvas", Decoding(), tokens_per_step=count
        )
    for count in (1, 2, 3, 4):
        name = "fast" if count == 1 else f"fast, {count} per step"
        settings[name] = FrontierSetting("steps, window", in_window(), tokens_per_step=count)
    # Drafts
    for draft in (2, 4, 8):
        settings[f"exact, draft {draft}"] = FrontierSetting(
            "draft, whole canvas", Decoding(), draft=draft
        )
    for draft in (2, 4, 8):
        settings[f"fast, draft {draft}"] = FrontierSetting(
            "draft, window", in_window(), draft=draft
        )
    # Commits by confidence
    for threshold in (0.98, 0.95, 0.9, 0.8, 0.7, 0.5):
        decoding = in_window(commit="threshold", threshold=threshold)
        settings[f"threshold {threshold}"] = FrontierSetting("threshold, window", decoding)
    settings["threshold 0.9, draft 4"] = FrontierSetting(
        "threshold, draft", Decoding(preset="turbo"), draft=4
    )
    # Branches
    for branches in (2, 4, 8):
        decoding = in_window(commit="threshold", threshold=0.95)
        settings[f"threshold 0.95, lookahead {branches}"] = FrontierSetting(
            "lookahead", decoding, lookahead=branches
        )
    # Commits by a confidence that depends on the number of tokens, or falls with the steps
    for factor in (0.1, 0.3, 1.0):
        decoding = in_window(commit="factor", factor=factor)
        settings[f"factor {factor}"] = FrontierSetting("factor, window", decoding)
    for decay in (0.2, 0.5):
        decoding = in_window(commit="dynamic", threshold=0.9, decay=decay)
        settings[f"dynamic 0.9, decay {decay}"] = FrontierSetting("dynamic, window", decoding)
    # Commits by entropy
    for bound in (0.0, 0.001, 0.01, 0.1, 0.3, 1.0):
        decoding = in_window(commit="entropy", entropy_bound=bound)
        settings[f"entropy {bound}"] = FrontierSetting("entropy, window", decoding)
    decoding = Decoding(commit="entropy", entropy_bound=0.1, block_length=0)
    settings["entropy 0.1, whole canvas"] = FrontierSetting("entropy, whole canvas", decoding)
    return settings


FRONTIER = frontier_settings()


@dataclass(frozen=True, kw_only=True)
class QualitySettings:
    """Tasks that are solved at every setting of a frontier.

    Attributes:
        suite: as in `diffucoder eval`.
        data: the file of the problems; none for builtin.
        limit: number of problems; 300 for builtin and all of a file if not given.
        only: names of settings; all if not given.
        max_new_tokens: length of the canvas.
        temperature: 0 is greedy.
        seed: seed of the draws.
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        timed: also measure tokens per second, which is meaningful only on an idle machine.
    """

    suite: Literal[
        "builtin", "humaneval", "humaneval+", "mbpp", "mbpp+", "infilling", "livecodebench"
    ] = "builtin"
    data: Path | None = None
    limit: int | None = None
    only: tuple[str, ...] = ()
    max_new_tokens: int = 144
    temperature: float = 0.0
    seed: int = 0
    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"
    timed: bool = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.only if name not in FRONTIER]:
            raise ValueError(
                f"only={unknown[0]!r}: must be one of {', '.join(map(repr, FRONTIER))}"
            )

    @property
    def settings(self) -> dict[str, FrontierSetting]:
        """The settings to measure, by name."""
        return {name: FRONTIER[name] for name in self.only or FRONTIER}
