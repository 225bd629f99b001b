"""Arguments of the commands that measure quality: `diffucoder eval`, `diffucoder analyze`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Analyze:
    """Measure how a model decodes: AR-ness, order, confidence, and the effect of temperature on them.

    The definitions are those of the DiffuCoder paper (arXiv 2506.20639). Programs are executed in the sandbox for
    pass@k.

    Examples:
        diffucoder analyze --out analysis
        diffucoder analyze humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Base
            --max-new-tokens 512 --limit 20 --n 4 --out analysis

    Attributes:
        suite: whose prompts are completed; builtin is the held-out side of the built-in model's corpus.
        data: the file of the problems; none for builtin.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of problems.
        n: samples per problem and temperature.
        temperatures: each is decoded anew.
        max_new_tokens: length of the canvas; as many steps, unless steps says otherwise.
        steps: fewer than positions follow the published schedule, which then decides several positions at once: these
            are ordered by their confidence, which the paper leaves open; the output says so.
        alg: order of unmasking; maskgit_plus is the low-confidence remasking of the paper.
        top_p: mass of the nucleus.
        top_k: number of candidates per position.
        seed: of the random draws.
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        out: folder for analysis.json, analysis.html and the pictures.
    """

    suite: tyro.conf.Positional[Literal["builtin", "humaneval", "mbpp"]] = "builtin"
    data: Path | None = None
    model: str | None = None
    dtype: str | None = None
    limit: int = 8
    n: int = 2
    temperatures: tuple[float, ...] = (0.0, 0.5, 1.0)
    max_new_tokens: int = 64
    steps: int | None = None
    alg: str = "maskgit_plus"
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"
    out: Path = Path("analysis")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure pass@k by executing unit tests.

    The programs run in the sandbox; where this host has none, the command refuses (see `diffucoder sandbox check`).

    Examples:
        diffucoder eval builtin
        diffucoder eval builtin --limit 64 --preset turbo --out results
        diffucoder eval humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Instruct --out results
        diffucoder eval humaneval+ --data HumanEvalPlus-OriginFmt.jsonl.gz --n 10 --k 1 10 --temperature 0.4
        diffucoder eval infilling --data HumanEval-SingleLineInfilling.jsonl.gz --middle-length auto
        diffucoder eval mbpp+ --data MbppPlus-OriginFmt.jsonl.gz --canonical

    Attributes:
        suite: builtin is the held-out side of the built-in model's corpus, the others are published files.
        data: the file of the problems, .jsonl or .jsonl.gz; none for builtin.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of problems, evenly spread over a file; 300 for builtin and all of a file if not given.
        n: samples per problem.
        k: the k of pass@k, at most n.
        batch_size: answers decoded together.
        max_new_tokens: length of the canvas, or the longest gap tried; if not given 512 as published, and 144 for the
            built-in model, the built-in tasks and infilling.
        middle_length: of infilling, tokens of a gap, "auto" (the likeliest of several) or "oracle" (as many as the
            canonical filling has); max_new_tokens if not given.
        chat: ask as chat models are asked; chosen by itself for the published instruct models.
        base: let the model complete the text even if it is an instruct model.
        canonical: score the canonical solutions instead of a model: all of them must pass.
        empty: score empty bodies instead of a model: none may pass.
        steps: denoising steps; one token per step if not given.
        temperature: 0 is greedy; if not given 0.2 as published, and 0 for builtin and infilling.
        alg: order of unmasking.
        alg_temp: above 0, positions are drawn instead of the most confident taken.
        top_p: mass of the nucleus.
        top_k: number of candidates per position.
        seed: of the random draws.
        preset: exact, fast or turbo.
        out: folder for attempts.jsonl, report.md and report.html. A run that was killed goes on there when it is
            started again with the same settings.
        timeout: seconds for the tests of a program; what the suite needs if not given (5 to 30).
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        allow_unsafe_exec: run what the model wrote without containment where there is none.
    """

    suite: tyro.conf.Positional[Literal["builtin", "humaneval", "humaneval+", "mbpp", "mbpp+", "infilling"]]
    data: Path | None = None
    model: str | None = None
    dtype: str | None = None
    limit: int | None = None
    n: int = 1
    k: tuple[int, ...] = (1,)
    batch_size: int = 25
    max_new_tokens: int | None = None
    middle_length: int | Literal["auto", "oracle"] | None = None
    chat: bool = False
    base: bool = False
    canonical: bool = False
    empty: bool = False
    steps: int | None = None
    temperature: float | None = None
    alg: str = "entropy"
    alg_temp: float = 0.0
    top_p: float | None = 0.95
    top_k: int | None = 50
    seed: int = 0
    preset: str = "exact"
    out: Path | None = None
    timeout: float | None = None
    executor: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto"
    allow_unsafe_exec: bool = False
