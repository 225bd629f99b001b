"""Compare the precisions of a causal model with float32: bytes of its weights, loss and divergence.

    python experiments/precisions.py --model FOLDER      # needs the weights, and 8 GB for 0.5B

The texts are excerpts of modules of Python's standard library, read left to right.
"""

import bisect
import colorsys
import fnmatch
import heapq
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.host.declared import run_main
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.graph import split_model
from jax_lm.tokenizer import DiffuCoderTokenizer

MODULES = (statistics, bisect, heapq, fnmatch, colorsys, shlex)
# Characters of a module's source; modules with far fewer are left out.
EXCERPT, SHORTEST = slice(3000, 4600), 400
# Name of each row, dtype of what is not quantized, and precision of the kernels.
PRECISIONS = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "int8": ("float32", "int8"),
    "int4": ("float32", "int4"),
    "fp8": ("float32", "fp8"),
    "fp8, others bfloat16": ("bfloat16", "fp8"),
    "int4, others bfloat16": ("bfloat16", "int4"),
}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to compare.

    Attributes:
        model: folder of an autoregressive checkpoint.
        tokens: of each excerpt.
    """

    model: Path
    tokens: int = 256


def main(asked: Arguments) -> int:
    """Print a line for each precision."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(asked.model)
    sources = [
        Path(str(module.__file__)).read_text(encoding="utf-8")[EXCERPT] for module in MODULES
    ]
    texts = [tokenizer.encode(text)[: asked.tokens] for text in sources if len(text) > SHORTEST]
    length = min(map(len, texts))
    ids = np.array([text[:length] for text in texts])
    print(f"{len(ids)} excerpts of {length} tokens", flush=True)
    exact = None
    for name, (dtype, quantization) in PRECISIONS.items():
        model = DreamForCausalLM.from_pretrained(
            asked.model, dtype=dtype, quantization=quantization
        )
        size = sum(value.nbytes for value in parameters(model).values())
        graph, params = split_model(model)
        read = jax.jit(
            lambda params, row, graph=graph: jax.nn.log_softmax(graph.merge(params)(row))
        )
        found = np.concatenate([np.asarray(read(params, row[None])) for row in jnp.asarray(ids)])
        exact = found if exact is None else exact
        loss = -np.take_along_axis(found[:, :-1], ids[:, 1:, None], axis=2).mean()
        divergence = (np.exp(exact) * (exact - found)).sum(axis=-1).mean()
        equal = (exact.argmax(axis=-1) == found.argmax(axis=-1)).mean()
        print(
            f"{name}: {size:,} bytes, KL {divergence:.4f}, loss {loss:.4f}, "
            f"{100 * equal:.1f} % equal top-1 tokens",
            flush=True,
        )
        del model, params
    return 0


if __name__ == "__main__":
    raise SystemExit(main(run_main(Arguments)))
