"""Pages and slots in and out of the pools: all buffers of a component as one array of bytes.

Host side: grouping, checks and word types. Device side, to be compiled: one gather, the digests of
what it gathered, and one scatter.
Knows nothing of what a component means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from dsv4.cache import BufferSpec
from dsv4.model import Cache
from pallas_kernels.digest import api as digest
from pallas_kernels.dispatch import Implementation

ComponentArrays = dict[str, np.ndarray]  # component -> uint8 [layers, units, unit_bytes]
Components = Mapping[str, tuple[BufferSpec, ...]]


@dataclasses.dataclass(frozen=True)
class Exported:
    """Bytes that leave the pools together, as one slab.

    Attributes:
      arrays: component -> uint8 [layers, units, unit_bytes].
      digests: component -> digest of its bytes as they were on the device; None where the host is
        to compute them.
    """

    arrays: ComponentArrays
    digests: dict[str, int] | None


def by_component(buffers: Iterable[BufferSpec]) -> dict[str, tuple[BufferSpec, ...]]:
    """Buffers of each component in layer order. Raises ValueError if their units differ."""
    grouped: dict[str, list[BufferSpec]] = {}
    for buffer in buffers:
        grouped.setdefault(buffer.component, []).append(buffer)
    for members in grouped.values():
        for buffer in members:
            if (buffer.unit_shape, buffer.dtype) != (members[0].unit_shape, members[0].dtype):
                raise ValueError(
                    f"{buffer.name}: unit {buffer.unit_shape} {buffer.dtype}, expected the same as "
                    f"{members[0].name} {members[0].unit_shape} {members[0].dtype}: one component "
                    "is exported as one array"
                )
    return {name: tuple(sorted(g, key=lambda b: b.layer)) for name, g in grouped.items()}


def zeros(components: Components, units: int) -> ComponentArrays:
    """Bytes of so many empty units of each component."""
    return {
        name: np.zeros((len(buffers), units, buffers[0].unit_bytes), np.uint8)
        for name, buffers in components.items()
    }


def typed(components: Components, arrays: ComponentArrays, size: int) -> dict[str, np.ndarray]:
    """Bytes -> the components' own word types, the unit axis zero-padded to `size`.

    Raises:
      ValueError: bytes that do not have a component's layers and unit size.
    """
    words = {}
    for name, buffers in components.items():
        source, buffer = arrays[name], buffers[0]
        expected = (len(buffers), buffer.unit_bytes)
        if (source.shape[0], source.shape[2]) != expected:
            raise ValueError(
                f"{name}: bytes of shape {source.shape}, expected layers and unit bytes {expected}"
            )
        padded = np.zeros((len(buffers), size, buffer.unit_bytes), np.uint8)
        padded[:, : source.shape[1]] = source
        words[name] = padded.view(buffer.dtype).reshape(len(buffers), size, *buffer.unit_shape)
    return words


def untyped(arrays: Mapping[str, np.ndarray], units: int) -> ComponentArrays:
    """The first `units` units of what `export_units` yielded, as bytes."""
    return {
        name: array.reshape(*array.shape[:2], -1).view(np.uint8)[:, :units]
        for name, array in arrays.items()
    }


def export_units(components: Components, cache: Cache, ids: jax.Array) -> dict[str, jax.Array]:
    """One gather per component: [layers, len(ids), *unit_shape]."""
    with jax.named_scope("export"):
        return {
            name: jnp.stack([cache[buffer.name][ids] for buffer in buffers])
            for name, buffers in components.items()
        }


def digest_units(
    kernels: Implementation | None, arrays: dict[str, jax.Array], begin: jax.Array, count: jax.Array
) -> jax.Array:
    """Digests of units [begin, begin + count) of what `export_units` yielded.

    Returns:
      uint32 [components, 2], components in order of their names; see `digests_by_name`.
    """
    with jax.named_scope("digest"):
        return jnp.stack(
            [
                digest.digest_units(arrays[name], begin, count, implementation=kernels)
                for name in sorted(arrays)
            ]
        )


def digests_by_name(names: Iterable[str], digests: np.ndarray) -> dict[str, int]:
    """What `digest_units` yielded for these components, as numbers."""
    return {name: digest.to_int(pair) for name, pair in zip(sorted(names), digests, strict=True)}


def admit_units(
    components: Components, cache: Cache, arrays: dict[str, jax.Array], ids: jax.Array
) -> Cache:
    """One scatter per buffer; padded ids point at scratch."""
    with jax.named_scope("admit"):
        admitted = {
            buffer.name: cache[buffer.name].at[ids].set(arrays[name][i])
            for name, buffers in components.items()
            for i, buffer in enumerate(buffers)
        }
    return {**cache, **admitted}
