"""Modules that few programs need, imported where they are first used. Imports the standard library
only.

A zygote forks one or two processes per test, and the more it holds the longer that takes: with
asyncio, tempfile, uuid and what they import in their turn, a fork and the end of the process take
three times as long.
"""

import importlib
from typing import Any


class Deferred:
    """Stands for a module: its names are looked up in the module, which the first of them imports."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_module":
            super().__setattr__(name, value)
        else:
            setattr(importlib.import_module(self._module), name, value)


asyncio: Any = Deferred("asyncio")
logging: Any = Deferred("logging")
tempfile: Any = Deferred("tempfile")
threading: Any = Deferred("threading")
unittest: Any = Deferred("unittest")

# What the zygote imports as soon as a program or a test mentions it.
ON_MENTION = (
    "asyncio",
    "calendar",
    "cmath",
    "csv",
    "hashlib",
    "heapq",
    "statistics",
    "tempfile",
    "unittest",
    "unittest.mock",
    "uuid",
    "zoneinfo",
)
