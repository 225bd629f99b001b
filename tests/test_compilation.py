"""The real program, compiled for machines that are not here; needs libtpu (extra `plan`) or
`plan-gpu`.

`pytest --release tests/test_compilation.py` also holds what a step of the 7B model takes on an
H200.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from cases.budgets import STEPS_7B, excess, read_explanation
from documentation import ROOT

from jax_lm import config
from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import GPU_COMPILER, TPU_COMPILER, compile_lowered, memory_of
from jax_lm.models.attention import has_cudnn

needs_libtpu = pytest.mark.skipif(
    not TPU_COMPILER.is_installed, reason="needs libtpu: the extra plan"
)
needs_cuda = pytest.mark.skipif(not GPU_COMPILER.is_installed, reason="needs the extra plan-gpu")
SMALL = ("--model-config", "small", "--max-length", "32", "--temperature", "0")
CLEAN = {
    name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")
}


EXPLAIN = (sys.executable, str(ROOT / "experiments" / "explain_plan.py"))


def diffucoder(*words, status=0, program=(sys.executable, "-m", "jax_lm"), **environment):
    """Standard output of a command, of which standard error must be empty."""
    command, variables = [*program, *words], CLEAN | environment
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=550, check=False, env=variables
    )
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout


@needs_libtpu
@pytest.mark.parametrize("step", ["generate", "sft", "grpo"])
def test_plan_compiles_a_sharded_program_for_tpus(step):
    printed = diffucoder("plan", *SMALL, "--topology", "v5e:2x2", "--step", step)
    assert "compiled for it by libtpu" in printed
    assert f"mesh {'data=2,tensor=2' if step == 'generate' else 'fsdp=4'}" in printed
    assert "step as compiled" in printed


@needs_cuda
@pytest.mark.parametrize("family", ["a100", "h100", "h200", "l4", "rtx4090"])
def test_plan_compiles_for_a_gpu(family):
    printed = diffucoder("plan", *SMALL, "--topology", f"{family}:1")
    assert "compiled for it by jax-cuda12-plugin" in printed
    lacks = "autotuning" if has_cudnn() else "autotuning and cuDNN's attention"
    assert f"; without {lacks}, so that speed is not known" in printed
    assert "fits" in printed


@needs_cuda
@pytest.mark.parametrize(
    "words",
    [
        ("sft",),
        ("grpo",),
        ("sft", "--lora-rank", "4"),
        ("sft", "--lora-rank", "4", "--dtype", "int8"),
    ],
    ids=" ".join,
)
def test_plan_compiles_an_update_for_gpus(words):
    printed = diffucoder("plan", *SMALL, "--topology", "h100:4", "--step", *words)
    assert "compiled for it by jax-cuda12-plugin" in printed
    assert "mesh fsdp=4" in printed


@needs_cuda
def test_what_does_not_fit_a_card_is_refused_with_what_to_change():
    # 186M parameters in float32 with three more numbers each fit; a batch of a million tokens does
    # not.
    words = ("plan", *SMALL, "--topology", "l4:1", "--batch-size", "65536")
    printed = diffucoder(*words, status=1)
    assert "does not fit" in printed
    assert "try --" in printed


@pytest.mark.parametrize(
    "topology",
    [pytest.param("v5e:2x2", marks=needs_libtpu), pytest.param("h200:1", marks=needs_cuda)],
)
def test_a_step_is_explained(topology, tmp_path):
    out = tmp_path / "step.json"
    words = (*SMALL, "--topology", topology, "--preset", "fast", "--out", str(out))
    printed = diffucoder(*words, program=EXPLAIN)
    assert "refresh, as compiled" in printed
    assert "weights read again" in printed
    found = json.loads(out.read_text())
    shape = config.SHAPES["small"]
    for name, rows in (("refresh", "32"), ("step", "17")):
        each = found["passes"][name]["explanation"]
        # A compiler may join those of one input, as q, k and v, and does on all but a few machines.
        assert 3 * shape.num_hidden_layers <= each["rows"][rows] <= 7 * shape.num_hidden_layers
        assert each["read_again"] == []
        assert each["read"] >= found["passes"][name]["least_bytes"]


def outside_of_graphs(text):
    """The lines of a sequence of thunks that are not part of a CUDA graph, and those that launch one."""
    lines, graph = [], None
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        # What a graph consists of is indented below it.
        if graph is not None and depth > graph:
            continue
        graph = depth if "kCommandBuffer" in line else None
        lines.append(line)
    return lines


@needs_cuda
def test_a_step_on_a_gpu_is_one_graph_and_one_read(tmp_path):
    """The host launches the graph of a step, and reads whether another one follows."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_run$"
    words = (*SMALL, "--topology", "h200:1", "--preset", "fast")
    diffucoder(*words, program=EXPLAIN, XLA_FLAGS=flags)
    texts = [path.read_text() for path in tmp_path.glob("*thunk_sequence_after_thunk_passes.txt")]
    # refresh and step
    assert len(texts) == 2
    for text in texts:
        launched = "\n".join(outside_of_graphs(text))
        kinds = ("kWhile", "kConditional", "kCommandBuffer")
        # one graph before the loop, one in it
        assert [launched.count(kind) for kind in kinds] == [1, 0, 2]


def over_budget(found, target, preset):
    """What the passes of a preset take beyond their budgets."""
    over = []
    for (place, name, part), budget in STEPS_7B.items():
        if (place, name) == (target, preset):
            each = found["passes"][part]
            over += excess(read_explanation(each["explanation"]), budget, each["least_bytes"])
    return over


TARGETS_7B = sorted({(target, preset) for target, preset, _ in STEPS_7B})


@pytest.mark.parametrize(("target", "preset"), TARGETS_7B)
def test_the_published_figures_of_a_7b_step_are_within_its_budget(target, preset):
    path = ROOT / "docs" / "results" / "compiled" / f"{target.replace(':', '-')}-{preset}.json"
    assert over_budget(json.loads(path.read_text()), target, preset) == []


@needs_libtpu
@needs_cuda
@pytest.mark.parametrize(("target", "preset"), TARGETS_7B)
def test_a_7b_step_is_within_its_budget(for_release, tmp_path, target, preset):
    out = tmp_path / "step.json"
    words = ("--model-config", "7b", "--topology", target, "--preset", preset, "--out", str(out))
    subprocess.run([*EXPLAIN, *words], capture_output=True, check=False, env=CLEAN)
    assert over_budget(json.loads(out.read_text()), target, preset) == []


@pytest.mark.skipif(
    not (TPU_COMPILER.is_installed or GPU_COMPILER.is_installed), reason="needs plan or plan-gpu"
)
def test_compilers_without_their_device_are_quiet():
    assert "cpu" in diffucoder("info")


class Untiled(jax.stages.Lowered):
    """A lowered program of which the compiler complains unless it is given options."""

    def __init__(self, message):
        self.message, self.options = message, []

    def compile(self, compiler_options=None):
        self.options.append(compiler_options)
        if compiler_options is None:
            raise jax.errors.JaxRuntimeError(self.message)
        return jax.jit(lambda x: x + 1).lower(1).compile()


def test_a_product_without_tiles_is_compiled_again_and_said(caplog):
    lowered = Untiled("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.124")
    assert compile_lowered(lowered)(1) == 2
    assert lowered.options == [None, {"xla_gpu_enable_triton_gemm": "False"}]
    assert "compiled again with the products of cuBLAS" in caplog.text


def test_other_errors_of_the_compiler_stay():
    lowered = Untiled("RESOURCE_EXHAUSTED: 20 GiB")
    with pytest.raises(jax.errors.JaxRuntimeError, match="20 GiB"):
        compile_lowered(lowered)
    assert lowered.options == [None]


def test_what_a_program_needs_is_the_compilers_peak_where_it_knows_one(monkeypatch):
    """TPUs have room for an update of sft_v5e-16, though not for the sum of its buffers.

    A CPU's peak is not one.
    """
    array = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
    compiled = jax.jit(lambda x: x.T @ x).lower(array).compile()
    memory, product = compiled.memory_analysis(), 1024 * 1024 * 4
    assert memory is not None
    kept, working = memory_of(compiled)
    assert kept == array.size * 4
    assert working >= max(product, memory.temp_size_in_bytes + product)
    monkeypatch.setattr(compiler, "on_tpus", lambda compiled: True)
    assert memory_of(compiled) == (
        kept,
        memory.peak_memory_in_bytes - kept + memory.generated_code_size_in_bytes,
    )
