"""Our decoding against a PyTorch implementation of the published sampler: same weights, prompts, steps and seed.

    python benchmarks/vs_pytorch.py --threads 2 --out benchmarks/results/vs_pytorch.json
    python benchmarks/vs_pytorch.py --pytorch-model P --dtype bfloat16

The reference is `jax_lm.benchmark.torch_reference`. Its logits are checked against those of
`jax_lm.benchmark.recording`, its greedy tokens are compared with ours.

Contestants take turns, so that a busy machine slows all; medians after a warm-up. It does not slow them alike:
PyTorch's threads wait for each other, so that another process on one of their cores costs it far more. Compare on an
idle machine (the load before is recorded), or with `--threads 1`. Needs torch and transformers (extra `parity`).
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

# Both frameworks share one accelerator: JAX must not take its memory beforehand.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
import transformers

from jax_lm.benchmark import recording
from jax_lm.benchmark.machine import about, seconds_of
from jax_lm.benchmark.recording import EPSILON
from jax_lm.benchmark.torch_reference import Reference
from jax_lm.benchmark.worker import SETTINGS
from jax_lm.benchmark.workload import random_canvas, random_model
from jax_lm.config import SHAPES
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions

TARGETS = {"exact_readme": 4.0, "exact_greedy": 2.0, "fast_long": 2.0, "batch": 3.0}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to compare.

    Attributes:
        pytorch_model: checkpoint folder, loaded on both sides; random weights with the published vocabulary if not
            given.
        dtype: float32 or bfloat16, on both sides.
        prompt_tokens: length of the random prompts.
        new_tokens: length of the answers, and number of steps.
        long_new_tokens: the same for exact against fast.
        batch: rows of the comparison with PyTorch.
        many: rows of the batch that is compared with batch 1 in window mode.
        repeats: timed rounds.
        threads: CPU cores that both sides may use; all if not given.
        use_remote_code: take model and sampler from the code in the checkpoint folder. This executes that code.
        out: JSON file for the result; a Markdown table goes to standard output.
    """

    pytorch_model: Path | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    prompt_tokens: int = 64
    new_tokens: int = 64
    long_new_tokens: int = 256
    batch: int = 1
    many: int = 8
    repeats: int = 3
    threads: int | None = None
    use_remote_code: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "new_tokens", "long_new_tokens", "batch", "many", "repeats", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.use_remote_code and self.pytorch_model is None:
            raise ValueError("use_remote_code: needs --pytorch-model, the folder with the code")


@dataclass(frozen=True)
class Contestant:
    """One measured configuration.

    Attributes:
        call: generates; returns the new tokens [b, n] and the number of forwards.
        warm_up: called once before; a short call is enough where nothing is compiled.
    """

    name: str
    batch: int
    new_tokens: int
    call: Callable[[], tuple[np.ndarray, int]]
    warm_up: Callable[[], Any]


class PublishedCode(Reference):
    """Model and sampler from the code in the checkpoint folder. This executes that code."""

    def load(self, folder: Path, config: DreamConfig, dtype: torch.dtype) -> Any:
        return transformers.AutoModel.from_pretrained(folder, trust_remote_code=True, torch_dtype=dtype)

    def decode(self, prompt: torch.Tensor, settings: dict[str, Any], new_tokens: int, steps: int) -> torch.Tensor:
        # The published default of top_p is 1.0; it has no None.
        given = settings | {"top_p": settings["top_p"] or 1.0}
        result = self.model.diffusion_generate(
            prompt, max_new_tokens=new_tokens, steps=steps, alg="entropy", alg_temp=0.0, eps=EPSILON, **given
        )
        return getattr(result, "sequences", result)


def check_reference(reference: Reference, folder: Path, config: DreamConfig) -> float:
    """Largest difference of the logits from those of `recording`, whose attention is written out with a mask.

    Raises:
        ValueError: it is no rounding error; the two would not be the same model.
    """
    ids = torch.arange(24)[None] % config.vocab_size
    with torch.no_grad():
        exact = recording.forward(recording.load(folder, config), ids, None).logits
        ours = reference.logits(ids.to(reference.device)).float().cpu()
    difference, spread = float((exact - ours).abs().max()), float(exact.std())
    if difference > 0.25 * spread:
        raise ValueError(f"pytorch_model: logits differ by {difference:.3g} from recording's, spread {spread:.3g}")
    return difference


def pytorch(reference: Reference, arguments: Arguments, config: DreamConfig, settings: str) -> Contestant:
    """The reference, on the prompts of `ours`."""
    batch, new_tokens = arguments.batch, arguments.new_tokens
    prompt = random_canvas(config, batch, arguments.prompt_tokens, new_tokens, seed=0).tokens[:, :-new_tokens]
    prompt = prompt[:, -arguments.prompt_tokens :]

    def call(steps: int = new_tokens) -> tuple[np.ndarray, int]:
        return reference.generate(prompt, SETTINGS[settings], new_tokens, steps), steps

    return Contestant(f"pytorch {settings}", batch, new_tokens, call, lambda: call(min(2, new_tokens)))


def ours(
    sampler: Sampler, preset: str, arguments: Arguments, settings: str, *, batch: int, new_tokens: int
) -> Contestant:
    """A preset of ours; early stop is off, so that all work is equal."""
    canvas = random_canvas(sampler.config, batch, arguments.prompt_tokens, new_tokens, seed=0)
    decoding = Decoding(preset=preset)
    options = GenerationOptions(max_new_tokens=new_tokens, decoding=decoding, **SETTINGS[settings])

    def call() -> tuple[np.ndarray, int]:
        state = sampler.generate(canvas, options, seed=0)
        return np.asarray(state.tokens)[:, -new_tokens:], int(state.forwards)

    return Contestant(f"{preset} {settings}", batch, new_tokens, call, call)


def measure(contestants: list[Contestant], repeats: int) -> list[dict[str, Any]]:
    """Each warmed up, then all in turn, `repeats` rounds."""
    for contestant in contestants:
        print(f"warm-up: {contestant.name}, batch {contestant.batch}, {contestant.new_tokens}", file=sys.stderr)
        contestant.warm_up()
    times: list[list[float]] = [[] for _ in contestants]
    outputs: list[Any] = [None] * len(contestants)
    for round_number in range(repeats):
        print(f"round {round_number + 1} of {repeats}", file=sys.stderr)
        for index, contestant in enumerate(contestants):

            def call(index: int = index, contestant: Contestant = contestant) -> None:
                outputs[index] = contestant.call()

            times[index].append(seconds_of(call))
    return [
        {
            "name": contestant.name,
            "batch": contestant.batch,
            "new_tokens": contestant.new_tokens,
            "forwards": forwards,
            "seconds": statistics.median(seconds),
            "all_seconds": seconds,
            "tokens_per_second": contestant.batch * contestant.new_tokens / statistics.median(seconds),
            "tokens": tokens.tolist(),
        }
        for contestant, seconds, (tokens, forwards) in zip(contestants, times, outputs, strict=True)
    ]


def ratios(rows: list[dict[str, Any]], arguments: Arguments) -> list[dict[str, Any]]:
    """The comparisons that have a target, as tokens per second over tokens per second."""
    speeds = {(row["name"], row["batch"], row["new_tokens"]): row["tokens_per_second"] for row in rows}
    batch, new, long = arguments.batch, arguments.new_tokens, arguments.long_new_tokens
    exact = {name: (f"exact {name}", batch, new) for name in SETTINGS}
    theirs = {name: (f"pytorch {name}", batch, new) for name in SETTINGS}
    comparisons = (
        ("exact over PyTorch, readme settings", exact["readme"], theirs["readme"], TARGETS["exact_readme"]),
        ("exact over PyTorch, greedy", exact["greedy"], theirs["greedy"], TARGETS["exact_greedy"]),
        ("fast over PyTorch, readme settings", ("fast readme", batch, new), theirs["readme"], None),
        ("fast over PyTorch, greedy", ("fast greedy", batch, new), theirs["greedy"], None),
        (f"fast over exact, {long} new", ("fast readme", 1, long), ("exact readme", 1, long), TARGETS["fast_long"]),
        (
            f"fast, batch {arguments.many} over batch 1",
            ("fast readme", arguments.many, new),
            ("fast readme", 1, new),
            TARGETS["batch"],
        ),
    )
    return [
        {"comparison": name, "ratio": speeds[ours] / speeds[other], "target": target}
        for name, ours, other, target in comparisons
    ]


def agreement(rows: list[dict[str, Any]]) -> float:
    """Share of the greedy tokens of `exact` that equal PyTorch's."""
    tokens = {
        row["name"]: np.asarray(row["tokens"]) for row in rows if row["name"] in ("exact greedy", "pytorch greedy")
    }
    return float((tokens["exact greedy"] == tokens["pytorch greedy"]).mean())


def field(arguments: Arguments, reference: Reference, sampler: Sampler) -> list[Contestant]:
    """Everything that is measured, without repetitions."""
    batch, new, long = arguments.batch, arguments.new_tokens, arguments.long_new_tokens
    wanted = [(preset, settings, batch, new) for settings in SETTINGS for preset in ("exact", "fast")]
    wanted += [("exact", "readme", 1, long), ("fast", "readme", 1, long)]
    wanted += [("fast", "readme", 1, new), ("fast", "readme", arguments.many, new)]
    return [pytorch(reference, arguments, sampler.config, settings) for settings in SETTINGS] + [
        ours(sampler, preset, arguments, settings, batch=rows, new_tokens=length)
        for preset, settings, rows, length in dict.fromkeys(wanted)
    ]


def compare(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Load both sides, measure, and put the result together."""
    config = DreamForCausalLM.read_config(folder)
    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    reference = (PublishedCode if arguments.use_remote_code else Reference)(
        folder, config, arguments.dtype, device=device
    )
    difference = None if arguments.use_remote_code else check_reference(reference, folder, config)
    sampler = Sampler(DreamForCausalLM.from_pretrained(folder, dtype=arguments.dtype))
    machine = about()
    rows = measure(field(arguments, reference, sampler), arguments.repeats)
    machine |= {"torch": torch.__version__, "transformers": transformers.__version__}
    machine |= {"torch_device": reference.device, "torch_threads": torch.get_num_threads()}
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    return {
        "about": machine,
        "arguments": asked,
        "reference_logit_difference": difference,
        "greedy_agreement": agreement(rows),
        "ratios": ratios(rows, arguments),
        "rows": [{key: value for key, value in row.items() if key != "tokens"} for row in rows],
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: what was measured, and the ratios with their targets."""
    lines = ["| side and settings | batch | new tokens | forwards | seconds | tokens/s |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row['name']} | {row['batch']} | {row['new_tokens']} | {row['forwards']} | {row['seconds']:.3f} "
        f"| {row['tokens_per_second']:,.1f} |"
        for row in result["rows"]
    ]
    lines += ["", "| comparison | ratio | target | |", "|---|---|---|---|"]
    for row in result["ratios"]:
        target = row["target"]
        wanted, verdict = ("", "") if target is None else (f"{target:g}", "met" if row["ratio"] >= target else "missed")
        lines.append(f"| {row['comparison']} | {row['ratio']:.2f} | {wanted} | {verdict} |")
    names = (
        "device",
        "cpu_count",
        "torch_device",
        "torch_threads",
        "load_average",
        "jax",
        "torch",
        "transformers",
        "python",
        "date",
    )
    facts = ", ".join(f"{name} {result['about'][name]}" for name in names)
    agreed = f"greedy tokens of exact equal to PyTorch's: {result['greedy_agreement']:.1%}"
    return "\n".join([*lines, "", f"{result['arguments']['dtype']}; {agreed}; {facts}"])


def main(arguments: Arguments) -> None:
    """Compare and print the table."""
    if arguments.threads is not None:
        # XLA counts the cores that the process may use, when it starts.
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.threads]))
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.pytorch_model or Path(temporary) / "random"
        if arguments.pytorch_model is None:
            random_model(SHAPES["small"], arguments.dtype).save_pretrained(folder)
        result = compare(arguments, folder)
    print(table(result))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
