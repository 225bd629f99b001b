"""Damages checkpoints at random and loads them: each must end in the named error, or load what it held.

    python experiments/fuzz_checkpoints.py --cases 2000 --seed 0

The damage: truncation, flipped bits in safetensors headers, index and config, dtypes and shapes rewritten, and
index entries that leave the folder. Bits of the weights themselves are what checksums are for (`diffucoder verify`).
"""

import argparse
import collections
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from jax_lm.checkpoints import loading
from jax_lm.checkpoints.huggingface import INDEX
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes

HOSTILE_NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "",
    ".",
    "..",
    "\0",
    "x" * 5000,
    "model.safetensors\n",
    "~",
    7,
    None,
]
DTYPES = ["F16", "BF16", "F64", "I8", "I32", "BOOL", "F8_E4M3", "U64", "nonsense", "", 3, None]


def header_of(content: bytes) -> tuple[int, dict]:
    length = int.from_bytes(content[:8], "little")
    return length, json.loads(content[8 : 8 + length])


def with_header(content: bytes, length: int, header: dict) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def truncate(rng: random.Random, folder: Path, shard: Path) -> None:
    content = shard.read_bytes()
    shard.write_bytes(content[: rng.randrange(len(content))])


def flip_header(rng: random.Random, folder: Path, shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(8 + header_of(shard.read_bytes())[0])] ^= 1 << rng.randrange(8)
    shard.write_bytes(content)


def flip_text(rng: random.Random, folder: Path, shard: Path) -> None:
    path = folder / rng.choice([INDEX, "config.json"])
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def change_entry(rng: random.Random, folder: Path, shard: Path) -> None:
    content = shard.read_bytes()
    length, header = header_of(content)
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    match rng.randrange(3):
        case 0:
            entry["dtype"] = rng.choice(DTYPES)
        case 1:
            entry["shape"] = rng.choice([[], [0], [-1, 4], entry["shape"][::-1], [2**62, 2**62], [1.5], "x", None])
        case _:
            entry["data_offsets"] = [rng.choice([-8, 0, 4, 2**63, 10**30]), rng.choice([-1, 0, 64, 2**64])]
    shard.write_bytes(with_header(content, length, header))


def change_index(rng: random.Random, folder: Path, shard: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    names = list(index["weight_map"])
    if rng.random() < 0.5:
        index["weight_map"][rng.choice(names)] = rng.choice([*HOSTILE_NAMES, shard.name])
    else:
        index["weight_map"][rng.choice(["", "extra", "__metadata__"])] = shard.name
    (folder / INDEX).write_text(json.dumps(index))


DAMAGES: list[Callable[[random.Random, Path, Path], None]] = [
    truncate,
    flip_header,
    flip_text,
    change_entry,
    change_index,
]


def outcome(folder: Path, original: dict[str, np.ndarray]) -> str:
    """`refused` with a ValueError, or `equal`: what was loaded has the same names and numbers; anything else raises."""
    try:
        config = DreamForCausalLM.read_config(folder)
        wanted = loading.WantedTensors(shapes=parameter_shapes(config))
        tensors = loading.load_tensors(loading.open_checkpoint(folder), wanted)
    except ValueError:
        return "refused"
    assert set(tensors) == set(original), "loaded other names"
    for name, value in original.items():
        # float32 read as int32 and the like would be refused; NaN equals NaN here.
        assert np.array_equal(np.asarray(tensors[name]), value, equal_nan=True), f"loaded {name} silently wrong"
    return "equal"


def fuzz(checkpoint: Path, cases: int, seed: int) -> collections.Counter:
    """Outcomes by kind of damage."""
    rng, counts = random.Random(seed), collections.Counter()
    original = {name: value for path in checkpoint.glob("*.safetensors") for name, value in load_file(path).items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoint"
        for _ in range(cases):
            shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
            damage = rng.choice(DAMAGES)
            damage(rng, folder, rng.choice(sorted(folder.glob("*.safetensors"))))
            counts[damage.__name__, outcome(folder, original)] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("tests/golden/checkpoint"))
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = fuzz(arguments.checkpoint, arguments.cases, arguments.seed)
    for (damage, result), number in sorted(counts.items()):
        print(f"{damage:13} {result:8} {number:5}")
    print(f"{sum(counts.values())} cases: each ended in the named error or loaded what it held")


if __name__ == "__main__":
    main()
