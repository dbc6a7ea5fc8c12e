"""The compiled steps over one cache, as plain calls with host values.

Owns the parameters, the cache pools and every jitted program; each program donates the pools and
updates them in place. All methods run on the device thread. Decides nothing: which request runs,
with which pages, is the caller's business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dsv4.cache import BufferSpec, CacheSpec, create_cache
from dsv4.config import ModelConfig
from dsv4.model import Model, ModelDefinition, decode, merge_model, prefill, split_model
from serve.engine.sampler import SamplingRows, sample
from serve.profiling import trace

Cache = dict[str, jax.Array]
ComponentArrays = dict[str, np.ndarray]  # component -> uint8 [layers, units, unit_bytes]


class NonFiniteLogits(ArithmeticError):
    """A step produced NaN or infinite logits; the token drawn from them must not be used."""


@dataclass(frozen=True)
class RowSampling:
    """Sampling state of one row, host values; see sampler.SamplingRows."""

    temperature: float
    top_k: int
    top_p: float
    seed: int


@dataclass(frozen=True)
class DecodeRow:
    """One request's share of a decode step: its last token and where its cache lives."""

    token: int
    position: int  # of `token` in the sequence
    pages: tuple[int, ...]  # in sequence order, at least those that hold tokens 0..position
    slot: int
    sampling: RowSampling


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens [start, start + len(tokens)) of one request; at most `chunk_tokens` of them."""

    tokens: np.ndarray  # i32
    start: int
    pages: tuple[int, ...]
    slot: int
    sampling: RowSampling


class Runner:
    """Compiled prefill, decode, export and admit steps over one cache.

    Args:
      config: the model's configuration.
      model: loaded parameters.
      spec: the cache's components.
      num_pages: pages of each paged buffer, scratch included.
      num_slots: slots of each slot buffer, scratch included.
      chunk_tokens: tokens of a prefill step, a multiple of the page size.
      decode_rows: rows of a decode step. Part of the numerics: a different number may round
        differently.
      buckets: page-table widths, ascending; see serve.engine.buckets.
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
    ) -> None:
        if chunk_tokens <= 0 or chunk_tokens % spec.page_tokens:
            raise ValueError(
                f"chunk_tokens={chunk_tokens}: expected a positive multiple of "
                f"page_tokens={spec.page_tokens}"
            )
        self.config = config
        self.spec = spec
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.chunk_tokens = chunk_tokens
        self.chunk_pages = chunk_tokens // spec.page_tokens
        self.decode_rows = decode_rows
        self.buckets = buckets
        self._paged = _by_component(spec.paged())
        self._slotted = _by_component(spec.slotted())
        self._definition, self._leaves = split_model(model)
        self._cache: Cache = create_cache(spec, num_pages=num_pages, num_slots=num_slots)
        self._addresses = self._buffer_addresses()
        step = functools.partial(jax.jit, donate_argnums=0)
        self._prefill = step(functools.partial(_prefill_step, self._definition, spec))
        self._decode = step(functools.partial(_decode_step, self._definition, spec))
        self._export_pages = jax.jit(functools.partial(_export, self._paged))
        self._export_slot = jax.jit(functools.partial(_export, self._slotted))
        self._admit_pages = step(functools.partial(_admit, self._paged))
        self._admit_slot = step(functools.partial(_admit, self._slotted))

    # --- steps ---------------------------------------------------------------------------------

    def prefill(self, chunk: PrefillChunk, width: int) -> int:
        """Runs one chunk and returns the token drawn from its last position.

        Args:
          chunk: the tokens and where their cache goes.
          width: the page-table width of the bucket that holds the chunk's last token.

        Raises:
          NonFiniteLogits: when the logits hold NaN or infinity.
        """
        num_valid = len(chunk.tokens)
        tokens = np.zeros(self.chunk_tokens, np.int32)
        tokens[:num_valid] = chunk.tokens
        with trace("prefill_chunk"):
            self._cache, drawn, finite = self._prefill(
                self._cache,
                self._leaves,
                tokens,
                np.int32(chunk.start),
                np.int32(num_valid),
                _page_table(chunk.pages, width),
                np.int32(chunk.slot),
                _sampling_rows([(chunk.sampling, chunk.start + num_valid)], 1),
            )
            token, is_finite = jax.device_get((drawn, finite))
        if not is_finite[0]:
            raise NonFiniteLogits(f"prefill of tokens {chunk.start}..{chunk.start + num_valid - 1}")
        return int(token[0])

    def decode(self, rows: list[DecodeRow], width: int) -> list[int | NonFiniteLogits]:
        """Runs one decode step and returns each row's next token, or what was wrong with it.

        Args:
          rows: 1 to `decode_rows` rows whose positions all lie in the bucket `width`.
          width: the bucket's page-table width.
        """
        count, size = len(rows), self.decode_rows
        tokens, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        slots, tables = np.zeros(size, np.int32), np.zeros((size, width), np.int32)
        for i, row in enumerate(rows):
            tokens[i], positions[i], slots[i] = row.token, row.position, row.slot
            tables[i] = _page_table(row.pages, width)
        sampling = _sampling_rows([(row.sampling, row.position + 1) for row in rows], size)
        with trace("decode_step"):
            self._cache, drawn, finite = self._decode(
                self._cache, self._leaves, tokens, positions, tables, slots, sampling
            )
            drawn, finite = jax.device_get((drawn, finite))
        return [
            int(drawn[i])
            if finite[i]
            else NonFiniteLogits(f"decode of position {rows[i].position}")
            for i in range(count)
        ]

    def export_pages(self, pages: Iterable[int]) -> ComponentArrays:
        """Copies at most `chunk_pages` pages of all paged components out of the pools."""
        ids = list(pages)
        with trace("export"):
            return self._exported(self._export_pages, ids, self.chunk_pages)

    def export_slot(self, slot: int) -> ComponentArrays:
        """Copies one slot of all slot components out of the pools."""
        with trace("export"):
            return self._exported(self._export_slot, [slot], 1)

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
        """Named calls, one per compiled program; each compiles it and runs it on scratch."""
        greedy = RowSampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
        steps: list[tuple[str, Callable[[], object]]] = []
        for width in self.buckets:
            if prefill:
                chunk = PrefillChunk(np.zeros(1, np.int32), 0, (), 0, greedy)
                steps.append((f"prefill, {width} pages", _call(self.prefill, chunk, width)))
            if decode:
                rows = [DecodeRow(0, 0, (), 0, greedy)]
                steps.append((f"decode, {width} pages", _call(self.decode, rows, width)))
        if export:
            steps.append(("export pages", _call(self.export_pages, [0])))
            steps.append(("export slot", _call(self.export_slot, 0)))
        if admit:
            pages = self._zeros(self._paged, self.chunk_pages)
            steps.append(("admit pages", _call(self.admit_pages, [0] * self.chunk_pages, pages)))
            steps.append(("admit slot", _call(self.admit_slot, 0, self._zeros(self._slotted, 1))))
        return steps

    def lowered_steps(self, width: int) -> dict[str, jax.stages.Lowered]:
        """Every compiled step of one bucket, lowered with this engine's shapes (for inspection)."""
        size = self.decode_rows
        i32 = functools.partial(np.zeros, dtype=np.int32)
        rows = [(RowSampling(0.0, 0, 1.0, 0), 1)]
        pages = _typed(self._paged, self._zeros(self._paged, self.chunk_pages), self.chunk_pages)
        slot = _typed(self._slotted, self._zeros(self._slotted, 1), 1)
        return {
            "prefill": self._prefill.lower(
                self._cache,
                self._leaves,
                i32(self.chunk_tokens),
                i32(()),
                i32(()),
                i32(width),
                i32(()),
                _sampling_rows(rows, 1),
            ),
            "decode": self._decode.lower(
                self._cache,
                self._leaves,
                i32(size),
                i32(size),
                i32((size, width)),
                i32(size),
                _sampling_rows(rows, size),
            ),
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

    def _buffer_addresses(self) -> dict[str, int]:
        return {name: a.unsafe_buffer_pointer() for name, a in self._cache.items()}

    def _exported(self, program: Callable, ids: list[int], size: int) -> ComponentArrays:
        if len(ids) > size:
            raise ValueError(f"ids: {len(ids)} units to export, at most {size} per call")
        padded = np.zeros(size, np.int32)
        padded[: len(ids)] = ids
        arrays = jax.device_get(program(self._cache, padded))
        return {
            name: array.reshape(*array.shape[:2], -1).view(np.uint8)[:, : len(ids)]
            for name, array in arrays.items()
        }

    def _admitted(
        self,
        program: Callable,
        components: dict[str, tuple[BufferSpec, ...]],
        ids: list[int],
        arrays: ComponentArrays,
        size: int,
    ) -> None:
        padded = np.zeros(size, np.int32)
        padded[: len(ids)] = ids
        self._cache = program(self._cache, _typed(components, arrays, size), padded)
        jax.block_until_ready(self._cache)

    @staticmethod
    def _zeros(components: dict[str, tuple[BufferSpec, ...]], units: int) -> ComponentArrays:
        return {
            name: np.zeros((len(buffers), units, buffers[0].unit_bytes), np.uint8)
            for name, buffers in components.items()
        }


def _call(function: Callable, *args: object) -> Callable[[], object]:
    return functools.partial(function, *args)


def _by_component(buffers: Iterable[BufferSpec]) -> dict[str, tuple[BufferSpec, ...]]:
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


def _page_table(pages: tuple[int, ...], width: int) -> np.ndarray:
    """i32 [width]: the first `width` pages, the rest pointing at the scratch page."""
    table = np.zeros(width, np.int32)
    used = pages[:width]
    table[: len(used)] = used
    return table


def _sampling_rows(rows: list[tuple[RowSampling, int]], size: int) -> SamplingRows:
    temperature, top_p = np.zeros(size, np.float32), np.ones(size, np.float32)
    top_k, position = np.zeros(size, np.int32), np.zeros(size, np.int32)
    seed = np.zeros((size, 2), np.uint32)
    for i, (row, drawn_position) in enumerate(rows):
        temperature[i], top_k[i], top_p[i] = row.temperature, row.top_k, row.top_p
        seed[i] = row.seed >> 32, row.seed & 0xFFFFFFFF
        position[i] = drawn_position
    return SamplingRows(temperature, top_k, top_p, seed, position)


def _typed(
    components: dict[str, tuple[BufferSpec, ...]], arrays: ComponentArrays, size: int
) -> dict[str, np.ndarray]:
    """Bytes -> the components' own word types, the unit axis zero-padded to `size`."""
    typed = {}
    for name, buffers in components.items():
        source, buffer = arrays[name], buffers[0]
        expected = (len(buffers), buffer.unit_bytes)
        if (source.shape[0], source.shape[2]) != expected:
            raise ValueError(
                f"{name}: bytes of shape {source.shape}, expected layers and unit bytes {expected}"
            )
        padded = np.zeros((len(buffers), size, buffer.unit_bytes), np.uint8)
        padded[:, : source.shape[1]] = source
        typed[name] = padded.view(buffer.dtype).reshape(len(buffers), size, *buffer.unit_shape)
    return typed


# --- the programs ------------------------------------------------------------------------------


def _prefill_step(
    definition: ModelDefinition,
    spec: CacheSpec,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    start: jax.Array,
    num_valid: jax.Array,
    page_table: jax.Array,
    slot: jax.Array,
    sampling: SamplingRows,
) -> tuple[Cache, jax.Array, jax.Array]:
    model = merge_model(definition, leaves)
    cache, logits = prefill(
        model,
        cache,
        tokens,
        start,
        num_valid,
        page_table,
        slot,
        spec=spec,
    )
    with jax.named_scope("sample"):
        return cache, *sample(logits[None], sampling)


def _decode_step(
    definition: ModelDefinition,
    spec: CacheSpec,
    cache: Cache,
    leaves: list[jax.Array],
    tokens: jax.Array,
    positions: jax.Array,
    page_tables: jax.Array,
    slots: jax.Array,
    sampling: SamplingRows,
) -> tuple[Cache, jax.Array, jax.Array]:
    model = merge_model(definition, leaves)
    cache, logits = decode(
        model,
        cache,
        tokens,
        positions,
        page_tables,
        slots,
        spec=spec,
    )
    with jax.named_scope("sample"):
        return cache, *sample(logits, sampling)


def _export(
    components: dict[str, tuple[BufferSpec, ...]], cache: Cache, ids: jax.Array
) -> dict[str, jax.Array]:
    """One gather per component: [layers, len(ids), *unit_shape]."""
    with jax.named_scope("export"):
        return {
            name: jnp.stack([cache[buffer.name][ids] for buffer in buffers])
            for name, buffers in components.items()
        }


def _admit(
    components: dict[str, tuple[BufferSpec, ...]],
    cache: Cache,
    arrays: dict[str, jax.Array],
    ids: jax.Array,
) -> Cache:
    """One scatter per buffer; padded ids point at scratch."""
    with jax.named_scope("admit"):
        admitted = {
            buffer.name: cache[buffer.name].at[ids].set(arrays[name][i])
            for name, buffers in components.items()
            for i, buffer in enumerate(buffers)
        }
    return {**cache, **admitted}
