"""Grammars of regular expressions and JSON schemas, for the answer alone; ends are the shortest.

outlines-core (the extra `grammar`) converts a schema to an expression, and an expression to an
automaton over bytes. This runs in a separate process, because even a short expression can have an
automaton that fills the memory. Schema keywords that the expression would ignore are refused by
name.
"""

import json
import re
import subprocess
import sys
from collections import deque
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import Any

from jax_lm.config import Fields

OUTLINES = "outlines_core"
# Exit status of the process if there is no automaton; its output on stderr is the reason.
REFUSED = 3
# Default time limit for making an automaton.
SECONDS = 20
# Maximum number of characters of an expression or a schema.
MAX_LENGTH = 20_000
BLANK = ord(" ")

# Keywords of JSON Schema that the expressions support.
SUPPORTED_WORDS = (
    "$defs, $ref, anyOf, const, definitions, enum, format, items, maxItems, maxLength, minItems, "
    "minLength, oneOf, pattern, prefixItems, properties, required, type"
)
SUPPORTED = {*SUPPORTED_WORDS.split(", ")}
# Groups of keywords that exclude each other: an expression would follow one and ignore the rest.
EXCLUSIVE = (
    "$ref anyOf const enum oneOf prefixItems properties",
    "format minLength pattern",
    "format maxLength pattern",
)
# Keywords without effect.
ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
}
# Anchors around an expression, which mean nothing where the whole text must match.
ANCHORS = r"\A\^|(?<!\\)((?:\\\\)*)\$\Z"
# Parts of a pattern that may match what a JSON string must escape.
ESCAPABLE = re.compile(r'\\p\{\w+\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[".]')
# What they match instead.
UNESCAPED = r'[^"\\\x00-\x1f]'
# A name of an object that JSON escapes.
ESCAPED_NAME = r'\\.(?:[^"\\]|\\.)*": '
# Expressions of formats for which those of the library match unescaped quotation marks.
FORMATS = {
    "email": r"[a-z0-9_.+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?Z?",
    "uri": r"(https?|ftp)://[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?([/?#][!#-;=?-Z_a-z~]*)?",
}
# Keywords whose values are schemas by arbitrary names.
NAMED_PARTS = ("properties", "$defs", "definitions")


# Moves of a state: first byte, last byte, next state.
Ranges = list[tuple[int, int, int]]
Moves = dict[int, Ranges]


class RegularGrammar:
    """The texts that match a regular expression as a whole, or are valid for a JSON schema.

    Args:
        kind: regex or json_schema.
        text: the expression or the schema.
        seconds: time limit for making the automaton; None is `SECONDS`.

    Raises:
        ValueError: the text is invalid, exceeds a limit of its preparation, or matches nothing.
    """

    reads_prompt = False

    def __init__(self, kind: str, text: str, seconds: float | None = None):
        # Error messages quote only the beginning of the expression or schema.
        name = f"{kind}={text!r:.80}"
        # checked before the text is parsed or given to another process
        if len(text) > MAX_LENGTH:
            raise ValueError(f"{name}: {len(text)} characters, at most {MAX_LENGTH}")
        if kind == "json_schema":
            text = json.dumps(read_schema(text))
        table = make_automaton(kind, text, name, float(seconds or SECONDS))
        self.is_json = kind == "json_schema"
        self.start: int = table["start"]
        # JSON has lists instead of tuples
        self.moves: Moves = {
            state: [tuple(step) for step in steps] for state, steps in table["moves"]
        }
        self.nearest = nearest_bytes(self.moves, set(table["ends"]))
        # without those from which no end can be reached
        for state, steps in self.moves.items():
            self.moves[state] = [step for step in steps if step[2] in self.nearest]
        # no end can be reached from the start
        if self.start not in self.nearest:
            raise ValueError(f"{name}: matches no text")

    def completion(self, text: str, after: str = "") -> str | None:
        """Return the end with the fewest bytes; None if no match begins so. Ignores `after`."""
        # follow the text
        state = self.start
        end = bytearray()
        for byte in text.encode():
            if (state := self.next_state(state, byte)) not in self.nearest:
                return None
        # then go to the nearest end, byte by byte
        while (byte := self.nearest[state]) is not None:
            end.append(byte)
            state = self.next_state(state, byte)
        return end.decode()

    def forced(self, text: str) -> tuple[str, bool]:
        given = text.encode()
        found = bytearray()
        state = reduce(self.next_state, given, self.start)
        while True:
            moves = self.moves.get(state, [])
            # a blank is optional if it changes nothing else: [ ]?: is the moves {" ": 5, ":": 6} of a
            # state, and {":": 6} of state 5; in JSON it is written after a colon or a comma
            after = self.next_state(state, BLANK)
            others = [step for step in moves if step != (BLANK, BLANK, after)]
            is_optional = self.is_json and others and others == self.moves.get(after)
            # without escapes, every second quotation mark of a JSON text ends a string
            bare = re.sub(r"\\.", "", text + found.decode(errors="ignore"), flags=re.DOTALL)
            if is_optional and bare.count('"') % 2 == 0:
                found += b" " * ((given + found)[-1:] in (b":", b","))
                moves = others
            is_end = self.nearest.get(state, BLANK) is None
            # stop at an end, and where several bytes are possible
            if is_end or len(moves) != 1 or moves[0][0] != moves[0][1]:
                # a character that is cut off is not forced: é and è begin with one byte
                return found.decode(errors="ignore"), is_end and not moves
            byte, _, state = moves[0]
            found.append(byte)

    def next_state(self, state: int, byte: int) -> int:
        """Return the state after a byte; -1 if there is none."""
        ranges = self.moves.get(state, ())
        return next((after for first, last, after in ranges if first <= byte <= last), -1)


def make_automaton(kind: str, text: str, name: str, seconds: float) -> Fields:
    """Make an automaton in a separate process, with limits on time, memory and size.

    Raises:
        ValueError: the text is invalid, or its automaton exceeds a limit.
        ModuleNotFoundError: outlines-core is not installed.
    """
    if find_spec(OUTLINES) is None:
        raise ModuleNotFoundError(f"needs {OUTLINES}", name=OUTLINES)
    command = [sys.executable, "-m", "jax_lm.grammar.automaton", kind]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{name}: takes more than {seconds:g} s to prepare") from error
    if done.returncode:
        reason = done.stderr.strip() if done.returncode == REFUSED else ""
        raise ValueError(f"{name}: {reason or 'takes too much memory to prepare'}")
    return json.loads(done.stdout)


def nearest_bytes(moves: Moves, ends: set[int]) -> dict[int, int | None]:
    """Return, for each state, the next byte on the shortest way to an end; None for an end.

    States from which no end can be reached are left out. If several bytes are possible, letters
    and digits are preferred, so that completed texts read well.
    """
    # the moves backwards: next state -> (state, byte), preferred bytes first
    before = {}
    for state, steps in moves.items():
        # one byte of each range is enough: (48, 57) -> 48, the digit 0
        bytes_after = [
            (min(range(first, last + 1), key=reading_order), after) for first, last, after in steps
        ]
        for byte, after in sorted(bytes_after, key=lambda step: reading_order(step[0])):
            before.setdefault(after, []).append((state, byte))
    # breadth-first from the ends, so that each state is reached by its shortest way
    nearest = dict.fromkeys(sorted(ends))
    waiting = deque(nearest)
    while waiting:
        for state, byte in before.get(waiting.popleft(), ()):
            if state not in nearest:
                nearest[state] = byte
                waiting.append(state)
    return nearest


def reading_order(byte: int) -> tuple[bool, int]:
    """Return a sort key that puts letters and digits before other bytes."""
    return not chr(byte).isalnum(), byte


def read_schema(text: str) -> Any:
    """Read a JSON schema.

    Raises:
        ValueError: the schema is invalid, or has unsupported keywords.
    """
    try:
        schema = json.loads(text)
        require_supported(schema)
        # the expression would have such names as they are
        if re.search(ESCAPED_NAME, json.dumps(schema, ensure_ascii=False)):
            raise ValueError(
                "json_schema: names must have no quotation mark, backslash or control character"
            )
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"json_schema={text!r:.80}: is not JSON ({error})") from error
    return schema


def require_supported(schema):
    """Raise ValueError for a keyword that the expression of a schema would ignore."""
    if not isinstance(schema, dict):
        raise ValueError(f"json_schema: must be an object, not {json.dumps(schema)[:60]}")
    # the library's expression of an empty schema is correct nowhere but at the top
    if not schema.keys() - ANNOTATIONS:
        schema["type"] = "object array string number boolean null".split()  # noqa: SIM905
    for name, value in schema.items():
        # an expression of listed properties allows no others anyway
        if name == "additionalProperties" and value is False and "properties" in schema:
            continue
        if name not in SUPPORTED | ANNOTATIONS:
            raise ValueError(
                f"json_schema: {name[:60]!r} is not supported; leave it out, or express it with "
                f"{SUPPORTED_WORDS}"
            )
        # the expression of an empty list would be the empty text, which is no JSON
        if value == [] and name in ("anyOf", "enum", "oneOf", "type"):
            raise ValueError(f"json_schema: {name!r} must not be empty")
        # schemas inside this one
        parts = []
        if name in NAMED_PARTS:
            parts = list(value.values()) if isinstance(value, dict) else [value]
        elif name in ("anyOf", "oneOf", "prefixItems"):
            parts = value if isinstance(value, list) else [value]
        elif name == "items":
            parts = [value]
        elif name == "pattern" and isinstance(value, str):
            # "[^,]" -> "[[^,]&&[^…]]", else {"a": "x", "b": "y"} would match {"a": "[^,]*"}
            whole = re.sub(ANCHORS, r"\1", value)
            plain = ESCAPABLE.sub(
                lambda part: UNESCAPED if part[0] == "." else f"[{part[0]}&&{UNESCAPED}]", whole
            )
            schema[name] = f"(?:{plain})"
        for part in parts:
            require_supported(part)
    for group in EXCLUSIVE:
        if len(given := [name for name in group.split() if name in schema]) > 1:
            raise ValueError(f"json_schema: {' and '.join(given)} cannot be combined")
    if str(schema.get("format")) in FORMATS:
        schema["pattern"] = FORMATS[schema.pop("format")]
    # an expression has no other properties
    required = schema.get("required", [])
    known = [*schema.get("properties", ())]
    if not (isinstance(required, list) and all(each in known for each in required)):
        raise ValueError("json_schema: 'required' must list names of 'properties'")


# Returns the grammar of an expression or a schema; the last eight are cached.
regular_grammar = lru_cache(maxsize=8)(RegularGrammar)
