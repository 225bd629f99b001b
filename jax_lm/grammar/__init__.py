"""Grammars: which texts an answer may become, and by which text the beginning of one becomes whole.

    grammar = find_grammar("python")
    grammar.completion("def f(x):\\n    return (x")   # ")"
    grammar.completion("def f(x]")                    # None: nothing makes it whole

A canvas has a fixed number of tokens, so that "is this the beginning of a right text" is not enough: it must also
end within what is left. Hence a grammar is asked for the end itself. Texts only: no token, no model, no JAX.
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
        reads_prompt: whether a text is prompt and answer together, as a program is, or the answer alone.
    """

    reads_prompt: bool

    def completion(self, text: str, after: str = "") -> str | None:
        """Find a short text for between `text` and `after` with which they are right; None if none is known."""
        ...


def find_grammar(name: str, seconds: float | None = None) -> Grammar:
    """Find a grammar by its name (`jax_lm.options.GRAMMARS`); ValueError for another, or one that cannot be made.

    Args:
        seconds: what preparing it may take, if other than `regular.SECONDS`.
    """
    kind, _, text = name.partition(":")
    # Imported where it is asked for: no business of most commands.
    if name == "python":
        from jax_lm.grammar.python import PythonGrammar

        return PythonGrammar()
    if name == "json_object":
        return JsonObjectGrammar()
    if kind in ("regex", "json_schema") and text:
        return regular_grammar(kind, text, seconds)
    raise ValueError(f"grammar={reprlib.repr(name)}: must be {GRAMMAR_WORDS}")
