"""Create the sequence of a request, or report what does not fit. Knows neither queue nor slots."""

from typing import Any

import numpy as np

from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.constrained import Repair
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.inference import DiffuCoderInference
from jax_lm.serving.constrained import ConstrainedSequence
from jax_lm.serving.growing import GrowingSequence
from jax_lm.serving.jobs import AnySequence, Request
from jax_lm.serving.keys import request_key
from jax_lm.serving.sequence import Sequence
from jax_lm.templates import initial_length

# Time limit for making the automaton of a regular expression or a schema.
PREPARING_SECONDS = 10.0


class ContextLengthError(ValueError):
    """Raised for a request that exceeds the context, in the words by which OpenAI's clients know it."""

    def __init__(self, given: int, hole: int, context: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{given + hole} tokens ({given} in the prompt, {hole} in the completion: max_tokens). "
            "Please reduce the length of the prompt or completion."
        )


def sequence_of(
    request: Request, inference: DiffuCoderInference, *, context: int, max_tokens: int
) -> AnySequence:
    """Create the sequence of a request.

    Raises:
        ValueError: the request does not fit the context, the limits or the model; the message names
            the field.
    """
    # limits of the server
    options, hole = inference.fit(request.options), request.options.max_new_tokens
    if inference.config.attention_block is not None and len(request.after):
        raise ValueError(
            f"{inference.config.family.name} attends to earlier text alone: it fills no holes"
        )
    if hole > max_tokens:
        raise ValueError(f"max_tokens={hole}: at most {max_tokens}")
    given = request.prompt_tokens
    if given + hole > context:
        raise ContextLengthError(given, hole, context)
    # a key of its own for each answer
    key = request_key(request.seed, request.index)
    # a hole that finds its own length
    if inference.is_growing(options) and request.is_gap:
        if options.grammar is not None:
            raise ValueError(
                "growth: a hole that finds its own length cannot meet a grammar; "
                "growth='off' keeps its length"
            )
        return growing_sequence(request, inference, key, context)
    if options.grammar is None and options.growth == "on":
        raise ValueError(
            "growth='on': fills holes between texts; the length of a completion is given"
        )
    # [before, hole, after]; the tokens of the hole are placeholders
    start = len(request.before)
    tokens = np.concatenate([request.before, np.zeros(hole), request.after]).astype(np.int32)
    fields: dict[str, Any] = {
        "tokens": tokens,
        "hole": Block(start, start + hole),
        # the grammar is the repair's, not the step's
        "options": options.with_settings(grammar=None),
        "stop_ids": inference.tokenizer.stop_ids if options.early_stop else (),
        "key": key,
        "keeps_logprobs": request.logprobs is not None,
    }
    if options.grammar is None:
        return Sequence(**fields)
    repair = Repair(constraint_of(request, inference), options.temperature)
    return ConstrainedSequence(**fields, repair=repair)


def constraint_of(request: Request, inference: DiffuCoderInference) -> Constraint:
    """Create the constraint of a request. This may take seconds."""
    options, texts = request.options, ("", "")
    assert options.grammar is not None
    if not request.is_message:
        texts = (
            inference.tokenizer.decode(ids, skip_special_tokens=True)
            for ids in (request.before, request.after)
        )
    grammar = find_grammar(options.grammar, PREPARING_SECONDS)
    return Constraint(
        grammar, inference.tokenizer, options.max_new_tokens, *texts, stops=request.stop
    )


def growing_sequence(
    request: Request, inference: DiffuCoderInference, key: np.ndarray, context: int
) -> GrowingSequence:
    """Create a sequence whose hole finds its own length, with the tokens that delimit a text."""
    growth, options = inference.sampler.growth, request.options
    begin = inference.tokenizer.begin_ids
    assert growth is not None
    if request.logprobs is not None:
        raise ValueError(
            f"logprobs={request.logprobs}: not where holes grow; growth='off' keeps their length"
        )
    # [begin, before, masks, after]; the end token is added by the slots
    start = len(begin) + len(request.before)
    masks = initial_length(options.max_new_tokens, None)
    ids = [*begin, *request.before, *[inference.sampler.mask_id] * masks, *request.after]
    sequence = GrowingSequence(
        tokens=np.array(ids, np.int32),
        hole=Block(start, start + masks),
        options=options,
        delete_id=growth.delete_id,
        key=key,
    )
    if sequence.columns > context:
        most = sequence.most
        raise ContextLengthError(sequence.columns - most, most, context)
    return sequence
