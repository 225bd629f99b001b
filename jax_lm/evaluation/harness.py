"""Run the benchmarks of lm-evaluation-harness on a DiffuCoder or Dream checkpoint.

    python -m jax_lm.evaluation.harness run --model diffucoder \\
        --model_args pretrained=P,samples=64 --tasks T

A masked-diffusion model has no exact likelihood: the harness gets the Monte Carlo estimate of
`jax_lm.diffusion.likelihood`, a lower bound in expectation. Requires the extra `lm-eval`.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import chunks, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jax_lm.diffusion.canvas import WIDTH_BUCKET, Canvas
from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.host import terminal
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.tokenizer import Message, pad_left

logger = logging.getLogger(__name__)

# Options of a generation request that this model supports.
GENERATION_KEYS = {"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"}

# Ids of a context, and ids to score after it.
Encoded = tuple[list[int], list[int]]
# A likelihood request: (context, continuation) as texts, ids of the context, ids to score.
Pair = tuple[tuple[str, str], list[int], list[int]]


@register_model("diffucoder")
class DiffuCoderLM(TemplateLM):
    """Adapter of the harness's model interface.

    Args:
        pretrained: folder or Hub id; by default the built-in model.
        dtype: float32, bfloat16 or int8; by default chosen by the device.
        samples: masks over which a likelihood is estimated.
        max_gen_toks: tokens of an answer, unless the task sets them.
        preset: preset of generated answers: exact, fast or turbo.
        is_greedy: compute whether greedy decoding would produce a scored text, which takes as many
            forward passes as the text has tokens. Otherwise it is reported as False.
        seed: seed of masks and sampling.
        batch_size: answers decoded together.
        max_batch_size: passed by the harness; not used.
        device: passed by the harness; not used.

    Raises:
        ValueError: an option is out of range, or the checkpoint cannot be used.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        dtype: str | None = None,
        samples: int = 32,
        max_gen_toks: int = 256,
        preset: str = "exact",
        is_greedy: bool = True,
        seed: int = 0,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise ValueError(f"batch_size={batch_size!r}: must be a number, at least 1")
        if samples < 1:
            raise ValueError(f"samples={samples}: must be at least 1")
        self.samples, self.is_greedy, self.batch_size = samples, is_greedy, int(batch_size)
        self.options, self.seed = (
            GenerationOptions(max_new_tokens=max_gen_toks, decoding=Decoding(preset=preset)),
            seed,
        )
        self.engine = DiffuCoderInference(pretrained, dtype=dtype)
        self.name = "built-in model" if pretrained is None else str(pretrained)

    @property
    def eot_token_id(self) -> int:
        """Token id that ends a text."""
        return self.engine.tokenizer.end_id

    @property
    def max_length(self) -> int:
        """Context length of the model, in tokens."""
        return self.engine.config.max_position_embeddings

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness caches requests."""
        return self.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the chat template if the harness uses one. It caches results under it."""
        return self.engine.tokenizer.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: list[Message], add_generation_prompt: bool = True
    ) -> str:
        return self.engine.tokenizer.apply_chat_template(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Encode a text. `add_special_tokens` has no effect: Dream's tokenizer adds none."""
        return self.engine.tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Estimate each log-likelihood, and return whether greedy decoding produces the text.

        The harness calls this method by its private name.
        """
        # The texts of a request are not used: the harness has encoded them.
        pairs = [self.fit_to_context(context, target) for _, context, target in requests]
        greedy = self.are_greedy(pairs) if self.is_greedy else [False] * len(pairs)
        return list(zip(self.estimates(pairs, disable_tqdm), greedy, strict=True))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Estimate log-likelihoods of whole texts.

        A text longer than the context is scored window by window.
        """
        texts = [self.windows(request.args[0]) for request in requests]
        scores = iter(
            self.estimates([window for windows in texts for window in windows], disable_tqdm)
        )
        return [sum(next(scores) for _ in windows) for windows in texts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate answers up to the first stop text, in batches of requests with equal options."""
        settings = [self.request_options(request.args[1]) for request in requests]
        # requests with options A, B, A -> {A: [0, 2], B: [1]}
        groups: dict[GenerationOptions, list[int]] = defaultdict(list)
        for index, (options, _) in enumerate(settings):
            groups[options].append(index)
        answers = [""] * len(requests)
        for options, group in groups.items():
            # Longest first, so that a batch that does not fit into memory fails at once.
            ordered = sorted(group, key=lambda index: -len(requests[index].args[0]))
            for batch in chunks(ordered, self.batch_size):
                prompts = [
                    self.prompt(requests[index].args[0], options.max_new_tokens) for index in batch
                ]
                for index, text in zip(
                    batch, self.engine.complete(prompts, options, seed=self.seed), strict=True
                ):
                    answers[index] = postprocess_generated_text(text, settings[index][1], None)
        return answers

    def request_options(self, kwargs: dict[str, Any]) -> tuple[GenerationOptions, list[str]]:
        """Return the options and the stop texts of a request.

        Raises:
            ValueError: the request has an option that this model does not support.
        """
        kwargs = dict(normalize_gen_kwargs(kwargs, self.options.max_new_tokens))
        if unknown := sorted(kwargs.keys() - GENERATION_KEYS):
            raise ValueError(
                f"generation_kwargs: {', '.join(unknown)} is none of "
                f"{', '.join(sorted(GENERATION_KEYS))}"
            )
        filters = {name: kwargs[name] for name in ("top_p", "top_k") if name in kwargs}
        temperature, length = float(kwargs.get("temperature", 0.0)), kwargs["max_gen_toks"]
        return replace(
            self.options, max_new_tokens=length, temperature=temperature, **filters
        ), kwargs["until"]

    def prompt(self, text: str, new_tokens: int) -> str:
        """Truncate a prompt at its beginning, so that the answer fits into the context."""
        ids, room = self.tok_encode(text), self.max_length - new_tokens
        if len(ids) <= room:
            return text
        if room < 1:
            raise ValueError(
                f"max_gen_toks={new_tokens}: the context holds {self.max_length} tokens"
            )
        logger.warning("a prompt of %d tokens is cut to its last %d", len(ids), room)
        return self.engine.tokenizer.decode(ids[-room:])

    def fit_to_context(self, context: list[int], target: list[int]) -> Encoded:
        """Truncate the context at its beginning, so that both fit into the model's context."""
        room = self.max_length - len(target)
        if room < 1:
            raise ValueError(
                f"a text to score has {len(target)} tokens: the context holds {self.max_length}"
            )
        if len(context) > room:
            logger.warning("a context of %d tokens is cut to its last %d", len(context), room)
        return context[-room:], target

    def windows(self, text: str) -> list[Encoded]:
        """Split a text into pairs of context and ids to score. Each token is scored once."""
        # max_length - 1: a causal model predicts the token after its input, whereas here the input
        # includes the scored token.
        pairs = get_rolling_token_windows(
            self.tok_encode(text),
            prefix_token=self.eot_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        return [make_disjoint_window(pair) for pair in pairs]

    def estimates(self, pairs: Sequence[Encoded], is_quiet: bool) -> Iterator[float]:
        """Yield estimates of log-likelihoods, in nats."""
        with terminal.progress("scoring") as report:
            for done, (context, target) in enumerate(pairs, 1):
                yield self.estimate(context, target)
                if report and not is_quiet:
                    report(done, len(pairs))

    def estimate(self, context: list[int], target: list[int]) -> float:
        """Return the estimate of one log-likelihood, in nats; 0 for an empty target."""
        if not target:
            return 0.0
        return log_likelihood(
            self.engine.sampler, context, target, samples=self.samples, seed=self.seed
        ).log_likelihood

    def are_greedy(self, pairs: Sequence[Encoded]) -> list[bool]:
        """Return whether greedy decoding of a hole of the target's length produces each target.

        True for an empty target.
        """
        # An empty target is what greedy decoding of no token produces.
        answers = [not target for _, target in pairs]
        lengths = sorted({len(target) for _, target in pairs if target}, reverse=True)
        for length in lengths:
            # All rows of a batch have one length, so that the schedule of a row does not depend on
            # the other rows.
            for batch in chunks(
                [i for i, pair in enumerate(pairs) if len(pair[1]) == length], self.batch_size
            ):
                # Pad the last batch by repeating its last row: another size would compile the loop
                # again.
                rows = [pairs[index] for index in batch] + [pairs[batch[-1]]] * (
                    self.batch_size - len(batch)
                )
                for index, tokens in zip(batch, self.decode_greedily(rows, length), strict=False):
                    answers[index] = tokens.tolist() == pairs[index][1]
        return answers

    def decode_greedily(
        self, pairs: Sequence[Encoded], length: int
    ) -> Int[np.ndarray, "b {length}"]:
        """Decode the last `length` positions, the most confident first, in `length` steps."""
        ids, mask = pad_left(
            [c + t for c, t in pairs], self.engine.tokenizer.pad_id, multiple_of=WIDTH_BUCKET
        )
        # width 5, length 2: holes [0, 0, 0, 1, 1]
        holes = np.broadcast_to(np.arange(ids.shape[1]) >= ids.shape[1] - length, ids.shape)
        options = self.engine.fit(
            GenerationOptions(max_new_tokens=length, temperature=0.0, top_p=None)
        )
        state = self.engine.sampler.generate(Canvas(ids, holes, mask.astype(bool)), options)
        return np.asarray(state.tokens)[:, -length:]


if __name__ == "__main__":
    cli_evaluate()
