"""Descriptions of NVIDIA GPUs, with which XLA compiles for a card that is not present.

The figures of each card are in planning/chips.toml, with their sources.
"""

from jax_lm.planning.roofline import CHIPS

# Template of a GpuTargetConfigProto in text format, with the fields that jaxlib 0.10.2 knows.
TARGET_TEMPLATE = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory}
  threads_per_core_limit: {threads}
  core_count: {cores}
  fpus_per_core: {units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth:.0f}
  l2_cache_size: {l2_cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {block_memory}
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "13.0.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{name}"
"""


def target_config(family: str) -> str:
    """Return a card as a GpuTargetConfigProto in text format, for XLA's compiler."""
    chip = CHIPS[family]
    assert chip.limits
    return TARGET_TEMPLATE.format(
        **chip.card, bandwidth=chip.limits.copy_bytes, memory=chip.memory, name=chip.names[0]
    )
