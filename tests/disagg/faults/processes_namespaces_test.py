"""Prefill and decode in network namespaces of their own, over TCP, with the link cut and slowed.

Needs root and `ip`; skipped elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess

import pytest

pytest.importorskip("nixl", reason="NIXL is installed on Linux only")
from tests.disagg.faults.processes import PrefillProcess, Process  # noqa: E402

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

HERE, THERE = "10.231.77.1", "10.231.77.2"


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)


class Link:
    """A virtual cable between two namespaces."""

    def __init__(self) -> None:
        number = os.getpid()
        self.prefill, self.decode = f"dsv4p{number}", f"dsv4d{number}"
        self._ends = {self.prefill: f"p{number}", self.decode: f"d{number}"}

    def lay(self) -> None:
        for name in self._ends:
            command("ip", "netns", "add", name)
        ends = list(self._ends.values())
        command("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for (name, end), address in zip(self._ends.items(), (HERE, THERE), strict=True):
            command("ip", "link", "set", end, "netns", name)
            self._inside(name, "ip", "addr", "add", f"{address}/24", "dev", end)
            self._inside(name, "ip", "link", "set", end, "up")
            self._inside(name, "ip", "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in self._ends:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)

    def cut(self) -> None:
        self._inside(self.prefill, "ip", "link", "set", self._ends[self.prefill], "down")

    def mend(self) -> None:
        self._inside(self.prefill, "ip", "link", "set", self._ends[self.prefill], "up")

    def slow(self, rate: str) -> None:
        for name, end in self._ends.items():
            how = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms")
            self._inside(name, "tc", "qdisc", "add", "dev", end, *how)

    def hurry(self) -> None:
        for name, end in self._ends.items():
            self._inside(name, "tc", "qdisc", "del", "dev", end, "root")

    def inside(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", name)

    def _inside(self, name: str, *words: str) -> None:
        command(*self.inside(name), *words)


@pytest.fixture
def link():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    made = Link()
    try:
        made.lay()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.decode()[:200]}")
    yield made
    made.remove()


async def fetch_through(link: Link, transfers: int, happenings) -> list[dict]:
    """What a decode process says of its transfers; `happenings` are (after how many, what)."""
    prefill = PrefillProcess("tcp,self", link.inside(link.prefill), HERE)
    decode = Process("tests.disagg.decode_process", "tcp,self", link.inside(link.decode))
    try:
        await prefill.start(0.002)
        await decode.run(
            "--target", f"{HERE}:{prefill.port}", "--transfers", str(transfers), "--tasks", "4"
        )
        said: list[dict] = []
        pending = list(happenings)
        while line := await decode.line(120):
            said.append(json.loads(line))
            while pending and len(said) >= pending[0][0]:
                await pending.pop(0)[1]()
        assert not pending
        return said
    finally:
        await decode.kill()
        await prefill.kill()


def check(said: list[dict], transfers: int) -> None:
    *outcomes, last = said
    assert [one for one in outcomes if one["outcome"] != "ok"] == []
    assert len(outcomes) == transfers
    assert last["free"] == last["of"]
    retried = sum(bool(one["seen"]) for one in outcomes)
    print(f"{transfers} transfers right, {retried} of them after another attempt")


def test_a_cut_link_is_noticed_and_everything_arrives_when_it_is_mended(link):
    async def cut():
        link.cut()
        await asyncio.sleep(2)
        link.mend()

    check(asyncio.run(fetch_through(link, 120, [(30, cut), (80, cut)])), 120)


def test_a_slow_link_delays_and_damages_nothing(link):
    async def slow():
        link.slow("400kbit")

    async def hurry():
        link.hurry()

    try:
        said = asyncio.run(fetch_through(link, 80, [(20, slow), (50, hurry)]))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"links cannot be slowed here: {error.stderr.decode()[:200]}")
    check(said, 80)
