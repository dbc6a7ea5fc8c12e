"""GPUs that are not there: what XLA has to know of a device to compile for it.

Only for a process that has the CUDA compiler packages on its path (see reports.py), and for one
target in it: ptxas refuses the second architecture.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax.experimental import topologies


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Facts of a device, as its data sheet and the CUDA programming guide give them."""

    kind: str
    capability: tuple[int, int]
    cores: int
    shared_bytes_core: int
    shared_bytes_block: int
    threads_core: int
    memory_bytes: int


GPUS = {
    "sm_90a": Gpu("NVIDIA H200", (9, 0), 132, 233472, 232448, 2048, 151397597184),
    "sm_100a": Gpu("NVIDIA B200", (10, 0), 148, 233472, 232448, 2048, 191514411008),
    "sm_103a": Gpu("NVIDIA B300", (10, 3), 148, 233472, 232448, 2048, 280000000000),
    "sm_120a": Gpu("NVIDIA RTX PRO 6000", (12, 0), 188, 102400, 101376, 1536, 103079215104),
}

# What XLA crashes without; the same for every target. The rates only steer XLA's cost model.
_CONSTANT = """
    threads_per_block_limit: 1024 threads_per_warp: 32
    shared_memory_per_block: 49152
    registers_per_block_limit: 65536 registers_per_core_limit: 65536
    block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    l2_cache_size: 50000000 fpus_per_core: 128
    clock_rate_ghz: 1.9 memory_bandwidth: 4800000000000
"""


def device(target: str) -> Any:
    """The compile-only device of `target`, e.g. "sm_100a"."""
    gpu = GPUS[target]
    major, minor = gpu.capability
    config = f"""
        gpu_device_info {{
            {_CONSTANT}
            shared_memory_per_block_optin: {gpu.shared_bytes_block}
            shared_memory_per_core: {gpu.shared_bytes_core}
            threads_per_core_limit: {gpu.threads_core}
            core_count: {gpu.cores}
            device_memory_size: {gpu.memory_bytes}
            cuda_compute_capability {{
                major: {major} minor: {minor} feature_extension: ACCELERATED_FEATURES
            }}
        }}
        platform_name: "CUDA" device_description_str: "{gpu.kind}"
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    return topology.devices[0]
