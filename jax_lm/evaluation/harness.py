"""A DiffuCoder or Dream checkpoint as a model of lm-evaluation-harness, so that its benchmarks run
unchanged.

    python -m jax_lm.evaluation.harness run --model diffucoder --model_args pretrained=P,samples=64 --tasks T

A masked-diffusion model has no exact likelihood: what the harness gets is the Monte-Carlo estimate
of `jax_lm.diffusion.likelihood`, a lower bound in expectation. Needs the extra `lm-eval`.
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

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.host import terminal
from jax_lm.inference import WIDTH_BUCKET, DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.tokenizer import END_OF_TEXT, Message, pad_left

logger = logging.getLogger(__name__)

GENERATION_KEYS = {"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"}

# A request for a likelihood: its texts, the ids of the context, the ids to score.
Pair = tuple[tuple[str, str], list[int], list[int]]


@register_model("diffucoder")
class DiffuCoderLM(TemplateLM):
    """The model that the harness asks.

    Args:
        pretrained: folder or hub id; the built-in model if not given.
        dtype: float32, bfloat16 or int8; chosen by the device if not given.
        samples: masks over which a likelihood is estimated.
        max_gen_toks: length of an answer where the task does not say.
        preset: exact, fast or turbo, of generated answers.
        is_greedy: whether to find out if a scored text is what the model would write, which costs
            as many forwards as it has tokens; if not, the answer is no.
        seed: of masks and draws.
        batch_size: answers decoded together.
        max_batch_size, device: given by the harness; not used.

    Raises:
        ValueError: an option out of range, or a checkpoint that cannot be used.
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
        return self.engine.tokenizer.token_id(END_OF_TEXT)

    @property
    def max_length(self) -> int:
        return self.engine.config.max_position_embeddings

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness caches requests."""
        return self.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
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
        """Encode a text; Dream's tokenizer adds no ids of its own either way."""
        return self.engine.tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Estimate each likelihood, and whether greedy decoding gives the text.

        The name is the harness's.
        """
        pairs = [self.fitting(context, target) for _, context, target in requests]
        greedy = self.are_greedy(pairs) if self.is_greedy else [False] * len(pairs)
        return list(zip(self.estimates(pairs, disable_tqdm), greedy, strict=True))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Estimate whole texts; one that is longer than the context is scored window by window."""
        texts = [self.windows(request.args[0]) for request in requests]
        scores = iter(
            self.estimates([window for windows in texts for window in windows], disable_tqdm)
        )
        return [sum(next(scores) for _ in windows) for windows in texts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer up to the first stop text, in batches of requests with equal options."""
        parsed = [self.request_options(request.args[1]) for request in requests]
        groups: dict[GenerationOptions, list[int]] = defaultdict(list)
        for index, (options, _) in enumerate(parsed):
            groups[options].append(index)
        answers = [""] * len(requests)
        for options, group in groups.items():
            # The longest first: what does not fit into memory shows at once.
            ordered = sorted(group, key=lambda index: -len(requests[index].args[0]))
            for batch in chunks(ordered, self.batch_size):
                prompts = [
                    self.prompt(requests[index].args[0], options.max_new_tokens) for index in batch
                ]
                for index, text in zip(
                    batch, self.engine.complete(prompts, options, seed=self.seed), strict=True
                ):
                    answers[index] = postprocess_generated_text(text, parsed[index][1], None)
        return answers

    def request_options(self, kwargs: dict[str, Any]) -> tuple[GenerationOptions, list[str]]:
        """Read options and stop texts of a request; ValueError names what this model has no option
        for.
        """
        kwargs = dict(normalize_gen_kwargs(kwargs, self.options.max_new_tokens))
        if unknown := sorted(kwargs.keys() - GENERATION_KEYS):
            raise ValueError(
                f"generation_kwargs: {', '.join(unknown)} is none of {', '.join(sorted(GENERATION_KEYS))}"
            )
        drawn = {name: kwargs[name] for name in ("top_p", "top_k") if name in kwargs}
        temperature, length = float(kwargs.get("temperature", 0.0)), kwargs["max_gen_toks"]
        return replace(
            self.options, max_new_tokens=length, temperature=temperature, **drawn
        ), kwargs["until"]

    def prompt(self, text: str, new_tokens: int) -> str:
        """Cut the beginning of a text, so that there is room for the answer."""
        ids, room = self.tok_encode(text), self.max_length - new_tokens
        if len(ids) <= room:
            return text
        if room < 1:
            raise ValueError(
                f"max_gen_toks={new_tokens}: the context holds {self.max_length} tokens"
            )
        logger.warning("a prompt of %d tokens is cut to its last %d", len(ids), room)
        return self.engine.tokenizer.decode(ids[-room:])

    def fitting(self, context: list[int], target: list[int]) -> tuple[list[int], list[int]]:
        """Cut the beginning of the context where both do not fit."""
        room = self.max_length - len(target)
        if room < 1:
            raise ValueError(
                f"a text to score has {len(target)} tokens: the context holds {self.max_length}"
            )
        if len(context) > room:
            logger.warning("a context of %d tokens is cut to its last %d", len(context), room)
        return context[-room:], target

    def windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        """Split a text into contexts and ids to score, so that each token is scored once."""
        # A causal model predicts the token after its input; here both have to fit.
        pairs = get_rolling_token_windows(
            self.tok_encode(text),
            prefix_token=self.eot_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        return [make_disjoint_window(pair) for pair in pairs]

    def estimates(
        self, pairs: Sequence[tuple[list[int], list[int]]], is_quiet: bool
    ) -> Iterator[float]:
        """Estimate log-likelihoods in nats."""
        with terminal.progress("scoring") as report:
            for done, (context, target) in enumerate(pairs, 1):
                yield self.estimate(context, target)
                if report and not is_quiet:
                    report(done, len(pairs))

    def estimate(self, context: list[int], target: list[int]) -> float:
        """Estimate one log-likelihood in nats; a target without tokens has 0."""
        if not target:
            return 0.0
        return log_likelihood(
            self.engine.sampler, context, target, samples=self.samples, seed=self.seed
        ).log_likelihood

    def are_greedy(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[bool]:
        """Tell whether greedy decoding of a hole of its length gives each target; so it does of
        none.
        """
        answers = [not target for _, target in pairs]
        lengths = sorted({len(target) for _, target in pairs if target}, reverse=True)
        for length in lengths:
            # Rows of one length alone, so that the schedule of a row does not depend on who is
            # beside it.
            for batch in chunks(
                [i for i, pair in enumerate(pairs) if len(pair[1]) == length], self.batch_size
            ):
                # A last batch of another size would compile the loop once more.
                rows = [pairs[index] for index in batch] + [pairs[batch[-1]]] * (
                    self.batch_size - len(batch)
                )
                for index, tokens in zip(batch, self.decode_greedily(rows, length), strict=False):
                    answers[index] = tokens.tolist() == pairs[index][1]
        return answers

    def decode_greedily(
        self, pairs: Sequence[tuple[list[int], list[int]]], length: int
    ) -> Int[np.ndarray, "b {length}"]:
        """Fill the last `length` positions in as many steps, the surest first."""
        ids, mask = pad_left(
            [c + t for c, t in pairs], self.engine.tokenizer.pad_id, multiple_of=WIDTH_BUCKET
        )
        holes = np.broadcast_to(np.arange(ids.shape[1]) >= ids.shape[1] - length, ids.shape)
        options = GenerationOptions(max_new_tokens=length, temperature=0.0, top_p=None)
        state = self.engine.sampler.generate(Canvas(ids, holes, mask.astype(bool)), options)
        return np.asarray(state.tokens)[:, -length:]


if __name__ == "__main__":
    cli_evaluate()
