"""Settings of the benchmarks, with their checks.

Imports no JAX, because the arguments of commands nest these settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from jax_lm.options import Decoding, GenerationOptions


def require_at_least_one(settings: object, *names: str) -> None:
    """Raise ValueError for the first setting that is below 1.

    Tuples of numbers must not be empty.
    """
    for name in names:
        value = getattr(settings, name)
        is_tuple = isinstance(value, tuple)
        if not (min(value, default=0) if is_tuple else value) >= 1:
            rule = "name at least one number, each at least 1" if is_tuple else "be at least 1"
            raise ValueError(f"{name}={value}: must {rule}")


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
class FullSizeSettings:
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


class FrontierSetting(NamedTuple):
    """A way of decoding whose speed and quality are measured together.

    Attributes:
        family: the line of the chart that it belongs to.
        options: options of an answer, whose length and temperature `QualitySettings` set.
    """

    family: str
    options: GenerationOptions


@cache
def frontier_settings() -> dict[str, FrontierSetting]:
    """Return all settings of the frontier by name, from frontier.yaml."""
    # Not at the top: the help of every command imports this module.
    import yaml

    text = Path(__file__).with_name("frontier.yaml").read_text(encoding="utf-8")
    of_decoding = {field.name for field in fields(Decoding)}
    settings = {}
    for name, values in yaml.safe_load(text).items():
        family = values.pop("family")
        # {preset: fast, draft: 2} -> decoding {preset: fast}, values {draft: 2}
        decoding = {key: values.pop(key) for key in of_decoding & values.keys()}
        options = GenerationOptions(decoding=Decoding(**decoding), **values)
        settings[name] = FrontierSetting(family, options)
    return settings


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
        for name in self.only:
            if name not in frontier_settings():
                known = ", ".join(map(repr, frontier_settings()))
                raise ValueError(f"only={name!r}: must be one of {known}")

    def options(self) -> dict[str, GenerationOptions]:
        """Return the options of every setting that is measured, by its name."""
        known = frontier_settings()
        length, temperature = self.max_new_tokens, self.temperature
        return {
            name: replace(known[name].options, max_new_tokens=length, temperature=temperature)
            for name in self.only or known
        }
