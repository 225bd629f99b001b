"""Two processes of two virtual devices each give what one process with one device gives."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from cases.reference import GOLDEN
from flax import nnx
from safetensors.numpy import load_file

from jax_lm.cli import main as cli
from jax_lm.cli.arguments.hosts import Hosts
from jax_lm.host import distributed
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer

PROCESSES, DEVICES = 2, 2


SHARED = """
import sys
from pathlib import Path
from jax_lm.host import distributed
address, process, *folders = sys.argv[1:]
distributed.start(coordinator=address, num_processes=2, process_id=int(process))
for folder in folders:
    try:
        distributed.require_shared(Path(folder))
        print("found: shared")
    except ValueError as error:
        print(f"found: {error}")
"""


def test_processes_find_out_whether_they_share_a_folder(tmp_path):
    """They would wait for each other's checkpoints for ever."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = tmp_path / "run"
    others = [tmp_path / f"run{process}" for process in range(2)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, address, str(process), str(shared), str(other)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process, other in enumerate(others)
    ]
    try:
        # the library of the collectives writes to standard output as well
        said = [
            re.findall("found: (.*)", process.communicate(timeout=120)[0]) for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
    for (of_shared, of_other), other in zip(said, others, strict=True):
        assert of_shared == "shared"
        assert of_other == (
            f"out={str(other)!r}: must be a folder that all 2 processes share; process 0 sees the "
            "files of 1 of them"
        )
        assert not other.exists()
    assert list(shared.iterdir()) == []


def child() -> None:
    """One process: generates and takes a training step, and prints both as JSON."""
    import jax
    import optax

    from jax_lm.diffusion.canvas import Canvas
    from jax_lm.diffusion.sampler import Sampler
    from jax_lm.options import Decoding, GenerationOptions
    from jax_lm.sharding import MeshShape, tree_shardings

    mesh = None
    if len(sys.argv) > 2:
        distributed.start(
            coordinator=sys.argv[1], num_processes=PROCESSES, process_id=int(sys.argv[2])
        )
        mesh = MeshShape(data=2, tensor=2).mesh()
    model = DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", mesh=mesh)
    ids = np.random.default_rng(0).integers(0, 500, (2, 6)).astype(np.int32)
    decoding = Decoding(preset="fast")
    options = GenerationOptions(
        num_steps=4, temperature=0.5, top_p=None, top_k=20, decoding=decoding
    )
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


def adapting(folder, out, *options, devices=1):
    """A process of `diffucoder adapt` on tokenised texts."""
    fixed = {
        "data": folder / "tokens", "model": folder / "model", "out": out, "max-length": 32, "batch-size": 8,
        "max-steps": 12, "annealing-steps": 4, "warmup-steps": 1, "learning-rate": 0.001, "adam-epsilon": 1e-4,
        "from-scratch": True,
        "held-out-share": 0.2, "evaluate-every": 6, "save-every": 3, "log-every": 1, "cut-share": 0.3,
    }  # fmt: skip
    words = [word for name, value in fixed.items() for word in (f"--{name}", str(value))]
    count = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", "jax_lm", "adapt", *words, *options],
        env=os.environ | {"XLA_FLAGS": count, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def entries(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        (line["step"], name): line[name]
        for line in lines
        for name in ("loss", "eval_loss")
        if name in line
    }


def test_two_hosts_adapt_as_one_does(for_release, tmp_path):
    """From a tokenised folder, with checkpoints in the background, one killed on the way, which ends
    the other; each reads its own rows.
    """
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    ids = {"mask_token_id": tokenizer.mask_id, "vocab_size": tokenizer.vocab_size}
    shape = replace(DreamForCausalLM.read_config(GOLDEN / "checkpoint"), **ids)
    DreamForCausalLM(shape, rngs=nnx.Rngs(0)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = (
        json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n" * (i % 3 + 1)}) for i in range(60)
    )
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    words = ["--data", str(tmp_path / "texts.jsonl"), "--model", str(tmp_path / "model")]
    assert (
        cli.main(["data", "tokenize", *words, "--out", str(tmp_path / "tokens"), "--workers", "1"])
        == 0
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hosts = [
        f"--coordinator=127.0.0.1:{port}",
        "--num-processes=2",
        "--mesh=data=2,fsdp=2",
        "--async-checkpointing=True",
    ]

    def both():
        return [
            adapting(tmp_path, tmp_path / "hosts", *hosts, f"--process-id={n}", devices=2)
            for n in range(2)
        ]

    alone, shared = adapting(tmp_path, tmp_path / "alone"), both()
    folder = tmp_path / "hosts" / "checkpoints"
    while not any(path.name.isdecimal() for path in folder.glob("*")) and shared[0].poll() is None:
        time.sleep(0.02)
    # One is killed; the other notices and ends, instead of waiting for it for ever.
    shared[1].kill()
    shared[1].communicate()
    _, errors = shared[0].communicate(timeout=240)
    assert shared[0].returncode != 0, errors[-3000:]
    assert not (tmp_path / "hosts" / "model").exists()
    for process in (alone, *both()):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]
    ours, theirs = (entries(tmp_path / name) for name in ("hosts", "alone"))
    assert ours.keys() == theirs.keys()
    assert [step for step, name in ours if name == "eval_loss"] == [6, 12]
    assert ours == pytest.approx(theirs, rel=1e-5)
    weights = [
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("hosts", "alone")
    ]
    before = load_file(tmp_path / "model" / "model.safetensors")
    moved = max(
        np.abs(np.float32(weights[1][name]) - np.float32(before[name])).max() for name in before
    )
    apart = max(np.abs(weights[0][name] - weights[1][name]).max() for name in before)
    assert moved > 1e-3
    assert apart < 1e-5


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"coordinator": "localhost:1"}, "give all three"),
        ({"num_processes": 2, "process_id": 0}, "give all three"),
        (
            {"coordinator": "localhost:1", "num_processes": 2, "process_id": 2},
            "process_id=2: must lie in",
        ),
    ],
)
def test_half_an_address_is_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        Hosts(**fields)


if __name__ == "__main__":
    child()
