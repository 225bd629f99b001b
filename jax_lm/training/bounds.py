"""Bounds of settings that are numbers, each refused by name. Imports no JAX: the command line reads settings."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any


def require(rule: str, holds: Callable[[float], bool], config: Any, *names: str) -> None:
    """Raise ValueError unless a rule holds for these settings, or they are None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name}={value}: {rule}")


require_sizes = partial(require, "must be at least 1", lambda value: value >= 1)
require_shares = partial(require, "must lie in [0, 1]", lambda value: 0 <= value <= 1)
require_inner_shares = partial(require, "must lie in (0, 1)", lambda value: 0 < value < 1)
require_above_zero = partial(require, "must be positive", lambda value: 0 < value < math.inf)
require_not_negative = partial(require, "must not be negative", lambda value: 0 <= value < math.inf)
