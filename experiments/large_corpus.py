"""Tokenise a large corpus, train from it, and kill both on the way: are the bytes equal, and how
much memory is held?

    python experiments/large_corpus.py --megabytes 2000 --folder FOLDER

The corpus is generated: functions with random names, constants and comments, so that the
tokenizer's cache does not answer for it. It is tokenised, with a SIGKILL when a third and when two
thirds of the shards are there; then a small model is adapted on it from nothing, twice:
undisturbed, and with a SIGKILL after its second and fourth checkpoint. Prints one JSON object:
sizes, seconds, whether the final weights are equal byte for byte, and of each run the peak of what
its processes held (VmHWM of each: code, heap and mapped pages; summed up, though they share code).
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jax_lm.host.declared import run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer

MIB = 2**20
FILES = 8
ADAPT = {
    "from-scratch": True, "max-length": 256, "batch-size": 8, "max-steps": 60, "annealing-steps": 20, "warmup-steps": 4,
    "learning-rate": 0.003, "save-every": 10, "log-every": 10, "held-out-share": 0.0001, "evaluate-every": 30,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LargeCorpus:
    """Tokenise and train.

    Attributes:
        folder: for the corpus, its tokens and the runs; what is there of the corpus is used again.
        megabytes: of the corpus.
        num_shards: files of tokens.
        workers: processes that tokenise.
        seed: of the corpus.
    """

    folder: Path
    megabytes: int = 2000
    num_shards: int = 48
    workers: int = 2
    seed: int = 0


def write_corpus(folder: Path, size: int, seed: int) -> None:
    """Write JSON lines of programs in several files, which appear whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        path, rng = folder / f"{number}.jsonl", random.Random(f"{seed} {number}")
        if path.exists():
            continue
        half, written = path.with_suffix(".half"), 0
        with half.open("w", encoding="utf-8") as file:
            while written < size // FILES:
                written += file.write(json.dumps({"text": program(rng)}) + "\n")
        half.rename(path)


def program(rng: random.Random) -> str:
    """Write some functions."""
    parts = []
    for _ in range(rng.randint(1, 30)):
        name, other = (f"{rng.choice('abcdefgh')}{rng.getrandbits(24):x}" for _ in range(2))
        count = rng.randint(1, 9)
        lines = (
            f"def {name}({other}, limit={rng.randint(0, 99999)}):",
            f'    """Return {other} {rng.getrandbits(40):x} times {count}."""',
            "    total = 0",
            f"    for index in range({count}, limit):",
            f"        if index % {rng.randint(2, 97)} == 0:",
            f"            total += {other}[index] * {rng.random():.6f}",
            "    return total",
        )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def prepare_shape(folder: Path) -> None:
    """Write a tokenizer and the shape of a small model."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    config = DreamConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        mask_token_id=tokenizer.mask_id,
    )
    DreamForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def status(pid: int) -> dict[str, str]:
    """Read what the kernel says about a process; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    except (FileNotFoundError, ProcessLookupError):
        return {}


def family(pid: int) -> list[int]:
    """List a process and its children."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return [pid]


def run(words: list[str], killed_when: Callable[[], bool] | None = None) -> tuple[int, float]:
    """Run a command, to its end or until it is to be killed; returns the peak of its memory in MiB,
    and seconds.
    """
    start, peaks = time.monotonic(), {}
    process = subprocess.Popen([sys.executable, "-m", "jax_lm", *words], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        for pid in family(process.pid):
            peaks[pid] = max(peaks.get(pid, 0), int(status(pid).get("VmHWM", "0 kB").split()[0]))
        if killed_when and killed_when():
            process.kill()
        time.sleep(0.05)
    if process.returncode != (-9 if killed_when else 0):
        raise SystemExit(f"{words[0]} ended with {process.returncode}")
    return sum(peaks.values()) // 1024, round(time.monotonic() - start, 1)


def options(**values: object) -> list[str]:
    return [
        word
        for name, value in values.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def count(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


def main(config: LargeCorpus) -> int:
    folder, report = config.folder, {}
    corpus, shape, tokens = folder / "corpus", folder / "shape", folder / "tokens"
    write_corpus(corpus, config.megabytes * 10**6, config.seed)
    prepare_shape(shape)
    report["corpus_bytes"] = sum(path.stat().st_size for path in corpus.iterdir())
    words = [
        "data",
        "tokenize",
        *options(data=corpus, model=shape, out=tokens, workers=config.workers),
    ]
    words += options(num_shards=config.num_shards)
    done = 0
    for part in (1, 2):
        wanted = config.num_shards * part // 3
        run(words, lambda wanted=wanted: count(tokens, "[0-9]*.json") >= wanted)
        done = count(tokens, "[0-9]*.json")
    report["shards_at_the_last_kill"] = done
    report["tokenise_peak_mib"], report["tokenise_seconds_after_it"] = run(words)
    described = json.loads((tokens / "dataset.json").read_text())
    report["tokens"] = sum(shard["tokens"] for shard in described["shards"])
    report["token_bytes"] = sum(path.stat().st_size for path in tokens.glob("*.tokens"))
    adapt = ["adapt", *options(data=tokens, model=shape, **ADAPT)]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "cache"))
    report["train_peak_mib"], report["train_seconds"] = run(
        [*adapt, "--out", str(folder / "whole")]
    )
    killed = folder / "killed"
    for step in (20, 40):
        run(
            [*adapt, "--out", str(killed)],
            lambda step=step: (killed / "checkpoints" / str(step)).is_dir(),
        )
    report["resumed_peak_mib"], _ = run([*adapt, "--out", str(killed)])
    ours, theirs = (
        (path / "model" / "model.safetensors").read_bytes() for path in (killed, folder / "whole")
    )
    lines = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    report |= {"first_loss": losses[0], "last_loss": losses[-1], "weights_equal": ours == theirs}
    print(json.dumps(report, indent=1))
    return 0 if ours == theirs else 1


if __name__ == "__main__":
    sys.exit(main(run_main(LargeCorpus)))
