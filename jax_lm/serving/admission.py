"""The sequence of a request, or what does not fit. Knows tokens, neither queue nor slots."""

from typing import Any

import jax
import numpy as np

from jax_lm.diffusion.canvas import Block
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.inference import DiffuCoderInference
from jax_lm.serving.constrained import ConstrainedSequence
from jax_lm.serving.growing import GrowingSequence
from jax_lm.serving.jobs import Request
from jax_lm.serving.sequence import Sequence
from jax_lm.templates import initial_length

PREPARING_SECONDS = 10.0
"""What the automaton of an expression or a schema may take."""


def sequence_of(
    request: Request, inference: DiffuCoderInference, *, context: int, max_tokens: int
) -> Sequence | GrowingSequence:
    """Make a sequence of a request; ValueError names what does not fit."""
    options, hole = request.options, request.options.max_new_tokens
    if hole > max_tokens:
        raise ValueError(f"max_tokens={hole}: at most {max_tokens}")
    given = len(request.before) + len(request.after)
    if given + hole > context:
        raise ValueError(
            f"prompt ({given}) and max_tokens ({hole}) take {given + hole} tokens: the context holds {context}"
        )
    key = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(request.seed), request.index)))
    if options.grammar is not None:
        return constrained_sequence(request, inference, key)
    if inference.is_growing(options) and request.is_gap:
        return growing_sequence(request, inference, key, context)
    if options.growth == "on":
        raise ValueError("growth='on': fills holes between texts; a completion has the length that is stated")
    return Sequence(**sequence_parts(request, inference, key))


def sequence_parts(request: Request, inference: DiffuCoderInference, key: np.ndarray) -> dict[str, Any]:
    """What a sequence in the slots has of its request."""
    options, start = request.options, len(request.before)
    tokens = np.concatenate([request.before, np.zeros(options.max_new_tokens), request.after]).astype(np.int32)
    return {
        "tokens": tokens,
        "hole": Block(start, start + options.max_new_tokens),
        "options": options.changed(grammar=None),
        "stop_ids": inference.tokenizer.stop_ids if options.early_stop else (),
        "key": key,
        "keeps_logprobs": request.logprobs is not None,
    }


def constrained_sequence(request: Request, inference: DiffuCoderInference, key: np.ndarray) -> ConstrainedSequence:
    """Make a sequence under a grammar, which may take seconds: nothing that must go on may wait for it."""
    options, read = request.options, inference.tokenizer.decode
    assert options.grammar is not None
    if inference.is_growing(options) and request.is_gap:
        raise ValueError(
            "growth: a hole that finds its own length is held to no grammar; growth='off' keeps its length"
        )
    given = ((), ()) if request.is_message else (request.before, request.after)
    before, after = (read(ids, skip_special_tokens=True) for ids in given)
    grammar = find_grammar(options.grammar, PREPARING_SECONDS)
    constraint = Constraint(grammar, inference.tokenizer, options.max_new_tokens, before, after, request.stop)
    return ConstrainedSequence(**sequence_parts(request, inference, key), constraint=constraint)


def growing_sequence(
    request: Request, inference: DiffuCoderInference, key: np.ndarray, context: int
) -> GrowingSequence:
    """Make a sequence whose hole finds its own length; it stands between the tokens that begin and end a text."""
    growth, options, begin = inference.sampler.growth, request.options, inference.tokenizer.begin_ids
    assert growth is not None
    if request.logprobs is not None:
        raise ValueError(f"logprobs={request.logprobs}: not where holes grow; growth='off' keeps their length")
    start, masks = len(begin) + len(request.before), initial_length(options.max_new_tokens, None)
    ids = [*begin, *request.before, *[inference.sampler.mask_id] * masks, *request.after]
    sequence = GrowingSequence(
        tokens=np.array(ids, np.int32),
        hole=Block(start, start + masks),
        options=options,
        delete_id=growth.delete_id,
        key=key,
    )
    if sequence.columns > context:
        raise ValueError(
            f"prompt and max_tokens take {sequence.columns} tokens with those around: the context holds {context}"
        )
    return sequence
