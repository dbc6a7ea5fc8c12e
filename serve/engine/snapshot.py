"""What an engine says of itself: one place that fills EngineStatus, before and after loading."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels import target
from serve.engine.admission import AdmissionQueue
from serve.engine.loaded import LoadedModel
from serve.engine.request import EngineStatus


@dataclass
class Counters:
    """Requests (jobs at a prefill), draft tokens and verified pages since start-up."""

    finished: int = 0
    failed: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    pages_swept: int = 0
    pages_damaged: int = 0


def snapshot(
    role: str,
    loaded: LoadedModel | None,
    queue: AdmissionQueue | None,
    counters: Counters,
    *,
    ready: bool,
    draining: bool,
    running: int,
    leases: dict[str, int],
    peers: dict[str, str],
    health: dict[str, bool],
    settings: dict[str, str],
) -> EngineStatus:
    """The status of an engine; zeros and empty names while nothing is loaded."""
    return EngineStatus(
        role=role,
        ready=ready,
        draining=draining,
        model_fingerprint=loaded.fingerprint if loaded else "",
        layout_digest=loaded.layout.digest() if loaded else "",
        max_context=loaded.max_context if loaded else 0,
        vocab_size=loaded.runner.config.vocab_size if loaded else 0,
        pages_total=queue.pages_total if queue else 0,
        pages_used=queue.pages_used if queue else 0,
        slots_total=queue.slots_total if queue else 0,
        slots_used=queue.slots_used if queue else 0,
        requests_waiting=queue.num_waiting if queue else 0,
        requests_running=running,
        requests_finished=counters.finished,
        requests_failed=counters.failed,
        drafts_proposed=counters.drafts_proposed,
        drafts_accepted=counters.drafts_accepted,
        pages_swept=counters.pages_swept,
        pages_damaged=counters.pages_damaged,
        leases=leases,
        peers=peers,
        health=health,
        settings=settings,
        device=target.current().kind if loaded else "",
    )
