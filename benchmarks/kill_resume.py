"""Kill a small SFT run with SIGKILL at random moments, resume it each time, and compare with the uninterrupted run.

    python benchmarks/kill_resume.py --kills 10

A run that ends before all kills are spent is compared, and another begins. Prints one JSON line per run that ended,
and exits with 1 if any byte of the weights differs.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer


@dataclass(frozen=True, kw_only=True)
class KillResume:
    """Kill and resume.

    Attributes:
        kills: how often.
        steps: of the run.
        save_every: steps between checkpoints.
        seed: of the moments.
    """

    kills: int = 10
    steps: int = 400
    save_every: int = 5
    seed: int = 0


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
    rows = ({"prompt": f"Add {i} to {i % 7}.", "response": f"print({i} + {i % 7})"} for i in range(200))
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, out: Path, config: KillResume) -> list[str]:
    options = {
        "data": folder / "data.jsonl", "model": folder / "model", "out": out, "length": 48, "rows": 8,
        "steps": config.steps, "save-every": config.save_every, "learning-rate": 0.003, "packed": True,
    }  # fmt: skip
    return [sys.executable, "-m", "jax_lm.cli", "sft", *(w for n, v in options.items() for w in (f"--{n}", str(v)))]


def newest(out: Path) -> int:
    folder = out / "checkpoints"
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=0)


def main(config: KillResume) -> int:
    rng, killed_at, run, differs = random.Random(config.seed), [], 0, False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        start = time.monotonic()
        subprocess.run(command(folder, folder / "whole", config), check=True, capture_output=True)
        seconds = time.monotonic() - start
        expected = (folder / "whole" / "model" / "model.safetensors").read_bytes()
        while run == 0 or len(killed_at) < config.kills:
            out, here = folder / f"run-{run}", []
            while True:
                process = subprocess.Popen(
                    command(folder, out, config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                try:
                    wait = rng.uniform(0.1, 0.9) * seconds if len(killed_at) + len(here) < config.kills else None
                    code = process.wait(wait)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    here.append(newest(out))
            equal = code == 0 and (out / "model" / "model.safetensors").read_bytes() == expected
            print(json.dumps({"run": run, "newest checkpoint at each kill": here, "equal": equal}), flush=True)
            killed_at, run, differs = killed_at + here, run + 1, differs or not equal
    print(json.dumps({"kills": len(killed_at), "all equal": not differs, "uninterrupted, s": round(seconds, 1)}))
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(KillResume)))
