"""Known bad builds: changes to our own sources, each re-creating one assumption of the incident.

A mutant is a few exact replacements of text. `tests` must find it, and so must an audit of a
deployment whose processes run it, or the two ends refuse each other.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Role = Literal["prefill", "decode"]
BOTH: tuple[Role, ...] = ("prefill", "decode")

UNIFORM_SLOTS = "uniform slot count"
LENGTH_OF_BUFFER_0 = "buffer 0's item length"
PAGE_MIX_UP = "256/64 page mix-up"
PARTIAL_FENCE = "fence that ignores a component"
EARLY_ADMISSION = "admit before ack"
EARLY_REUSE = "reuse without drain"
NOTIFICATION = "notification taken as completion"
WRONG_SIZE = "fp8 size for bf16 index-K"

ASSUMPTIONS = (
    UNIFORM_SLOTS,
    LENGTH_OF_BUFFER_0,
    PAGE_MIX_UP,
    PARTIAL_FENCE,
    EARLY_ADMISSION,
    EARLY_REUSE,
    NOTIFICATION,
    WRONG_SIZE,
)
"""Those that issue 5 names."""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """`old`, which stands once in the file, becomes `new`."""

    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One bad build.

    Attributes:
        name: for people and test ids.
        assumption: which one of the incident's it has.
        replacements: what is changed.
        tests: pytest arguments of which at least one test must fail, the fastest first.
        where: the roles that run the bad build in the audit.
        flags: of every server of the audit.
        decode_flags: of its decode.
        audit: more flags of the audit.
    """

    name: str
    assumption: str
    replacements: tuple[Replacement, ...]
    tests: tuple[str, ...]
    where: tuple[Role, ...]
    flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()


_BLIND_FENCE = Replacement(
    "disagg/fence.py",
    "if digest == self._seen[component][1].digest:",
    "if digest is not None:",
)

_FEW_AT_ONCE = ("--max-requests", "4", "--landing-slabs", "4")
"""Of a decode: most sessions that are cancelled have a write on its way."""

_FP8_SIZE = (
    Replacement(
        "serve/binding.py",
        "entry_bytes=buffer.entry_bytes,",
        "entry_bytes=buffer.entry_bytes // 2 + 4\n"
        "        if buffer.component == 'index_k'\n"
        "        else buffer.entry_bytes,",
    ),
    Replacement(
        "serve/binding.py",
        "unit_bytes=buffer.unit_bytes,",
        "unit_bytes=buffer.entries * (buffer.entry_bytes // 2 + 4)\n"
        "        if buffer.component == 'index_k'\n"
        "        else buffer.unit_bytes,",
    ),
)

SOUND = (
    Mutant("sound", "none", (), (), (), audit=("--rounds", "3")),
    Mutant("sound-with-few-at-once", "none", (), (), (), decode_flags=_FEW_AT_ONCE),
)
"""Not mutants: what an audit must find nothing of."""

MUTANTS = (
    Mutant(
        "slot-from-page",
        UNIFORM_SLOTS,
        (
            Replacement(
                "serve/engine/remote_prefiller.py",
                "self._runner.admit_slot, self._grant.slot, arrays)",
                "self._runner.admit_slot, self._grant.pages[0], arrays)",
            ),
        ),
        ("tests/serve/engine/remote_prefiller_sink_test.py",),
        ("decode",),
    ),
    Mutant(
        "landing-slot-from-outbox-slab",
        UNIFORM_SLOTS,
        (
            Replacement(
                "disagg/outgoing.py",
                "held, slot = self._held[index], self.sending.slabs[index].landing_index",
                "held, slot = self._held[index], self._held[index].piece.index",
            ),
        ),
        ("tests/disagg/incoming_test.py",),
        ("prefill",),
    ),
    Mutant(
        "bytes-of-the-first-component",
        LENGTH_OF_BUFFER_0,
        (
            Replacement(
                "disagg/slab.py",
                "num_bytes=(units[1] - units[0]) * sum(buffer.unit_bytes for buffer in buffers),",
                "num_bytes=(units[1] - units[0]) * len(buffers)\n"
                "            * next(iter(components.values()))[0].unit_bytes,",
            ),
        ),
        ("tests/disagg/slab_test.py",),
        BOTH,
    ),
    Mutant(
        "tokens-for-entries-when-reading",
        PAGE_MIX_UP,
        (
            Replacement(
                "pallas_kernels/topk/selection.py",
                "ordinals = (indices // entries_per_page)",
                "ordinals = (indices // (4 * entries_per_page))",
            ),
        ),
        ("tests/pallas_kernels/topk/api_test.py",),
        ("decode",),
    ),
    Mutant(
        "tokens-for-entries-when-storing",
        PAGE_MIX_UP,
        (
            Replacement(
                "dsv4/step.py",
                "return self.page_table.at[ordinals // entries_per_page]",
                "return self.page_table.at[ordinals // self.spec.page_tokens]",
            ),
        ),
        ("tests/dsv4/model_golden_test.py", "tests/serve/engine/runner_test.py"),
        ("prefill",),
    ),
    Mutant(
        "fence-without-index-k",
        PARTIAL_FENCE,
        (
            Replacement(
                "disagg/fence.py",
                "return tuple(row(segment) for segment in slab.segments)",
                "return tuple(row(s) for s in slab.segments if s.component != 'index_k')",
            ),
            Replacement(
                "disagg/outgoing.py",
                "segment_view(piece.payload, segment)[...] = arrays[segment.component]",
                "if segment.component != 'index_k':\n"
                "                    segment_view(piece.payload, segment)[...] = "
                "arrays[segment.component]",
            ),
        ),
        (
            "tests/disagg/fence_test.py::test_the_expected_rows_are_the_segments_of_the_slab",
            "tests/disagg/incoming_test.py",
        ),
        BOTH,
    ),
    Mutant(
        "admit-before-the-fence",
        EARLY_ADMISSION,
        (
            Replacement(
                "disagg/incoming.py",
                "self._verify_seconds += await",
                "early = self._hub.memory(lease, slab.num_bytes).copy()\n"
                "        self._verify_seconds += await",
            ),
            Replacement(
                "disagg/incoming.py",
                "self._sink.admit(slab, self._hub.memory(lease, slab.num_bytes))",
                "self._sink.admit(slab, early)",
            ),
        ),
        ("tests/disagg/incoming_test.py",),
        ("decode",),
    ),
    Mutant(
        "reuse-after-an-abort",
        EARLY_REUSE,
        (
            Replacement(
                "disagg/lease.py",
                "(_S.LEASED, _E.DRAIN): _S.DRAINING,",
                "(_S.LEASED, _E.DRAIN): _S.FREE,",
            ),
            Replacement(
                "disagg/lease.py",
                "(_S.WRITTEN, _E.DRAIN): _S.DRAINING,",
                "(_S.WRITTEN, _E.DRAIN): _S.FREE,",
            ),
        ),
        (
            "tests/disagg/lease_test.py::test_the_table_lets_a_slot_free_only_by_release_or_by_proof",
        ),
        ("decode",),
        decode_flags=_FEW_AT_ONCE,
    ),
    Mutant(
        "reuse-while-it-is-read",
        EARLY_REUSE,
        (
            Replacement(
                "serve/engine/remote_prefiller.py",
                "        await self._device.run(self._runner.admit_pages,",
                "        self._late = asyncio.create_task(self._device.run("
                "self._runner.admit_pages,",
            ),
            Replacement(
                "serve/engine/remote_prefiller.py",
                "list(self._grant.pages[begin:end]), arrays)",
                "list(self._grant.pages[begin:end]), arrays))",
            ),
        ),
        ("tests/serve/engine/remote_prefiller_sink_test.py",),
        ("decode",),
    ),
    Mutant(
        "rows-without-digests",
        NOTIFICATION,
        (
            Replacement(
                "disagg/fence.py",
                "before = self._seen.setdefault(row.component, (place, row))",
                "before = self._seen.setdefault(row.component, (place, row))\n"
                "        self._matched.add(row.component)",
            ),
        ),
        ("tests/disagg/fence_test.py", "tests/disagg/incoming_test.py"),
        ("decode",),
    ),
    Mutant(
        "digests-without-comparison-and-before-the-payload",
        NOTIFICATION,
        (
            _BLIND_FENCE,
            Replacement(
                "disagg/outgoing.py",
                "        if Do.POST_PAYLOAD in do:",
                "        if Do.POST_FENCE in do:",
            ),
            Replacement(
                "disagg/outgoing.py",
                "        if Do.POST_FENCE in do:\n            hint",
                "        if Do.POST_PAYLOAD in do:\n            hint",
            ),
        ),
        ("tests/disagg/fence_test.py", "tests/disagg/incoming_test.py"),
        BOTH,
    ),
    Mutant(
        "fp8-bytes-of-bf16-index-k",
        WRONG_SIZE,
        _FP8_SIZE,
        ("tests/serve/binding_test.py",),
        ("prefill",),
        flags=("--index-k-format", "bf16"),
    ),
    Mutant(
        "fp8-bytes-of-bf16-index-k-at-both-ends",
        WRONG_SIZE,
        _FP8_SIZE,
        ("tests/serve/binding_test.py",),
        BOTH,
        flags=("--index-k-format", "bf16"),
    ),
)
