"""A decode process over real NIXL that checks every byte: python -m tests.disagg.decode_process.

Fetches prompts one after another on several tasks, each again after a lost peer or lost data, and
prints a line of JSON for each, then one with the landing slots that are free. With --transfers 0 it
goes on until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys

from disagg.errors import DataLoss, DisaggError, PeerLost
from disagg.handshake import Endpoint
from disagg.incoming import FetchRequest
from disagg.landing import LandingHub
from disagg.nixl_plane import NixlPlane
from disagg.receiver import PrefillLink
from tests.disagg import pair as pairs

NUM_SLOTS = 8
TIMEOUT_S = 10.0
MAX_ATTEMPTS = 20


async def one(link: PrefillLink, number: int, max_tokens: int) -> dict[str, object]:
    """How a request ends: "ok", "wrong", or the code of its last error."""
    ids = pairs.prompt(random.Random(number).randint(1, max_tokens), number)
    transfer_id, seen = os.urandom(16), []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        await link.wait_ready(TIMEOUT_S)
        request = FetchRequest(transfer_id, attempt, ids, timeout_s=TIMEOUT_S)
        try:
            result = await link.fetch(request, pairs.CheckingSink(ids))
        except AssertionError as error:
            return {"number": number, "outcome": "wrong", "why": str(error)}
        except (PeerLost, DataLoss) as error:
            seen.append(error.code)
        except DisaggError as error:
            return {"number": number, "outcome": error.code, "seen": seen, "why": error.message}
        else:
            right = result.first_token == sum(ids) % pairs.VOCAB
            return {"number": number, "outcome": "ok" if right else "wrong", "seen": seen}
    return {"number": number, "outcome": "given up", "seen": seen}


async def fetch_all(target: str, transfers: int, max_tokens: int, tasks: int) -> None:
    endpoint = Endpoint(
        role="decode",
        model_identity="tiny",
        max_context=pairs.MAX_CONTEXT,
        vocab_size=pairs.VOCAB,
        table=pairs.small_table(9),
        slab_bytes=5000,
    )
    plane = NixlPlane(endpoint.agent_name)
    hub = LandingHub(
        endpoint, plane, num_slots=NUM_SLOTS, verify_timeout_s=2.0, max_quarantined_share=1.0
    )
    link = PrefillLink(
        target,
        hub,
        heartbeat_s=pairs.HEARTBEAT_S,
        reconnect_s=(0.02, 0.2),
        quarantine_after_s=1.0,
    )
    link.start()
    numbers = iter(range(transfers)) if transfers else itertools.count()

    async def worker() -> None:
        for number in numbers:
            print(json.dumps(await one(link, number, max_tokens)), flush=True)

    await asyncio.gather(*(worker() for _ in range(tasks)))
    for _ in range(200):
        if hub.lease_counts()["free"] == NUM_SLOTS and not link.num_unsettled:
            break
        await asyncio.sleep(0.05)
    print(json.dumps({"free": hub.lease_counts()["free"], "of": NUM_SLOTS}), flush=True)
    await link.stop()
    await hub.stop()
    plane.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--transfers", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=600)
    parser.add_argument("--tasks", type=int, default=8)
    given = parser.parse_args()
    sys.exit(asyncio.run(fetch_all(given.target, given.transfers, given.max_tokens, given.tasks)))
