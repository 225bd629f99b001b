"""Traces of decoded canvases: what was decided when and how surely. Runs the model.

Stop tokens end nothing here: as in the paper, all positions of the canvas are decided, and those after the text are
split off afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from jax_lm.evaluation.decoding_order import decoding_order
from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference, Progress
from jax_lm.infilling import Template
from jax_lm.options import EXACT, Decoding, GenerationOptions

ONE_POSITION = Decoding(commit="threshold", threshold=1.0, block_length=0)


@dataclass(frozen=True)
class Trace:
    """One decoded canvas.

    Attributes:
        name: of the problem.
        sample: 0, 1, … of the same problem.
        temperature: that it was drawn with.
        prompt: what stood before.
        text: what was written, up to the first stop token.
        pieces: text of each token.
        commit_step: step at which each position was decided.
        confidence: probability of each token when it was decided.
        end: positions before the first stop token.
    """

    name: str
    sample: int
    temperature: float
    prompt: str
    text: str
    pieces: tuple[str, ...]
    commit_step: tuple[int, ...]
    confidence: tuple[float, ...]
    end: int

    def order(self, *, by_confidence: bool) -> Int[np.ndarray, "t"]:
        """List positions as they were decided; ValueError if several were at one step and not `by_confidence`."""
        confidence = np.array(self.confidence) if by_confidence else None
        return decoding_order(np.array(self.commit_step), confidence)


def decides_several(options: GenerationOptions) -> bool:
    """Tell whether a step may decide several positions, so that only confidence orders them."""
    return options.steps != options.max_new_tokens or options.decoding != EXACT


def one_position_per_step(options: GenerationOptions) -> GenerationOptions:
    """Make options that ask for as many steps as positions decide exactly one position at each."""
    if decides_several(options):
        return options
    # The published schedule rounds: with as many steps as positions, some steps decide none and some several. A
    # rule by probability with that many steps decides one position at each, the first in the order.
    return replace(options, num_steps=options.steps, tokens_per_step=1, decoding=ONE_POSITION)


def decode_traces(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    options: GenerationOptions,
    *,
    samples: int,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> list[Trace]:
    """Decode the prompts of problems, `samples` times each and all together."""
    rows = [(problem, sample) for problem in problems for sample in range(samples)]
    canvas = engine.canvas([Template.completion(problem.prefix, options.max_new_tokens) for problem, _ in rows])
    holes = int(canvas.holes.sum())
    options = replace(one_position_per_step(options), early_stop=False)
    state = None
    for state in engine.states(canvas, options, seed=seed, every=None if on_progress is None else 8):
        if on_progress:
            on_progress(holes - int(np.asarray(state.masked).sum()), holes)
    assert state is not None
    tokens, confidence, steps = (np.asarray(part) for part in (state.tokens, state.confidence, state.commit_step))
    decode, stops = engine.tokenizer.decode, engine.tokenizer.stop_ids
    traces = []
    for row, (problem, sample) in enumerate(rows):
        hole = canvas.holes[row]
        ids = tokens[row][hole].tolist()
        end = next((position for position, token in enumerate(ids) if token in stops), len(ids))
        traces.append(
            Trace(
                name=problem.name,
                sample=sample,
                temperature=options.temperature,
                prompt=problem.prefix,
                text=decode(ids[:end], skip_special_tokens=True),
                pieces=tuple(decode([token]) for token in ids),
                commit_step=tuple(steps[row][hole].tolist()),
                confidence=tuple(round(value, 4) for value in confidence[row][hole].tolist()),
                end=end,
            )
        )
    return traces


def first_confidence(
    engine: DiffuCoderInference, problems: Sequence[Problem], new_tokens: int
) -> Float[np.ndarray, "b t"]:
    """Find the largest probability at each position before anything is decided (temperature 1, no filters).

    The paper calls its shape an entropy sink: high right after the prompt, low behind.
    """
    canvas = engine.canvas([Template.completion(problem.prefix, new_tokens) for problem in problems])
    options = GenerationOptions(max_new_tokens=new_tokens, alg="maskgit_plus", temperature=0.0, top_p=None, top_k=None)
    tokens = np.where(canvas.holes, engine.sampler.mask_id, canvas.tokens)
    _, scores = engine.sampler.replay(tokens, canvas, options, 0)
    return scores[canvas.holes].reshape(len(problems), new_tokens)
