"""Digests of the pages that requests hold, to find bytes that changed after they were written.

A page that holds all its tokens is never written again while its request lives. Its digests are
those of the verified bytes it was admitted from, or, where it was computed here, those of the first
look at it; a later look must find the same. Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from disagg.digest import digest64
from serve.engine.components import ComponentArrays
from serve.engine.device import DeviceThread
from serve.engine.runner import Runner

PageDigests = dict[tuple[int, str], int]
"""(ordinal of the page in its request, component) -> digest of its bytes in all layers."""


def digests_of(arrays: ComponentArrays, first: int) -> PageDigests:
    """Digests of pages first, first + 1, ... from uint8 [layers, pages, unit_bytes] each."""
    return {
        (first + index, component): digest64(np.ascontiguousarray(array[:, index]))
        for component, array in arrays.items()
        for index in range(array.shape[1])
    }


def merge(known: PageDigests, found: PageDigests) -> list[tuple[int, str]]:
    """Adds what is new to `known`; returns pages and components that are not as they were."""
    damaged = [key for key, value in sorted(found.items()) if known.get(key, value) != value]
    for key, value in found.items():
        known.setdefault(key, value)
    return damaged


class PageReader:
    """Takes digests of pages in the pools, between steps of the device thread."""

    def __init__(self, runner: Runner, device: DeviceThread) -> None:
        self._runner, self._device = runner, device

    def complete_pages(self, num_tokens: int) -> int:
        """Pages that so many tokens in the cache fill."""
        return num_tokens // self._runner.spec.page_tokens

    async def read(self, pages: Sequence[int]) -> PageDigests:
        """Digests of the given pages, which are a request's first ones in order."""
        found: PageDigests = {}
        step = self._runner.chunk_pages
        for begin in range(0, len(pages), step):
            some = pages[begin : begin + step]
            arrays = await self._device.run(self._runner.export_pages, some)
            found |= await asyncio.to_thread(digests_of, arrays, begin)
        return found
