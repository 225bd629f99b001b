"""Make the automaton of a regular expression or a JSON schema, as a process of its own (`jax_lm.grammar.regular`).

    python -m jax_lm.grammar.automaton regex < expression > automaton.json

Needs the extra `grammar`.
"""

import json
import resource
import sys
from typing import Any

import outlines_core

from jax_lm.grammar.regular import REFUSED

END = 256
"""No byte: where a text may end."""
BYTES = 2**30
"""Memory that it may take."""


def main(kind: str, text: str) -> None:
    """Write its start, its ends, and each state's moves by byte."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    library: Any = outlines_core
    letters = {bytes([byte]): [byte] for byte in range(END)}
    try:
        pattern = library.json_schema.build_regex_from_schema(text) if kind == "json_schema" else text
        index = library.Index(pattern, library.Vocabulary(END, letters))
    except ValueError as error:
        sys.stderr.write(" ".join(str(error).split())[:200])
        sys.exit(REFUSED)
    moves = [
        (state, [(byte, after) for byte, after in steps.items() if byte != END])
        for state, steps in index.get_transitions().items()
    ]
    json.dump({"start": index.get_initial_state(), "ends": list(index.get_final_states()), "moves": moves}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
