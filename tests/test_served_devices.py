"""Serving on several devices: the answers of one device, on meshes and on replicas behind one queue.

A child process has virtual devices, and serves when this file is run as a program.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")

from cases.adapters import save_trained
from cases.published_model import publish_growing
from cases.server import RecordingListener

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.jobs import Request

GREEDY = GenerationOptions(max_new_tokens=40, temperature=0.0)
FAST = replace(GREEDY, decoding=Decoding(preset="fast"))
GROWN = GenerationOptions(max_new_tokens=24, temperature=0.0)
PROMPTS = ("def add(a, b):", "def gcd(a, b):\n")
GAP = ("def f(x):\n    y = ", "\n    return y\n")
LIMITS = EngineOptions(slots=4, context=96, max_tokens=80, timeout=300.0, warm_up=("fast:1",))
CASES = {
    2: ("tensor=2", "fsdp=2", "replicas=2"),
    4: ("data=2,tensor=2", "data=4", "tensor=2 replicas=2"),
}


def serve(folder, words, requests_of, adapters=()):
    """Serve requests on the devices that the words name; what clients heard, and who decoded."""
    # "tensor=2 replicas=2": a mesh of tensor=2 for each of two replicas
    mesh, _, replicas = words.partition("replicas=")
    inference = DiffuCoderInference(
        folder,
        dtype="float32",
        mesh=mesh.strip() or None,
        replicas=int(replicas or 1),
        adapters=dict(adapters),
        verbose=False,
    )
    engine, busy = Engine(inference, LIMITS), set()
    engine.start()
    assert engine.ready.wait(300)
    listener = RecordingListener()

    def listen(event):
        busy.update(number for number, each in enumerate(engine.workers) if each.running)
        listener(event)

    requests = requests_of(engine.tokenizer)
    jobs = engine.submit(requests, listen)
    ends = listener.finished(len(jobs), 300)
    # one that its client gives up, and one that is there when the server stops
    given_up, drained = RecordingListener(), RecordingListener()
    engine.cancel(engine.submit(requests[:1], given_up))
    (cancelled,) = given_up.finished(1, 300).values()
    (job,) = engine.submit(requests[1:2], drained)
    assert engine.close(grace=120.0, wait=120.0)
    return {
        "texts": [ends[job].text for job in jobs],
        "cancelled": cancelled.reason,
        "drained": drained.finished()[job].text,
        "busy": len(busy),
        "failure": str(engine.failure),
    }


def completions(tokenizer):
    ids = [tuple(tokenizer.encode_plain(prompt)) for prompt in PROMPTS]
    return [Request(before=each, options=options) for each in ids for options in (GREEDY, FAST)]


def adapted(tokenizer):
    return [replace(each, adapter="own") for each in completions(tokenizer)]


def gaps(tokenizer):
    before, after = (tuple(tokenizer.encode_plain(text)) for text in GAP)
    return [Request(before=before, after=after, is_gap=True, options=GROWN)] * 2


if __name__ == "__main__":
    folder, growing, adapter, devices = sys.argv[1:]
    # More tensors than cores, each split: sums over many at once waited for each other for ever.
    DiffuCoderInference(mesh=f"fsdp={devices}", verbose=False)
    for words in CASES[int(devices)]:
        print(json.dumps(serve(folder, words, completions)), flush=True)  # noqa: T201
    print(json.dumps(serve(growing, CASES[int(devices)][0], gaps)), flush=True)  # noqa: T201
    both = serve(folder, CASES[int(devices)][2], adapted, [("own", adapter)])
    print(json.dumps(both), flush=True)  # noqa: T201


@pytest.mark.parametrize("devices", CASES)
def test_answers_are_those_of_one_device(devices, tiny_folder, tiny_inference, tmp_path):
    growing, adapter = publish_growing(tmp_path), tmp_path / "adapter"
    save_trained(tiny_folder, adapter, rank=2, seed=1)
    count = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    child = subprocess.run(
        [sys.executable, __file__, str(tiny_folder), str(growing), str(adapter), str(devices)],
        env=os.environ | {"XLA_FLAGS": count, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    *served, grown, own = map(json.loads, child.stdout.splitlines())
    expected = [
        tiny_inference.complete([prompt], options)[0]
        for prompt in PROMPTS
        for options in (GREEDY, FAST)
    ]
    for heard, words in zip(served, CASES[devices], strict=True):
        assert heard["texts"] == expected, words
        assert (heard["cancelled"], heard["failure"]) == ("cancelled", "None")
        assert heard["drained"] == expected[1]
        assert heard["busy"] == (2 if "replicas" in words else 1)
    alone = DiffuCoderInference(growing, dtype="float32", verbose=False)
    text = alone.infill(*GAP, GROWN.max_new_tokens, options=GROWN)
    assert grown["texts"] == [text, text]
    assert (grown["drained"], grown["cancelled"]) == (text, "cancelled")
    alone = DiffuCoderInference(tiny_folder, dtype="float32", adapter=adapter, verbose=False)
    changed = [
        alone.complete([prompt], options)[0] for prompt in PROMPTS for options in (GREEDY, FAST)
    ]
    assert changed != expected
    assert (own["texts"], own["drained"], own["busy"]) == (changed, changed[1], 2)
