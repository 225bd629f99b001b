"""DiffuCoderInference: a checkpoint and its tokenizer, ready to generate.

    python -m jax_lm.inference --model-path P --prompt "def fibonacci(n):" --max-new-tokens 128

Chooses device and dtype, checks requests, pads batches; the decoding itself is `jax_lm.diffusion`.
"""

import copy
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.checkpoints.peft import StoredAdapter
from jax_lm.checkpoints.stored import QUANTIZED
from jax_lm.data.columns import has_form
from jax_lm.diffusion.candidates import TokenLogProbs
from jax_lm.diffusion.canvas import Canvas, check_context
from jax_lm.diffusion.constrained import constrained_states
from jax_lm.diffusion.likelihood import Score, log_likelihood
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import SamplerState, Seed
from jax_lm.diffusion.variable_length import grows, growth_of, lay_out, named_expand_id, spare_room
from jax_lm.host import terminal
from jax_lm.host.compile_clock import compile_seconds
from jax_lm.host.precision import DTYPES, fitting_dtype, require_fp8_here
from jax_lm.inference.row_ends import Ends, rows_over
from jax_lm.model_source import (
    BUILTIN_MODEL,
    BUILTIN_NAME,
    FolderOrHubId,
    find_adapters,
    find_model,
)
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.joined import join_on_gpu
from jax_lm.options import (
    DEFAULTS,
    Decoding,
    GenerationOptions,
    advise_preset,
    require_one_of,
    require_sizes,
    restrict_options,
)
from jax_lm.planning.memory import PlannedStep, explain_out_of_memory, parameter_count
from jax_lm.reports.replay import Replay, ReplayedText
from jax_lm.results import DecodedBatch, DenoisingEvent, Generation, read_rows
from jax_lm.sharding import MeshShape, choose_replicas, split_data
from jax_lm.templates import (
    HoleLength,
    Template,
    Templates,
    candidate_lengths,
    completion_templates,
    initial_length,
)
from jax_lm.tokenizer import Conversation, DiffuCoderTokenizer

logger = logging.getLogger(__name__)

# Notices about the built-in model, at the start and with its chat answers.
BUILTIN_NOTICE = "built-in demonstration model: small Python functions only, not DiffuCoder"
CHAT_NOTICE = (
    "the built-in model only answers with small Python functions; choose another with --model"
)

# Updates of a progress bar per call: each costs a return from the compiled loop.
PROGRESS_UPDATES = 50
# Steps between two checks for rows that have ended: each costs a return from the compiled loop.
CHECKED_STEPS = 8
FIRST_NOTE = "the first call of a size compiles"


class DiffuCoderInference:
    """Generates text with a DiffuCoder (or Dream) checkpoint.

    Args:
        model_path: folder or hub id; None is the built-in demonstration model.
        tokenizer_path: folder with the tokenizer; None is the model's own.
        dtype: "float32", "bfloat16", or "int8", "int4" or "fp8": such kernels, everything else as
            with None, which chooses the dtype that fits the device.
        mesh: how to use several devices, such as "data=2,tensor=4"; None chooses, and uses all
            devices.
        adapter: folder or hub id of a LoRA adapter in PEFT's layout; without `model_path`, the base
            model that the adapter names is loaded.
        adapters: more LoRA adapters, by name, whose samplers (`adapters`) share the weights of the model.
        replicas: number of replicas that `split` returns; each has its own devices in this mesh.
        verbose: print model, device and load time to standard error.
        before_weights: called with this object before the weights are loaded; may raise.
        allow_nonfinite: load weights that hold NaN or infinity.

    Raises:
        CheckpointError, TokenizerError: the files cannot be used, or do not belong together.
        ValueError: an unknown dtype, or a mesh that does not fit the devices or the model.
    """

    def __init__(
        self,
        model_path: FolderOrHubId | None = None,
        tokenizer_path: FolderOrHubId | None = None,
        dtype: str | None = None,
        *,
        mesh: str | None = None,
        adapter: FolderOrHubId | None = None,
        adapters: Mapping[str, FolderOrHubId] = {},
        replicas: int = 1,
        verbose: bool = True,
        before_weights: Callable[["DiffuCoderInference"], Any] = lambda engine: None,
        allow_nonfinite: bool = False,
    ):
        if dtype is not None:
            require_one_of("dtype", dtype, (*DTYPES, *QUANTIZED))
        if dtype == "fp8":
            require_fp8_here()
        start = perf_counter()
        # files: model, adapter and tokenizer, which must belong together
        self.source = find_model(model_path, adapter)
        folder = self.source.folder
        self.is_builtin = folder == BUILTIN_MODEL and model_path in (None, BUILTIN_NAME)
        self.config = DreamForCausalLM.read_config(folder)
        self.tokenizer = DiffuCoderTokenizer.from_pretrained(
            folder if tokenizer_path is None else tokenizer_path
        )
        self.require_tokenizer()
        self.config = replace(
            self.config, expand_token_id=named_expand_id(self.config, self.tokenizer)
        )
        more = find_adapters(self.source, adapters)
        before_weights(self)
        # device and precision
        self.parameter_count = parameter_count(self.config)
        self.replicas, shape = replicas, choose_replicas(self.config, mesh, replicas)
        stored = "int8" if DreamForCausalLM.is_int8(folder) else None
        self.quantization = dtype if dtype in QUANTIZED else stored
        self.dtype = dtype if dtype in DTYPES else fitting_dtype(self.parameter_count)
        self.precision = self.quantization or self.dtype
        self.planned = PlannedStep(
            self.config, precision=self.precision, canvas=1, new_tokens=1, mesh=shape
        )
        # weights
        with terminal.progress("loading") as report, explain_out_of_memory(self.planned):
            model = DreamForCausalLM.from_pretrained(
                folder,
                dtype=self.dtype,
                quantization=self.quantization,
                mesh=shape.mesh() if shape.size > 1 else None,
                on_progress=report,
                allow_nonfinite=allow_nonfinite,
            )
            if self.source.adapter:
                lora.load_adapter(model, self.source.adapter)
            # The sampler needs expand_token_id, which may come from the tokenizer.
            model.config = self.config
            # joined products are copies of the weights that adapters need
            self.sampler = Sampler(model if more else join_on_gpu(model))
            self.adapters = {name: self.adapted(name, each) for name, each in more.items()}
        self.load_seconds = perf_counter() - start
        if verbose:
            sys.stderr.write(f"{self.describe()}\n")

    @property
    def is_autoregressive(self) -> bool:
        """Whether the model predicts only the token after given text."""
        return self.config.is_autoregressive

    def require_tokenizer(self):
        """Raise TokenizerError unless the tokenizer belongs to the model."""
        if self.is_autoregressive:
            self.tokenizer.require_vocabulary(self.config.vocab_size)
        else:
            self.tokenizer.require_ids(self.config)

    def adapted(self, name: str, adapter: StoredAdapter) -> Sampler:
        """Return a sampler of the model with an adapter; both have the same arrays."""
        model = self.sampler.graph.merge(self.sampler.params)
        lora.load_adapter(model, adapter)
        return Sampler(model).changed(adapter=name)

    def split(self) -> "list[DiffuCoderInference]":
        """Return one object per replica, on its own devices; no weight is loaded again."""
        if self.replicas == 1:
            return [self]
        replicas = []
        samplers = {"": self.sampler, **self.adapters}
        assert self.sampler.mesh
        params = {name: each.params for name, each in samplers.items()}
        for mesh, own in split_data(params, self.sampler.mesh, self.replicas):
            replica = copy.copy(self)
            replica.adapters = {
                name: each.on_mesh(mesh).changed(params=own[name])
                for name, each in samplers.items()
            }
            replica.sampler = replica.adapters.pop("")
            replica.planned = replace(self.planned, mesh=MeshShape.of(mesh))
            replica.replicas = 1
            replicas.append(replica)
        return replicas

    def describe(self) -> str:
        """Describe model, size, device, dtype and load time in one line."""
        device = jax.devices()[0]
        name = f"{BUILTIN_NOTICE} · " if self.is_builtin else ""
        name += f"adapter {self.source.adapter.folder} · " if self.source.adapter else ""
        devices = f"{device.platform} ({device.device_kind})"
        mesh = self.planned.mesh
        if mesh.size > 1:
            devices = f"{mesh.size} x {devices}, {mesh}"
        size = f"{self.parameter_count:,} parameters"
        dtype = f"{self.quantization} kernels, {self.dtype}" if self.quantization else self.dtype
        return f"{name}{size} · {devices} · {dtype} · loaded in {self.load_seconds:.1f} s"

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
        seed: int = 0,
        return_full_text: bool = True,
        preset: str = DEFAULTS.decoding.preset,
    ) -> str | list[str]:
        """Complete one prompt, or a batch of prompts.

        Args:
            prompt_or_list: the prompt, or a list of prompts.
            max_new_tokens: this and the options up to `alg_temp` are those of `GenerationOptions`.
            seed: seed of the random numbers.
            return_full_text: whether to return the prompt before its completion.
            preset: speed and quality of decoding, as in `Decoding`.

        Returns:
            The text up to the stop token; a list of texts for a list of prompts.

        Raises:
            ValueError: an option is out of range, or a prompt is missing or exceeds the context.
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
            decoding=Decoding(preset=preset),
        )
        completions = self.complete(prompts, options, seed=seed, shows_progress=True)
        texts: list[str] = [each.full if return_full_text else each for each in completions]
        return texts[0] if isinstance(prompt_or_list, str) else texts

    def chat(
        self,
        messages: str | Conversation,
        options: GenerationOptions = DEFAULTS,
        *,
        seed: int = 0,
        **settings,
    ) -> str:
        """Answer a conversation.

        Args:
            messages: {"role": …, "content": …} messages, or one user message as a string.
            options: how to decode.
            seed: seed of the random numbers.
            **settings: settings of `generate`, such as max_new_tokens or preset, which override
                `options`.
        """
        options = options.with_settings(**settings)
        if self.is_builtin:
            logger.warning(CHAT_NOTICE)
        return self.complete([self.chat_prompt(messages)], options, seed=seed, shows_progress=True)[
            0
        ]

    def chat_prompt(self, messages: str | Conversation) -> str:
        """Format a conversation with the chat template."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        messages = list(messages)
        if not messages or not has_form(messages, [{"role": str, "content": str}]):
            raise ValueError(
                f"messages={messages!r:.80}: must be one or more objects with role and content"
            )
        return self.tokenizer.apply_chat_template(messages)

    def doubt(self, answer: Generation, temperature: float) -> str | None:
        """Return why an answer of the built-in model is doubtful; None if it is not."""
        return answer.doubt(temperature) if self.is_builtin else None

    def complete(
        self,
        prompts: Sequence[str],
        options: GenerationOptions,
        *,
        seed: int = 0,
        shows_progress: bool = False,
    ) -> list[ReplayedText]:
        """Complete prompts up to their stop tokens.

        Args:
            prompts: at least one.
            options: how to decode.
            seed: seed of the random numbers.
            shows_progress: show progress on standard error.
        """
        templates = completion_templates(prompts, options.max_new_tokens)
        decode = self.decode_shown if shows_progress else self.decode
        rows = decode(templates, options, seed=seed).rows
        read = self.tokenizer.decode
        return [
            ReplayedText.of(row.text, Replay.of(prompt, row, read, options.temperature))
            for prompt, row in zip(prompts, rows, strict=True)
        ]

    def infill(
        self,
        prefix: str,
        suffix: str,
        max_new_tokens: int = 64,
        *,
        middle_length: HoleLength = None,
        options: GenerationOptions = DEFAULTS,
        seed: int = 0,
    ) -> str:
        """Write the text between `prefix` and `suffix`.

        Args:
            prefix: text before the hole.
            suffix: text after the hole.
            max_new_tokens: tokens of the hole; a stop token in it ends the text earlier. An upper
                bound if the hole finds its own length (`options.growth`).
            middle_length: tokens of the hole instead, or "auto": a few lengths up to
                `max_new_tokens` are decoded in one batch, and the one with the highest mean
                log-probability per token is returned. If the hole finds its own length, the number
                of masks that it begins with (16 if not given).
            options: all other settings of decoding.
            seed: seed of the random numbers.

        Raises:
            ValueError: a length below 1, a text that exceeds the context, or an option that growth
                does not support.
        """
        lengths = self.hole_lengths(max_new_tokens, middle_length, options)
        if self.is_growing(options):
            options = options.with_settings(max_new_tokens=max_new_tokens)
        return self.decode_hole(prefix, suffix, lengths, options, seed=seed).rows[0].text

    def is_growing(self, options: GenerationOptions) -> bool:
        """Whether holes between texts find their own length.

        Raises ValueError if `options` demand it of a model that cannot do it.
        """
        return grows(growth_of(self.config), [], options)

    def hole_lengths(
        self, limit: int, middle_length: HoleLength, options: GenerationOptions
    ) -> list[int]:
        """Return hole lengths to decode: candidates, or the initial length of a growing hole."""
        if self.is_growing(options):
            return [initial_length(limit, middle_length)]
        return candidate_lengths(limit, middle_length)

    def decode_hole(
        self,
        prefix: str,
        suffix: str,
        lengths: Sequence[int],
        options: GenerationOptions,
        *,
        seed: int = 0,
    ) -> DecodedBatch:
        """Fill the hole between two texts at each of these lengths; return the most likely row."""
        # One row per length, all in one batch.
        batch = self.decode(
            [Template.infilling(prefix, length, suffix) for length in lengths], options, seed=seed
        )
        return replace(batch, rows=(max(batch.rows, key=lambda row: row.mean_log_confidence),))

    def fill(self, text: str, options: GenerationOptions = DEFAULTS, *, seed: int = 0) -> str:
        """Fill every hole of a text, and return the whole text.

        `<|hole|>` gets at most `options.max_new_tokens` tokens, and `<|hole:12|>` at most 12. If
        holes find their own length, the number is that of a hole's initial masks.
        """
        template = self.template(text, options)
        return template.fill(self.decode([template], options, seed=seed).rows[0].holes)

    def template(self, text: str, options: GenerationOptions) -> Template:
        """Parse a text with hole markers; those without a number have the length of `options`."""
        return Template.parse(text, self.hole_lengths(options.max_new_tokens, None, options)[0])

    def decode_shown(
        self, templates: Templates, options: GenerationOptions, *, seed: int
    ) -> DecodedBatch:
        """Fill templates in one batch, and show progress and what would be quicker meanwhile."""
        with terminal.progress("generating", FIRST_NOTE) as report:
            return self.decode(templates, options, seed=seed, on_progress=report)

    def decode(
        self,
        templates: Templates,
        options: GenerationOptions,
        *,
        seed: Seed = 0,
        on_progress: terminal.Report | None = None,
        on_state: Callable[[Canvas, SamplerState], None] | None = None,
        ends: Ends | None = None,
    ) -> DecodedBatch:
        """Fill templates in one batch, with confidences and timing.

        Args:
            templates: at least one.
            options: how to decode.
            seed: seed of the random numbers, or one key per row.
            on_progress: called with the number of decided positions, the total, and what would be
                quicker.
            on_state: called with the canvas and its state after every step.
            ends: for each template, whether the beginning of its text needs no continuation, such
                as one with a stop string. Decoding ends when every row has ended.

        Raises:
            ValueError: no template, one that exceeds the context, or contradictory options.
            OutOfMemoryError: the batch does not fit; the message states the memory needed.
        """
        start = perf_counter()
        options = self.fit(options)
        canvas = self.canvas(templates, options)
        # Steps between two states. Without a callback, the compiled loop runs as far as it can.
        every = None if on_progress is None else max(1, canvas.region.length // PROGRESS_UPDATES)
        every = every if on_state is None else 1
        # Plain denoising can also record the model's own probabilities, which --watch displays.
        start_state = None
        is_plain = canvas.room is None and not (options.draft or options.lookahead)
        if on_state and is_plain and not options.decoding.is_pipelined:
            start_state = self.sampler.start(canvas, seed)._replace(
                logprobs=TokenLogProbs.empty(canvas.tokens.shape, 1)
            )
        sampler = self.sampler
        if ends is not None:
            sampler = sampler.changed(is_over=partial(rows_over, canvas, self.tokenizer, ends))
            every = min(every or CHECKED_STEPS, CHECKED_STEPS)
        # decode
        batch, width = canvas.tokens.shape
        state = None
        with compile_seconds() as compiled, explain_out_of_memory(self.job(batch, width)):
            for state in constrained_states(
                sampler, canvas, options, self.tokenizer, seed=seed, every=every, state=start_state
            ):
                if on_progress:
                    holes = int(canvas.layout(state.extra).holes.sum())
                    done = holes - int(np.asarray(state.masked).sum())
                    on_progress(done, holes, advise_preset(options, width, self.config))
                if on_state:
                    on_state(canvas, state)
            # read texts
            assert state
            return DecodedBatch(
                tuple(self.generations(canvas, state)),
                int(state.forwards),
                seconds=perf_counter() - start,
                compile_seconds=compiled(),
            )

    def stream(
        self,
        prompts: Sequence[str],
        options: GenerationOptions = DEFAULTS,
        *,
        seed: int = 0,
        every: int = 1,
    ) -> Iterator[DenoisingEvent]:
        """Yield an event for each row and step that decides positions of the row.

        Each position is in one event of its row. The texts of the last events are those of
        `complete`, from the same compiled loop.

        Args:
            prompts: at least one.
            options: how to decode.
            seed: seed of the random numbers.
            every: steps between two events of a row.
        """
        canvas = self.canvas(completion_templates(prompts, options.max_new_tokens), options)
        # Masked before and decided now: [1, 1, 1] & ~[1, 0, 1] -> [0, 1, 0].
        seen = canvas.holes
        for state in self.states(canvas, options, seed=seed, every=every):
            masked = np.asarray(state.masked)
            for number, row in enumerate(read_rows(canvas.layout(state.extra), state)):
                if (fresh := (seen & ~masked)[number]).any():
                    yield row.event(self.tokenizer, number, int(state.step), fresh, masked[number])
            seen = masked

    def states(
        self, canvas: Canvas, options: GenerationOptions, *, seed: Seed = 0, every: int | None = 1
    ) -> Iterator[SamplerState]:
        """Yield the state after every `every` steps and at the end; with a grammar, only the last.

        Raises:
            OutOfMemoryError: the canvas does not fit; the message states the memory needed.
        """
        options = self.fit(options)
        with explain_out_of_memory(self.job(*canvas.tokens.shape)):
            yield from constrained_states(
                self.sampler, canvas, options, self.tokenizer, seed=seed, every=every
            )

    def job(self, batch: int, canvas: int) -> PlannedStep:
        """Return the plan of a generation of this size, for messages about memory."""
        return replace(self.planned, batch=batch, canvas=canvas, new_tokens=canvas)

    def score(self, prompt: str, completion: str, samples: int = 32, *, seed: int = 0) -> Score:
        """Estimate the log-likelihood of a completion by Monte Carlo, deterministic for a seed."""
        tokens = [self.tokenizer.encode(text) for text in (prompt, completion)]
        check_context(sum(map(len, tokens)), self.config.max_position_embeddings)
        return log_likelihood(self.sampler, *tokens, samples=samples, seed=seed)

    def canvas(self, templates: Templates, options: GenerationOptions = DEFAULTS) -> Canvas:
        """Lay templates out as rows.

        Raises:
            ValueError: no template, one that exceeds the context, or options that the model's
                family cannot follow.
        """
        if self.config.is_unidirectional:
            templates = [template.left_to_right(self.tokenizer) for template in templates]
        return lay_out(templates, self.tokenizer, self.fit(options), self.config)

    def width(self, template: Template, options: GenerationOptions) -> int:
        """Return the columns that `canvas` gives a template, without making its row."""
        if self.config.is_unidirectional:
            template = template.left_to_right(self.tokenizer)
        width = template.width(self.tokenizer)
        if grows(self.sampler.growth, [template], options):
            width += len(self.tokenizer.begin_ids) + 1 + spare_room(template, options)
        return width

    def fit(self, options: GenerationOptions) -> GenerationOptions:
        """Adapt the options to the model's family, see `restrict_options`."""
        return restrict_options(options, self.config)

    def generations(self, canvas: Canvas, state: SamplerState) -> Iterator[Generation]:
        """Read the text of each row, hole by hole, up to the stop token of each."""
        return (
            row.generation(self.tokenizer) for row in read_rows(canvas.layout(state.extra), state)
        )

    def benchmark_inference(
        self,
        batch_sizes: Sequence[int] = (1, 2, 4, 8),
        seq_length: int = 128,
        num_iterations: int = 10,
    ) -> dict[str, dict[str, float]]:
        """Time forward passes over canvases [batch, seq_length]; a denoising step takes one.

        Returns:
            For each batch size, under the name "batch_N": average seconds per pass, and canvas
            tokens per second. A warm-up pass is not counted.

        Raises:
            ValueError: a number below 1, or a length that exceeds the context.
        """
        settings = SimpleNamespace(
            batch_sizes=tuple(batch_sizes), seq_length=seq_length, num_iterations=num_iterations
        )
        require_sizes(settings, "batch_sizes", "seq_length", "num_iterations")
        self.config.require_context("seq_length", seq_length)
        results = {}
        for batch in batch_sizes:
            tokens = jnp.full((batch, seq_length), self.sampler.mask_id, jnp.int32)
            # warm-up, which compiles
            self.sampler.forward(tokens).block_until_ready()
            start = perf_counter()
            for _ in range(num_iterations):
                self.sampler.forward(tokens).block_until_ready()
            seconds = (perf_counter() - start) / num_iterations
            results[f"batch_{batch}"] = {
                "avg_time_seconds": seconds,
                "throughput_tokens_per_second": batch * seq_length / seconds,
            }
        return results
