"""Host memory and time of loading a random checkpoint of about 2 GB, onto one device and onto
eight.

    python experiments/load_memory.py --out docs/results/measurements/load_memory.json

Every measurement is a process of its own. "anonymous" is what the process allocated at most (arrays
of CPU devices in it, so that their size is the least there can be), without pages of mapped files,
which the system may take back.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from jax_lm.checkpoints import huggingface
from jax_lm.config import DIFFUCODER_7B
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters

CONFIG = replace(DIFFUCODER_7B, num_hidden_layers=3, vocab_size=42240, mask_token_id=0)
SHARD_BYTES = 512 * 2**20
CASES = {
    "bfloat16, one device": {"devices": 1},
    "bfloat16, tensor=4,data=2": {"devices": 8, "mesh": "data=2,tensor=4"},
    "bfloat16, fsdp=8": {"devices": 8, "mesh": "fsdp=8"},
    "int8 on the way, one device": {"devices": 1, "int8": True},
}


def write_checkpoint(folder: Path) -> int:
    """Random bfloat16 weights in shards; their bytes."""
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(CONFIG)
    sizes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(CONFIG.to_dict() | {"torch_dtype": "bfloat16"}))
    huggingface.SHARD_BYTES = SHARD_BYTES

    def values(shape: tuple[int, ...]) -> np.ndarray:
        # Random exponents would make NaN; random mantissas of numbers near 0.01 are as good.
        bits = rng.integers(0x3C00, 0x3C80, math.prod(shape), np.uint16)
        return bits.view(ml_dtypes.bfloat16).reshape(shape)

    huggingface.save_shards(
        folder, sizes, ((name, values(shape)) for name, shape in shapes.items())
    )
    return sum(sizes.values())


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon: this benchmark needs Linux")


def measure(folder: Path, mesh: str | None, int8: bool) -> dict[str, float]:
    """Load once in this process, watched by a thread."""
    import jax

    from jax_lm.sharding import MeshShape

    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))
    before, peak, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    model = DreamForCausalLM.from_pretrained(
        folder,
        quantization="int8" if int8 else None,
        mesh=MeshShape.parse(mesh).mesh() if mesh else None,
    )
    arrays = list(parameters(model).values())
    jax.block_until_ready(arrays)
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    held = sum(shard.data.nbytes for array in arrays for shard in array.addressable_shards)
    return {
        "seconds": round(seconds, 2),
        "arrays": held,
        "peak_anonymous": max(peak, anonymous()) - before,
    }


def child(folder: Path, case: dict) -> dict:
    """`measure` in a fresh process with that many virtual devices."""
    flags = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={case['devices']}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, __file__, "--measure", json.dumps({"folder": str(folder), **case})]
    done = subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        case = json.loads(arguments.measure)
        print(json.dumps(measure(Path(case["folder"]), case.get("mesh"), case.get("int8", False))))
        return
    from jax_lm.benchmark.machine import about

    with tempfile.TemporaryDirectory() as name:
        size = write_checkpoint(Path(name))
        results = {title: child(Path(name), case) for title, case in CASES.items()}
    for title, result in results.items():
        share = (result["peak_anonymous"] - result["arrays"]) / SHARD_BYTES
        print(
            f"{title:30} {result['seconds']:6.1f} s  arrays {result['arrays'] / 2**30:5.2f} GiB  "
            f"peak {result['peak_anonymous'] / 2**30:5.2f} GiB  beyond the arrays {share:5.2f} shard files"
        )
    if arguments.out:
        report = {
            "about": about(),
            "checkpoint_bytes": size,
            "shard_bytes": SHARD_BYTES,
            "results": results,
        }
        arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
