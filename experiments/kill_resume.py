"""Kill a small run with SIGKILL at random moments, resume it each time, and compare with the
uninterrupted run.

    python experiments/kill_resume.py sft --kills 10
    python experiments/kill_resume.py grpo --kills 10

SFT is that of a tiny model; GRPO that of the built-in model, with unit tests in the sandbox as
rewards. A run that ends before all kills are spent is compared, and another begins. Prints one JSON
line per run that ended, and exits with 1 if any byte of the weights differs.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer


@dataclass(frozen=True, kw_only=True)
class KillResume:
    """Kill and resume.

    Attributes:
        what: sft or grpo.
        kills: how often.
        seed: of the moments.
    """

    what: Positional[Literal["sft", "grpo"]]
    kills: int = 10
    seed: int = 0


WEIGHTS = "model/model.safetensors"
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SFT = {
    "length": 48,
    "rows": 8,
    "steps": 400,
    "save-every": 5,
    "learning-rate": 0.003,
    "packed": True,
}
GRPO = {
    "data": "builtin", "prompts": 40, "reward-funcs": "completed_code", "reward-weights": 1.0, "num-generations": 4,
    "prompts-per-step": 2, "max-prompt-length": 64, "max-completion-length": 32, "decoding": "turbo",
    "diffusion-steps": None, "ref-model-sync-steps": 4, "score-chunk": 8, "max-steps": 12, "save-every": 1,
    "learning-rate": 1e-4, "compute-dtype": "float32",
}  # fmt: skip


def prepare(folder: Path) -> None:
    """A model of one layer, and conversations."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    config = DreamConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id,
    )
    DreamForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = (
        {"prompt": f"Add {i} to {i % 7}.", "response": f"print({i} + {i % 7})"} for i in range(200)
    )
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, out: Path, config: KillResume) -> list[str]:
    options = (
        SFT | {"data": folder / "data.jsonl", "model": folder / "model"}
        if config.what == "sft"
        else GRPO
    )
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    return [sys.executable, "-m", "jax_lm", config.what, "--out", str(out), *words]


def entries(out: Path) -> int:
    """Lines of a run's metrics so far."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def killed(process: subprocess.Popen, out: Path, until: int, delay: float) -> bool:
    """Kill a process some seconds after its metrics have so many lines; whether it had not ended
    before.
    """
    while process.poll() is None and entries(out) < until:
        time.sleep(0.005)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def newest(out: Path) -> int:
    folder = out / "checkpoints"
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=0)


def main(config: KillResume) -> int:
    rng, killed_at, run, differs = random.Random(config.seed), [], 0, False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache")
        subprocess.run(command(folder, folder / "whole", config), check=True, capture_output=True)
        expected, lines = (folder / "whole" / WEIGHTS).read_bytes(), entries(folder / "whole")
        while run == 0 or len(killed_at) < config.kills:
            out, here = folder / f"run-{run}", []
            process = subprocess.Popen(command(folder, out, config), **QUIET)
            while len(killed_at) + len(here) < config.kills:
                # Some way on from where the killed process stood, so that the kills spread over the
                # run.
                done = min(entries(out), lines - 1)
                until = rng.randint(done, min(done + 2 * lines // config.kills, lines - 1))
                if not killed(process, out, until, delay=rng.uniform(0, 1)):
                    break
                here.append(newest(out))
                process = subprocess.Popen(command(folder, out, config), **QUIET)
            equal = process.wait() == 0 and (out / WEIGHTS).read_bytes() == expected
            print(
                json.dumps({"run": run, "newest checkpoint at each kill": here, "equal": equal}),
                flush=True,
            )
            killed_at, run, differs = killed_at + here, run + 1, differs or not equal
    print(json.dumps({"what": config.what, "kills": len(killed_at), "all equal": not differs}))
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(run_main(KillResume)))
