"""Record what the program computes, and check later that a change left all of it bit-identical.

    python tools/record_outputs.py record before.json
    python tools/record_outputs.py check before.json [--only generations,served]

A record holds 200 generations (every preset, order, commit rule, cache, draft, lookahead, grammar
and growth setting, with most pairs of them), 20 updates each of GRPO and of supervised training,
60 served answers, and the number of compilations of a fixed script. Float arrays are recorded as
digests of their bytes. `check` lists every case that differs, and fails if there is one or if
anything compiles more often. Compare on one machine with one version of JAX: others round
differently. `check` uses the XLA_FLAGS of the record. To record another checkout, set PYTHONPATH.

Compilation takes most of the time. With the flags of tests/conftest.py (XLA_FLAGS set to
"--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false") a record takes about five
minutes of one core; a check takes less if JAX_COMPILATION_CACHE_DIR is set.
"""

import argparse
import dataclasses
import hashlib
import http.client
import io
import itertools
import json
import os
import platform
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import uvicorn
from flax import nnx
from safetensors.numpy import load_file, save_file

import jax_lm
from jax_lm.cli import main as cli
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import (
    ALGS,
    CACHES,
    COMMIT_RULES,
    GROWTHS,
    PRESETS,
    RULES_BY_SETTING,
    Decoding,
    GenerationOptions,
)
from jax_lm.serving.api import ServerSettings, create_app
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.middleware import RequestLimits
from jax_lm.templates import Template

Case = dict[str, Any]
"""Settings or result of a case, as JSON holds them."""

PROMPTS = ("def add(a, b):\n", "def is_even(n):\n    ")
GAPS = (
    "def f(x):\n    return <|hole:8|>\n\ny = <|hole|>\n",
    "x = <|hole:8|>\nfor i in <|hole|>:\n",
)
SCHEMA = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'
GRAMMARS = ("python", "json_object", "regex:[a-z]{1,6}", f"json_schema:{SCHEMA}")
NEW_TOKENS = 32
LAYERS = 1
"""Of random models: compiling takes most of the time, and the built-in model has six."""

BESIDE: tuple[Case, ...] = ({"draft": 3}, {"lookahead": 2})
FILTERS: tuple[Case, ...] = (
    {"top_p": 0.9, "top_k": 50},
    {"top_p": None, "top_k": None},
    {"top_p": 0.95, "top_k": 3, "min_p": 0.1},
)
LAYOUTS: tuple[Case, ...] = (
    {"preset": "exact"},
    {"preset": "exact", "block_length": 16},
    {"cache": "prefix", "block_length": 16},
    {"cache": "prefix", "block_length": 16, "refresh_every": 2},
    {"cache": "dual", "block_length": 16},
    {"cache": "dual", "block_length": 16, "first_token": "force"},
    {"preset": "fast", "block_length": 16},
    {"preset": "fast", "block_length": 16, "freeze_prompt": True},
    {"preset": "fast", "block_length": 16, "refresh_every": 2},
    {"preset": "turbo", "block_length": 16},
    {"preset": "turbo", "block_length": 16, "refresh_steps": 3},
    {"cache": "causal", "block_length": 8},
    {"block_length": 8, "active_blocks": 2},
)
"""Each compiles one or two programs; `VARIATIONS` are inputs of those programs and compile nothing."""

VARIATIONS: dict[str, tuple] = {
    "alg": ALGS,
    "commit": (None, *COMMIT_RULES),
    "temperature": (0.0, 0.3, 1.0),
    "alg_temp": (0.0, 0.5),
    "num_steps": (None, 12),
    "tokens_per_step": (1, 2),
    "threshold": (None, 0.3),
    "factor": (None, 3.0),
    "decay": (None, 0.6),
    "entropy_bound": (None, 2.0),
    "growth": ("auto", "off"),
    "grammar": (None, None, None, *GRAMMARS),
    "seed": (0, 7, 123),
    "by": ("decode", "decode", "stream"),
}
CAUSAL: dict[str, tuple] = {
    "add_threshold": (None, 0.5),
    "activate_threshold": (None, 0.5),
    "active_blocks": (None, 2),
}
COUNT = 200
OWN = ("model", "template", "by", "seed", "strict_reference")
"""Settings of a case that are not generation options."""


# Models


def write_model(folder: Path, scale: float, layers: int, *, expands: bool = False) -> Path:
    """Write a random model with the built-in tokenizer that prefers digits, and to grow and end if
    it `expands`.
    """
    shutil.copytree(BUILTIN_MODEL, folder, dirs_exist_ok=True)
    config = DreamForCausalLM.read_config(BUILTIN_MODEL)
    words = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    sizes: Case = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers}
    sizes |= {"initializer_range": scale}
    liked = {words[digit]: 1.5 for digit in "0123456789"}
    if expands:
        added = json.loads((folder / "added_tokens.json").read_text(encoding="utf-8"))
        added["<|expand|>"] = max(added.values()) + 1
        (folder / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
        sizes |= {"vocab_size": config.vocab_size + 64}
        liked |= {added["<|expand|>"]: 1.9, added["<|endoftext|>"]: 1.8}
    model = DreamForCausalLM(dataclasses.replace(config, **sizes), rngs=nnx.Rngs(0))
    # The first hidden unit is large for every token, and only logits of preferred tokens read it.
    assert model.lm_head is not None
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    ids, likings = jnp.array(list(liked)), jnp.array(list(liked.values()))
    embedding[...] = embedding[...].at[:, 0].set(1.0)
    head[...] = head[...].at[:, 0].set(0.0).at[ids, 0].set(likings)
    model.save_pretrained(folder)
    return folder


def write_adapter(folder: Path) -> Path:
    """Write a random LoRA adapter for the models of `write_model`, in PEFT's layout."""
    folder.mkdir()
    shapes = {"self_attn.q_proj": (32, 32), "self_attn.v_proj": (16, 32), "mlp.down_proj": (32, 48)}
    draw, tensors = np.random.default_rng(0), {}
    for layer, (name, (rows, columns)) in itertools.product(range(LAYERS), shapes.items()):
        start = f"base_model.model.model.layers.{layer}.{name}"
        for part, shape in (("A", (4, columns)), ("B", (rows, 4))):
            tensors[f"{start}.lora_{part}.weight"] = draw.normal(size=shape).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    names = [name.partition(".")[2] for name in shapes]
    settings = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": names,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


class Models:
    """Models by name, each loaded once."""

    def __init__(self, folder: Path) -> None:
        self.tiny = write_model(folder / "tiny", 0.4, LAYERS)
        self.growing = write_model(folder / "growing", 0.4, LAYERS, expands=True)
        self.trained = write_model(folder / "trained", 0.05, LAYERS)
        self.adapter = write_adapter(folder / "adapter")

    @cache  # noqa: B019 - lives as long as the process
    def load(self, name: str) -> DiffuCoderInference:
        """Load "tiny", "bfloat16", "int8", "adapter", "growing" or "builtin"."""
        settings: Case = {
            "model_path": None if name == "builtin" else self.tiny,
            "dtype": "float32",
        }
        if name in ("bfloat16", "int8"):
            settings["dtype"] = name
        elif name == "adapter":
            settings["adapter"] = self.adapter
        elif name == "growing":
            settings["model_path"] = self.growing
        return DiffuCoderInference(**settings, verbose=False)


# Generations


def options_of(case: Case) -> GenerationOptions:
    """Return the options of a case. Raises ValueError if its settings contradict each other."""
    inner = {field.name for field in dataclasses.fields(Decoding)} & case.keys()
    outer = case.keys() - inner - set(OWN)
    given = {name: case[name] for name in inner if case[name] is not None}
    settings = {name: case[name] for name in outer}
    # A case may name settings that its commit rule does not read; the options refuse them.
    commit = Decoding(
        **{name: given[name] for name in ("preset", "commit", "cache") if name in given}
    )
    rule = commit.settings.commit
    given = {
        name: value for name, value in given.items() if rule in RULES_BY_SETTING.get(name, (rule,))
    }
    if rule != "steps":
        settings.pop("tokens_per_step", None)
    return GenerationOptions(max_new_tokens=NEW_TOKENS, decoding=Decoding(**given), **settings)


def is_allowed(case: Case) -> bool:
    """Whether the settings of a case go together."""
    is_growing = case["model"] == "growing" and case["template"] != "prompt"
    try:
        options_of(case)
        if is_growing and case["growth"] != "off":
            options_of(case | {"growth": "on"})
    except ValueError:
        return False
    # Repairing an answer compiles further programs: only a few layouts are combined with grammars.
    if case["grammar"] and (
        case["template"] != "prompt" or case.get("block_length") or "draft" in case
    ):
        return False
    # Streams are of completions alone.
    return case["by"] != "stream" or case["template"] == "prompt"


def programs() -> Iterator[Case]:
    """Yield the settings that decide which programs are compiled."""
    usual: Case = {"model": "tiny", "template": "prompt"} | FILTERS[0]
    for layout in LAYOUTS:
        yield usual | layout
    for index, beside in itertools.product((0, 4, 9), BESIDE):
        yield usual | LAYOUTS[index] | beside
    for index, filters in (
        (0, FILTERS[1]),
        (0, FILTERS[2]),
        (6, FILTERS[1] | {"early_stop": False}),
    ):
        yield usual | LAYOUTS[index] | filters
    for name, index in (("bfloat16", 0), ("int8", 6), ("adapter", 0), ("builtin", 9)):
        yield usual | {"model": name} | LAYOUTS[index]
    for index, beside in ((0, {}), (6, {"draft": 3})):
        yield usual | {"template": "gaps"} | LAYOUTS[index] | beside
    yield usual | {"model": "growing", "template": "gaps"}
    yield usual | {"model": "growing", "template": "gap", "growth": "on"}
    yield usual | {"strict_reference": True, "early_stop": False}


def pairs(case: Case) -> set[tuple]:
    """Return every pair of settings of a case."""
    return set(
        itertools.combinations(sorted((name, str(value)) for name, value in case.items()), 2)
    )


def chosen_generations() -> list[Case]:
    """Choose cases, program by program, each with the variation that covers most new pairs of
    settings.
    """
    draw, seen, chosen = random.Random(0), set(), []
    for program in itertools.islice(itertools.cycle(list(programs())), 40 * COUNT):
        values = VARIATIONS | (CAUSAL if program.get("cache") == "causal" else {})
        candidates = [
            {name: draw.choice(choice) for name, choice in values.items()} | program
            for _ in range(400)
        ]
        allowed = [case for case in candidates if is_allowed(case)]
        if allowed:
            chosen.append(max(allowed, key=lambda case: len(pairs(case) - seen)))
            seen |= pairs(chosen[-1])
        if len(chosen) == COUNT:
            break
    return chosen


def require_covered(cases: Sequence[Case]) -> None:
    """Raise ValueError if no case has one of the values that the package lists for an option."""
    all_options = [options_of(case) for case in cases]
    allowed = {"alg": ALGS, "growth": GROWTHS, "grammar": GRAMMARS}
    inner = {"commit": COMMIT_RULES, "cache": CACHES}
    found = {name: {getattr(each, name) for each in all_options} for name in allowed}
    found |= {
        name: {getattr(each.decoding.settings, name) for each in all_options} for name in inner
    }
    found["preset"] = {each.decoding.preset for each in all_options}
    for name, values in (allowed | inner | {"preset": PRESETS}).items():
        if missing := set(values) - found[name]:
            raise ValueError(f"{name}: no case has {', '.join(sorted(missing))}")


def digest(values: Any) -> str:
    """Return a digest of the bytes, dtype and shape of an array."""
    array = np.ascontiguousarray(values)
    kind = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(kind + array.tobytes()).hexdigest()[:16]


def generate(models: Models, case: Case) -> Case:
    """Run a case. Returns token ids, texts, and digests of confidences and commit steps of each
    row.
    """
    inference, options, seed = models.load(case["model"]), options_of(case), case["seed"]
    if case["by"] == "stream":
        events = [
            dataclasses.asdict(event) for event in inference.stream(PROMPTS, options, seed=seed)
        ]
        texts = [
            [event["text"] for event in events if event["row"] == row][-1]
            for row in range(len(PROMPTS))
        ]
        return {"texts": texts, "events": hashlib.sha256(repr(events).encode()).hexdigest()[:16]}
    if case["template"] == "gap":
        texts = [
            inference.infill("x = ", f"  # {number}\n", 24, options=options, seed=seed)
            for number in range(2)
        ]
        return {"texts": texts}
    if case["template"] == "prompt":
        templates = [Template.completion(prompt, NEW_TOKENS) for prompt in PROMPTS]
    else:
        templates = [
            inference.template(text, dataclasses.replace(options, max_new_tokens=12))
            for text in GAPS
        ]
    if case.get("strict_reference"):
        canvas = inference.canvas(templates, options)
        state = inference.sampler.generate(canvas, options, seed=seed, strict_reference=True)
        return {"tokens": np.asarray(state.tokens).tolist(), "confidence": digest(state.confidence)}
    batch = inference.decode(templates, options, seed=seed)
    return {
        "texts": [list(row.holes) for row in batch.rows],
        "tokens": [list(row.token_ids) for row in batch.rows],
        "confidence": [digest(np.array(row.confidence)) for row in batch.rows],
        "steps": [digest(np.array(row.commit_step)) for row in batch.rows],
        "stopped": [row.stopped for row in batch.rows],
        "forwards": batch.forwards,
    }


def named(number: int, case: Case) -> str:
    """Return the name of a case: its number and the settings that differ from the first of each
    list.
    """
    usual: Case = {name: values[0] for name, values in (VARIATIONS | CAUSAL).items()}
    return " ".join(
        [
            f"{number:03}",
            *(f"{name}={value}" for name, value in case.items() if usual.get(name, usual) != value),
        ]
    )


def generations(models: Models, recorded: Mapping[str, Case] | None) -> Iterator[tuple[str, Case]]:
    """Yield generations (those of `recorded`, if given) and likelihood estimates."""
    cases = (
        chosen_generations()
        if recorded is None
        else [each["case"] for each in recorded.values() if "case" in each]
    )
    if recorded is None:
        require_covered(cases)
    for number, case in enumerate(cases):
        yield named(number, case), {"case": case} | generate(models, case)
    for name, seed in itertools.product(("tiny", "bfloat16", "builtin"), (0, 5)):
        score = models.load(name).score(PROMPTS[0], "    return a + b\n", 12, seed=seed)
        yield (
            f"likelihood {name} seed={seed}",
            {"score": [value.hex() for value in score_values(score)]},
        )
    chat = models.load("builtin").chat(
        "Write a function add(a, b).", temperature=0.0, max_new_tokens=NEW_TOKENS
    )
    yield "chat builtin", {"texts": [chat]}
    several = models.load("builtin").generate(list(PROMPTS), NEW_TOKENS, seed=3)
    yield "generate builtin", {"texts": several}


def score_values(score: Any) -> list[float]:
    """Return estimate and standard error."""
    return [float(score.log_likelihood), float(score.standard_error)]


# Training

GRPO: dict[str, Case] = {
    "coupled": {"beta": 0.1, "ref-model-sync-steps": 2},
    "trace": {
        "estimator": "trace", "num-segments": 3, "loss-type": "gspo", "preset": "fast", "block-length": 4,
        "beta": 0, "num-iterations": 1, "scale-rewards": True, "generation-batch-size": 4,
    },
    "stratified, drawn again": {
        "estimator": "stratified", "num-segments": 2, "loss-type": "dr_grpo", "dynamic-sampling": 2,
        "baseline": "mean", "num-iterations": 1, "held-out-prompts": 1, "evaluate-every": 2,
    },
    "full mask, in parts": {
        "estimator": "full_mask", "loss-type": "grpo", "gradient-accumulation-steps": 2, "draft": 2,
        "kl-clamp": 3, "epsilon-high": 0.6, "shuffle-rewards": True,
    },
    "decoupled, adapters in bfloat16": {
        "estimator": "decoupled", "num-mask-pairs": 2, "loss-type": "dapo", "lora-rank": 2, "quantize": "int8",
        "compute-dtype": "bfloat16", "preset": "turbo", "block-length": 4,
    },
}  # fmt: skip
"""Each run makes four updates."""

USUAL_GRPO: Case = {
    "num-generations": 4, "prompts-per-step": 2, "max-new-tokens": 8, "num-steps": 4, "max-steps": 4,
    "learning-rate": 1e-3, "compute-dtype": "float32", "score-chunk": 4, "max-prompt-length": 32, "log-every": 1,
    "template": "none",
}  # fmt: skip
REWARD = "def fives(prompts, completions, **columns):\n    return [float(text.count('5')) for text in completions]\n"

SFT: dict[str, Case] = {
    "whole": {"condition-share": 0.5, "gradient-accumulation-steps": 2, "held-out-share": 0.2, "evaluate-every": 2},
    "packed, plain, Muon": {
        "packed": True, "weighting": "plain", "normalisation": "batch", "level-draws": "antithetic",
        "confident-share": 0.25, "muon-learning-rate": 0.02,
    },
    "adapters on int8": {
        "lora-rank": 2, "quantize": "int8", "weighting": "cart", "normalisation": "masked", "high-levels": True,
        "level-draws": "independent",
    },
    "holes that grow": {"expand-delete": True, "excess-masks": "log", "compute-dtype": "bfloat16"},
    "adapt": {
        "annealing-steps": 2, "cut-share": 0.3, "prefix-share": 0.3, "max-weight": 8, "optim": "adafactor",
        "warmup-steps": 1,
    },
}  # fmt: skip
"""Each run makes four updates, the last one with the command `adapt`."""

USUAL_SFT: Case = {
    "max-length": 48,
    "batch-size": 4,
    "max-steps": 4,
    "learning-rate": 0.01,
    "log-every": 1,
}


def train(command: str, out: Path, settings: Case) -> Case:
    """Run a training command.

    Returns exact metrics, digests of the weights, and the completions.
    """
    options = [f"--{name}={value}" for name, value in settings.items()]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = cli.main([command, *options, f"--out={out}"])
    if status:
        raise RuntimeError(f"{command} {' '.join(options)}: {said.getvalue()}")
    metrics = [
        json.loads(line)
        for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (weights,) = out.glob("*/*model.safetensors")
    # Metrics of rewards are named after their file, which is in another folder each time.
    place = f"{out.parent}/"
    return {
        "metrics": [
            {
                name.replace(place, ""): exact(value)
                for name, value in entry.items()
                if "second" not in name
            }
            for entry in metrics
        ],
        "weights": {name: digest(value) for name, value in sorted(load_file(weights).items())},
        "completions": [
            path.read_text(encoding="utf-8").replace(place, "")
            for path in sorted(out.glob("completions/*.jsonl"))
        ],
    }


def exact(value: Any) -> Any:
    """Return a float as hexadecimal, which keeps all of its bits."""
    return value.hex() if isinstance(value, float) else value


def grpo(models: Models, recorded: Mapping[str, Case] | None) -> Iterator[tuple[str, Case]]:
    """Yield the results of GRPO runs, 20 updates in all."""
    with tempfile.TemporaryDirectory() as folder:
        data, reward = Path(folder, "prompts.jsonl"), Path(folder, "digits.py")
        data.write_text(
            "".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "abcd", "c", "dd", "e"))
        )
        reward.write_text(REWARD)
        files = {"model": models.trained, "data": data, "reward-funcs": f"{reward}:fives"}
        for number, (name, settings) in enumerate(GRPO.items()):
            yield name, train("grpo", Path(folder, str(number)), files | USUAL_GRPO | settings)


def sft(models: Models, recorded: Mapping[str, Case] | None) -> Iterator[tuple[str, Case]]:
    """Yield the results of supervised runs, 20 updates in all."""
    with tempfile.TemporaryDirectory() as folder:
        talks, texts = Path(folder, "talks.jsonl"), Path(folder, "texts.jsonl")
        rows = [
            {"prompt": f"Add {i} to {i % 3}.", "response": f"a = {i}\nprint(a + {i % 3})"}
            for i in range(30)
        ]
        talks.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = [{"text": f"def f{i}(x):\n    return x + {i}\n" * (i % 4 + 1)} for i in range(40)]
        texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for number, (name, settings) in enumerate(SFT.items()):
            command, data = ("adapt", texts) if name == "adapt" else ("sft", talks)
            files: Case = {"model": models.trained, "data": data}
            if command == "sft":
                files["template"] = "chat"
            yield name, train(command, Path(folder, str(number)), files | USUAL_SFT | settings)


# Served answers

TALK = [{"role": "user", "content": "Write a function add(a, b)."}]
COMPLETION, CHAT, INFILL, DENOISE = (
    "/v1/completions",
    "/v1/chat/completions",
    "/infill",
    "/v1/denoise",
)
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "one", "strict": True, "schema": json.loads(SCHEMA)},
}
KINDS: tuple[tuple[str, Case], ...] = (
    (COMPLETION, {"prompt": PROMPTS[0], "logprobs": 3}),
    (COMPLETION, {"prompt": PROMPTS[1], "stream": True, "preset": "fast"}),
    (COMPLETION, {"prompt": list(PROMPTS), "n": 2, "echo": True}),
    (COMPLETION, {"prompt": PROMPTS[0], "stop": ["5", "\n\n"]}),
    (COMPLETION, {"prompt": "x = ", "suffix": "\nprint(x)\n", "alg": "left_to_right"}),
    (COMPLETION, {"prompt": PROMPTS[0], "preset": "turbo", "ignore_eos": True}),
    (COMPLETION, {"prompt": PROMPTS[1], "grammar": "python", "preset": "exact"}),
    (COMPLETION, {"prompt": PROMPTS[1], "threshold": 0.3, "min_p": 0.1, "logprobs": 0}),
    (CHAT, {"messages": TALK, "logprobs": True, "top_logprobs": 2, "preset": "turbo"}),
    (CHAT, {"messages": TALK, "stream": True, "stop": "7"}),
    (CHAT, {"messages": TALK, "response_format": FORM, "preset": "exact"}),
    (CHAT, {"messages": TALK, "n": 3, "alg": "topk_margin", "steps": 12}),
    (
        INFILL,
        {"input_prefix": "def f(x):\n", "prompt": "    y = ", "input_suffix": "\n    return y\n"},
    ),
    (INFILL, {"input_prefix": "a = ", "input_suffix": "\n", "n_cmpl": 2, "preset": "fast"}),
    (DENOISE, {"prompt": PROMPTS[0], "alg": "origin"}),
    (DENOISE, {"messages": TALK, "entropy_bound": 1.0}),
)
GREEDY, DRAWN = (
    {"temperature": 0.0, "seed": 0},
    {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "seed": 11},
)


@contextmanager
def listening(
    inference: DiffuCoderInference, *, slots: int, draft: int = 0
) -> Iterator[tuple[str, int]]:
    """Start a server, wait until it has compiled all batch sizes, and yield host and port."""
    options = EngineOptions(
        queue=64,
        context=96,
        max_tokens=64,
        timeout=120.0,
        warm_up=("1", "fast:1"),
        slots=slots,
        draft=draft,
    )
    engine = Engine(inference, options)
    engine.start()
    engine.ready.wait()
    app = create_app(engine, ServerSettings(model="tiny"), RequestLimits())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        )
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(20)
            engine.close(grace=0.0)


def ask(address: tuple[str, int], path: str, body: Case) -> Case:
    """Send a request. Returns status and answer; the events of a stream are joined."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if not (answer.headers.get("content-type") or "").startswith("text/event-stream"):
        return {"status": answer.status, "answer": lasting(json.loads(text))}
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")
    ]
    return {"status": answer.status, "answer": joined([json.loads(event) for event in events])}


def lasting(value: Any) -> Any:
    """Drop the fields of an answer that change with every request, and keep all bits of floats.

    The settings that an answer repeats, and the tokens of a cache of prompts, are not computed.
    """
    passing = ("id", "created", "timings", "generation_settings", "tokens_cached")
    if isinstance(value, dict):
        return {name: lasting(inner) for name, inner in value.items() if name not in passing}
    return [lasting(inner) for inner in value] if isinstance(value, list) else exact(value)


def joined(events: list[Case]) -> Case:
    """Join the events of a stream, as the split into events depends on timing."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for choice in itertools.chain.from_iterable(event.get("choices", ()) for event in events):
        index, delta = (
            choice["index"],
            choice.get("delta", {}).get("content") or choice.get("text") or "",
        )
        texts[index] = texts.get(index, "") + delta
        ends[index] = choice.get("finish_reason") or ends.get(index, "")
    commits = [commit for event in events for commit in event.get("commits", ())]
    last = {
        name: value
        for name, value in events[-1].items()
        if name in ("text", "finish_reason", "tokens", "forwards")
    }
    decided = sorted((each["position"], each["step"], each["token_id"]) for each in commits)
    return {"texts": sorted(texts.items()), "ends": sorted(ends.items()), "commits": decided} | last


def served(models: Models, recorded: Mapping[str, Case] | None) -> Iterator[tuple[str, Case]]:
    """Yield 60 answers: one at a time, concurrent, with drafts, and for holes that grow."""
    lengths = {INFILL: "n_predict"}
    asked = [
        (path, {lengths.get(path, "max_tokens"): 24} | drawn | body)
        for drawn in (GREEDY, DRAWN)
        for path, body in KINDS
    ]
    # Concurrent requests share batches of varying size. Their texts do not depend on that;
    # log-probabilities may.
    crowd = [each for each in asked if not {"logprobs", "n"} & each[1].keys()][:16]
    with listening(models.load("tiny"), slots=4) as address:
        for number, (path, body) in enumerate(asked):
            yield f"alone {number:02} {path}", ask(address, path, body)
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda each: ask(address, *each), crowd)
            for number, (each, answer) in enumerate(zip(crowd, answers, strict=True)):
                yield f"together {number:02} {each[0]}", answer
    # Holes that grow are decoded without a cache.
    gaps = [
        (path, body | {"preset": "exact"})
        for path, body in asked
        if path == INFILL or "suffix" in body
    ]
    for name, settings, chosen in (("tiny", {"draft": 2}, asked[3:9]), ("growing", {}, gaps)):
        with listening(models.load(name), slots=1, **settings) as address:
            for number, (path, body) in enumerate(chosen):
                yield f"{name} {settings} {number:02} {path}", ask(address, path, body)


# Compilations


def compilations(models: Models, recorded: Mapping[str, Case] | None) -> Iterator[tuple[str, Case]]:
    """Yield the compilations of a fixed script, run in a subprocess without the compilation cache."""
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, __file__, "count", "-"]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for name, count in json.loads(result.stdout.splitlines()[-1]).items():
        yield name, {"compilations": count}


def count_compilations(models: Models) -> dict[str, int]:
    """Run the fixed script. Returns the number of compilations of each part."""
    heard: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: heard.append(event)
    )
    tiny, growing = models.load("tiny"), models.load("growing")
    short = GenerationOptions(max_new_tokens=NEW_TOKENS)

    def complete(**settings: Any) -> Callable[[], Any]:
        return lambda: tiny.complete(PROMPTS, short.with_settings(**settings))

    def run(command: Callable, name: str) -> Callable[[], Any]:
        return lambda: next(item for item in command(models, None) if item[0] == name)

    def serve() -> None:
        with listening(tiny, slots=1) as address:
            for path, body in KINDS[:4]:
                ask(address, path, {"max_tokens": 24} | GREEDY | body)

    script: dict[str, Callable[[], Any]] = {
        "complete": complete(),
        "complete with other numbers": complete(
            temperature=0.0, alg="origin", commit="threshold", block_length=0
        ),
        "fast": complete(preset="fast", block_length=16),
        "turbo": complete(preset="turbo", block_length=16),
        "causal": complete(cache="causal", block_length=8),
        "draft": complete(draft=3),
        "lookahead": complete(preset="turbo", lookahead=2),
        "grammar": complete(grammar="json_object"),
        "stream": lambda: list(tiny.stream(PROMPTS, short)),
        "one prompt": lambda: [tiny.complete([prompt], short) for prompt in PROMPTS],
        "fill": lambda: [tiny.fill(text, short) for text in GAPS],
        "grow": lambda: [growing.fill(text, short) for text in GAPS],
        "likelihood": lambda: tiny.score(*PROMPTS, 12),
        "serve": serve,
        "grpo": run(grpo, "coupled"),
        "sft": run(sft, "whole"),
    }
    counts = {}
    for name, part in script.items():
        heard.clear()
        part()
        counts[name] = heard.count("/jax/core/compile/backend_compile_duration")
    return counts


# Records

PARTS = {each.__name__: each for each in (generations, grpo, sft, served, compilations)}


def environment() -> Case:
    """Return what results depend on (machine, versions, flags), and the commit."""
    checkout = Path(jax_lm.__file__).parent.parent
    git = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True
    )
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "commit": git.stdout.strip(),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in packages},
        "processor": [models[0] if models else platform.processor(), os.cpu_count()],
        "devices": [device.device_kind for device in jax.devices()],
        "flags": {
            name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ
        },
    }


def run_part(
    name: str, models: Models, recorded: Mapping[str, Case] | None = None
) -> dict[str, Case]:
    """Run a part, with a progress line."""
    start, results = time.monotonic(), {}
    for case, result in PARTS[name](models, recorded):
        # As it is read back from JSON: tuples become lists.
        results[case] = json.loads(json.dumps(result))
        print(f"\r{name}: {len(results)}", end="", file=sys.stderr, flush=True)
    print(f"\r{name}: {len(results)} cases, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return results


def differences(name: str, before: Mapping[str, Case], now: Mapping[str, Case]) -> Iterator[str]:
    """Yield a line for each case that differs. Fewer compilations are not a difference."""
    for case in before.keys() | now.keys():
        old, new = before.get(case), now.get(case)
        if old is None or new is None:
            yield f"{name}: {case}: {'not recorded' if old is None else 'no longer there'}"
        elif name == "compilations":
            if new["compilations"] > old["compilations"]:
                yield f"{name}: {case}: {old['compilations']} before, {new['compilations']} now"
        elif old != new:
            fields = [
                field for field in old.keys() | new.keys() if old.get(field) != new.get(field)
            ]
            parts = (
                f"{field}: {old.get(field)!s:.200} before, {new.get(field)!s:.200} now"
                for field in sorted(fields)
            )
            yield f"{name}: {case}: {'; '.join(parts)}"


def main() -> int:
    """Record or check. Returns 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command", choices=("record", "check", "count"), help="count: the compilations alone"
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    record: Case = {}
    if arguments.command == "check":
        record = json.loads(arguments.file.read_text(encoding="utf-8"))
        # XLA reads them when the first array is created.
        for name, value in record["environment"]["flags"].items():
            os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        if arguments.command == "count":
            print(json.dumps(count_compilations(models)))
            return 0
        if arguments.command == "record":
            record = {"environment": environment()}
            for name in chosen:
                record[name] = run_part(name, models)
                # After each part, so that an interrupted record holds the parts before.
                arguments.file.write_text(json.dumps(record, indent=1) + "\n")
            return 0
        here = environment()
        for name in here.keys() - {"commit"}:
            if here[name] != record["environment"][name]:
                print(f"{name}: recorded with {record['environment'][name]}, this is {here[name]}")
        found = [
            line
            for name in chosen
            for line in sorted(
                differences(name, record[name], run_part(name, models, record[name]))
            )
        ]
    print(
        "\n".join([*found, f"{len(found)} differences from {record['environment']['commit'][:12]}"])
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
