"""Grammars: which texts an answer may become, and by which text the beginning of one becomes whole.

    grammar = find_grammar("python")
    grammar.completion("def f(x):\\n    return (x")   # ")"
    grammar.completion("def f(x]")                    # None: nothing makes it whole

A canvas has a fixed number of tokens, so that "is this the beginning of a right text" is not enough: it must also
end within what is left. Hence a grammar is asked for the end itself. Texts only: no token, no model, no JAX.
"""

from typing import Protocol, runtime_checkable


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


def find_grammar(name: str) -> Grammar:
    """Find a grammar by its name in `jax_lm.options.GRAMMARS`; ValueError for another."""
    # Each is imported where it is asked for: the server's are no business of a command.
    if name == "python":
        from jax_lm.grammar.python import PythonGrammar

        return PythonGrammar()
    raise ValueError(f"grammar={name!r}: must be python")
