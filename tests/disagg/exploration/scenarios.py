"""Worlds that are explored: sizes and faults. The short list takes seconds, the long one more."""

from __future__ import annotations

from tests.disagg.exploration.world import Bounds, Budget

SHORT = {
    "no fault, two slabs through one slot, rows apart": Bounds(
        attempts=1, rows_apart=True, budget=Budget()
    ),
    "client goes away": Bounds(budget=Budget(cancel=1)),
    "prefill dies": Bounds(slabs=1, budget=Budget(crash_prefill=1)),
    "decode dies": Bounds(slabs=1, budget=Budget(crash_decode=1)),
    "session breaks": Bounds(slabs=1, budget=Budget(cut_session=1)),
    "stream breaks, answer lost": Bounds(slabs=1, budget=Budget(cut_stream=1, lose_answer=1)),
    "write fails, quarantine": Bounds(slabs=1, budget=Budget(fail_write=1, quarantine=1)),
    "bytes are damaged or late, prefill dies": Bounds(
        slabs=1, budget=Budget(damage=1, verify_timeout=1, crash_prefill=1), attempts=1
    ),
    "session breaks, writes are abandoned": Bounds(
        slabs=1, attempts=1, budget=Budget(cut_session=1, abandon=1)
    ),
    "old messages come again": Bounds(slabs=1, attempts=1, budget=Budget(cancel=1, replay=1)),
}
"""Explored in every test run."""

LONG = {
    "two slots, two outbox pieces, client goes away": Bounds(
        slots=2, pieces=2, attempts=1, budget=Budget(cancel=1)
    ),
    "prefill and decode die": Bounds(slabs=1, budget=Budget(crash_prefill=1, crash_decode=1)),
    "client goes away, prefill dies": Bounds(slabs=1, budget=Budget(cancel=1, crash_prefill=1)),
    "client goes away, decode dies": Bounds(slabs=1, budget=Budget(cancel=1, crash_decode=1)),
    "session and stream break": Bounds(slabs=1, budget=Budget(cut_session=1, cut_stream=1)),
    "three attempts, client goes away twice": Bounds(slabs=1, attempts=3, budget=Budget(cancel=2)),
    "two slabs, prefill dies": Bounds(budget=Budget(crash_prefill=1)),
    "two slabs, stream breaks, write fails": Bounds(budget=Budget(cut_stream=1, fail_write=1)),
    "old messages come again, client goes away": Bounds(slabs=1, budget=Budget(cancel=1, replay=1)),
    "rows apart, late bytes": Bounds(
        slabs=1, rows_apart=True, budget=Budget(verify_timeout=1, cancel=1)
    ),
}
"""Explored in `make soak`."""
