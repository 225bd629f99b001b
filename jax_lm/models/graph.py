"""The structure of a model apart from its arrays, for functions under `jax.jit`.

graph, params = split_model(model)
model = graph.merge(params)
"""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from flax import nnx


@dataclass(frozen=True)
class ModelGraph:
    """The structure of a model, as a static argument that costs nothing per call.

    JAX hashes and compares static arguments at every call. For that, `nnx.GraphDef` visits all of
    its nodes, which takes 1.3 ms for 28 layers on an idle host, and up to 20 ms on a busy one. Here
    its hash is a stored number, and a comparison begins with identity.
    """

    digest: int
    definition: nnx.GraphDef = field(hash=False)

    def merge(self, params: dict) -> Any:
        """Return a model with these arrays."""
        return nnx.merge(self.definition, params)


# The structures in use.
GRAPHS: WeakValueDictionary[ModelGraph, ModelGraph] = WeakValueDictionary()


def split_model(model: nnx.Module) -> tuple[ModelGraph, dict]:
    """Split a model into its structure and a plain dict of its arrays."""
    definition, state = nnx.split(model)
    graph = ModelGraph(hash(definition), definition)
    # the same object for equal structures, as of adapters: comparisons begin with identity
    return GRAPHS.setdefault(graph, graph), nnx.to_pure_dict(state)
