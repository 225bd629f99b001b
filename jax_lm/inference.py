"""DiffuCoderInference: a checkpoint and its tokenizer, ready to generate.

    python -m jax_lm.inference --model-path P --prompt "def fibonacci(n):" --max-new-tokens 128

Chooses device and dtype, checks requests, pads batches; the decoding itself is `jax_lm.diffusion`.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from jax_lm import terminal
from jax_lm.checkpoints import huggingface
from jax_lm.diffusion.sampler import Canvas, Sampler, SamplerState
from jax_lm.diffusion.unmasking import SamplingConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import parameter_count
from jax_lm.tokenizer import DiffuCoderTokenizer, Message

logger = logging.getLogger(__name__)

BUILTIN_MODEL = Path(__file__).parent / "assets" / "builtin"
BUILTIN_NOTICE = "built-in demonstration model: small Python functions only, not DiffuCoder"
DTYPES = ("float32", "bfloat16")
Progress = Callable[[int, int], None]
PROGRESS_UPDATES = 50
PROMPT_BUCKET = 32
"""Prompts are left-padded to a multiple of this, so that prompts of similar length share a compilation."""

TRAINED_CONTEXT = 2048
"""Prompt and answer that the published models were tuned on; longer works, with a warning."""

SMALL_MODEL = 250_000_000
"""Parameters below which a CPU runs in float32 without measuring: the weights fit, the result is exact."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to answer a prompt; the defaults are DiffuCoder's published settings.

    Attributes:
        max_new_tokens: length of the canvas that is filled.
        temperature: 0 is greedy.
        top_p: mass of the nucleus, in (0, 1]; None is off.
        top_k: number of candidates per position; None is off.
        num_steps: denoising steps; None takes max_new_tokens / tokens_per_step.
        tokens_per_step: how many tokens a step commits; more is faster and worse.
        alg: order of unmasking: origin, maskgit_plus, topk_margin, entropy, random or left_to_right.
        alg_temp: 0 commits the most confident positions; above 0 they are drawn.
        seed: of the random draws; a row's draws depend on the seed and its place in the batch.
    """

    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = "entropy"
    alg_temp: float = 0.0
    seed: int = 0

    def sampling(self) -> SamplingConfig:
        """The sampler's settings; ValueError names the option that is out of range."""
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: must be at least 1")
        if self.tokens_per_step < 1:
            raise ValueError(f"tokens_per_step={self.tokens_per_step}: must be at least 1")
        if self.num_steps is not None and self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps}: must be at least 1, or None")
        if self.num_steps is not None and self.tokens_per_step != 1:
            raise ValueError("num_steps and tokens_per_step both given: each sets the number of steps, give one")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        return SamplingConfig(
            steps=self.num_steps or math.ceil(self.max_new_tokens / self.tokens_per_step),
            alg=self.alg,
            alg_temp=self.alg_temp,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


DEFAULTS = GenerationOptions()


class DiffuCoderInference:
    """Generates text with a DiffuCoder (or Dream) checkpoint.

    Args:
        model_path: folder or hub id; None is the built-in demonstration model.
        tokenizer_path: folder with the tokenizer; None is the model's own.
        dtype: "float32" or "bfloat16"; None chooses what fits the device.
        verbose: say on standard error what was loaded, where and how fast.

    Raises:
        CheckpointError, TokenizerError: the files cannot be used, or do not belong together.
        ValueError: an unknown dtype.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        tokenizer_path: str | Path | None = None,
        dtype: str | None = None,
        *,
        verbose: bool = True,
    ) -> None:
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}, or None")
        start = time.perf_counter()
        folder = huggingface.resolve(BUILTIN_MODEL if model_path is None else model_path)
        self.is_builtin = model_path is None
        self.tokenizer = DiffuCoderTokenizer.from_pretrained(folder if tokenizer_path is None else tokenizer_path)
        self.config = DreamForCausalLM.read_config(folder)
        self.tokenizer.require_ids(mask_token_id=self.config.mask_token_id, vocab_size=self.config.vocab_size)
        self.parameter_count = parameter_count(self.config)
        self.dtype = dtype or fitting_dtype(self.parameter_count)
        with terminal.progress("loading") as report:
            model = DreamForCausalLM.from_pretrained(folder, dtype=self.dtype, on_progress=report)
        self.sampler = Sampler(model)
        self.load_seconds = time.perf_counter() - start
        if verbose:
            sys.stderr.write(f"{self.describe()}\n")

    def describe(self) -> str:
        """Model, size, device, dtype and load time in one line."""
        device = jax.devices()[0]
        name = f"{BUILTIN_NOTICE} · " if self.is_builtin else ""
        return (
            f"{name}{self.parameter_count:,} parameters · {device.platform} ({device.device_kind}) · "
            f"{self.dtype} · loaded in {self.load_seconds:.1f} s"
        )

    def generate(
        self,
        prompt_or_list: str | Sequence[str],
        max_new_tokens: int = DEFAULTS.max_new_tokens,
        temperature: float = DEFAULTS.temperature,
        top_p: float | None = DEFAULTS.top_p,
        top_k: int | None = DEFAULTS.top_k,
        num_steps: int | None = DEFAULTS.num_steps,
        tokens_per_step: int = DEFAULTS.tokens_per_step,
        alg: str = DEFAULTS.alg,
        alg_temp: float = DEFAULTS.alg_temp,
        seed: int = DEFAULTS.seed,
        return_full_text: bool = True,
    ) -> str | list[str]:
        """Complete one prompt, or a batch of them; options as in `GenerationOptions`.

        Returns:
            Text up to the stop token, the prompt before it unless `return_full_text=False`; a list for a list.

        Raises:
            ValueError: an option out of range, no prompt, or one that does not fit the context.
        """
        prompts = [prompt_or_list] if isinstance(prompt_or_list, str) else list(prompt_or_list)
        options = GenerationOptions(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            num_steps=num_steps,
            tokens_per_step=tokens_per_step,
            alg=alg,
            alg_temp=alg_temp,
            seed=seed,
        )
        with terminal.progress("generating") as report:
            completions = self.complete(prompts, options, on_progress=report)
        texts = [p + c for p, c in zip(prompts, completions, strict=True)] if return_full_text else completions
        return texts[0] if isinstance(prompt_or_list, str) else texts

    def chat(self, messages: str | Sequence[Message], options: GenerationOptions = DEFAULTS) -> str:
        """Answer a conversation ({"role": …, "content": …} messages, or one user message as a string)."""
        with terminal.progress("generating") as report:
            return self.complete([self.chat_prompt(messages)], options, on_progress=report)[0]

    def chat_prompt(self, messages: str | Sequence[Message]) -> str:
        """The prompt that the chat template makes of a conversation."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not messages:
            raise ValueError("messages=[]: must hold at least one message")
        return self.tokenizer.apply_chat_template(messages)

    def complete(
        self, prompts: Sequence[str], options: GenerationOptions, *, on_progress: Progress | None = None
    ) -> list[str]:
        """Completions of prompts, up to their stop tokens; `on_progress` gets steps done and steps in all."""
        steps = options.sampling().steps
        # One compiled loop either way: without anybody to report to, it runs to its end at once.
        every = steps if on_progress is None else max(1, steps // PROGRESS_UPDATES)
        state = None
        for state in self.stream(prompts, options, every=every):
            if on_progress:
                on_progress(int(state.step), steps)
        assert state is not None
        rows = np.asarray(state.tokens)[:, -options.max_new_tokens :].tolist()
        return [self.tokenizer.decode_until_stop(row) for row in rows]

    def stream(self, prompts: Sequence[str], options: GenerationOptions, *, every: int = 1) -> Iterator[SamplerState]:
        """The canvas after every `every` steps and after the last; arguments are checked before the first."""
        config = options.sampling()
        return self.sampler.stream(self.canvas(prompts, options), config, seed=options.seed, every=every)

    def canvas(self, prompts: Sequence[str], options: GenerationOptions) -> Canvas:
        """Left-padded prompts with their canvas; ValueError if one does not fit the context."""
        if not prompts:
            raise ValueError("prompt_or_list=[]: must hold at least one prompt")
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise ValueError(f"prompt {prompt!r}: must be a string, not {type(prompt).__name__}")
        ids, mask = self.tokenizer.encode_batch(prompts, multiple_of=PROMPT_BUCKET)
        longest = int(mask.sum(axis=1).max(initial=0))
        limit = self.config.max_position_embeddings
        if longest + options.max_new_tokens > limit:
            raise ValueError(
                f"prompt of {longest} tokens with max_new_tokens={options.max_new_tokens}: "
                f"the context holds {limit} tokens"
            )
        if longest + options.max_new_tokens > TRAINED_CONTEXT:
            logger.warning(
                "prompt and answer take %d tokens; DiffuCoder was tuned on %d",
                longest + options.max_new_tokens,
                TRAINED_CONTEXT,
            )
        return Canvas.after(ids, mask, options.max_new_tokens)

    def benchmark_inference(
        self, batch_sizes: Sequence[int] = (1, 2, 4, 8), seq_length: int = 128, num_iterations: int = 10
    ) -> dict[str, dict[str, float]]:
        """Time forward passes over canvases [batch, seq_length], what each denoising step does.

        Returns:
            For each batch size "batch_N": average seconds per pass and canvas tokens per second, after a
            warm-up pass that is not counted.
        """
        for name, value in (("seq_length", seq_length), ("num_iterations", num_iterations)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if seq_length > self.config.max_position_embeddings:
            raise ValueError(f"seq_length={seq_length}: the context holds {self.config.max_position_embeddings} tokens")
        results = {}
        for batch in batch_sizes:
            if batch < 1:
                raise ValueError(f"batch_sizes={tuple(batch_sizes)}: each must be at least 1")
            tokens = jnp.full((batch, seq_length), self.sampler.mask_id, jnp.int32)
            self.sampler.forward(tokens).block_until_ready()
            start = time.perf_counter()
            for _ in range(num_iterations):
                self.sampler.forward(tokens).block_until_ready()
            seconds = (time.perf_counter() - start) / num_iterations
            results[f"batch_{batch}"] = {
                "avg_time_seconds": seconds,
                "throughput_tokens_per_second": batch * seq_length / seconds,
            }
        return results


def fitting_dtype(parameter_count: int) -> str:
    """bfloat16 on accelerators; on a CPU float32 for small models, else what a trial product runs faster in."""
    if jax.default_backend() != "cpu":
        return "bfloat16"
    if parameter_count < SMALL_MODEL:
        return "float32"
    return min(DTYPES, key=trial_seconds)


def trial_seconds(dtype: str) -> float:
    """Best of three times of one product of the kind that dominates a forward pass."""
    rows, weight = jnp.ones((256, 2048), dtype), jnp.ones((2048, 2048), dtype)

    @jax.jit
    def trial(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.dot_general(rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    trial(rows, weight).block_until_ready()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        trial(rows, weight).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Generate with a checkpoint, or time its forward pass.

    Attributes:
        model_path: folder or hub id; the built-in demonstration model if not given.
        tokenizer_path: folder with the tokenizer; the model's own if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        prompt: what to complete.
        benchmark: time forward passes instead of generating.
        options: how to answer.
        debug: show the traceback of an error.
    """

    model_path: str | None = None
    tokenizer_path: str | None = None
    dtype: str | None = None
    prompt: str = "def fibonacci(n):"
    benchmark: bool = False
    options: tyro.conf.OmitArgPrefixes[GenerationOptions] = DEFAULTS
    debug: bool = False

    def run(self) -> int:
        engine = DiffuCoderInference(self.model_path, self.tokenizer_path, self.dtype)
        if self.benchmark:
            for name, figures in engine.benchmark_inference().items():
                fields = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
                sys.stdout.write(f"{name}: {fields}\n")
        else:
            with terminal.progress("generating") as report:
                text = engine.complete([self.prompt], self.options, on_progress=report)[0]
            sys.stdout.write(self.prompt + text.rstrip("\n") + "\n")
        return 0


def main() -> int:
    """Entry of `python -m jax_lm.inference`."""
    arguments = tyro.cli(Arguments, config=(tyro.conf.FlagCreatePairsOff,))
    return terminal.guarded(arguments.run, debug=arguments.debug)


if __name__ == "__main__":
    sys.exit(main())
