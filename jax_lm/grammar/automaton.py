"""Make the automaton of a regular expression or a JSON schema, as a process of its own (`jax_lm.grammar.regular`).

    python -m jax_lm.grammar.automaton regex < expression > automaton.json

Needs the extra `grammar`.
"""

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

import outlines_core

from jax_lm.grammar.regular import REFUSED

END = 256
"""No byte: where a text may end."""
BYTES = 2**30
"""Memory that it may take."""
CPU_SECONDS = 60
"""Time of a processor that it may take, should nobody be left who stops it."""
MOVES = 200_000
"""Moves of an automaton at most, by ranges of bytes: whoever asks for it keeps them all, some 150 bytes each."""


def main(kind: str, text: str) -> None:
    """Write its start, its ends, and each state's moves by ranges of bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    library: Any = outlines_core
    letters = {bytes([byte]): [byte] for byte in range(END)}
    try:
        pattern = library.json_schema.build_regex_from_schema(text) if kind == "json_schema" else text
        index = library.Index(pattern, library.Vocabulary(END, letters))
    except ValueError as error:
        sys.stderr.write(" ".join(str(error).split())[:200])
        sys.exit(REFUSED)
    moves = [(state, ranges(steps)) for state, steps in index.get_transitions().items()]
    if sum(len(steps) for _, steps in moves) > MOVES:
        sys.stderr.write(f"takes more than {MOVES:,} moves of an automaton")
        sys.exit(REFUSED)
    json.dump({"start": index.get_initial_state(), "ends": list(index.get_final_states()), "moves": moves}, sys.stdout)


def ranges(steps: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """First byte, last byte and the state after each of them, in the order of the bytes."""
    found: list[tuple[int, int, int]] = []
    for byte, after in sorted(steps.items()):
        if byte == END:
            continue
        if found and found[-1][1:] == (byte - 1, after):
            found[-1] = (found[-1][0], byte, after)
        else:
            found.append((byte, byte, after))
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
