"""A 0.5B model on a laptop: our precisions and presets beside PyTorch's loop of the same model.

    python experiments/laptop.py --model dream --base Qwen2.5-Coder-0.5B-Instruct --open-dllm FOLDER

FOLDER is a checkout of github.com/pengzhangzhi/Open-dLLM, whose loop (`p2`, as its authors decode
their 0.5B model) runs as published, over transformers' Qwen2 under full attention. Both folders hold
the same weights; the speed does not depend on what they know, but the steps of `turbo` do. Every row
is a process of its own: one call to compile, then the median of `repeats` calls on an idle machine.
The rows of one precision follow each other. Needs torch and transformers (extra `parity`).

Answers are not ended early. "First" is the time to the first committed token of a stream, after
compilation; a loop without a stream shows nothing before its end.
"""

import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from jax_lm.host.declared import run_main

PROMPT = "def is_prime(n):\n"
NEW_TOKENS = 64
P2 = {"alg": "p2", "temperature": 0.8, "top_p": 0.95, "top_k": None}
DIFFUSION = {"temperature": 0.3, "top_p": 0.95}
# Name of a row: precision, and settings of ours; None is PyTorch.
ROWS = {
    "PyTorch float32": ("float32", None),
    "p2 float32": ("float32", P2),
    "fast float32": ("float32", {"preset": "fast"} | DIFFUSION),
    "turbo float32": ("float32", {"preset": "turbo"} | DIFFUSION),
    "PyTorch bfloat16": ("bfloat16", None),
    "p2 bfloat16": ("bfloat16", P2),
    "fast bfloat16": ("bfloat16", {"preset": "fast"} | DIFFUSION),
    "turbo bfloat16": ("bfloat16", {"preset": "turbo"} | DIFFUSION),
    "fast int8": ("int8", {"preset": "fast"} | DIFFUSION),
    "turbo int8": ("int8", {"preset": "turbo"} | DIFFUSION),
    "fast int4": ("int4", {"preset": "fast"} | DIFFUSION),
    "turbo int4": ("int4", {"preset": "turbo"} | DIFFUSION),
}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure.

    Attributes:
        model: folder of the weights under Dream's config.
        base: the same weights under Qwen2's config, for PyTorch.
        open_dllm: checkout of Open-dLLM.
        repeats: timed calls.
        row: measure one row in this process; all rows, each in its own, if not given.
        out: JSON file for the rows.
    """

    model: Path
    base: Path
    open_dllm: Path
    repeats: int = 2
    row: str | None = None
    out: Path | None = None


def time_ours(folder, dtype, settings, repeats):
    """Time a decoding of ours: seconds of calls, forward passes, and seconds to the first token."""
    import jax
    import numpy as np

    from jax_lm.benchmark.backend import pad_canvas
    from jax_lm.inference import DiffuCoderInference
    from jax_lm.options import GenerationOptions

    engine = DiffuCoderInference(str(folder), dtype=dtype)
    options = GenerationOptions(max_new_tokens=NEW_TOKENS, early_stop=False).with_settings(
        **settings
    )
    ids = np.asarray([engine.tokenizer.encode(PROMPT)], np.int32)
    canvas = pad_canvas(ids, NEW_TOKENS)

    def generate():
        state = engine.sampler.generate(canvas, options)
        return int(jax.block_until_ready(state).forwards)

    def first():
        start = time.monotonic()
        for state in engine.sampler.stream(canvas, options):
            if np.asarray(state.masked).sum() < NEW_TOKENS:
                return time.monotonic() - start

    forwards = generate()
    seconds = []
    for _ in range(repeats):
        start = time.monotonic()
        generate()
        seconds.append(time.monotonic() - start)
    first()
    return seconds, forwards, first()


def time_theirs(folder, open_dllm, dtype, repeats):
    """Time the published loop over transformers' model: seconds of calls, and forward passes."""
    import torch
    import transformers

    path = open_dllm / "veomni/models/transformers/qwen2/generation_utils.py"
    spec = importlib.util.spec_from_file_location("generation_utils", path)
    code = sys.modules["generation_utils"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.Qwen2ForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    calls = SimpleNamespace(forwards=0)

    class Full(torch.nn.Module):
        """The model under full attention."""

        def __init__(self):
            super().__init__()
            self.model, self.config, self.device = model, config, torch.device("cpu")

        @torch.no_grad()
        def forward(self, input_ids, **_):
            calls.forwards += 1
            length = input_ids.shape[1]
            mask = torch.zeros(1, 1, length, length, dtype=model.dtype)
            return model(input_ids, attention_mask=mask, use_cache=False)

    mixed = type("Mixed", (Full, code.MDMGenerationMixin), {})()
    settings = code.MDMGenerationConfig(
        mask_token_id=151_666, max_new_tokens=NEW_TOKENS, steps=NEW_TOKENS, **P2
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    seconds = []
    # Nothing is compiled, so nothing needs a warm-up.
    for _ in range(repeats):
        calls.forwards = 0
        start = time.monotonic()
        mixed.diffusion_generate(ids, settings)
        seconds.append(time.monotonic() - start)
    return seconds, calls.forwards, None


def measure(arguments, name):
    """Measure a row in this process."""
    dtype, settings = ROWS[name]
    # Rows that take minutes are timed once.
    repeats = arguments.repeats if settings not in (None, P2) else 1
    if settings is None:
        found = time_theirs(arguments.base, arguments.open_dllm, dtype, repeats)
    else:
        found = time_ours(arguments.model, dtype, settings, repeats)
    seconds, forwards, first = found
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "tokens_per_second": NEW_TOKENS / median,
        "forwards": forwards,
        "first": first,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "all": seconds,
    }


def main(arguments: Arguments) -> int:
    """Measure a row, or every row in a process of its own."""
    if arguments.row is not None:
        print(json.dumps(measure(arguments, arguments.row)))
        return 0
    rows = {}
    print("| row | s | tokens/s | forwards | first, s | peak, GB |\n|---|---|---|---|---|---|")
    for name in ROWS:
        options = {
            "model": arguments.model,
            "base": arguments.base,
            "open-dllm": arguments.open_dllm,
        }
        words = [f"--{key}={value}" for key, value in options.items()]
        command = [
            sys.executable,
            __file__,
            *words,
            f"--repeats={arguments.repeats}",
            "--row",
            name,
        ]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = rows[name] = json.loads(output.splitlines()[-1])
        first = "" if row["first"] is None else f"{row['first']:.2f}"
        print(
            f"| {name} | {row['seconds']:.2f} | {row['tokens_per_second']:.2f} | {row['forwards']} "
            f"| {first} | {row['peak_gb']:.2f} |",
            flush=True,
        )
        if arguments.out is not None:
            record = {"arguments": {k: str(v) for k, v in asdict(arguments).items()}, "rows": rows}
            arguments.out.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(run_main(Arguments)))
