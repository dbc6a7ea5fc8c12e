"""Every known bad build is found: by the tests, and by an audit or a refusal of the pair.

Prints which test found which mutant, and what the audit said of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv4.tiny import build_tiny_checkpoint
from serve.audit.report import CLEAN, CORRUPTED, INCOMPLETE, PARTS
from serve.cli import main
from tests.mutants.catalogue import MUTANTS, SOUND, Mutant
from tests.mutants.copies import copy_sources
from tests.system.servers import Fleet, Server, info

pytestmark = [pytest.mark.soak, pytest.mark.system, pytest.mark.timeout(1800)]

HEALTH_TIMEOUT_S = 60.0
AUDIT = ("--sessions", "80", "--max-prompt", "700", "--max-tokens", "8", "--timeout", "300")
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)

each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@each
def test_tests_find_it(mutant, tmp_path, found):
    sources = tmp_path / "sources"
    copy_sources(mutant, sources)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "temporary"), *mutant.tests],
        cwd=sources,
        capture_output=True,
        text=True,
    )
    killers = _FAILED.findall(run.stdout)
    assert run.returncode == 1 and killers, run.stdout[-3000:] + run.stderr[-3000:]
    found.append((mutant.name, "tests", killers[0]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.fixture(scope="module")
def common(folder: Path) -> tuple[str, ...]:
    """Flags of every server: one model, one folder of compiled programs."""
    build_tiny_checkpoint(folder / "model")
    return (
        "--model", str(folder / "model"), "--compile-cache", str(folder / "compiled"),
        "--max-context", "2048",
    )  # fmt: skip


@pytest.fixture(scope="module")
def control(folder: Path, common: tuple[str, ...]) -> Iterator[Callable[..., Server]]:
    """Makes a sound `local` server with these flags, once for each set of flags."""
    fleet = Fleet(folder, *common)
    made: dict[tuple[str, ...], Server] = {}

    def make(*flags: str) -> Server:
        if flags not in made:
            made[flags] = fleet.serve("local", *flags)
        return made[flags]

    yield make
    fleet.close()


def refused_or_healthy(decode: Server) -> bool:
    """Waits until decode and prefill have met; whether they refused each other."""
    deadline = time.monotonic() + HEALTH_TIMEOUT_S
    while time.monotonic() < deadline:
        state = info(decode.target)
        if "refused" in state["peers"].values():
            return True
        if state["health"].get("dsv4.generate.v1.Generate"):
            return False
        time.sleep(0.2)
    raise TimeoutError(f"decode and prefill have not met within {HEALTH_TIMEOUT_S} s")


def deploy(fleet: Fleet, mutant: Mutant, sources: Path) -> tuple[Server, Server]:
    """A prefill and a decode, of bad build where the mutant says so."""

    def start(role: str, *flags: str) -> Server:
        bad = role in mutant.where
        return fleet.start(role, *mutant.flags, *flags, sources=sources if bad else None)

    prefill = start("prefill")
    address = prefill.wait_listening()
    flags = ("--prefill", address, "--verify-timeout-s", "2", *mutant.decode_flags)
    decode = start("decode", *flags)
    prefill.wait_serving()
    decode.wait_serving()
    return prefill, decode


def audit(decode: Server, control: Server, report: Path, *flags: str) -> tuple[int, str]:
    """Exit status, and what was found in words."""
    arguments = ["--target", decode.target, "--control", control.target, "--json", str(report)]
    status = main(["audit", *arguments, *AUDIT, *flags])
    if not report.exists():
        return status, f"status {status}, no report"
    said = json.loads(report.read_text())
    counts = ", ".join(f"{said[part]} {part}" for part in PARTS if said[part])
    total = said["verdicts"]
    return status, f"{100 * said['corruption_rate']:.1f} % of {total} ({counts or said['status']})"


@each
def test_an_audit_finds_it_or_the_pair_refuses_it(mutant, folder, common, control, tmp_path, found):
    sources = tmp_path / "sources"
    copy_sources(mutant, sources)
    fleet = Fleet(tmp_path, *common)
    try:
        _, decode = deploy(fleet, mutant, sources)
        if refused_or_healthy(decode):
            why = re.search(r" refused: (.{,160})", decode.log.read_text())
            found.append((mutant.name, "handshake", why[1] if why else "refused"))
            return
        report = tmp_path / "audit.json"
        status, words = audit(decode, control(*mutant.flags), report, *mutant.audit)
        found.append((mutant.name, "audit", words))
        assert status in (CORRUPTED, INCOMPLETE), words
    finally:
        fleet.close()


@pytest.mark.parametrize("build", SOUND, ids=lambda build: build.name)
def test_an_audit_finds_nothing_of_a_sound_build(build, folder, common, control, tmp_path, found):
    fleet = Fleet(tmp_path, *common)
    try:
        _, decode = deploy(fleet, build, tmp_path)
        assert not refused_or_healthy(decode)
        status, words = audit(decode, control(), tmp_path / "audit.json", *build.audit)
        found.append((build.name, "audit", words))
        assert status == CLEAN, words
    finally:
        fleet.close()
