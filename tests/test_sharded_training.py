"""Training on meshes of eight virtual devices, in a child process, gives what one device gives."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from jax_lm.data.batches import Order, Row, SampleStream
from jax_lm.models.dream import DreamConfig, DreamForCausalLM, parameters
from jax_lm.sharding import MeshShape
from jax_lm.training.config import LossConfig, OptimizerConfig, TrainerConfig
from jax_lm.training.masked_diffusion import ByStep, train
from jax_lm.training.update import compute_copy

MESHES = ("data=8", "data=2,fsdp=2,tensor=2")
BATCH_SIZES = (16, 10)
"""Ten rows in two parts do not divide by eight devices, and are filled up."""

CONFIG = DreamConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    mask_token_id=63,
)


def trained(mesh: str | None, batch_size: int, out: Path) -> tuple[DreamForCausalLM, list[float]]:
    """Four steps of packed rows in two parts; adamw's first steps are as large as the learning
    rate.
    """
    rng = np.random.default_rng(0)
    samples = [
        Row(tuple(map(int, rng.integers(0, 60, 7))), (False, *(True,) * 6), open=False)
        for _ in range(64)
    ]
    order = Order([len(sample.ids) for sample in samples], 0, capacity=16)
    stream = SampleStream(samples, order, max_length=16, batch_size=batch_size, pad_id=60, seed=0)
    model = DreamForCausalLM(CONFIG, rngs=nnx.Rngs(0))
    model = model.on_mesh(MeshShape.parse(mesh).mesh()) if mesh else model
    optimizer = OptimizerConfig(learning_rate=1e-3, adam_epsilon=1e-4)
    config = TrainerConfig(
        max_steps=4, optimizer=optimizer, gradient_accumulation_steps=2, log_every=1
    )
    # The other batch is trained on blocks.
    loss = LossConfig(masks_per_query=True, block_length=4 if batch_size == 10 else None)
    assert train(model, ByStep(stream.batch), loss, config, out)
    return model, [
        json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


def compare(folder: Path) -> None:
    """The child process: prints one JSON line per batch size and mesh."""
    for batch_size in BATCH_SIZES:
        compare_sizes(batch_size, folder / str(batch_size))


def compare_sizes(batch_size: int, folder: Path) -> None:
    alone, losses = trained(None, batch_size, folder / "alone")
    for number, mesh in enumerate(MESHES):
        model, others = trained(mesh, batch_size, folder / str(number))
        leaves = parameters(model)
        differences = [
            np.abs(np.asarray(leaves[name]) - np.asarray(x)).max()
            for name, x in parameters(alone).items()
        ]
        placed = {
            name: jax.device_put(np.asarray(x), leaves[name].sharding)
            for name, x in parameters(alone).items()
        }
        copies = (compute_copy(weights, "bfloat16") for weights in (parameters(alone), placed))
        unlike = jax.tree.map(lambda a, b: int((np.asarray(a) != np.asarray(b)).sum()), *copies)
        here = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves.values())
        report = {
            "loss": float(np.abs(np.array(losses) - others).max()),
            "weights": float(max(differences)),
            "other copies": sum(unlike.values()),
            "share": here / sum(leaf.nbytes for leaf in leaves.values()),
            "moved": float(np.abs(np.array(losses) - losses[0]).max()),
        }
        print(json.dumps(report), flush=True)  # noqa: T201


@pytest.fixture(scope="module")
def reports(for_release):
    count = "--xla_force_host_platform_device_count=8"
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {count}", "JAX_PLATFORMS": "cpu"}
    child = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    cases = [(batch_size, mesh) for batch_size in BATCH_SIZES for mesh in MESHES]
    return dict(zip(cases, map(json.loads, child.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_mesh_gives_the_losses_and_weights_of_one_device(reports, batch_size, mesh):
    report = reports[batch_size, mesh]
    assert report["moved"] > 0.01
    assert report["loss"] < 1e-5
    assert report["weights"] < 1e-5
    assert report["other copies"] == 0


def test_weights_are_stored_in_parts(reports):
    assert reports[16, "data=8"]["share"] == 1
    # Norms lie everywhere, matrices on four devices.
    assert reports[16, "data=2,fsdp=2,tensor=2"]["share"] < 0.3


if __name__ == "__main__":
    assert jax.device_count() == 8
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder))
