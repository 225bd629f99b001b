"""Compare what this implementation computes with recorded outputs of the PyTorch reference.

A folder holds `checkpoint/` (a small Dream checkpoint), `golden.safetensors` (inputs and outputs of
the reference) and `cases.json` (the settings of each generation). `tools/record_parity.py` makes
such folders. Entry command: `diffucoder parity check`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load_file

from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.checkpoints.stored import HostArrays
from jax_lm.config import Fields
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import WHOLE_CANVAS, Decoding, GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer

# Bounds for bfloat16: mean difference of the logits, share of equal top-1 tokens, our error over
# PyTorch's. PyTorch rounds after every operation, this implementation accumulates in float32.
BF16_MEAN_DIFFERENCE = 0.06
BF16_TOP1 = 0.96
BF16_DISTANCE_RATIO = 1.2

# Bounds for int8 kernels: relative error of the logits, share of equal top-1 tokens, relative
# change of the perplexity. Every layer rounds by half a step of 1/127 of a row's largest weight.
INT8_ERROR = 0.03
INT8_TOP1 = 0.95
INT8_PERPLEXITY = 0.05


@dataclass(frozen=True)
class ParityFinding:
    """One comparison: its name, what was measured, what is allowed."""

    name: str
    measured: str
    allowed: str
    passed: bool


Findings = Iterator[ParityFinding]


def check_parity(folder: Path, *, tolerance: float, tokenizer: Path | None = None) -> Findings:
    """Compare everything that a folder holds.

    Args:
        folder: folder with the files that the module names.
        tolerance: largest absolute difference of float32 hidden states and logits.
        tokenizer: folder of a tokenizer that is checked as well.

    Raises:
        CheckpointError: the folder is not complete.
        ValueError: the tolerance is not positive.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance}: must be positive")
    # Forward passes in float32, bfloat16 and int8
    golden, cases = read_golden(folder)
    model = DreamForCausalLM.from_pretrained(folder / "checkpoint", dtype=jnp.float32)
    yield from check_forward(model, golden, tolerance)
    yield from check_bfloat16(folder / "checkpoint", golden)
    yield from check_int8(folder / "checkpoint", golden)
    # Generations
    sampler = Sampler(model)
    for case in cases["generate"]:
        yield check_generation(sampler, case, golden)
    for case in cases.get("fast", ()):
        yield check_fast_generation(sampler, case, golden)
    # The tokenizer
    if tokenizer is not None:
        yield check_tokenizer(folder / "tokenizer_cases.json", tokenizer)


class Golden(dict[str, np.ndarray]):
    """Recorded tensors by name."""

    def __missing__(self, name: str) -> np.ndarray:
        raise CheckpointError(f"the recorded tensors lack {name!r}")


def read_golden(folder: Path) -> tuple[Golden, Fields]:
    """Read recorded tensors and cases; CheckpointError names what is missing or damaged."""
    golden, cases = read_recording(folder, "golden.safetensors", "cases.json")
    if "generate" not in cases:
        raise CheckpointError(f"{folder / 'cases.json'} has no 'generate' cases")
    return golden, cases


def read_recording(folder: Path, tensors: str, settings: str) -> tuple[Golden, Fields]:
    """Read a file of tensors and a file of settings from a folder with a checkpoint.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    for name in ("checkpoint", tensors, settings):
        if not (folder / name).exists():
            raise CheckpointError(f"parity folder {str(folder)!r} has no {name}")
    try:
        return Golden(load_file(folder / tensors)), json.loads(
            (folder / settings).read_text(encoding="utf-8")
        )
    except (SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"parity folder {str(folder)!r} is damaged: {error}") from error


def at_most(name: str, value: float, bound: float) -> ParityFinding:
    """Judge a value by an upper bound."""
    return ParityFinding(name, f"{value:.3g}", f"<= {bound:g}", value <= bound)


def top1_agreement(name: str, ours: np.ndarray, theirs: np.ndarray, least: float) -> ParityFinding:
    """Judge how often two sets of logits have the same most likely token."""
    share = float((ours.argmax(-1) == theirs.argmax(-1)).mean())
    return ParityFinding(
        f"{name} top-1 agreement", f"{share:.1%}", f">= {least:.0%}", share >= least
    )


def largest_difference(
    name: str, ours: ArrayLike, theirs: np.ndarray, tolerance: float
) -> ParityFinding:
    """Judge the largest absolute difference."""
    return at_most(name, float(np.abs(np.asarray(ours) - theirs).max()), tolerance)


def relative_error(
    name: str, ours: ArrayLike, theirs: np.ndarray, tolerance: float
) -> ParityFinding:
    """Judge the norm of the difference over the norm of what was recorded."""
    error = np.linalg.norm(np.asarray(ours) - theirs) / np.linalg.norm(theirs)
    return at_most(name, float(error), tolerance)


def check_forward(model: DreamForCausalLM, golden: HostArrays, tolerance: float) -> Findings:
    """Compare hidden states layer by layer, logits, and logits with left padding.

    Rows of padding are not compared.
    """

    @nnx.jit
    def outputs(model, ids):
        # Hidden states [b, t, d]: the embedding, then one per layer.
        states = list(model.model.hidden_states(ids))
        return states, model.logits(states[-1])

    states, logits = outputs(model, jnp.asarray(golden["forward.input_ids"]))
    for layer, state in enumerate(states):
        name = f"forward.hidden_states.{layer}"
        yield largest_difference(name, state, golden[name], tolerance)
    yield largest_difference("forward.logits", logits, golden["forward.logits"], tolerance)
    # 1 at real tokens, 0 at padding [b, t].
    mask = golden["padded.attention_mask"]
    padded = logits_of(model, jnp.asarray(golden["padded.input_ids"]), jnp.asarray(mask))
    # logits of the real tokens alone [tokens, v]
    ours = np.asarray(padded)[mask == 1]
    yield largest_difference("padded.logits", ours, golden["padded.logits"][mask == 1], tolerance)


@nnx.jit
def logits_of(model: DreamForCausalLM, ids: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Compute the logits of every position."""
    return model(ids, mask)


def check_bfloat16(checkpoint: Path, golden: HostArrays) -> Findings:
    """Compare the bfloat16 model with PyTorch's, and both with float32."""
    model = DreamForCausalLM.from_pretrained(checkpoint, dtype=jnp.bfloat16)
    ours = np.asarray(logits_of(model, jnp.asarray(golden["forward.input_ids"])))
    theirs = golden["forward_bf16.logits"].astype(np.float32)
    exact = golden["forward.logits"]
    difference = float(np.abs(ours - theirs).mean())
    yield at_most("bfloat16 logits, mean", difference, BF16_MEAN_DIFFERENCE)
    yield top1_agreement("bfloat16", ours, theirs, BF16_TOP1)
    # Both are compared with float32: our mean error may be at most the bound times PyTorch's.
    ratio = np.abs(ours - exact).mean() / np.abs(theirs - exact).mean()
    yield at_most("bfloat16 error / PyTorch's", float(ratio), BF16_DISTANCE_RATIO)


def check_int8(checkpoint: Path, golden: HostArrays) -> Findings:
    """Measure the error of int8 kernels against float32.

    Random weights, as recorded here, are the worst case.
    """
    model = DreamForCausalLM.from_pretrained(checkpoint, dtype=jnp.float32, quantization="int8")
    ids = golden["forward.input_ids"]
    exact = golden["forward.logits"]
    ours = np.asarray(logits_of(model, jnp.asarray(ids)))
    yield relative_error("int8 logits, relative error", ours, exact, INT8_ERROR)
    yield top1_agreement("int8", ours, exact, INT8_TOP1)
    change = abs(perplexity(ours, ids) / perplexity(exact, ids) - 1)
    yield at_most("int8 perplexity, relative change", change, INT8_PERPLEXITY)


def perplexity(logits: np.ndarray, ids: np.ndarray) -> float:
    """Compute the perplexity of sequences whose tokens are all visible.

    Each token is seen when it is predicted: the number compares two sets of logits, and says nothing
    about quality. Row i predicts token i + 1: rows [0, 1, 2] with tokens [1, 2, 3] of four.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:])
    return float(jnp.exp(losses.mean()))


def case_options(case: Fields) -> GenerationOptions:
    """Return the options of a recorded case."""
    names = ("max_new_tokens", "alg", "alg_temp", "temperature", "top_p", "top_k")
    return GenerationOptions(num_steps=case["steps"], **{name: case[name] for name in names})


def case_canvas(name: str, case: Fields, golden: HostArrays) -> Canvas:
    """Return a canvas of the prompts of a recorded case."""
    return Canvas.after(
        golden[f"{name}.input_ids"], golden.get(f"{name}.attention_mask"), case["max_new_tokens"]
    )


def check_generation(sampler: Sampler, case: Fields, golden: HostArrays) -> ParityFinding:
    """Compare final sequences, and the canvas after every step.

    If several positions have exactly the same confidence, their order is unspecified: it depends on
    the device and on the length of the canvas in `torch.topk`. A history that diverges there is
    replayed step by step from the recorded canvases, and must agree in everything else.
    """
    name = f"generate.{case['case']}"
    options = case_options(case)
    canvas = case_canvas(name, case, golden)
    state = sampler.generate(canvas, options, strict_reference=True)
    ours = state.history(sampler.mask_id)
    theirs = golden[f"{name}.history"]
    ties: int | None = None
    # The sequences must be equal. The histories must be equal too, or differ in the order of exact
    # ties alone. `ties` stays None if the check fails.
    if not np.array_equal(np.asarray(state.tokens), golden[f"{name}.sequences"]):
        measured = f"sequences differ, {first_divergence(ours, theirs)}"
    elif np.array_equal(ours, theirs):
        measured = "equal"
        ties = 0
    elif (ties := ties_only(sampler, canvas, options, theirs)) is None:
        measured = f"history differs, {first_divergence(ours, theirs)}"
    else:
        measured = f"equal but for the order of {ties} exact ties"
    title = f"{name} {options.alg}, {options.steps} steps"
    return ParityFinding(title, measured, "sequences and history equal", ties is not None)


def check_fast_generation(sampler: Sampler, case: Fields, golden: HostArrays) -> ParityFinding:
    """Compare final sequences of Fast-dLLM's decoding with a confidence threshold.

    With a cache, the canvas is decoded in blocks, the first token of each block is always committed,
    and the number of steps is not limited. Without a cache, the whole canvas is one block. Each step
    may commit masks / steps tokens, and the next step may commit those that were left.
    """
    name = f"fast.{case['case']}"
    is_cached = case["cache"] != "none"
    decoding = Decoding(
        commit="threshold",
        threshold=case["threshold"],
        block_length=case["block_length"] if is_cached else WHOLE_CANVAS,
        cache=case["cache"],
        first_token="force" if is_cached else "rule",
    )
    options = case_options(case | {"alg": "maskgit_plus", "alg_temp": 0.0})
    options = replace(options, decoding=decoding, num_steps=None if is_cached else options.steps)
    state = sampler.generate(case_canvas(name, case, golden), options, strict_reference=True)
    differing = int((np.asarray(state.tokens) != golden[f"{name}.sequences"]).sum())
    title = f"{name} {case['cache']} cache, threshold {case['threshold']}"
    measured = f"{differing} tokens differ" if differing else "equal"
    return ParityFinding(title, measured, "sequences equal", not differing)


def first_divergence(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Return in words the step at which two histories diverge."""
    steps = np.flatnonzero((ours != theirs).any(axis=(1, 2)))
    return f"first at step {steps[0]}" if len(steps) else "with equal histories"


def ties_only(
    sampler: Sampler, canvas: Canvas, options: GenerationOptions, history: np.ndarray
) -> int | None:
    """Replay a recorded history step by step from its own canvases.

    Returns:
        How many of our commits are at another position than the recorded one, with exactly the same
        confidence; None if anything else differs.
    """
    ties = 0
    # [b, t]: MASK in the holes, the prompt elsewhere.
    before = np.where(canvas.holes, sampler.mask_id, canvas.tokens)
    for step, after in enumerate(history):
        taken, scores = sampler.replay(before, canvas, options, step, strict_reference=True)
        # which positions each side commits in this step [b, t]
        theirs = after != before
        ours = taken != before
        # Positions that both commit must get the same token, and both must commit as many.
        both = theirs & ours
        if (theirs.sum(axis=1) != ours.sum(axis=1)).any() or (after[both] != taken[both]).any():
            return None
        # The others must be exact ties: in each row, the same confidences at different positions.
        for row, only_theirs, only_ours in zip(scores, theirs & ~both, ours & ~both, strict=True):
            if not np.array_equal(np.sort(row[only_theirs]), np.sort(row[only_ours])):
                return None
            ties += int(only_ours.sum())
        # From the recorded canvas, so that one difference does not affect the later steps.
        before = after
    return ties


def check_tokenizer(path: Path, folder: Path) -> ParityFinding:
    """Compare the encodings and decodings of recorded texts."""
    if not path.is_file():
        raise CheckpointError(f"parity folder {str(path.parent)!r} has no {path.name}")
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    cases = json.loads(path.read_text(encoding="utf-8"))
    equal = sum(
        tokenizer.encode(case["text"]) == case["ids"]
        and tokenizer.decode(case["ids"]) == case["decoded"]
        for case in cases
    )
    return ParityFinding("tokenizer", f"{equal} of {len(cases)} equal", "all", equal == len(cases))
