"""Compare an autoregressive checkpoint with transformers: greedy answers, logits, and rounding.

    python tools/model_parity.py Qwen2.5-Coder-0.5B-Instruct
    python tools/model_parity.py Qwen2.5-Coder-0.5B-Instruct --suite humaneval \\
        --data HumanEval.jsonl.gz --limit 24 --max-new-tokens 256 --out parity.json

transformers confirms an answer of ours in one forward pass: each of its tokens must be the most
likely one after the tokens before it. The exit status is 1 if a comparison is out of bounds. Takes
about 4 GB for 0.5B parameters. Needs torch and transformers (extra `parity`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import AutoModelForCausalLM

from jax_lm.benchmark.machine import about
from jax_lm.benchmark.parity import ParityFinding, at_most, logits_of
from jax_lm.checkpoints import huggingface
from jax_lm.evaluation.problems import suite_problems
from jax_lm.host.declared import Positional, run_main
from jax_lm.host.files import require_writable, write_whole
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.reports.run_folder import weights_digest
from jax_lm.templates import Template

# Bounds for the largest absolute difference of float32 logits. Hidden states of trained weights
# reach hundreds; under full attention, for which the weights were not trained, they grow further.
CAUSAL_DIFFERENCE, FULL_DIFFERENCE = 1e-4, 1e-2
# Bound for the divergence of int8 kernels from float32, in nats per token.
INT8_DIVERGENCE = 1e-3
# Texts whose logits are compared, and the most tokens of each. Greedy answers are compared whole.
TEXTS, TOKENS = 4, 128
# Prompts that are decoded together.
BATCH = 8

Ids = Int[np.ndarray, "t"]
Logits = Float[np.ndarray, "t v"]


def greedy_texts(
    folder: Path, prompts: Sequence[str], new_tokens: int
) -> Iterator[tuple[Ids, int]]:
    """Yield each prompt with its greedy answer up to the stop token, and where the answer begins.

    Raises:
        ValueError: the model is not autoregressive.
    """
    engine = DiffuCoderInference(folder, dtype="float32", verbose=False)
    if not engine.is_autoregressive:
        raise ValueError(
            f"folder={str(folder)!r}: must be autoregressive, not {engine.config.family.name}; "
            "`diffucoder compare` is for models that decode in any order"
        )
    options = GenerationOptions(max_new_tokens=new_tokens, temperature=0.0, top_p=None, top_k=None)
    stop_ids = engine.tokenizer.stop_ids
    for begin in range(0, len(prompts), BATCH):
        batch = prompts[begin : begin + BATCH]
        canvas = engine.canvas([Template.completion(prompt, new_tokens) for prompt in batch])
        state = engine.sampler.generate(canvas, engine.fit(options), stop_ids=stop_ids)
        for tokens, present in zip(np.asarray(state.tokens), canvas.attention_mask, strict=True):
            ids = tokens[present]
            start = len(ids) - new_tokens
            # answer [a, b, STOP, STOP]: up to the first stop token, of which there may be none
            ends = np.flatnonzero(np.isin(ids[start:], stop_ids))
            yield ids[: start + ends[0] + 1] if len(ends) else ids, start
        print(f"{begin + len(batch)} of {len(prompts)} answered", flush=True)


def load_reference(folder: Path, dtype: str) -> Callable[[Ids, bool], Logits]:
    """Load a Qwen2, Qwen3 or Llama checkpoint in transformers' own class.

    Returns:
        A function that computes the float32 logits of ids, causal or under full attention.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    ).eval()

    @torch.no_grad()
    def logits(ids: Ids, is_causal: bool) -> Logits:
        # Added to the scores [1, 1, t, t]: 0 shows a key, the least number hides it.
        mask = torch.zeros(1, 1, len(ids), len(ids), dtype=model.dtype)
        if is_causal:
            later = torch.ones(len(ids), len(ids)).triu(1).bool()
            mask = mask.masked_fill(later, torch.finfo(model.dtype).min)
        tokens = torch.from_numpy(ids).long()[None]
        return model(tokens, attention_mask=mask, use_cache=False).logits[0].float().numpy()

    return logits


def our_logits(model: DreamForCausalLM, texts: Sequence[Ids]) -> list[Logits]:
    """Compute the logits of texts, padded on the right so that they share a compilation."""
    found = []
    for ids in texts:
        missing = TOKENS - len(ids)
        row, mask = (jnp.asarray(np.pad(x, (0, missing)))[None] for x in (ids, np.ones_like(ids)))
        found.append(np.asarray(logits_of(model, row, mask))[0, : len(ids)])
    return found


def mean_divergence(exact: Sequence[Logits], others: Sequence[Logits]) -> float:
    """Compute KL(exact || others) in nats, the mean over positions."""
    p, q = (jax.nn.log_softmax(np.concatenate(logits)) for logits in (exact, others))
    return float(jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=-1)))


def largest_change(exact: Sequence[Logits], others: Sequence[Logits]) -> float:
    """Return the largest absolute difference."""
    return float(np.abs(np.concatenate(exact) - np.concatenate(others)).max())


def check_model(
    folder: Path,
    prompts: Sequence[str],
    new_tokens: int,
    load: Callable[[Path, str], Callable[[Ids, bool], Logits]],
) -> Iterator[ParityFinding]:
    """Compare a checkpoint with transformers; one model is in memory at a time.

    Args:
        load: loads the checkpoint in a dtype, and returns a function of ids that computes
            their logits, causal or under full attention.
    """
    answers = list(greedy_texts(folder, prompts, new_tokens))
    texts = [ids[:TOKENS] for ids, _ in answers[:TEXTS]]
    # transformers: rows 1 and 2 of [p, q, a, b] predict a and b
    reference = load(folder, "float32")
    equal = np.concatenate(
        [reference(ids, True).argmax(-1)[start - 1 : -1] == ids[start:] for ids, start in answers]
    )
    measured = f"{equal.sum():,} of {equal.size:,} equal"
    yield ParityFinding(f"tokens of {len(answers)} answers", measured, "all", bool(equal.all()))
    causal, full = ([reference(ids, is_causal) for ids in texts] for is_causal in (True, False))
    reference = load(folder, "bfloat16")
    theirs = mean_divergence(causal, [reference(ids, True) for ids in texts])
    del reference
    # ours
    read = partial(DreamForCausalLM.from_pretrained, folder)
    model = read(dtype="float32")
    found = largest_change(causal, our_logits(model, texts))
    yield at_most("causal logits", found, CAUSAL_DIFFERENCE)
    model.model.attention_block = None
    found = largest_change(full, our_logits(model, texts))
    yield at_most("logits under full attention", found, FULL_DIFFERENCE)
    found = mean_divergence(causal, our_logits(read(dtype="bfloat16"), texts))
    yield at_most("bfloat16, KL (allowed: transformers')", found, theirs)
    found = mean_divergence(causal, our_logits(read(dtype="float32", quantization="int8"), texts))
    yield at_most("int8, KL", found, INT8_DIVERGENCE)


@dataclass(frozen=True, kw_only=True)
class ModelParity:
    """Compare an autoregressive checkpoint with transformers.

    Attributes:
        folder: folder or hub id of a Qwen2, Qwen3 or Llama checkpoint.
        suite: where the prompts are from.
        data: file of the suite; none for builtin.
        limit: number of prompts, evenly spread over the suite.
        max_new_tokens: length of an answer.
        out: JSON file of the results.
    """

    folder: Positional[str]
    suite: Literal["builtin", "humaneval", "mbpp"] = "builtin"
    data: Path | None = None
    limit: int = 8
    max_new_tokens: int = 64
    out: Path | None = None


def compare_model(asked: ModelParity) -> int:
    """Print every comparison, and write them; returns the exit status."""
    if asked.out:
        require_writable(asked.out.parent)
    problems, _ = suite_problems(asked.suite, asked.data, asked.limit)
    folder, prompts = huggingface.resolve(asked.folder), [each.prefix for each in problems]
    findings = []
    for finding in check_model(folder, prompts, asked.max_new_tokens, load_reference):
        verdict = "ok" if finding.passed else "FAILED"
        print(f"{finding.name}: {finding.measured} ({finding.allowed}) {verdict}", flush=True)
        findings.append(finding)
    if asked.out:
        record = {
            "about": about(),
            "packages": {name: version(name) for name in ("torch", "transformers")},
            "settings": asdict(asked),
            "weights": weights_digest(folder),
            "findings": [asdict(finding) for finding in findings],
        }
        write_whole(asked.out, json.dumps(record, indent=1, default=str) + "\n")
    return 0 if all(finding.passed for finding in findings) else 1


if __name__ == "__main__":
    raise SystemExit(compare_model(run_main(ModelParity)))
