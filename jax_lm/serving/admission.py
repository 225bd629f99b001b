"""Create the sequence of a request, or report what does not fit. Knows neither queue nor slots."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from jax_lm.config import Fields
from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.constrained import Repair
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions
from jax_lm.serving.constrained import ConstrainedSequence
from jax_lm.serving.growing import GrowingSequence
from jax_lm.serving.jobs import Request
from jax_lm.serving.keys import request_key
from jax_lm.serving.sequence import Sequence
from jax_lm.templates import gap_ids, initial_length

# Time limit for making the automaton of a regular expression or a schema.
PREPARING_SECONDS = 10.0


class ContextLengthError(ValueError):
    """Raised for a request that exceeds the context; clients of OpenAI recognise the message."""

    def __init__(self, given: int, hole: int, context: int):
        super().__init__(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{given + hole} tokens ({given} in the prompt, {hole} in the completion: max_tokens). "
            "Please reduce the length of the prompt or completion."
        )


def sequence_of(
    request: Request, inference: DiffuCoderInference, *, context: int, max_tokens: int
) -> Sequence:
    """Create the sequence of a request.

    Raises:
        ValueError: the request does not fit the context, the limits or the model; the message names
            the field.
    """
    # limits of the server
    config = inference.config
    options = served_options(inference, request.options)
    hole = request.options.max_new_tokens
    if config.is_unidirectional and request.after:
        prefix, suffix, middle = gap_ids(inference.tokenizer)
        before = (prefix, *request.before, suffix, *request.after, middle)
        request = replace(request, before=before, after=())
    if config.attention_block and request.after:
        raise ValueError(f"{config.family.name} attends to earlier text alone: it fills no holes")
    if hole > max_tokens:
        raise ValueError(f"max_tokens={hole}: at most {min(max_tokens, context - 1)}")
    if request.prompt_tokens + hole > context:
        raise ContextLengthError(request.prompt_tokens, hole, context)
    # blocks that are counted from the end of the prompt need no alignment
    is_aligned = config.family.prompt == "start" and not config.is_unidirectional
    fields: Fields = {
        # each answer has its own key
        "key": request_key(request.seed, request.index),
        "adapter": request.adapter,
        # the repair applies the grammar, not the step
        "options": options.with_settings(grammar=None),
        "keeps_logprobs": request.logprobs is not None,
        "is_left_to_right": config.is_unidirectional,
        "decoding_block": (is_aligned and config.decoding_block) or 1,
    }
    tokenizer = inference.tokenizer
    growth = inference.sampler.growth
    # a hole that finds its own length
    if growth and inference.is_growing(options) and request.is_gap:
        if options.grammar:
            raise ValueError(
                "growth: a hole that finds its own length cannot meet a grammar; "
                "growth='off' keeps its length"
            )
        if request.logprobs is not None:
            raise ValueError(
                f"logprobs={request.logprobs}: not where holes grow; growth='off' keeps their length"
            )
        # [begin, before, masks, after]; the end token is added by the slots
        masks = [inference.sampler.mask_id] * initial_length(hole, None)
        sequence = GrowingSequence(
            **canvas_of([*tokenizer.begin_ids, *request.before], masks, request.after),
            delete_id=growth.delete_id,
            stop_ids=(),
            **fields,
        )
        if sequence.columns > context:
            raise ContextLengthError(sequence.columns - sequence.most, sequence.most, context)
        return sequence
    if options.growth == "on":
        raise ValueError(
            "growth='on': fills holes between texts; the length of a completion is given"
        )
    # [before, hole, after]; the tokens of the hole are placeholders
    fields |= canvas_of(request.before, [0] * hole, request.after)
    fields["stop_ids"] = tokenizer.stop_ids if options.early_stop else ()
    if options.grammar is None:
        return Sequence(**fields)
    return ConstrainedSequence(
        **fields, repair=Repair(constraint_of(options.grammar, request, inference), options)
    )


def served_options(inference: DiffuCoderInference, options: GenerationOptions) -> GenerationOptions:
    """Return the options, restricted to what a server decodes; ValueError if they ask for more."""
    return options.left_to_right() if inference.config.is_unidirectional else inference.fit(options)


def canvas_of(before: Iterable[int], hole: list[int], after: Iterable[int]) -> Fields:
    """Return the tokens of a sequence and the columns of its hole."""
    # [7, 8], [0, 0, 0], [9] -> [7, 8, 0, 0, 0, 9], hole [2, 5)
    text = [*before, *hole]
    return {
        "tokens": np.array([*text, *after], np.int32),
        "hole": Block(len(text) - len(hole), len(text)),
    }


def constraint_of(grammar: str, request: Request, inference: DiffuCoderInference) -> Constraint:
    """Create the constraint by which answers meet a grammar. This may take seconds."""
    tokenizer = inference.tokenizer
    # a grammar does not read the text around a message
    around = () if request.is_message else (request.before, request.after)
    return Constraint(
        find_grammar(grammar, PREPARING_SECONDS),
        tokenizer,
        request.options.max_new_tokens,
        *(tokenizer.decode(ids, skip_special_tokens=True) for ids in around),
        stops=request.stop,
    )
