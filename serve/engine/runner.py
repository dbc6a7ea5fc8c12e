"""The compiled steps over one cache, as plain calls with host values.

Owns the parameters, the cache pools and every jitted program; each program donates the pools and
updates them in place. All methods run on the device thread. Decides nothing: which request runs,
with which pages, is the caller's business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import jax
import numpy as np

from dsv4.cache import CacheSpec, create_cache
from dsv4.config import ModelConfig
from dsv4.model import Cache, Model, split_model
from pallas_kernels import target
from pallas_kernels.dispatch import Implementation
from serve.engine import programs
from serve.engine.components import (
    ComponentArrays,
    Components,
    Exported,
    admit_units,
    by_component,
    digest_units,
    digests_by_name,
    export_units,
    typed,
    untyped,
    zeros,
)
from serve.engine.row_check import check_rows
from serve.engine.rows import (
    GREEDY,
    DecodeRow,
    Drawn,
    NonFiniteLogits,
    PrefillChunk,
    compiled_rows,
    decode_arrays,
    prefill_arrays,
)
from serve.profiling import trace


class Runner:
    """Compiled prefill, decode, export and admit steps over one cache.

    With a spec that has `draft_tokens` the steps also draft.

    Args:
      config: the model's configuration.
      model: loaded parameters, those of the MTP block included if the spec has drafts.
      spec: the cache's components.
      num_pages: pages of each paged buffer, scratch included.
      num_slots: slots of each slot buffer, scratch included.
      chunk_tokens: tokens of a prefill step, a multiple of the page size.
      decode_rows: rows of a decode step that may be used; it has `compiled_rows` of them. Part of
        the numerics: a different number may round differently.
      buckets: page-table widths, ascending; see serve.engine.buckets.
      kernels: implementation of the kernels, None for the best one; see pallas_kernels.dispatch.
        Part of the numerics, like `decode_rows`.
    """

    def __init__(
        self,
        config: ModelConfig,
        model: Model,
        spec: CacheSpec,
        *,
        num_pages: int,
        num_slots: int,
        chunk_tokens: int,
        decode_rows: int,
        buckets: tuple[int, ...],
        kernels: Implementation | None = None,
    ) -> None:
        if chunk_tokens <= 0 or chunk_tokens % spec.page_tokens:
            raise ValueError(
                f"chunk_tokens={chunk_tokens}: expected a positive multiple of "
                f"page_tokens={spec.page_tokens}"
            )
        if spec.draft_tokens and not hasattr(model, "mtp"):
            raise ValueError(
                f"spec.draft_tokens={spec.draft_tokens}: expected a model loaded with its MTP block"
            )
        self.config = config
        self.spec = spec
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.chunk_tokens = chunk_tokens
        self.chunk_pages = chunk_tokens // spec.page_tokens
        self.decode_rows = decode_rows
        self.compiled_rows = compiled_rows(decode_rows)
        self.buckets = buckets
        self.kernels = kernels
        # On a CPU the host is as near to the bytes, and has a thread to spare for them.
        self.digests_on_device = kernels is not None or target.current().has_kernels
        self._drafts = spec.draft_tokens > 0
        self._paged = by_component(spec.paged())
        self._slotted = by_component(spec.slotted())
        self._definition, self._leaves = split_model(model)
        self._cache: Cache = create_cache(spec, num_pages=num_pages, num_slots=num_slots)
        self._addresses = self._buffer_addresses()
        step = functools.partial(jax.jit, donate_argnums=0)
        chunk, rows = programs.prefill_chunk, programs.decode_rows
        if self._drafts:
            chunk, rows = programs.drafting_prefill_chunk, programs.drafting_decode_rows
        self._prefill = step(functools.partial(chunk, self._definition, spec, kernels))
        self._decode = step(functools.partial(rows, self._definition, spec, kernels))
        self._export_pages = jax.jit(functools.partial(export_units, self._paged))
        self._export_slot = jax.jit(functools.partial(export_units, self._slotted))
        self._digest = jax.jit(functools.partial(digest_units, kernels))
        self._admit_pages = step(functools.partial(admit_units, self._paged))
        self._admit_slot = step(functools.partial(admit_units, self._slotted))

    # --- steps ---------------------------------------------------------------------------------

    def prefill(self, chunk: PrefillChunk, width: int) -> int:
        """Runs one chunk and returns the token drawn from its last position.

        Args:
          chunk: the tokens and where their cache goes.
          width: the page-table width of the bucket that holds the chunk's last token.

        Raises:
          NonFiniteLogits: when the logits hold NaN or infinity.
        """
        with trace("prefill_chunk"):
            self._cache, drawn, finite = self._prefill(
                self._cache, self._leaves, *self._prefill_arrays(chunk, width)
            )
            token, is_finite = jax.device_get((drawn, finite))
        if not is_finite[0]:
            end = chunk.start + len(chunk.tokens) - 1
            raise NonFiniteLogits(f"prefill of tokens {chunk.start}..{end}")
        return int(token[0])

    def decode(self, rows: list[DecodeRow], width: int) -> list[Drawn | NonFiniteLogits]:
        """Runs one decode step and returns what each row drew, or what was wrong with it.

        Args:
          rows: 1 to `decode_rows` rows whose positions all lie in the bucket `width`. Rows that
            hold drafts follow the row they continue.
          width: the bucket's page-table width.
        """
        arrays = decode_arrays(
            rows, size=self.compiled_rows, width=width, page_tokens=self.spec.page_tokens
        )
        with trace("decode_step"):
            self._cache, *results = self._decode(self._cache, self._leaves, *arrays)
            drawn, finite, *drafts = jax.device_get(results)
        return [
            Drawn(int(drawn[i]), int(drafts[0][i]) if drafts else None)
            if finite[i]
            else NonFiniteLogits(f"decode of position {row.position}")
            for i, row in enumerate(rows)
        ]

    def export_pages(self, pages: Iterable[int]) -> ComponentArrays:
        """Copies at most `chunk_pages` pages of all paged components out of the pools."""
        ids = list(pages)
        (exported,) = self.export_slabs(ids, [(0, len(ids))], digests=False)
        return exported.arrays

    def export_slabs(
        self, pages: Iterable[int], parts: Iterable[tuple[int, int]], *, digests: bool
    ) -> list[Exported]:
        """Like `export_pages`, in the parts that travel: pages [begin, end) of the given ones.

        Args:
          digests: whether they are wanted; computed if `digests_on_device`.
        """
        with trace("export"):
            return self._exported(
                self._export_pages, list(pages), self.chunk_pages, parts, digests=digests
            )

    def export_slot(self, slot: int, *, digests: bool = False) -> Exported:
        """Copies one slot of all slot components out of the pools; digests as for pages."""
        with trace("export"):
            (exported,) = self._exported(self._export_slot, [slot], 1, [(0, 1)], digests=digests)
        return exported

    def admit_pages(self, pages: list[int], arrays: ComponentArrays) -> None:
        """Scatters verified bytes into the given pages; returns when `arrays` has been read.

        Args:
          pages: destination page ids, in the order of the arrays' unit axis.
          arrays: one entry per paged component, uint8 [layers, len(pages), unit_bytes].
        """
        with trace("admit"):
            for begin in range(0, len(pages), self.chunk_pages):
                part = slice(begin, begin + self.chunk_pages)
                self._admitted(
                    self._admit_pages,
                    self._paged,
                    pages[part],
                    {name: array[:, part] for name, array in arrays.items()},
                    self.chunk_pages,
                )

    def admit_slot(self, slot: int, arrays: ComponentArrays) -> None:
        """Scatters verified bytes into the slot; returns when `arrays` has been read."""
        with trace("admit"):
            self._admitted(self._admit_slot, self._slotted, [slot], arrays, 1)

    # --- warm-up and inspection ----------------------------------------------------------------

    def warm_up_steps(
        self, *, prefill: bool, decode: bool, export: bool, admit: bool
    ) -> list[tuple[str, Callable[[], object]]]:
        """Named calls, one per compiled program; each compiles it and runs it.

        Those of decode raise DependentRows if rows depend on their order on this device. They are
        the only ones that write anywhere but to scratch; they must run before any request.
        """
        steps: list[tuple[str, Callable[[], object]]] = []
        for width in self.buckets:
            if prefill:
                chunk = PrefillChunk(np.zeros(1, np.int32), 0, (), 0, GREEDY)
                steps.append((f"prefill, {width} pages", _call(self.prefill, chunk, width)))
            if decode:
                steps.append((f"decode, {width} pages", _call(self._check_rows, width)))
        if decode:  # for digests of pages, which any request may ask for
            steps.append(("read pages", _call(self.export_pages, [0])))
        if export:
            page = _call(self.export_slabs, [0], [(0, 1)], digests=True)
            steps.append(("export pages", page))
            steps.append(("export slot", _call(self.export_slot, 0, digests=True)))
        if admit:
            pages = zeros(self._paged, self.chunk_pages)
            steps.append(("admit pages", _call(self.admit_pages, [0] * self.chunk_pages, pages)))
            steps.append(("admit slot", _call(self.admit_slot, 0, zeros(self._slotted, 1))))
        return steps

    def lowered_steps(self, width: int) -> dict[str, jax.stages.Lowered]:
        """Every compiled step of one bucket, lowered with this engine's shapes (for inspection)."""
        i32 = functools.partial(np.zeros, dtype=np.int32)
        chunk = PrefillChunk(i32(1), 0, (), 0, GREEDY)
        rows = decode_arrays(
            [], size=self.compiled_rows, width=width, page_tokens=self.spec.page_tokens
        )
        pages = typed(self._paged, zeros(self._paged, self.chunk_pages), self.chunk_pages)
        slot = typed(self._slotted, zeros(self._slotted, 1), 1)
        return {
            "prefill": self._prefill.lower(
                self._cache, self._leaves, *self._prefill_arrays(chunk, width)
            ),
            "decode": self._decode.lower(self._cache, self._leaves, *rows),
            "export_pages": self._export_pages.lower(self._cache, i32(self.chunk_pages)),
            "export_slot": self._export_slot.lower(self._cache, i32(1)),
            "admit_pages": self._admit_pages.lower(self._cache, pages, i32(self.chunk_pages)),
            "admit_slot": self._admit_slot.lower(self._cache, slot, i32(1)),
        }

    @property
    def slot_components(self) -> set[str]:
        """Names of the components that live in slots."""
        return set(self._slotted)

    def pool_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(array.nbytes for array in self._cache.values())

    def moved_buffers(self) -> list[str]:
        """Names of pools whose address changed since start-up; empty when all is in place."""
        now = self._buffer_addresses()
        return [name for name, address in self._addresses.items() if now[name] != address]

    # --- helpers of the steps ------------------------------------------------------------------

    def _check_rows(self, width: int) -> None:
        check_rows(
            self.decode,
            self._last_layers,
            rows=self.decode_rows,
            requests=min(self.decode_rows, self.num_slots - 1, self.num_pages - 1),
            vocab_size=self.config.vocab_size,
            width=width,
        )

    def _last_layers(self, count: int) -> dict[str, np.ndarray]:
        """Bytes [count, ...] of units 1 to `count` of the last main layer's and the MTP block's."""
        first = self.config.num_hidden_layers - 1
        names = [buffer.name for buffer in self.spec.buffers if buffer.layer >= first]
        units = jax.device_get({name: self._cache[name][1 : count + 1] for name in names})
        return {
            name: np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
            for name, array in units.items()
        }

    def _buffer_addresses(self) -> dict[str, int]:
        return {name: a.unsafe_buffer_pointer() for name, a in self._cache.items()}

    def _prefill_arrays(self, chunk: PrefillChunk, width: int) -> tuple:
        arrays = prefill_arrays(
            chunk, size=self.chunk_tokens, width=width, page_tokens=self.spec.page_tokens
        )
        if not self._drafts:
            return arrays
        return *arrays, np.int32(-1 if chunk.next_token is None else chunk.next_token)

    def _exported(
        self,
        program: Callable,
        ids: list[int],
        size: int,
        parts: Iterable[tuple[int, int]],
        *,
        digests: bool,
    ) -> list[Exported]:
        if len(ids) > size:
            raise ValueError(f"ids: {len(ids)} units to export, at most {size} per call")
        padded = np.zeros(size, np.int32)
        padded[: len(ids)] = ids
        parts = list(parts)
        arrays = program(self._cache, padded)
        # from the same arrays that are copied, before the copy: it is checked with all that follows
        found = [
            self._digest(arrays, np.int32(begin), np.int32(end - begin))
            for begin, end in (parts if digests and self.digests_on_device else ())
        ]
        copied, found = jax.device_get((arrays, found))
        units = untyped(copied, len(ids))
        return [
            Exported(
                {name: array[:, begin:end] for name, array in units.items()},
                digests_by_name(units, found[i]) if found else None,
            )
            for i, (begin, end) in enumerate(parts)
        ]

    def _admitted(
        self,
        program: Callable,
        components: Components,
        ids: list[int],
        arrays: ComponentArrays,
        size: int,
    ) -> None:
        padded = np.zeros(size, np.int32)
        padded[: len(ids)] = ids
        self._cache = program(self._cache, typed(components, arrays, size), padded)
        jax.block_until_ready(self._cache)


def _call(function: Callable, *args: object, **options: object) -> Callable[[], object]:
    return functools.partial(function, *args, **options)
