"""The training loop: optimizer, accumulation, metrics, checkpoints, exact resume.

    trainer = Trainer(loss, params, config, out=folder)
    finished = trainer.run(source)

A loss defines what to minimise on a batch; a source draws the batches. A run that is killed at any
moment and started again ends with the weights of the uninterrupted run, bit for bit: every random
number follows from the seed and the step, and a checkpoint holds the rest. Knows no loss and no
model.
"""

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from threading import Event, Lock, Thread, current_thread, main_thread
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

from jax_lm.checkpoints.stored import Arrays
from jax_lm.config import Fields
from jax_lm.host import interruption, terminal
from jax_lm.host.distributed import is_first
from jax_lm.host.files import write_json_whole
from jax_lm.planning.roofline import peak_flops
from jax_lm.reports.run_folder import differing_setting, exclusive
from jax_lm.training.checkpoints import UNCOMPARED, RunCheckpoints, abstract_of
from jax_lm.training.config import TrainerConfig
from jax_lm.training.metrics import Meter, Metrics, Write, open_writers, require_trackers
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.run_defaults import resolve_trainer, weight_count
from jax_lm.training.update import Batch, Loss, Params, make_update, named_leaves, placements

logger = logging.getLogger(__name__)

# The settings of a run, including those chosen for it.
SETTINGS_FILE = "settings.json"
# Seconds after a termination signal in which the main thread may end the run by itself.
PATIENCE = 5.0
# Seconds between two termination signals: one may reach a process twice, from its group.
APART = 1.0

# Takes trained weights, and returns metrics.
Evaluate = Callable[[Params], Metrics]
# Takes a step and its metrics, and raises if the run must end.
Check = Callable[[int, Metrics], None]


class State(NamedTuple):
    """Trained weights (float32), the optimizer's moments, and steps done.

    The next step overwrites the arrays.
    """

    params: Params
    optimizer: optax.OptState
    step: int


@runtime_checkable
class BatchSource(Protocol):
    """Draws the next batch.

    `draw` returns the batch of step `state.step + 1` and metrics about it. `save` returns what
    `load` needs to draw the same batches again: JSON that may contain arrays ({} if batches follow
    from the step alone). `arrays` is a tree of state as large as the weights: a checkpoint stores
    it, and restores it on the devices where it lies.
    """

    arrays: Any

    def draw(self, state: State) -> tuple[Batch, Metrics]: ...

    def save(self) -> Fields: ...

    def load(self, saved: Fields): ...


class Trainer:
    """Minimises a loss over the batches of a source.

    Args:
        loss: what to minimise; gets the weights in the compute dtype.
        params: nested dict of the trained weights, on one device or on a mesh; copied to float32.
        config: settings of the run.
        out: folder for metrics.jsonl, settings.json, checkpoints and other files of the run.
        frozen: nested dict of the other weights that the loss needs; they do not change.
        identity: further settings (JSON) that a resumed run must agree on.
        place: puts the rows of this process on the devices.
        token_flops: returns the operations that a step needs per token, given the tokens of a row;
            for the utilisation of devices whose peak is known.

    Raises:
        ValueError: settings contradict each other, or do not define the number of steps.
    """

    def __init__(
        self,
        loss: Loss,
        params: Params,
        config: TrainerConfig,
        *,
        out: Path,
        frozen: Params | None = None,
        identity: Fields | None = None,
        place: Callable[[Batch], Batch] = lambda batch: batch,
        token_flops: Callable[[int], float] | None = None,
    ):
        config = resolve_trainer(config, weight_count(params, frozen))
        self.config = config
        self.out = out
        self.frozen = frozen or {}
        self.place = place
        self.token_flops = token_flops
        # Peaks of devices are known for bfloat16.
        is_bfloat16 = config.compute_dtype == "bfloat16"
        self.peak = peak_flops(jax.devices()[0].device_kind) if is_bfloat16 else None
        self.best = BestEvaluation(config.metric_for_best_model, config.early_stopping_patience)
        # As read back from JSON, to compare it with that of a checkpoint.
        self.identity = json.loads(json.dumps(config.identity | (identity or {})))
        # optimizer
        transform = make_optimizer(config.optimizer, config.steps)
        rate = schedule(config.optimizer, config.steps, config.optimizer.learning_rate)
        # weights and moments; copied, because the step overwrites its arguments and the caller
        # keeps its arrays
        masters = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)
        optimizer = transform.init(masters)
        placement = placements(masters, optimizer)
        if placement:
            masters, optimizer = jax.device_put((masters, optimizer), placement)
        self.state = State(masters, optimizer, 0)
        # the compiled step
        self.update = make_update(
            loss,
            transform,
            rate,
            parts=config.gradient_accumulation_steps,
            dtype=config.dtype,
            seed=config.seed,
            placement=placement,
        )
        self.meter = Meter()
        # A step whose metrics are still to be recorded; the step of the newest checkpoint.
        self.running: Running | None = None
        self.saved = 0
        # Whether the weights of the last step are still to be evaluated.
        self.owes_evaluation = False
        # Whether no step overwrites the weights: a batch is drawn, or they are evaluated.
        self.is_at_rest = False
        self.rest_ends = Lock()

    def run(
        self,
        source: BatchSource,
        *,
        evaluate: Evaluate | None = None,
        evaluates_start: bool = False,
        check: Check = lambda step, metrics: None,
    ) -> bool:
        """Train to the end, starting from the newest checkpoint; returns whether it was reached.

        A termination signal ends the run early, with a checkpoint of the last step; a second one
        does not wait for a step. A run whose evaluations have not improved for
        `early_stopping_patience` has reached its end.

        Args:
            source: draws the batches.
            evaluate: returns metrics of the trained weights, every `evaluate_every` steps and at
                the end.
            evaluates_start: evaluate before the first step as well.
            check: gets the metrics of every step once they are computed, and may raise.

        Raises:
            FloatingPointError: loss or gradient is not finite; the batch is saved in `out`.
            ValueError: `out` holds a run that may not be, or cannot be, continued; or the best
                evaluation is requested but nothing is evaluated.
        """
        config = self.config
        if evaluate is None and config.metric_for_best_model is not None:
            raise ValueError(
                f"metric_for_best_model={config.metric_for_best_model!r}: "
                f"nothing is held out to evaluate"
            )
        require_trackers(config.track)
        # What the methods below work with, as long as the run takes.
        self.source = source
        self.check = check
        with (
            # the processes of a run share the folder
            exclusive(self.out) if is_first() else nullcontext(),
            RunCheckpoints(
                self.out / "checkpoints", config.keep, in_background=config.async_checkpointing
            ) as self.checkpoints,
            termination() as self.terminated,
            terminal.progress("training", "the first step compiles") as self.bar,
        ):
            # Before metrics are opened: a resumed run drops the entries after its checkpoint.
            self.resume()
            with self.writer() as self.write, self.profiler() as self.profile:
                ended = Event()
                answer = self.leave_on_signal(ended)
                self.owes_evaluation |= evaluates_start and self.state.step == 0
                with interruption.on_signal(signal.SIGTERM, answer), ExitStack() as stack:
                    stack.callback(ended.set)
                    if evaluate and self.owes_evaluation and self.evaluate_weights(evaluate):
                        self.save()
                    finished = self.loop(evaluate)
            if finished and config.load_best_model_at_end and self.best.step is not None:
                self.restore(self.best.step)
            return finished

    def loop(self, evaluate: Evaluate | None) -> bool:
        """Take steps until the end; returns whether it was reached.

        Metrics of a step are fetched while the next one runs.
        """
        config = self.config
        last = config.last_step
        while self.state.step < last and not self.best.is_over:
            self.profile(self.state.step + 1)
            # start a step, then record the one before while the devices compute
            started = self.start(self.source)
            if self.running:
                self.finish(self.running)
            self.running = started
            step = started.step
            # what follows this step
            stops = step == last or self.terminated(step)
            saves = stops or step % config.save_every == 0
            evaluates = step == last or step % config.evaluate_every == 0
            # Wait for the step: a checkpoint or evaluation needs its weights, and a trace must hold
            # whole steps.
            if (
                saves
                or (evaluate and evaluates)
                or step + 1 in (config.profile_steps.start, config.profile_steps.stop)
            ):
                self.finish(self.running)
                self.running = None
            # evaluate
            if evaluate and evaluates:
                saves |= self.evaluate_weights(evaluate) or self.best.is_over
            # save
            if saves:
                self.save()
            if stops:
                break
        return self.state.step >= last or self.best.is_over

    def evaluate_weights(self, evaluate: Evaluate) -> bool:
        """Evaluate the weights and record it; returns whether they are the best so far."""
        self.owes_evaluation = True
        with self.at_rest():
            results = {name: float(value) for name, value in evaluate(self.state.params).items()}
        self.owes_evaluation = False
        self.write(self.state.step, {f"eval_{name}": value for name, value in results.items()})
        return self.best.see(self.state.step, results)

    def start(self, source: BatchSource) -> "Running":
        """Draw a batch and start its step, without waiting for the devices."""
        with self.at_rest():
            batch, drawn = source.draw(self.state)
        step = self.state.step + 1
        params, optimizer, metrics = self.update(
            self.state.params, self.state.optimizer, self.frozen, np.int32(step), self.place(batch)
        )
        self.state = State(params, optimizer, step)
        return Running(step, batch, metrics, drawn)

    def finish(self, running: "Running"):
        """Wait for a step, then check and record its metrics.

        Raises:
            FloatingPointError: loss or gradient is not finite.
        """
        # wait for the devices
        metrics = {name: float(value) for name, value in jax.device_get(running.metrics).items()}
        if not (isfinite(metrics["loss"]) and isfinite(metrics["gradient_norm"])):
            saved = self.out / f"not-finite-{running.step}.npz"
            arrays = {
                name.strip(".[]'"): np.asarray(leaf)
                for name, leaf in named_leaves(running.batch).items()
            }
            np.savez(saved, allow_pickle=False, **arrays)
            raise FloatingPointError(
                f"loss is {metrics['loss']} at step {running.step}, its gradient has norm "
                f"{metrics['gradient_norm']}; the batch is in {saved}"
            )
        self.check(running.step, metrics)
        # A batch holds the rows of this process only, or is a global array with all rows.
        tokens = running.batch.tokens
        shared = isinstance(tokens, jax.Array) and not tokens.is_fully_addressable
        self.meter.add(
            metrics | running.drawn, tokens.size * (1 if shared else jax.process_count())
        )
        # record
        last = self.config.last_step
        if running.step % self.config.log_every == 0 or running.step == last:
            entry = self.meter.entry()
            # Model FLOPs utilisation: useful operations per second, as a share of the peak.
            if self.peak and self.token_flops:
                peak = self.peak * jax.device_count()
                entry["mfu"] = entry["tokens_per_second"] * self.token_flops(tokens.shape[1]) / peak
            self.write(running.step, entry)
            if self.bar:
                texts = [
                    f"{name} {entry[name]:.4g}" for name in ("loss", "reward") if name in entry
                ]
                speed = f"{entry['tokens_per_second']:,.0f} tokens/s"
                self.bar(running.step, last, "  ".join([*texts, speed]))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let `leave` save the weights during the block, at whose end a step may overwrite them."""
        self.is_at_rest = True
        yield
        # Wait while `leave` is saving.
        with self.rest_ends:
            self.is_at_rest = False

    @property
    def computed(self) -> int:
        """The last step that the devices have computed."""
        if (running := self.running) is None:
            return self.state.step
        is_ready = all(metric.is_ready() for metric in running.metrics.values())  # pyright: ignore[reportAttributeAccessIssue] JAX declares no such method
        return running.step if is_ready else running.step - 1

    def leave_on_signal(self, over: Event) -> Callable[[], None]:
        """Return what is to be done at each termination signal; `over` is that of `leave`."""
        times = []

        def answer():
            times.append(time.monotonic())
            if len(times) == 1:
                Thread(target=self.leave, args=(over,), daemon=True).start()
            elif times[-1] - times[0] > APART:
                self.end_process()

        return answer

    def leave(self, over: Event):
        """End the process with a checkpoint of the last step, as soon as none is computed.

        A rollout, an evaluation or a step may take many minutes, in which the main thread sees no
        signal. Without a step since the last checkpoint, the one in progress is not waited for. A
        batch that is being drawn is drawn again on resume. Runs in a thread of its own, until `over`
        is set: the run has then ended by itself.
        """
        is_told = False
        while not over.wait(PATIENCE):
            with self.rest_ends:
                if self.is_at_rest and self.running:
                    self.finish(self.running)
                    self.running = None
                is_saved = self.computed <= self.saved
                if is_saved or self.is_at_rest:
                    if not is_saved:
                        self.save()
                    self.checkpoints.checkpointer.wait()
                    self.end_process()
                elif not is_told:
                    is_told = True
                    logger.warning(
                        "stopping after step %d; a second signal ends at once, and loses %d steps",
                        self.computed + 1,
                        self.computed - self.saved,
                    )

    def end_process(self):
        """End the process, and say from where the run continues."""
        interruption.discard_unfinished()
        where = f"with a checkpoint of step {self.saved}" if self.saved else "before a checkpoint"
        logger.warning("stopped %s; the same command continues the run in %s", where, self.out)
        os._exit(interruption.TERMINATED)

    def save(self):
        """Write a checkpoint of the current state."""
        rest = {
            "identity": self.identity,
            "meter": self.meter.save(),
            "source": self.source.save(),
            "best": asdict(self.best),
            "owes_evaluation": self.owes_evaluation,
        }
        # Set before saving, so that removing old checkpoints spares the best one.
        self.checkpoints.best = self.best.step
        arrays = self.state._replace(step=()), self.source.arrays
        self.checkpoints.save(self.state.step, arrays, rest)
        self.saved = self.state.step

    def resume(self):
        """Continue from the newest checkpoint, if there is one.

        Raises:
            ValueError: it belongs to a run with other settings, or `resume` forbids it.
        """
        step = self.checkpoints.latest
        if step is None:
            return
        if self.config.resume == "never":
            raise ValueError(
                f"out={self.out}: holds a run at step {step}; resume=auto continues it"
            )
        rest = self.checkpoints.load_rest()
        difference = differing_setting(rest["identity"], self.identity, UNCOMPARED)
        if difference:
            # data='b3ac79591a15a16f', not '5f2c…': the digests say nothing to a reader
            difference = re.sub(r"^(data|prompts)='.*", r"other \1", difference)
            raise ValueError(f"out={self.out}: holds a run with {difference}; take another folder")
        self.restore(step)
        self.source.load(rest["source"])
        self.meter = Meter(**rest["meter"])
        self.best.load(rest["best"])
        self.owes_evaluation = rest["owes_evaluation"]
        self.saved = step
        logger.info("continuing %s from step %d", self.out, step)

    def restore(self, step: int):
        """Load weights, moments and the source's arrays from a checkpoint."""
        # Keep only shapes and shardings, to free the current arrays before the saved ones load.
        template = abstract_of((self.state._replace(step=()), self.source.arrays))
        self.state = State({}, (), 0)
        self.source.arrays = ()
        state, self.source.arrays = self.checkpoints.load_state(template, step)
        self.state = state._replace(step=step)

    def writer(self) -> AbstractContextManager[Write]:
        """Open the writers of metrics; only the first process writes."""
        if not is_first():
            return nullcontext(lambda step, metrics: None)
        config = self.config
        write_json_whole(self.out / SETTINGS_FILE, self.identity)
        return open_writers(
            self.out,
            config.track,
            steps=config.steps,
            resumed_at=self.state.step,
            config=self.identity,
        )

    @contextmanager
    def profiler(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that starts or stops the trace, given the next step."""
        traced = self.config.profile_steps
        is_tracing = False

        def profile(step):
            nonlocal is_tracing
            if is_tracing and step not in traced:
                jax.profiler.stop_trace()
                is_tracing = False
            elif not is_tracing and step in traced:
                jax.profiler.start_trace(self.out / "profile")
                is_tracing = True

        try:
            yield profile
        finally:
            # Step 0 is never traced: this stops a trace that still runs.
            profile(0)


class Running(NamedTuple):
    """A step that the devices are computing; `drawn` holds the source's metrics of its batch."""

    step: int
    batch: Batch
    metrics: Arrays
    drawn: Metrics


@contextmanager
def termination() -> Iterator[Callable[[int], bool]]:
    """Watch for SIGTERM.

    Yields a function that returns whether the run should end at a step; all processes of a run
    agree on the step.
    """
    received = Event()

    def should_end(step):
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return received.is_set()

    # Only the main thread may set handlers, and the coordination of several processes has its own.
    if current_thread() is not main_thread() or jax.process_count() > 1:
        yield should_end
        return
    before = signal.signal(signal.SIGTERM, lambda *_: received.set())
    try:
        yield should_end
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class BestEvaluation:
    """The best evaluation so far, by one of its metrics.

    Attributes:
        metric: name of the metric, with or without eval_. Higher is better, unless the name ends in
            loss. None tracks nothing.
        patience: evaluations in a row without improvement that end a run; None never does.
        value: metric of the best evaluation; None before the first.
        step: step of the best evaluation.
        since: evaluations since the best one.
    """

    metric: str | None
    patience: int | None
    value: float | None = None
    step: int | None = None
    since: int = 0

    def see(self, step: int, results: Metrics) -> bool:
        """Record an evaluation; returns whether it is the best so far.

        Raises:
            ValueError: the evaluation lacks the metric.
        """
        if self.metric is None:
            return False
        name = self.metric.removeprefix("eval_")
        if name not in results:
            raise ValueError(
                f"metric_for_best_model={self.metric!r}: must be one of {', '.join(results)}"
            )
        # A loss is better if lower: sign * value is always better if higher.
        sign = -1 if name.endswith("loss") else 1
        value = results[name]
        if isfinite(value) and (self.value is None or sign * value > sign * self.value):
            self.value = value
            self.step = step
            self.since = 0
            return True
        # a run that was killed right after its best evaluation makes it again
        self.since += step != self.step
        return False

    @property
    def is_over(self) -> bool:
        """Whether evaluations have not improved for too long."""
        return self.patience is not None and self.since >= self.patience

    def load(self, saved: Fields):
        """Restore the fields of an earlier evaluation, if it was by the same metric."""
        if saved["metric"] == self.metric:
            # a resumed run may have another patience
            vars(self).update(saved | {"patience": self.patience})
