"""Compile programs for devices that are not present, and read the compiler's memory figures.

    pip install 'jax-diffucoder[plan]'      # libtpu: compiler for TPUs; needs no TPU
    pip install 'jax-diffucoder[plan-gpu]'  # XLA's compiler for NVIDIA GPUs; needs no GPU, driver
                                            # or CUDA

Uses `jax.experimental.topologies`; nothing runs. Knows no model: `programs` builds the programs.
Entry: `diffucoder plan`, which compares these figures with the arithmetic of
`jax_lm.planning.memory`.
"""

import logging
import os
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jax_lm.compilation.gpus import target_config
from jax_lm.compilation.programs import StepProgram
from jax_lm.config import pairs
from jax_lm.host import platforms
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import MeshShape

logger = logging.getLogger(__name__)

# Environment for libtpu as a compiler only: it does not search for a TPU, and other processes can
# use it at the same time.
QUIET_COMPILER = pairs("""
    ALLOW_MULTIPLE_LIBTPU_LOAD  1
    TPU_SKIP_MDS_QUERY          1
    TPU_STDERR_LOG_LEVEL        3
    TPU_MIN_LOG_LEVEL           3
    TPU_WORKER_HOSTNAMES        localhost
    TPU_WORKER_ID               0
    TPU_ACCELERATOR_TYPE        v5litepod-4
""")

# Chips of a TPU host by default.
SMALLEST_HOST = 4
# Error of XLA's Triton backend for a matrix product.
UNTILED = "Couldn't find output tile sizes"
# "Used 18.10G of 15.75G hbm": bytes needed and available.
USED = re.compile(r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm")


@dataclass(frozen=True)
class CompilerPackage:
    """The package with the compiler for a kind of machine.

    Attributes:
        distribution: its name.
        extra: extra of this package that installs it.
    """

    distribution: str
    extra: str

    @classmethod
    def of(cls, topology: Topology) -> "CompilerPackage":
        """Return the compiler package for a topology."""
        if topology.is_cpu:
            return CPU_COMPILER
        return TPU_COMPILER if topology.is_tpu else GPU_COMPILER

    @property
    def is_installed(self) -> bool:
        try:
            version(self.distribution)
        except PackageNotFoundError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.distribution} {version(self.distribution)}"


# A part of JAX, which is always installed.
CPU_COMPILER = CompilerPackage("jaxlib", "")
TPU_COMPILER = CompilerPackage("libtpu", "plan")
GPU_COMPILER = CompilerPackage("jax-cuda12-plugin", "plan-gpu")


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures for one device.

    Attributes:
        arguments: bytes of weights, cache and state.
        working: bytes of everything else at peak memory.
        flops: operations of one step, as XLA counts them (the body of a loop once); None if it
            does not count them.
        bytes: bytes read and written by one step, counted in the same way.
        refusal: reason why the program could not be compiled; all other fields are then unset.
        text: the compiled program, as `experiments/explain_plan.py` reads it.
    """

    arguments: int = 0
    working: int = 0
    flops: float | None = None
    bytes: float | None = None
    refusal: str | None = None
    text: str = field(default="", repr=False)

    @property
    def total(self) -> int | None:
        """Total bytes; None if the program could not be compiled."""
        return None if self.refusal else self.arguments + self.working


def prepare_compiler(topology: Topology):
    """Set up the process for compiling for a topology without its devices.

    Must be called before any JAX backend is initialised.
    """
    if topology.is_tpu:
        for name, value in QUIET_COMPILER.items():
            os.environ.setdefault(name, value)
    elif not topology.is_cpu:
        platforms.admit_cuda_compiler()
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    # A cached program for a device that is not present cannot be loaded again: JAX would warn, and
    # compile anyway.
    jax.config.update("jax_enable_compilation_cache", False)


def topology_mesh(topology: Topology, shape: MeshShape) -> Mesh:
    """Return a mesh over the devices of a topology, which need not be present.

    Raises:
        ValueError: the compiler does not know the topology.
    """
    if topology.is_cpu:
        return shape.mesh(jax.devices("cpu")[:1])
    try:
        description = describe_topology(topology)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology={str(topology)!r}: {str(error).splitlines()[0]}") from error
    if topology.chip.cores == 1:
        return shape.mesh(description.devices)
    # `jax.make_mesh` arranges whole chips only. In this order, the cores of a chip are adjacent.
    return shape.arrange(description.devices)


def describe_topology(topology: Topology) -> topologies.TopologyDescription:
    """Return the compiler's description of a topology."""
    if not topology.is_tpu:
        # The topology is hosts x processes per host x devices per process.
        return topologies.get_topology_desc(
            platform="cuda",
            target_config=target_config(topology.family),
            topology=f"1x1x{topology.devices}",
        )
    # A host has four chips by default. A smaller topology is a single host of its size:
    # shape (2, 1) -> chips_per_host_bounds (2, 1, 1)
    # (the bounds always have three axes)
    chips = topology.devices // topology.chip.cores
    bounds = (*topology.shape, *[1] * (3 - len(topology.shape)))
    options = {"chips_per_host_bounds": bounds} if chips < SMALLEST_HOST else {}
    return topologies.get_topology_desc(platform="tpu", topology_name=str(topology), **options)


def compile_lowered(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a lowered program for the devices of its arguments."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        # any other error is not about tiles: a second attempt would fail in the same way
        if UNTILED not in str(error):
            raise
    # On a real card, autotuning tries several tilings of each product and skips those that do not
    # fit. Without the card, XLA uses its first choice.
    logger.warning(
        "the compiler found no tiles for a product; compiled again with the products of cuBLAS"
    )
    return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": "False"})


def compile_program(program: StepProgram) -> Compiled:
    """Compile a program for the devices of its arguments, and return the compiler's figures."""
    try:
        compiled = compile_lowered(program.lower())
    except jax.errors.JaxRuntimeError as error:
        # only a lack of memory is a result of planning; other errors are defects
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        used = USED.search(str(error))
        return Compiled(
            refusal=f"needs {used[1]} of {used[2]}" if used else str(error).splitlines()[0][:300]
        )
    # None if the backend does not count costs
    cost = compiled.cost_analysis() or {}
    return Compiled(
        *memory_of(compiled),
        cost.get("flops"),
        cost.get("bytes accessed"),
        text=compiled.as_text() or "",
    )


def memory_of(compiled: jax.stages.Compiled) -> tuple[int, int]:
    """Return bytes of the arguments on each device, and of everything else at peak memory."""
    memory = compiled.memory_analysis()
    assert memory
    arguments = memory.argument_size_in_bytes
    working = memory.peak_memory_in_bytes - arguments
    if not on_tpus(compiled):
        # GPUs allocate one buffer for all temporaries, and CPUs report no peak. TPUs do: their
        # compiler accepts programs whose temporaries and arguments add up to more than the memory,
        # as they are not all live at once (an update of sft_v5e-16: 18.1 GiB, of which 13.3 GiB are
        # live at the same time).
        results = max(memory.output_size_in_bytes - memory.alias_size_in_bytes, 0)
        working = max(working, memory.temp_size_in_bytes + results)
    return arguments, working + memory.generated_code_size_in_bytes


def on_tpus(compiled: jax.stages.Compiled) -> bool:
    """Return whether a program is compiled for TPUs."""
    # all inputs are on the same mesh, so that any one of them decides
    devices = jax.tree.leaves(compiled.input_shardings)[0].device_set
    return next(iter(devices)).platform == "tpu"
