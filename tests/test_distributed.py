"""Two processes of two virtual devices each give what one process with one device gives."""

import json
import os
import socket
import subprocess
import sys

import pytest

from jax_lm import distributed

PROCESSES, DEVICES = 2, 2


def child() -> None:
    """One process: generates and takes a training step, and prints both as JSON."""
    import jax
    import numpy as np
    import optax
    from conftest import GOLDEN
    from flax import nnx

    from jax_lm.diffusion.canvas import Canvas
    from jax_lm.diffusion.sampler import Sampler
    from jax_lm.models.dream import DreamForCausalLM
    from jax_lm.options import Decoding, GenerationOptions
    from jax_lm.sharding import MeshShape, tree_shardings

    mesh = None
    if len(sys.argv) > 2:
        distributed.start(coordinator=sys.argv[1], num_processes=PROCESSES, process_id=int(sys.argv[2]))
        mesh = MeshShape(data=2, tensor=2).mesh()
    model = DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", mesh=mesh)
    ids = np.random.default_rng(0).integers(0, 500, (2, 6)).astype(np.int32)
    decoding = Decoding(preset="fast")
    options = GenerationOptions(num_steps=4, temperature=0.5, top_p=None, top_k=20, decoding=decoding)
    state = Sampler(model).generate(Canvas.after(ids, None, 8), options, seed=5)
    graph, values = nnx.split(model)
    params = nnx.to_pure_dict(values)

    def loss(params: dict) -> jax.Array:
        logits = nnx.merge(graph, params)(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()

    def update(params: dict) -> tuple:
        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients), value

    placed = None if mesh is None else (tree_shardings(params, model.config, mesh), None)
    step = jax.jit(update, out_shardings=placed)
    params, first = step(params)
    _, second = step(params)
    report = {"tokens": np.asarray(state.tokens).tolist(), "losses": [float(first), float(second)]}
    report["addressable"] = jax.tree.leaves(params)[0].is_fully_addressable
    print(json.dumps(report), flush=True)  # noqa: T201
    if mesh is not None:
        jax.distributed.shutdown()


def outputs(*argument_lists):
    """What child processes printed, all started before any is waited for."""
    count = f"--xla_force_host_platform_device_count={DEVICES}"
    flags = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {count}", "JAX_PLATFORMS": "cpu"}
    children = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=os.environ | flags,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in argument_lists
    ]
    try:
        results = [process.communicate(timeout=300) for process in children]
    finally:
        for process in children:
            process.kill()
    for process, (_, err) in zip(children, results, strict=True):
        assert process.returncode == 0, err[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in results]


def test_two_processes_give_what_one_gives(for_release):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (alone,) = outputs([])
    both = outputs(*([f"127.0.0.1:{port}", str(rank)] for rank in range(PROCESSES)))
    for report in both:
        assert report["tokens"] == alone["tokens"]
        assert report["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert not report["addressable"]
    assert alone["losses"][1] < alone["losses"][0]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"coordinator": "localhost:1"}, "give all three"),
        ({"num_processes": 2, "process_id": 0}, "give all three"),
        ({"coordinator": "localhost:1", "num_processes": 2, "process_id": 2}, "process_id=2: must lie in"),
    ],
)
def test_half_an_address_is_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        distributed.start(**fields)


if __name__ == "__main__":
    child()
