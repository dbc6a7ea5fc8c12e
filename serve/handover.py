"""Engines that hand caches over: what `prefill` and `decode` add to the engine of one process.

Translates settings into disagg's endpoints, memory and links; owns the data plane of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from disagg.authentication import MIN_SECRET_BYTES
from disagg.data_plane import DataPlane
from disagg.digest import DigestMode
from disagg.handshake import Endpoint
from disagg.receiver import LandingHub, PrefillLink
from disagg.sender import PrefillService
from disagg.slab import min_slab_bytes, plan_slabs
from serve.config import ConfigError, EngineSettings, TransferSettings, default_environment
from serve.engine.generate_engine import GenerateEngine, LoadedModel
from serve.engine.prefill_engine import PrefillEngine
from serve.engine.remote_prefiller import RemotePrefiller
from serve.profiling import trace

log = logging.getLogger(__name__)

Loader = Callable[[], LoadedModel]


def decode_engine(
    load: Loader, engine: EngineSettings, transfer: TransferSettings, shown: dict[str, str]
) -> GenerateEngine:
    """An engine whose prompts come from the prefills at `transfer.prefill`.

    Raises:
      ConfigError: no prefill is given, or the shared secret cannot be used.
    """
    if not transfer.prefill:
        raise ConfigError("--prefill", "", "at least one HOST:PORT of a prefill server")
    secret = _secret(transfer)

    def connect(loaded: LoadedModel) -> tuple[LandingHub, Sequence[PrefillLink]]:
        endpoint = _endpoint("decode", loaded, transfer)
        hub = LandingHub(
            endpoint,
            _plane(endpoint.agent_name),
            num_slots=transfer.landing_slabs,
            verify_timeout_s=transfer.verify_timeout_s,
            trace=trace,
        )
        log.info(
            "landing memory: %d slabs of %.2f MB", transfer.landing_slabs, endpoint.slab_bytes / 1e6
        )
        return hub, [
            PrefillLink(target, hub, heartbeat_s=transfer.heartbeat_s, secret=secret)
            for target in transfer.prefill
        ]

    prefiller = RemotePrefiller(
        connect,
        prefill_timeout_s=transfer.prefill_timeout_s,
        max_attempts=transfer.max_attempts,
        watches_pages=engine.verify_pages_s > 0,
    )
    return GenerateEngine(
        "decode",
        load,
        prefiller,
        max_waiting=engine.max_queue,
        settings=shown,
        verify_pages_s=engine.verify_pages_s,
    )


def prefill_engine(
    load: Loader, engine: EngineSettings, transfer: TransferSettings, shown: dict[str, str]
) -> PrefillEngine:
    """An engine that computes prompts for the decodes that connect to it.

    Raises:
      ConfigError: the shared secret cannot be used.
    """
    secret = _secret(transfer)

    def connect(loaded: LoadedModel, backend: PrefillEngine) -> PrefillService:
        endpoint = _endpoint("prefill", loaded, transfer)
        log.info(
            "outbox memory: %d slabs of %.2f MB", transfer.outbox_slabs, endpoint.slab_bytes / 1e6
        )
        return PrefillService(
            endpoint,
            _plane(endpoint.agent_name),
            backend,
            outbox_slabs=transfer.outbox_slabs,
            heartbeat_s=transfer.heartbeat_s,
            secret=secret,
            trace=trace,
        )

    return PrefillEngine(load, connect, max_waiting=engine.max_queue, settings=shown)


def _endpoint(role: str, loaded: LoadedModel, transfer: TransferSettings) -> Endpoint:
    runner = loaded.runner
    return Endpoint(
        role="prefill" if role == "prefill" else "decode",
        model_identity=f"{loaded.fingerprint}, computed in {loaded.compute_dtype}",
        max_context=loaded.max_context,
        vocab_size=runner.config.vocab_size,
        table=loaded.layout,
        slab_bytes=_slab_bytes(loaded, transfer),
        chunk_pages=runner.chunk_pages if role == "prefill" else 0,
        digest_mode=DigestMode.parse(transfer.digest),
    )


def _secret(transfer: TransferSettings) -> bytes | None:
    """What the file of the shared secret holds, without the white space around it."""
    path = transfer.shared_secret_file
    if path is None:
        return None
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError("--shared-secret-file", str(path), f"a readable file ({error})") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            "--shared-secret-file",
            f"{len(secret)} bytes",
            f"at least {MIN_SECRET_BYTES}, the same at prefill and decode",
        )
    return secret


def _slab_bytes(loaded: LoadedModel, transfer: TransferSettings) -> int:
    """The setting, or enough for the pages of one prefill chunk and for the state.

    Raises:
      ConfigError: the setting is too small for one page or the state.
    """
    least = min_slab_bytes(loaded.layout)
    if not transfer.slab_bytes:
        runner = loaded.runner
        chunk = plan_slabs(loaded.layout, runner.chunk_tokens, runner.chunk_pages)
        return max(slab.num_bytes for slab in chunk)
    if transfer.slab_bytes < least:
        raise ConfigError(
            "--slab-bytes", transfer.slab_bytes, f"at least {least} (one page, or one slot's state)"
        )
    return transfer.slab_bytes


def _plane(agent_name: str) -> DataPlane:
    default_environment("NIXL_LOG_LEVEL", "ERROR")
    from disagg.nixl_plane import NixlPlane  # NIXL reads its log level when it is imported

    return NixlPlane(agent_name)
