"""Settings that a step is compiled for, or that differ from row to row.

A plain value decides at compile time and costs nothing; a traced number is decided in the compiled step, which
then computes both sides. So rows of one compilation can have temperatures and orders of their own.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Number = float | Float[Array, ""]
Choice = str | Int[Array, ""]
"""One of a tuple of names, or its index there."""


def is_choice(choice: Choice, name: str, names: tuple[str, ...]) -> bool | Bool[Array, ""]:
    """Whether that one was chosen."""
    return choice == name if isinstance(choice, str) else choice == names.index(name)


def either(condition: bool | Bool[Array, ""], yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
    """One of two arrays; only that one is computed where the condition is known."""
    if isinstance(condition, bool):
        return yes() if condition else no()
    return jnp.where(condition, yes(), no())
