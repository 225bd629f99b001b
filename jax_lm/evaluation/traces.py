"""How a model decodes: what was decided when and how surely, over a whole canvas, and measures of that.

Runs the model; the measures are `evaluation.decoding_order`. Stop tokens end nothing here: as in the paper, all
positions of the canvas are decided, and those after the text are told apart afterwards.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from jax_lm.evaluation.decoding_order import decoding_order, global_ar_ness, local_ar_ness, within
from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference, Progress
from jax_lm.infilling import Template
from jax_lm.options import GenerationOptions

LOCAL_K, GLOBAL_K = range(1, 10), range(1, 5)
"""As plotted in the paper."""


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

    def order(self, *, by_confidence: bool) -> np.ndarray:
        """Positions as they were decided; ValueError if several were at one step and `by_confidence` is not set."""
        confidence = np.array(self.confidence) if by_confidence else None
        return decoding_order(np.array(self.commit_step), confidence)


def record(
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
    state = None
    for state in engine.states(
        canvas, replace(options, early_stop=False), seed=seed, every=None if on_progress is None else 8
    ):
        if on_progress:
            on_progress(int(canvas.holes.sum()) - int(np.asarray(state.masked).sum()), int(canvas.holes.sum()))
    assert state is not None
    tokens, confidence, steps = (np.asarray(part) for part in (state.tokens, state.confidence, state.commit_step))
    stops = engine.tokenizer.stop_ids
    traces = []
    for row, (problem, sample) in enumerate(rows):
        holes = canvas.holes[row]
        ids = tokens[row][holes].tolist()
        end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
        traces.append(
            Trace(
                name=problem.name,
                sample=sample,
                temperature=options.temperature,
                prompt=problem.prefix,
                text=engine.tokenizer.decode(ids[:end], skip_special_tokens=True),
                pieces=tuple(engine.tokenizer.decode([token]) for token in ids),
                commit_step=tuple(steps[row][holes].tolist()),
                confidence=tuple(round(value, 4) for value in confidence[row][holes].tolist()),
                end=end,
            )
        )
    return traces


def first_confidence(
    engine: DiffuCoderInference, problems: Sequence[Problem], new_tokens: int
) -> Float[np.ndarray, "b t"]:
    """Largest probability at each position of the canvas before anything is decided (temperature 1, no filters).

    The paper calls its shape an entropy sink: high right after the prompt, low behind.
    """
    canvas = engine.canvas([Template.completion(problem.prefix, new_tokens) for problem in problems])
    options = GenerationOptions(max_new_tokens=new_tokens, alg="maskgit_plus", temperature=0.0, top_p=None, top_k=None)
    tokens = np.where(canvas.holes, engine.sampler.mask_id, canvas.tokens)
    _, scores = engine.sampler.replay(tokens, canvas, options, 0)
    return scores[canvas.holes].reshape(len(problems), new_tokens)


def measures(traces: Sequence[Trace], *, by_confidence: bool) -> dict[str, Any]:
    """AR-ness averaged over traces, over the whole canvas and over the text alone, and mean confidence."""
    orders = [trace.order(by_confidence=by_confidence) for trace in traces]
    texts = [within(order, trace.end) for order, trace in zip(orders, traces, strict=True) if trace.end > 1]

    def means(measure: Any, chosen: list[np.ndarray], ks: range) -> list[float | None]:
        columns = ([value for order in chosen if not np.isnan(value := measure(order, k))] for k in ks)
        return [round(float(np.mean(values)), 4) if values else None for values in columns]

    decided = [value for trace in traces for value in trace.confidence[: trace.end]]
    return {
        "local": means(local_ar_ness, orders, LOCAL_K),
        "global": means(global_ar_ness, orders, GLOBAL_K),
        "local_text": means(local_ar_ness, texts, LOCAL_K),
        "global_text": means(global_ar_ness, texts, GLOBAL_K),
        "confidence_text": round(float(np.mean(decided)), 4) if decided else None,
    }


def as_data(trace: Trace) -> dict[str, Any]:
    """A trace as plain data, for JSON and the replay."""
    return asdict(trace)
