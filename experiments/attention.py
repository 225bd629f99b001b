"""What attention of one layer of the 7B model takes on a machine that is not here, by each way of
attending.

    pip install '.[plan,plan-gpu]' nvidia-cudnn-cu12
    python experiments/attention.py v5e:1x1 --length 2048 --ways full splash blocks

Compiles the gradients of queries, keys and values (bfloat16, packed rows), and prints a line of
JSON per way: MiB of temporary memory, and MiB that kernels read and write; the body of a loop of
unknown length counts once. Nothing runs, and no time is implied.
"""

import argparse
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from experiments.compiled.explanation import StepShape, explain
from jax_lm.compilation import compiler
from jax_lm.config import DIFFUCODER_7B
from jax_lm.models.attention import (
    Attention,
    SampleMask,
    attend_in_blocks,
    attend_in_full,
    cudnn,
    splash,
)
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import MeshShape

WAYS: dict[str, Attention] = {
    "full": attend_in_full,
    "blocks": attend_in_blocks,
    "splash": splash,
    "cudnn": cudnn,
}
MIB = 2**20


def total(attention: Attention, q: Array, k: Array, v: Array, samples: Array) -> Array:
    """Sum up the squares of outputs, so that each has a gradient."""
    return jnp.sum(jnp.square(attention(q, k, v, SampleMask(samples)).astype(jnp.float32)))


def compiled(topology: Topology, way: str, rows: int, length: int) -> dict[str, int]:
    """Compile a way for the first device of a topology."""
    first = NamedSharding(compiler.topology_mesh(topology, MeshShape()), PartitionSpec())
    h, heads, key_heads = (
        DIFFUCODER_7B.head_dim,
        DIFFUCODER_7B.num_attention_heads,
        DIFFUCODER_7B.num_key_value_heads,
    )
    q, k = (rows, length, heads, h), (rows, key_heads, length, h)
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=first) for shape in (q, k, k)]
    samples = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=first)
    gradients = jax.jit(jax.grad(partial(total, WAYS[way]), (0, 1, 2)))
    program = compiler.compile_lowered(gradients.lower(*given, samples))
    memory = program.memory_analysis()
    about = StepShape(vocabulary=0, hidden=0, memory=topology.chip.memory, in_loop=False)
    found = explain(program.as_text() or "", about)
    assert memory is not None
    return {
        "temporary": memory.temp_size_in_bytes // MIB,
        "read": found.read // MIB,
        "written": found.written // MIB,
        "loops": len(found.unknown_loops),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "topology", type=Topology.parse, help="of one device, such as v5e:1x1 or h100:1"
    )
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=["full", "blocks"])
    arguments = parser.parse_args()
    compiler.prepare_compiler(arguments.topology)
    for way in arguments.ways:
        report = {
            "topology": str(arguments.topology),
            "rows": arguments.rows,
            "length": arguments.length,
            "way": way,
        }
        found = compiled(arguments.topology, way, arguments.rows, arguments.length)
        sys.stdout.write(json.dumps(report | found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
