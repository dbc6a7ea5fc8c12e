"""The device that a kernel is being traced for, and what its architecture offers.

A kernel's variant follows from the target, never from the machine that compiles: under
`jax.default_device(device)` it is that device, also one of a compile-only topology.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax

Matmul = Literal["mma", "wgmma", "tcgen05"]

_ARCHITECTURES = {"9.0": "sm_90a", "10.0": "sm_100a", "10.3": "sm_103a", "12.0": "sm_120a"}
_MATMULS: dict[str, Matmul] = {"sm_90a": "wgmma", "sm_100a": "tcgen05", "sm_103a": "tcgen05"}
_SHARED_BYTES = {"sm_90a": 232448, "sm_100a": 232448, "sm_103a": 232448, "sm_120a": 101376}


@dataclasses.dataclass(frozen=True)
class Target:
    """See the module docstring.

    Attributes:
        platform: "cpu" or "gpu" (others keep jax's name).
        kind: what the device calls itself, e.g. "NVIDIA B200".
        architecture: "sm_100a" and so on; "" where kernels can only be interpreted.
    """

    platform: str
    kind: str
    architecture: str = ""

    @property
    def has_kernels(self) -> bool:
        """Whether Pallas kernels compile for it."""
        return bool(self.architecture)

    @property
    def matmul(self) -> Matmul:
        """The fastest tensor-core instruction of the architecture; "mma" exists everywhere."""
        return _MATMULS.get(self.architecture, "mma")

    @property
    def shared_bytes(self) -> int:
        """Shared memory that one block may use; the least of all targets when interpreted."""
        return _SHARED_BYTES.get(self.architecture, min(_SHARED_BYTES.values()))


def current() -> Target:
    """The target of what is being traced: jax's default device, or its first device."""
    device = jax.config.jax_default_device
    if device is None or isinstance(device, str):
        device = jax.devices(device)[0]
    if device.platform != "gpu":
        return Target(device.platform, device.device_kind)
    capability = str(device.compute_capability)
    return Target("gpu", device.device_kind, _ARCHITECTURES.get(capability, ""))
