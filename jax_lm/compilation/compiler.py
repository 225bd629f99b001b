"""Compile programs for a machine that is not here, and read what the compiler says of its memory.

    pip install 'jax-diffucoder[plan]'          # libtpu: the compiler of TPUs, no TPU needed
    pip install 'jax-diffucoder[plan-gpu]'      # XLA's compiler of NVIDIA GPUs; no GPU, driver or CUDA needed

Uses `jax.experimental.topologies`; nothing runs. Knows no model: programs are made in `programs`,
and what the compiler makes of them is read in `explanation`. Entry: `diffucoder plan`, which puts
this beside the arithmetic of `jax_lm.planning.memory`.
"""

import importlib.util
import logging
import os
import re
from dataclasses import dataclass, field
from importlib.metadata import version

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from jax_lm.compilation.gpus import target_config
from jax_lm.compilation.programs import StepProgram
from jax_lm.host import platforms
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import AXES, MeshShape

logger = logging.getLogger(__name__)

# libtpu as a compiler alone: it looks for no TPU, and lets others use it.
QUIET_COMPILER = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}

SMALLEST_HOST = 4
UNTILED = "Couldn't find output tile sizes"
USED = re.compile(r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm")


@dataclass(frozen=True)
class CompilerPackage:
    """What compiles for machines of a kind.

    Attributes:
        module: by which it is found.
        distribution: that it belongs to.
        extra: of this package, that installs it.
    """

    module: str
    distribution: str
    extra: str

    @classmethod
    def of(cls, topology: Topology) -> "CompilerPackage":
        """Name the one for a topology."""
        return TPU_COMPILER if topology.is_tpu else GPU_COMPILER

    @property
    def is_installed(self) -> bool:
        return is_importable(self.module)

    def __str__(self) -> str:
        return f"{self.distribution} {version(self.distribution)}"


TPU_COMPILER = CompilerPackage("libtpu", "libtpu", "plan")
GPU_COMPILER = CompilerPackage("jax_plugins.xla_cuda12", "jax-cuda12-plugin", "plan-gpu")


def is_importable(module: str) -> bool:
    """Tell whether a module, maybe in a package, is installed."""
    package, _, _ = module.rpartition(".")
    return (not package or is_importable(package)) and importlib.util.find_spec(module) is not None


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures of one device.

    Attributes:
        arguments: bytes of weights, cache and state.
        working: bytes of everything else at the peak.
        flops: operations of one step, as XLA counts them (the body of a loop once); None where it
            does not.
        bytes: read and written by one step, counted likewise.
        refusal: why the compiler would not make the program; then nothing else is known.
        text: the compiled program, as `jax_lm.compilation.explanation` reads it.
    """

    arguments: int = 0
    working: int = 0
    flops: float | None = None
    bytes: float | None = None
    refusal: str | None = None
    text: str = field(default="", repr=False)

    @property
    def total(self) -> int | None:
        """Bytes; None if the compiler refused."""
        return None if self.refusal else self.arguments + self.working


def prepare_compiler(topology: Topology) -> None:
    """Set up a compiler alone, of no device that is here.

    Call it before any backend of JAX is initialised.
    """
    if topology.is_tpu:
        os.environ.update(
            {name: os.environ.get(name, value) for name, value in QUIET_COMPILER.items()}
        )
    else:
        platforms.admit_cuda_compiler()
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    # A program kept for a device that is not here cannot be read again; JAX warns, and compiles.
    jax.config.update("jax_enable_compilation_cache", False)


def topology_mesh(topology: Topology, shape: MeshShape) -> Mesh:
    """Make a mesh over devices that need not be here; ValueError if the compiler does not know the
    topology.
    """
    try:
        found = describe_topology(topology)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology={str(topology)!r}: {str(error).splitlines()[0]}") from error
    if topology.chip.cores == 1:
        return shape.mesh(found.devices)
    # `jax.make_mesh` arranges whole chips only; cores lie beside each other in this order.
    devices = np.asarray(found.devices).reshape(list(shape.sizes.values()))
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def describe_topology(topology: Topology) -> topologies.TopologyDescription:
    """Describe the devices of a topology to the compiler."""
    if not topology.is_tpu:
        # Hosts, processes of a host, devices of a process.
        config, name = target_config(topology.family), f"1x1x{topology.devices}"
        return topologies.get_topology_desc(platform="cuda", target_config=config, topology=name)
    # A host has four chips unless it is told otherwise; smaller topologies are one host of their
    # size.
    chips = topology.devices // topology.chip.cores
    bounds = (*topology.shape, *[1] * (3 - len(topology.shape)))
    options = {"chips_per_host_bounds": bounds} if chips < SMALLEST_HOST else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=str(topology), **options)


def compile_lowered(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a program for the devices of its arguments."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if UNTILED not in str(error):
            raise
    # On the card, autotuning tries each product and passes over tiles that do not fit; here the
    # first choice stands.
    logger.warning(
        "the compiler found no tiles for a product; compiled again with the products of cuBLAS"
    )
    return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": "False"})


def compile_program(program: StepProgram) -> Compiled:
    """Compile a program for the devices of its arguments."""
    try:
        compiled = compile_lowered(program.lower())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = USED.search(str(error))
        return Compiled(
            refusal=f"needs {found[1]} of {found[2]}" if found else str(error).splitlines()[0][:300]
        )
    cost = compiled.cost_analysis()
    cost = cost if isinstance(cost, dict) else {}
    return Compiled(
        *memory_of(compiled),
        cost.get("flops"),
        cost.get("bytes accessed"),
        text=compiled.as_text() or "",
    )


def memory_of(compiled: jax.stages.Compiled) -> tuple[int, int]:
    """Bytes on each device of the arguments, and of everything else at the peak."""
    memory = compiled.memory_analysis()
    assert memory is not None
    kept = memory.argument_size_in_bytes
    working = memory.peak_memory_in_bytes - kept
    if not on_tpus(compiled):
        # GPUs set one buffer aside for all that is temporary, and CPUs know no peak. The compiler
        # of TPUs does: it takes programs whose temporary buffers and arguments, which do not all
        # live at once, add up to more than the memory (an update of sft_v5e-16: 18.1 GiB, of which
        # 13.3 at once).
        results = max(memory.output_size_in_bytes - memory.alias_size_in_bytes, 0)
        working = max(working, memory.temp_size_in_bytes + results)
    return kept, working + memory.generated_code_size_in_bytes


def on_tpus(compiled: jax.stages.Compiled) -> bool:
    """Whether a program is for TPUs."""
    devices = jax.tree.leaves(compiled.input_shardings)[0].device_set
    return next(iter(devices)).platform == "tpu"
