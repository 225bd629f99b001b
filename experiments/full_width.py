"""Train a model of the published width (3,584; a vocabulary of 152,064) with two layers, and
compare the losses.

python experiments/full_width.py --kind sft --weights lora
python experiments/full_width.py                                  # all of it: hours of two cores, and 24 GiB

Twenty updates with per-layer remat and a loss in blocks of the vocabulary, in float32 on one
device, in bfloat16 on one and on eight virtual ones; random weights, the same ones each time. Each
run is a process of its own, whose losses must lie within 1e-3 of those in float32 (of their size,
where they are above 1), and whose peak memory is printed. All weights are trained by Adafactor, as
AdamW's moments would take 12 GiB more. Coupled-GRPO scores and learns from completions that are
given: what a policy samples in bfloat16 is soon another text.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jax_lm.config import DIFFUCODER_7B
from jax_lm.data.batches import Batch
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models import token_likelihood
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import LoraConfig, add_lora, is_lora
from jax_lm.options import GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.sharding import MeshShape
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training import masked_diffusion
from jax_lm.training.config import LossConfig, OptimizerConfig, TrainerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.rollouts import Completions, cut_at_stop
from jax_lm.training.trainer import Trainer
from jax_lm.training.update import in_dtype, partition

KINDS, WEIGHTS, TOLERANCE = ("sft", "grpo"), ("lora", "full"), 1e-3
RUNS = ((1, "float32"), (1, "bfloat16"), (8, "bfloat16"))
ROWS, LENGTH = 8, 32
RATES = {
    ("sft", "lora"): 1e-4,
    ("sft", "full"): 1e-5,
    ("grpo", "lora"): 1e-5,
    ("grpo", "full"): 1e-6,
}
"""Of the recipes in recipes/."""
MESHES = {"lora": MeshShape(fsdp=8), "full": MeshShape(fsdp=2, tensor=4)}
"""Virtual devices share one memory, in which each gathers what `fsdp` splits: with all weights split so eightfold, the
system ended the run at 22 GB."""
LOGIT_BYTES = 2**24
"""Of logits at a time on all devices, so that few tokens too have their vocabulary in blocks."""


def wide_model(tokenizer: DiffuCoderTokenizer, weights: str, devices: int) -> DreamForCausalLM:
    """Draw the weights in bfloat16, which float32 holds exactly."""
    ids = {"mask_token_id": tokenizer.mask_id, "pad_token_id": tokenizer.pad_id}
    config = replace(DIFFUCODER_7B, num_hidden_layers=2, **ids)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0), dtype="bfloat16")
    model = model.on_mesh(MESHES[weights].mesh()) if devices > 1 else model
    if weights == "lora":
        add_lora(model, LoraConfig(rank=8), seed=0)
    return model


def training(kind: str, weights: str, dtype: str, steps: int) -> TrainerConfig:
    optimizer = OptimizerConfig(
        learning_rate=RATES[kind, weights], optim=None if weights == "lora" else "adafactor"
    )
    return TrainerConfig(max_steps=steps, optimizer=optimizer, compute_dtype=dtype, log_every=1)


def batches(vocabulary: int) -> Iterator[Batch]:
    """Draw rows whose second half is learnt."""
    rng = np.random.default_rng(0)
    while True:
        tokens = rng.integers(0, vocabulary, (ROWS, LENGTH)).astype(np.int32)
        canvas = np.broadcast_to(np.arange(LENGTH) >= LENGTH // 2, tokens.shape)
        samples = np.broadcast_to(np.arange(ROWS, dtype=np.int32)[:, None], tokens.shape)
        yield Batch(tokens, canvas, samples, None)


def fine_tuning(
    weights: str, devices: int, config: TrainerConfig, out: Path
) -> tuple[Trainer, Any]:
    """Make the trainer of supervised fine-tuning, and its source."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    model = wide_model(tokenizer, weights, devices)
    trained = is_lora if weights == "lora" else lambda name: True
    graph, state = nnx.split(model)
    params, others = partition(nnx.to_pure_dict(state), trained)
    drawn = batches(model.config.vocab_size)
    loss = LossConfig(normalisation="sequence", remat=True)
    trainer = Trainer(
        masked_diffusion.diffusion_loss(graph, loss, tokenizer.mask_id),
        params,
        config,
        out=out,
        frozen=in_dtype(others, config.compute_dtype or "float32"),
    )
    return trainer, masked_diffusion.ByStep(lambda step: next(drawn))


def policy_optimisation(
    weights: str, devices: int, config: TrainerConfig, out: Path, new_tokens: int
) -> tuple[Trainer, Any]:
    """Make the trainer of coupled-GRPO, and its source."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    settings = GRPOConfig(
        num_generations=ROWS // 2,
        prompts_per_step=2,
        remat=True,
        generation=GenerationOptions(max_new_tokens=new_tokens, num_steps=new_tokens),
        training=config,
    )
    if weights == "full":
        # A reference policy would be 6 GiB more.
        settings = replace(settings, loss=replace(settings.loss, beta=0.0))
    trainer = DiffuGRPOTrainer(
        wide_model(tokenizer, weights, devices),
        tokenizer,
        [{"prompt": "def f(x):"}, {"prompt": "def g(x, y):"}],
        settings,
        out=out,
        rewards=WeightedSum(
            {"length": lambda prompts, texts, **_: [len(text) % 7 / 7 for text in texts]},
            {"length": 1.0},
        ),
        trained=is_lora if weights == "lora" else lambda name: True,
    )

    def given(policy: Any, prompts: Any, number: int, first: int = 0) -> Completions:
        width, rng = (
            trainer.source.rollouts.prompts.width,
            np.random.default_rng((1, number, first)),
        )
        tokens = rng.integers(0, 400, (len(prompts), width + new_tokens)).astype(np.int32)
        zeros = np.zeros_like(tokens)
        present = np.ones(tokens.shape, bool)
        return cut_at_stop(tokens, present, zeros, zeros.astype(np.float32), width, tokenizer)

    trainer.source.rollouts.complete = given
    return trainer.trainer, trainer.source


def run(
    kind: str, weights: str, devices: int, dtype: str, steps: int, new_tokens: int
) -> dict[str, Any]:
    """Train in this process; the losses, gradient norms and peak memory of all of it."""
    make = {"sft": fine_tuning, "grpo": partial(policy_optimisation, new_tokens=new_tokens)}[kind]
    with tempfile.TemporaryDirectory() as folder:
        trainer, source = make(
            weights, devices, training(kind, weights, dtype, steps), Path(folder)
        )
        metrics = []
        for step in range(steps):
            metrics.append(jax.device_get(trainer.start(source).metrics))
            sys.stderr.write(
                f"{kind} {weights} {dtype} on {devices}: update {step + 1} of {steps}\n"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "losses": [float(each["loss"]) for each in metrics],
        "norms": [float(each["gradient_norm"]) for each in metrics],
        "peak_bytes": peak,
    }


def in_process(*case: Any) -> dict[str, Any]:
    """Run a case in a process with its number of devices."""
    # XLA's CPU compiler orders operations so that many run at once, and their outputs lie there at
    # once: on eight devices, which share one memory, 40 GiB instead of five.
    flags = f"--xla_force_host_platform_device_count={case[2]} --xla_cpu_enable_concurrency_optimized_scheduler=false"
    around = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--case", *map(str, case)]
    done = subprocess.run(command, env=around, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def furthest(ours: list[float], theirs: list[float]) -> float:
    """Give the largest difference: of their size, where they are above 1."""
    return max(abs(a - b) / max(1, abs(b)) for a, b in zip(ours, theirs, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--weights", choices=WEIGHTS, nargs="+", default=WEIGHTS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--new-tokens", type=int, default=16, help="of each completion, in coupled-GRPO"
    )
    parser.add_argument("--case", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        kind, weights, devices, dtype, *numbers = arguments.case
        token_likelihood.LOGIT_BYTES = LOGIT_BYTES // int(devices)
        sys.stdout.write(
            json.dumps(run(kind, weights, int(devices), dtype, *map(int, numbers))) + "\n"
        )
        return 0
    for name, value in (("--steps", arguments.steps), ("--new-tokens", arguments.new_tokens)):
        if value < 1:
            parser.error(f"{name} {value}: must be at least 1")
    worst = 0.0
    for kind, weights in itertools.product(arguments.kind, arguments.weights):
        exact: dict[str, Any] = {}
        for devices, dtype in RUNS:
            report = in_process(
                kind, weights, devices, dtype, arguments.steps, arguments.new_tokens
            )
            exact = exact or report
            apart, norms = (furthest(report[name], exact[name]) for name in ("losses", "norms"))
            worst, peak = max(worst, apart), report["peak_bytes"] / 2**30
            losses = f"losses {report['losses'][0]:.5f} to {report['losses'][-1]:.5f}"
            found = f"{losses}, at most {apart:.2g} from float32's, gradient norms {norms:.2g}; peak {peak:.2f} GiB"
            sys.stdout.write(f"{kind} {weights} {dtype} on {devices}: {found}\n")
            sys.stdout.flush()
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
