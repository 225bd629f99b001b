"""The sequence of a request, or what does not fit. Knows tokens, neither queue nor slots."""

import jax
import numpy as np

from jax_lm.diffusion.canvas import Block
from jax_lm.inference import DiffuCoderInference
from jax_lm.infilling import initial_length
from jax_lm.serving.growing import GrowingSequence
from jax_lm.serving.jobs import Request
from jax_lm.serving.sequence import Sequence


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
    if inference.is_growing(options) and request.is_gap:
        return growing_sequence(request, inference, key, context)
    if options.growth == "on":
        raise ValueError("growth='on': fills holes between texts; a completion has the length that is stated")
    start = len(request.before)
    tokens = np.concatenate([request.before, np.zeros(hole), request.after]).astype(np.int32)
    return Sequence(
        tokens=tokens,
        hole=Block(start, start + hole),
        options=options,
        stop_ids=inference.tokenizer.stop_ids if options.early_stop else (),
        key=key,
        keeps_logprobs=request.logprobs is not None,
    )


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
