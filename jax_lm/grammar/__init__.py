"""Grammars define which texts are valid answers, and complete the beginning of an answer.

    grammar = find_grammar("python")
    grammar.completion("def f(x):\\n    return (x")   # ")"
    grammar.completion("def f(x]")                    # None: no text completes it

A canvas has a fixed number of tokens. So it is not enough that a text is the beginning of a valid
answer: the answer must also end within the remaining tokens. Hence a grammar returns the end
itself. Knows texts, but no tokens, no model and no JAX.
"""

import reprlib
from typing import Protocol, runtime_checkable

from jax_lm.grammar.json_object import JsonObjectGrammar
from jax_lm.grammar.regular import regular_grammar
from jax_lm.options import GRAMMAR_WORDS


@runtime_checkable
class Grammar(Protocol):
    """A set of texts.

    Attributes:
        reads_prompt: whether texts are prompt and answer together, as for programs, or the answer
            alone.
    """

    reads_prompt: bool

    def completion(self, text: str, after: str = "") -> str | None:
        """Return a short text that makes `text` + it + `after` valid; None if none is known."""
        ...

    def forced(self, text: str) -> tuple[str, bool]:
        """Return how every valid text goes on after `text`, and whether it ends with that.

        Where only white space between the tokens of JSON is optional, the text has what `json.dumps`
        writes.
        """
        ...


def find_grammar(name: str, seconds: float | None = None) -> Grammar:
    """Find a grammar by its name (`jax_lm.options.GRAMMARS`).

    Args:
        seconds: time limit for preparing it; None is `regular.SECONDS`.

    Raises:
        ValueError: an unknown name, or a grammar that cannot be prepared.
    """
    # "regex:[a-z]+" -> "regex", "[a-z]+"; a name without a colon has no text
    kind, _, text = name.partition(":")
    # Imported on demand: most commands need no parser.
    if name == "python":
        from jax_lm.grammar.python import PythonGrammar

        return PythonGrammar()
    if name == "json_object":
        return JsonObjectGrammar()
    if kind in ("regex", "json_schema") and text:
        return regular_grammar(kind, text, seconds)
    raise ValueError(f"grammar={reprlib.repr(name)}: must be {GRAMMAR_WORDS}")
