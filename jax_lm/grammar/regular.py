"""Regular expressions, and JSON schemas by way of them: the answer alone, its shortest ends exact.

The automaton is that of outlines-core (the extra `grammar`), over bytes. It is made in a process of its own, as that of
a short expression can fill any memory. What of a schema its expressions leave out is refused by name, so that nothing
is let through in silence.
"""

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

OUTLINES = "outlines_core"
REFUSED = 3
"""Status of the process that makes an automaton if there is none; its last words are the reason."""
SECONDS = 20
"""What making an automaton may take, unless whoever asks says otherwise."""
LONGEST = 20_000
"""Characters of an expression or a schema."""

KEPT = {
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength",
    "pattern", "format", "enum", "const", "anyOf", "oneOf", "$ref", "$defs", "definitions",
}  # fmt: skip
"""Keywords of JSON Schema that its expressions keep to."""
SAID = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"}
"""Keywords that only tell."""
KEPT_WORDS = ", ".join(sorted(KEPT))
NAMED_PARTS = ("properties", "$defs", "definitions")
"""Keywords that hold schemas by names of one's own."""


Moves = dict[int, list[tuple[int, int, int]]]
"""By state: the first and the last byte of a range, and the state after any of it."""


class RegularGrammar:
    """The texts that a regular expression matches as a whole, or a JSON schema allows.

    Args:
        kind: regex or json_schema.
        seconds: what making its automaton may take; None is `SECONDS`.

    Raises:
        ValueError: it is none, takes too much, or matches nothing.
    """

    reads_prompt = False

    def __init__(self, kind: str, text: str, seconds: float | None = None) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"{quoted(kind, text)}: {len(text)} characters, at most {LONGEST}")
        if kind == "json_schema":
            text = json.dumps(read_schema(text))
        table = automaton(kind, text, float(seconds or SECONDS))
        self.start: int = table["start"]
        self.moves: Moves = {state: [tuple(step) for step in steps] for state, steps in table["moves"]}
        self.nearest = nearest_bytes(self.moves, set(table["ends"]))
        if self.start not in self.nearest:
            raise ValueError(f"{quoted(kind, text)}: matches no text")

    def completion(self, text: str, after: str = "") -> str | None:
        """The shortest end in bytes; None if no text that begins so is matched. What stands after does not matter."""
        state = self.start
        for byte in text.encode():
            if (state := self.after(state, byte)) not in self.nearest:
                return None
        return bytes(self.rest(state)).decode()

    def rest(self, state: int) -> Iterator[int]:
        """The bytes to the nearest end."""
        while (byte := self.nearest[state]) is not None:
            yield byte
            state = self.after(state, byte)

    def after(self, state: int, byte: int) -> int:
        """The state after a byte; -1 if there is none."""
        return next((after for first, last, after in self.moves.get(state, ()) if first <= byte <= last), -1)


def quoted(kind: str, text: str) -> str:
    """An expression or a schema for a message."""
    return f"{kind}={text[:80]!r}{'…' if len(text) > 80 else ''}"


def automaton(kind: str, text: str, seconds: float) -> dict[str, Any]:
    """Make an automaton in a process of its own, within bounds of time, memory and size.

    Raises:
        ValueError: there is none, or it takes too much.
    """
    if find_spec(OUTLINES) is None:
        raise ModuleNotFoundError(f"needs {OUTLINES}", name=OUTLINES)
    command = [sys.executable, "-m", "jax_lm.grammar.automaton", kind]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{quoted(kind, text)}: takes more than {seconds:g} s to prepare") from error
    if done.returncode:
        said = done.stderr.strip() if done.returncode == REFUSED else ""
        raise ValueError(f"{quoted(kind, text)}: {said or 'takes too much memory to prepare'}")
    return json.loads(done.stdout)


def nearest_bytes(moves: Moves, ends: set[int]) -> dict[int, int | None]:
    """The byte by which each state comes nearer to an end, None for an end itself; states without an end are left out.

    Of several the first letter or digit, so that what must be written reads well.
    """
    before: dict[int, list[tuple[int, int]]] = {}
    for state, steps in moves.items():
        readable = ((min(range(first, last + 1), key=reading_order), after) for first, last, after in steps)
        for byte, after in sorted(readable, key=lambda step: reading_order(step[0])):
            before.setdefault(after, []).append((state, byte))
    found: dict[int, int | None] = dict.fromkeys(sorted(ends))
    waiting = deque(found)
    while waiting:
        for state, byte in before.get(waiting.popleft(), ()):
            if state not in found:
                found[state] = byte
                waiting.append(state)
    return found


def reading_order(byte: int) -> tuple[bool, int]:
    """Sorts letters and digits before all else."""
    return not chr(byte).isalnum(), byte


def read_schema(text: str) -> Any:
    """Read a JSON schema; ValueError if it is none, or asks for what is not kept to."""
    try:
        schema = json.loads(text)
        require_kept(schema)
    except json.JSONDecodeError as error:
        raise ValueError(f"json_schema: not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("json_schema: not JSON: nested too deeply") from error
    return schema


def require_kept(schema: Any) -> None:
    """ValueError names a keyword that the expression of a schema would leave out."""
    if not isinstance(schema, dict):
        raise ValueError(f"json_schema: must be an object, not {json.dumps(schema)[:60]}")
    for name, value in schema.items():
        if name == "additionalProperties" and value is False and "properties" in schema:
            continue
        if name not in KEPT | SAID:
            raise ValueError(f"json_schema: {name[:60]!r} is not kept to; leave it out, or write it with {KEPT_WORDS}")
        parts: list[Any] = []
        if name in NAMED_PARTS:
            parts = list(value.values()) if isinstance(value, dict) else [value]
        elif name in ("anyOf", "oneOf", "prefixItems"):
            parts = value if isinstance(value, list) else [value]
        elif name == "items":
            parts = [value]
        for part in parts:
            require_kept(part)


@lru_cache(maxsize=8)
def regular_grammar(kind: str, text: str, seconds: float | None = None) -> RegularGrammar:
    """That of an expression or a schema, made once."""
    return RegularGrammar(kind, text, seconds)
