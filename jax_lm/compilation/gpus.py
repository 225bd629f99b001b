"""Descriptions of NVIDIA GPUs with which XLA can compile for them without the card.

Figures of a generation (compute capability, threads, registers, shared memory) are from the tables
of NVIDIA's CUDA programming guide. Figures of a card are from NVIDIA's data sheets and the output
of CUDA's `deviceQuery`. Those of A100, H100 and H200 were compared with OpenXLA's own files
(openxla/xla, xla/backends/gpu/target_config/specs, 2026-11-22); where they differ, the figure is
that of a real card.
"""

from dataclasses import dataclass

from jax_lm.planning.roofline import CHIPS

# A GpuTargetConfigProto in text format, with the fields that jaxlib 0.10.2 knows.
TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {generation.shared_memory}
  threads_per_core_limit: {generation.threads}
  core_count: {cores}
  fpus_per_core: {generation.units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2_cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {generation.block_memory}
  cuda_compute_capability {{ major: {generation.capability[0]} minor: {generation.capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{name}"
"""


@dataclass(frozen=True)
class GpuGeneration:
    """Properties of a generation's streaming multiprocessors.

    Attributes:
        capability: CUDA compute capability (major, minor).
        units: float32 units.
        threads: maximum resident threads.
        shared_memory: bytes of shared memory.
        block_memory: bytes of shared memory that one block may use (opt-in).
    """

    capability: tuple[int, int]
    units: int
    threads: int
    shared_memory: int
    block_memory: int


# block_memory is shared_memory less the 1024 bytes that CUDA reserves for each block.
# Arguments: capability, float32 units, threads, shared memory, memory of one block (in bytes).
AMPERE = GpuGeneration((8, 0), 64, 2048, 167936, 166912)
ADA = GpuGeneration((8, 9), 128, 1536, 102400, 101376)
HOPPER = GpuGeneration((9, 0), 128, 2048, 233472, 232448)


@dataclass(frozen=True)
class Card:
    """A GPU model. `jax_lm.planning.roofline` has the figures of its memory.

    Attributes:
        name: name that the driver reports.
        generation: properties of its streaming multiprocessors.
        cores: number of streaming multiprocessors.
        l2_cache: bytes of the L2 cache.
        clock: highest clock rate, in GHz.
    """

    name: str
    generation: GpuGeneration
    cores: int
    l2_cache: int
    clock: float


# By `Topology.family`.
CARDS = {
    # number of multiprocessors that are enabled on the card, not on the full die
    "a100": Card("NVIDIA A100-SXM4-80GB", AMPERE, 108, 40 * 2**20, 1.41),
    "h100": Card("NVIDIA H100 80GB HBM3", HOPPER, 132, 50 * 2**20, 1.98),
    "h200": Card("NVIDIA H200", HOPPER, 132, 60 * 2**20, 1.98),
    "l4": Card("NVIDIA L4", ADA, 58, 48 * 2**20, 2.04),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", ADA, 128, 72 * 2**20, 2.52),
}


def target_config(family: str) -> str:
    """Return a card's description for XLA's compiler, a GpuTargetConfigProto in text format."""
    card, chip = CARDS[family], CHIPS[family]
    assert chip.limits is not None
    # bandwidth in bytes per second, memory in bytes
    return TARGET.format(
        generation=card.generation,
        cores=card.cores,
        bandwidth=int(chip.limits.copy_bytes),
        l2_cache=card.l2_cache,
        clock=card.clock,
        memory=chip.memory,
        name=card.name,
    )
