"""The structure of a model apart from its arrays, and functions of both under `jax.jit`.

graph, params = split_model(model)
model = graph.merge(params)
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import jax
from flax import nnx

from jax_lm.sharding import first_device

# Compiler options for a CPU. By default, XLA starts each operation as soon as its operands are
# available, to run many in parallel. It then computes early what depends on weights alone, and
# keeps it until it is used: the widened kernels of several quantized layers at a time, or what
# remat recomputes of all layers.
IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@dataclass(frozen=True)
class ModelGraph:
    """The structure of a model, as a static argument that costs nothing per call.

    JAX hashes and compares static arguments at every call. For that, `nnx.GraphDef` visits all of
    its nodes, which takes 1.3 ms for 28 layers on an idle host, and up to 20 ms on a busy one. Here
    its hash is a stored number, and a comparison begins with identity.
    """

    digest: int
    definition: nnx.GraphDef = field(hash=False)
    # whether programs are compiled with IN_ORDER
    in_order: bool = False

    def merge(self, params: dict) -> Any:
        """Return a model with these arrays."""
        return nnx.merge(self.definition, params)


# The structures in use.
GRAPHS: WeakValueDictionary[ModelGraph, ModelGraph] = WeakValueDictionary()


def split_model(model) -> tuple[ModelGraph, dict]:
    """Split a model into its structure and a plain dict of its arrays."""
    definition, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    is_quantized = any(leaf.dtype.itemsize == 1 for leaf in jax.tree.leaves(params))
    graph = ModelGraph(
        hash(definition), definition, is_quantized and first_device(model.mesh).platform == "cpu"
    )
    # the same object for equal structures, as of adapters: comparisons begin with identity
    return GRAPHS.setdefault(graph, graph), params


class ModelFunction:
    """A function of a `ModelGraph`, its arrays and more, under `jax.jit` with the given options.

    On CPUs, the programs of quantized models run in order. Those of other models have nothing to
    widen: in order, they need as much memory and take up to 10 % longer (docs/results/speed.md).
    """

    def __init__(self, function: Callable, **options):
        self.parallel = jax.jit(function, **options)
        self.in_order = jax.jit(function, compiler_options=IN_ORDER, **options)
        functools.update_wrapper(self, function)

    def of(self, graph: ModelGraph) -> Any:
        """Return the function under `jax.jit` for a model of this structure."""
        return self.in_order if graph.in_order else self.parallel

    def __call__(self, graph: ModelGraph, *arguments, **named) -> Any:
        return self.of(graph)(graph, *arguments, **named)

    def lower(self, graph: ModelGraph, *arguments) -> jax.stages.Lowered:
        """Trace and lower the function for its arguments."""
        return self.of(graph).lower(graph, *arguments)
