"""Make the automaton of a regular expression or a JSON schema, in a separate process.

    python -m jax_lm.grammar.automaton regex < expression > automaton.json

Started by `jax_lm.grammar.regular`. Needs the extra `grammar`.
"""

import json
import re
import resource
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import outlines_core

from jax_lm.grammar.regular import ANCHORS, REFUSED, Ranges

# Token of the end of a text; the tokens before it are the bytes 0 to 255.
END = 256
# Bytes of memory that the process may use.
MAX_MEMORY = 2**30
# Processor time that the process may use, in case its parent has died and cannot stop it.
CPU_SECONDS = 60
# Maximum number of moves (ranges of bytes) of an automaton. Each takes about 150 bytes in the
# parent process.
MAX_MOVES = 200_000


def main(kind: str, text: str):
    """Write an automaton as JSON: the start, the ends, and the moves of each state."""
    # Both limits hold for this process alone, which is why the automaton is made here.
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    library: Any = outlines_core
    # The vocabulary is the 256 bytes: the automaton moves by bytes, not by tokens.
    letters = {bytes([byte]): [byte] for byte in range(END)}
    try:
        # The whole text must match, so anchors around it mean nothing, and the library has none.
        text = re.sub(ANCHORS, r"\1", text)
        if kind == "json_schema":
            text = library.json_schema.build_regex_from_schema(text)
        vocabulary = library.Vocabulary(END, letters)
        # The library drops the moves of a final state: with `0(\.5)?` it accepts only `0`. So a
        # zero byte marks the end, and no state before it is final. A one marks the start: the library
        # also looks for matches that start later, and took 17 s for {"type": "object"} without it.
        # An expression such as `a)(b` is invalid by itself, but not between the parentheses below.
        library.Index(rf"\x01{text}\x00", vocabulary)
        index = library.Index(rf"\x01(?:{text})\x00", vocabulary)
        # Such an alternative would be lost without a word: `(^a|b)c` would be `bc`.
        if not re.fullmatch(r"(?s)(?:\\[^A]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\^[])*", text):
            refuse(r"^ and \A must not stand inside an expression")
    except (TypeError, ValueError) as error:
        refuse(" ".join(str(error).split())[:200])
    # a state is an end if the end byte (0) leads to a final state
    final = set(index.get_final_states())
    transitions = index.get_transitions()
    start = transitions[index.get_initial_state()][1]
    ends = [state for state, steps in transitions.items() if steps.get(0) in final]
    moves = [(state, ranges(steps)) for state, steps in transitions.items()]
    if sum(len(steps) for _, steps in moves) > MAX_MOVES:
        refuse(f"takes more than {MAX_MOVES:,} moves of an automaton")
    json.dump({"start": start, "ends": ends, "moves": moves}, sys.stdout)


def refuse(reason: str) -> NoReturn:
    sys.stderr.write(reason)
    sys.exit(REFUSED)


def ranges(steps: Mapping[int, int]) -> Ranges:
    """Merge moves into ranges of bytes, in order: first byte, last byte, next state.

    The steps {97: 1, 98: 1, 100: 2} are the ranges (97, 98, 1) and (100, 100, 2).
    """
    merged = []
    for byte, state in sorted(steps.items()):
        # the byte that marks the end, and the library's own token, are no part of a text
        if byte in (0, END):
            continue
        # extend the last range if this byte follows it and leads to the same state
        first = byte
        if merged and merged[-1][1:] == (byte - 1, state):
            first, _, _ = merged.pop()
        merged.append((first, byte, state))
    return merged


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
