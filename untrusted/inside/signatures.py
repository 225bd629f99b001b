"""Names, documentation and signatures of functions, as they cross between two ends of a conversation.

Imports the standard library only.
"""

import inspect
from typing import Any

from untrusted.inside.conversation import Conversation


def describe_signature(peer: Conversation, function: Any) -> list | None:
    """Describe the signature of a callable; None if it has none."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    parameters = [
        [p.name, int(p.kind), [] if p.default is p.empty else [peer.encode(p.default)], annotation(peer, p.annotation)]
        for p in signature.parameters.values()
    ]
    return [parameters, annotation(peer, signature.return_annotation)]


def describe_function(peer: Conversation, function: Any) -> dict[str, Any]:
    """Describe a function: its names, its documentation, its signature."""
    return {
        "home": function.__module__,
        "name": function.__name__,
        "qualname": function.__qualname__,
        "doc": function.__doc__ if isinstance(function.__doc__, str) else None,
        "signature": describe_signature(peer, function),
        "asynchronous": inspect.iscoroutinefunction(function),
    }


def annotation(peer: Conversation, value: Any) -> Any:
    """Encode an annotation; None if there is none."""
    return None if value is inspect.Parameter.empty else [peer.encode(value)]


def name_function(peer: Conversation, made: Any, form: dict[str, Any]) -> None:
    """Give a function the names, the documentation and the signature of the one it stands for."""
    made.__name__, made.__qualname__, made.__module__ = str(form["name"]), str(form["qualname"]), "__main__"
    made.__doc__ = form["doc"]
    if form["signature"] is not None:
        made.__signature__ = restore_signature(peer, form["signature"])
        made.__annotations__ = annotations_of(peer, form["signature"])
        if peer.is_strict:
            made.__defaults__, made.__kwdefaults__ = defaults_of(made.__signature__)


def annotations_of(peer: Conversation, described: list | None) -> dict[str, Any]:
    """Collect the annotations of a signature."""
    parameters, returned = described or ([], None)
    forms = [*((name, form) for name, _, _, form in parameters), ("return", returned)]
    return {name: peer.decode(form[0]) for name, form in forms if form}


def defaults_of(signature: inspect.Signature) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """Collect the defaults of positional parameters and of those that are given by name."""
    given = [part for part in signature.parameters.values() if part.default is not part.empty]
    by_name = {part.name: part.default for part in given if part.kind is part.KEYWORD_ONLY}
    return tuple(part.default for part in given if part.name not in by_name) or None, by_name or None


def restore_signature(peer: Conversation, described: list) -> inspect.Signature:
    def given(form: Any) -> Any:
        return peer.decode(form[0]) if form else inspect.Parameter.empty

    parameters = [
        inspect.Parameter(name, inspect._ParameterKind(kind), default=given(default), annotation=given(form))
        for name, kind, default, form in described[0]
    ]
    return inspect.Signature(parameters, return_annotation=given(described[1]), __validate_parameters__=False)
