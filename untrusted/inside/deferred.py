"""Modules that few programs need, imported on first use.

A zygote forks one or two processes per test, and a fork takes longer the more memory the zygote
has: with asyncio, tempfile, uuid and what they import, starting and ending a process takes three
times as long. Imports the standard library only.
"""

import importlib
from typing import Any


class Deferred:
    """Stands for a module, which is imported when one of its names is first used."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self._module), name)


asyncio: Any = Deferred("asyncio")
cmath: Any = Deferred("cmath")
mock: Any = Deferred("unittest.mock")
tempfile: Any = Deferred("tempfile")
unittest: Any = Deferred("unittest")

# Modules that the zygote imports as soon as a program or a test mentions them.
ON_MENTION = """
    asyncio calendar cmath csv hashlib heapq statistics tempfile unittest unittest.mock uuid zoneinfo
""".split()  # noqa: SIM905 (a table, not a list)
