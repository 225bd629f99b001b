"""Pickles of the old JAX port (params.pkl), read without executing any code that they name.

A pickle is a program. This reader runs it with stand-ins for the few functions that create arrays;
a stand-in only records shape, dtype and bytes. Every other name is refused. `diffucoder convert`
converts such a file to another format.
"""

import math
import mmap
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax_lm.checkpoints.stored import CheckpointError, StoredTensor, StoredTensors
from jax_lm.config import Texts, pairs, translate

# Limits far above what a checkpoint needs, so that a hostile pickle can exhaust neither time nor
# memory: pickle instructions, levels of nested dicts, and entries of these dicts.
MAX_INSTRUCTIONS = 1_000_000
MAX_DEPTH = 12
MAX_LEAVES = 100_000
# NumPy's names of the supported dtypes; bfloat16 is that of ml_dtypes, which JAX imports.
DTYPES = ("f2", "f4", "f8", "bfloat16")
# Exactly the instructions that pickling a dict of arrays uses.
INSTRUCTIONS = frozenset(
    """
    PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE
    BUILD NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE
    TUPLE1 TUPLE2 TUPLE3
    """.split()  # noqa: SIM905 (a table, not a list)
)

# Names of modules in the old port, after `LAYER`, and in the published checkpoints.
NAMES = pairs("""
    model.layers.{}.DreamRMSNorm_0.      model.layers.{}.input_layernorm.
    model.layers.{}.DreamRMSNorm_1.      model.layers.{}.post_attention_layernorm.
    model.layers.{}.DreamAttention_0.    model.layers.{}.self_attn.
    model.layers.{}.DreamMLP_0.Dense_0.  model.layers.{}.mlp.gate_proj.
    model.layers.{}.DreamMLP_0.Dense_1.  model.layers.{}.mlp.up_proj.
    model.layers.{}.DreamMLP_0.Dense_2.  model.layers.{}.mlp.down_proj.
    DreamModel_0.Embed_0.                model.embed_tokens.
    DreamModel_0.DreamRMSNorm_0.         model.norm.
    Dense_0.                             lm_head.
    model.lm_head.                       lm_head.
""")
# The path of a layer has one of several forms: DreamModel_0.layers_7., model.layers_7., …
LAYER = re.compile(r"^(?:DreamModel_0|model)\.layers[_.](\d+)\.")


@dataclass(slots=True, eq=False)
class Elements:
    """Stand-in for an array, filled by the state in the pickle."""

    value: np.ndarray | None = None

    def __setstate__(self, state):
        if not isinstance(state, tuple) or len(state) != 5:
            raise CheckpointError("holds an array in an unknown form")
        # The state of a NumPy array: version, shape, dtype, whether in Fortran order, bytes.
        _, shape, dtype, is_fortran, content = state
        self.value = array(content, dtype, shape, "F" if is_fortran else "C")


class ElementType:
    """Stand-in for a dtype: its name and byte order."""

    __slots__ = ("name", "order")

    def __init__(self, name):
        self.name = name.name if isinstance(name, StandIn) else name
        self.order = "<"

    def __setstate__(self, state):
        self.order = state[1] if isinstance(state, tuple) and len(state) > 1 else None


@dataclass(frozen=True, slots=True)
class StandIn:
    """Stand-in for a function or class that a pickle names.

    Attributes:
        name: its name, for error messages.
        make: called in its place; None if the pickle may not call it.
    """

    name: str
    make: Callable[..., Any] | None = None

    def __call__(self, *arguments) -> Any:
        if self.make is None:
            raise CheckpointError(f"calls {self.name}")
        return self.make(*arguments)

    def __setstate__(self, state):
        raise CheckpointError(f"changes {self.name}")


def array(content, dtype, shape, order) -> np.ndarray:
    """Create an array from its bytes.

    Raises:
        CheckpointError: the dtype is not a supported float, or bytes and shape disagree.
    """
    name = dtype.name if isinstance(dtype, ElementType) else None
    if name not in DTYPES or dtype.order not in ("<", "="):
        raise CheckpointError(
            f"holds an array of dtype {name!r}, expected one of {', '.join(DTYPES)}"
        )
    if not isinstance(content, bytes | bytearray) or not isinstance(shape, tuple):
        raise CheckpointError("holds an array without bytes or shape")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise CheckpointError(f"holds an array of shape {shape!r}")
    values = np.frombuffer(content, np.dtype(name))
    if values.size != math.prod(shape):
        raise CheckpointError(f"holds {values.size} numbers for an array of shape {shape}")
    return values.reshape(shape, order=order)


def protocol_5_array(content, dtype, shape, order="C", *_) -> Elements:
    """Stand in for the function that creates NumPy arrays in pickle protocol 5."""
    return Elements(array(content, dtype, shape, order))


def jax_array(make, arguments, state, *_) -> Elements:
    """Stand in for JAX's function, whose arguments are those of NumPy's function and a state."""
    elements = Elements()
    elements.__setstate__(state)
    return elements


def encode_latin1(text, encoding) -> bytes:
    """Stand in for _codecs.encode, which older protocols use for bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise CheckpointError(f"encodes with {encoding!r}")
    return text.encode("latin1")


# Everything that a pickle may name, by module and name.
STAND_INS: dict[tuple[str, str], StandIn] = {
    (module, name): StandIn(name, make)
    for module, name, make in (
        ("numpy", "ndarray", None),
        ("numpy", "dtype", lambda name, *_: ElementType(name)),
        ("ml_dtypes", "bfloat16", None),
        # NumPy's own function would allocate an empty array of any size.
        ("numpy.core.multiarray", "_reconstruct", lambda *_: Elements()),
        ("numpy._core.multiarray", "_reconstruct", lambda *_: Elements()),
        ("numpy.core.numeric", "_frombuffer", protocol_5_array),
        ("numpy._core.numeric", "_frombuffer", protocol_5_array),
        ("jax._src.array", "_reconstruct_array", jax_array),
        ("_codecs", "encode", encode_latin1),
        ("flax.core.frozen_dict", "FrozenDict", lambda values: values),
    )
}


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves names to stand-ins, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise CheckpointError(
                f"names {module}.{name}, which no checkpoint needs; it was not executed"
            )
        return STAND_INS[module, name]


def in_memory(path: Path, name: str, values: np.ndarray) -> StoredTensor:
    """Return a tensor whose values are in memory already."""
    return StoredTensor(path, name, values.shape, values.dtype, lambda: values)


def list_tensors(path: Path) -> StoredTensors:
    """Return the tensors of a params.pkl by checkpoint name; matrices are [out, in], as in ours.

    Raises:
        CheckpointError: the file is damaged, or holds anything but nested dicts of arrays.
    """
    tensors = {}
    for keys, value in leaves(unpickle(path), path):
        name = checkpoint_name(keys)
        if name in tensors:
            raise CheckpointError(f"{path} holds {name!r} twice")
        # Matrices of the old port are [in, out], except the embedding table.
        value = value.T if value.ndim == 2 and "embed_tokens" not in name else value
        tensors[name] = in_memory(path, name, value)
    return tensors


def unpickle(path: Path) -> Any:
    """Build the object that a pickle describes, from dicts, arrays and stand-ins."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            check_instructions(content)
            content.seek(0)
            return RestrictedUnpickler(content).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}") from None
    except Exception as error:  # a damaged pickle can make the reader raise almost any exception
        raise CheckpointError(
            f"{path} is damaged or not a pickle: {type(error).__name__}: {error}"
        ) from error


def check_instructions(content):
    """Raise CheckpointError unless the instructions of a pickle are those of a checkpoint.

    This runs before any instruction is executed, and checks their number, kinds, lengths and memo
    indices; `RestrictedUnpickler` checks names.
    """
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if count >= MAX_INSTRUCTIONS:
            raise CheckpointError(
                f"has more than {MAX_INSTRUCTIONS:,} instructions; checkpoints need a few thousand"
            )
        if instruction.name not in INSTRUCTIONS:
            raise CheckpointError(f"uses {instruction.name}, which dicts of arrays do not need")

        # The reader allocates a memo of this many entries at once.
        if instruction.name == "LONG_BINPUT" and int(argument or 0) > MAX_INSTRUCTIONS:
            raise CheckpointError(f"puts memo entry {argument:,}")


def leaves(tree, path: Path) -> Iterator[tuple[Texts, np.ndarray]]:
    """Yield the arrays of nested dicts, each with its path of keys.

    Raises:
        CheckpointError: the tree is too large or too deep, or holds anything but dicts and arrays.
    """
    pending: list[Any] = [((), tree)]
    count = 0
    while pending:
        keys, value = pending.pop()
        count += 1
        if count > MAX_LEAVES or len(keys) > MAX_DEPTH:
            raise CheckpointError(
                f"{path} holds more than {MAX_LEAVES:,} entries or {MAX_DEPTH} levels"
            )
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise CheckpointError(f"{path} has keys under {'/'.join(keys)!r} that are not text")
            pending.extend(((*keys, key), child) for key, child in value.items())
            continue
        value = value.value if isinstance(value, Elements) else value
        if not isinstance(value, np.ndarray):
            raise CheckpointError(
                f"{path} holds {type(value).__name__} at {'/'.join(keys)!r}, expected an array"
            )
        yield keys, value


def checkpoint_name(keys: Texts) -> str:
    """Translate the path of a parameter in the old port to its published name."""
    # ("params", "DreamModel_0", "layers_7", "DreamMLP_0", "Dense_1", "kernel")
    # -> "model.layers.7.DreamMLP_0.Dense_1.weight" -> "model.layers.7.mlp.up_proj.weight"
    *module, kind = keys[1:] if keys[:1] == ("params",) else keys
    kind = "weight" if kind in ("kernel", "embedding", "scale") else kind
    return translate(LAYER.sub(r"model.layers.\1.", ".".join([*module, kind])), NAMES)
