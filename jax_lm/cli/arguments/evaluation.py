"""Arguments of the commands that measure quality: `diffucoder eval`, `diffucoder analyze`.

Imports no JAX.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jax_lm.cli.arguments.engine import EngineArguments
from jax_lm.config import Fields, Floats, Ints
from jax_lm.host.declared import Positional
from jax_lm.options import (
    GenerationOptions,
    require_at_most_one,
    require_not_negative,
    require_only,
    require_sizes,
)

# Default decoding of `analyze`: one token per step over the whole canvas, by the paper's
# low-confidence remasking.
ONE_PER_STEP = GenerationOptions(
    max_new_tokens=64, temperature=0.0, top_p=None, top_k=None, alg="maskgit_plus", early_stop=False
)

# Suites of small programs with a gap to fill: their answers are short, and they ask no questions.
SMALL_SUITES = ("builtin", "infilling")


@dataclass(frozen=True, kw_only=True)
class Analyze:
    """Measure how a model decodes: AR-ness, order, confidence, and how temperature affects them.

    Definitions are those of the DiffuCoder paper (arXiv 2506.20639). Programs run in the sandbox
    for pass@k.

    Examples:
        diffucoder analyze --out analysis
        diffucoder analyze humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Base --limit 20

    Attributes:
        suite: problems to complete; builtin is the held-out part of the built-in model's corpus.
        data: file of the problems; none for builtin.
        engine: the model, and the devices that it runs on.
        limit: number of problems.
        n: samples per problem and temperature.
        temperatures: sampling temperatures; each is measured separately.
        generation: max_new_tokens is the length of the canvas. It is also the number of steps,
            unless num_steps is smaller: then the published schedule commits several positions per
            step. The paper does not define their order, so they are ordered by confidence, and the
            output says so.
        seed: random seed.
        executor: isolation of programs; auto is bubblewrap, or else Landlock.
        out: folder for analysis.json, analysis.html and the charts.
    """

    FIRST = "model data limit n temperatures max_new_tokens num_steps alg seed out"

    suite: Positional[Literal["builtin", "humaneval", "mbpp"]] = "builtin"
    data: Path | None = None
    engine: EngineArguments
    limit: int = 8
    n: int = 2
    temperatures: Floats = (0.0, 0.5, 1.0)
    generation: GenerationOptions = ONE_PER_STEP
    seed: int = 0
    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"
    out: Path = Path("analysis")

    def __post_init__(self):
        require_sizes(self, "limit", "n")
        require_not_negative(self, "seed", "temperatures")
        # a step commits at least one position
        steps = self.generation.num_steps
        positions = self.generation.max_new_tokens
        if steps is not None and steps > positions:
            raise ValueError(f"num_steps={steps}: must be between 1 and max_new_tokens={positions}")
        # each temperature is measured in turn, and stop tokens must not end a canvas
        whole = {"temperature": 0.0, "early_stop": False}
        require_only(self.generation, whole, "as analyze decodes whole canvases at `temperatures`")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure pass@k by executing unit tests.

    Programs run in the sandbox; the command refuses to run on a host without one (see `diffucoder
    sandbox check`).

    Examples:
        diffucoder eval builtin
        diffucoder eval builtin --limit 64 --preset turbo --out results
        diffucoder eval builtin --adapter out/lora/adapter
        diffucoder eval humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Instruct --out results
        diffucoder eval humaneval+ --data HumanEvalPlus-OriginFmt.jsonl.gz --n 10 --k 1 10 --temperature 0.4
        diffucoder eval infilling --data HumanEval-SingleLineInfilling.jsonl.gz --middle-length auto
        diffucoder eval mbpp+ --data MbppPlus-OriginFmt.jsonl.gz --canonical
        diffucoder eval livecodebench --data test.jsonl --model apple/DiffuCoder-7B-Instruct --limit 100

    Attributes:
        suite: benchmark; builtin are held-out problems of the built-in model's corpus, the others
            are published files.
        data: file of the problems, .jsonl or .jsonl.gz; none for builtin.
        engine: the model, and the devices that it runs on.
        limit: number of problems, spread evenly over the file; by default 300 of builtin and all of
            a file.
        n: samples per problem.
        k: values of k for pass@k, at most n.
        batch_size: number of answers decoded together.
        generation: max_new_tokens is the length of the canvas, or of the longest gap that is tried.
            It is 512 by default, as published, and 144 for the built-in model, builtin and
            infilling. The temperature is 0.2 by default, as published, and 0 for builtin and
            infilling.
        middle_length: tokens of an infilled gap, auto (the most likely of several lengths) or
            oracle (the length of the canonical filling); max_new_tokens by default.
        chat: use the chat template; the default for the published instruct models.
        base: complete the text even with an instruct model.
        canonical: score the canonical solutions instead of a model; all of them must pass.
        empty: score empty bodies instead of a model; none of them may pass.
        seed: random seed.
        out: folder for attempts.jsonl, report.md and report.html. A killed run resumes there if it
            has the same settings.
        timeout: seconds for each test of a program; by default what the suite needs (5 to 60).
        executor: isolation of programs; auto is bubblewrap, or else Landlock.
        allow_unsafe_exec: run programs without isolation if the host has none.
        same_process: some tests work only in the process of the program. Judge them there. The
            program could fake such a verdict, so the report counts them.
        canary: after a script of assertions has passed, run it once more with changed assertions. A
            script that passes again cannot be judged.
    """

    FIRST = "model data limit n k temperature max_new_tokens preset batch_size out"

    suite: Positional[
        Literal["builtin", "humaneval", "humaneval+", "mbpp", "mbpp+", "infilling", "livecodebench"]
    ]
    data: Path | None = None
    engine: EngineArguments
    limit: int | None = None
    n: int = 1
    k: Ints = (1,)
    batch_size: int = 25
    generation: GenerationOptions
    middle_length: int | Literal["auto", "oracle"] | None = None
    chat: bool = False
    base: bool = False
    canonical: bool = False
    empty: bool = False
    seed: int = 0
    out: Path | None = None
    timeout: float | None = None
    executor: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto"
    allow_unsafe_exec: bool = False
    same_process: bool = False
    canary: bool = True

    IMPLIED: ClassVar = {
        "max_new_tokens": "512; 144 for builtin, infilling and the built-in model",
        "temperature": "0.2; 0 for builtin and infilling",
    }

    @staticmethod
    def implied(given: Fields) -> Fields:
        """Return the published length and temperature, or short and greedy answers for small tasks."""
        if given.get("suite") in SMALL_SUITES:
            return {"max_new_tokens": 144, "temperature": 0.0}
        # the built-in model (no `model` and no `adapter`) has a short context, whatever the suite
        is_named = given.get("model") is not None
        # an adapter's base is known only where its files are
        if not is_named and (adapter := given.get("adapter")) is not None:
            file = Path(adapter).expanduser() / "adapter_config.json"
            is_named = not file.is_file() or '"builtin"' not in file.read_text()
        return {"max_new_tokens": 512 if is_named else 144, "temperature": 0.2}

    def __post_init__(self):
        require_at_most_one(self, "chat", "base", "canonical", "empty")
        # options of sampling, which known solutions do not need
        if self.canonical or self.empty:
            for name in ("n", "k", "batch_size", "middle_length", "seed", "out"):
                if (value := getattr(self, name)) != getattr(Evaluate, name):
                    raise ValueError(f"{name}={value}: not with canonical or empty")
            if self.engine != EngineArguments():
                raise ValueError(
                    f"{self.engine.name}: model and device go without canonical or empty"
                )
        # problems of small suites are programs to complete, not questions
        if self.chat and self.suite in SMALL_SUITES:
            raise ValueError(
                f"chat: problems of {self.suite} are programs to complete, not questions"
            )
        if self.middle_length is not None and self.suite not in SMALL_SUITES:
            raise ValueError(
                f"middle_length={self.middle_length!r}: problems of {self.suite} have no gap"
            )
        require_sizes(self, "n", "limit", "batch_size")
        # pass@k needs at least k samples per problem
        if not self.k or not all(1 <= k <= self.n for k in self.k):
            raise ValueError(
                f"k={' '.join(map(str, self.k))}: each must be between 1 and n={self.n}"
            )
        if self.timeout is not None and not 0 < self.timeout <= 3600:
            raise ValueError(f"timeout={self.timeout}: must be above 0 and at most 3600 seconds")
        # without random draws, further samples would be copies
        options = self.generation
        is_random = options.temperature or options.alg_temp or options.alg in ("random", "origin")
        if self.n > 1 and not is_random:
            raise ValueError(f"n={self.n}: at temperature 0 all samples of a problem are equal")
