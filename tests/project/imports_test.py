"""Importing is cheap: no device is touched, and disagg's policy needs neither jax nor a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

POLICY = ["disagg.pages", "disagg.fence", "disagg.layout", "disagg.slab", "disagg.lease"]
POLICY += ["disagg.protocol.attempts", "disagg.protocol.receiving", "disagg.protocol.settling"]


def import_in_new_process(root: Path, modules: list[str], *, unwanted: list[str]) -> list[str]:
    """Imports where jax has no usable platform; returns the unwanted modules that came along."""
    code = f"""
import importlib, json, sys
for module in {modules!r}:
    importlib.import_module(module)
print(json.dumps([name for name in {unwanted!r} if name in sys.modules]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "JAX_PLATFORMS": "no_such_platform"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if result.returncode != 0:
        pytest.fail(f"importing failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def modules_of(package: str, files: list[str]) -> list[str]:
    sources = [
        Path(path)
        for path in files
        if path.startswith(f"{package}/")
        and path.endswith(".py")
        and not path.endswith("__main__.py")
    ]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in sources]
    return sorted(names)


@pytest.mark.parametrize("package", ["pallas_kernels", "dsv4", "disagg", "serve"])
def test_importing_every_module_touches_no_device(
    package: str, root: Path, files: list[str]
) -> None:
    modules = modules_of(package, files)
    assert package in modules
    assert import_in_new_process(root, modules, unwanted=[]) == []


def test_disagg_needs_no_jax(root: Path, files: list[str]) -> None:
    modules = modules_of("disagg", files)
    assert import_in_new_process(root, modules, unwanted=["jax", "flax", "torch"]) == []


@pytest.mark.parametrize("module", POLICY)
def test_policy_needs_neither_jax_nor_a_network(module: str, root: Path) -> None:
    unwanted = ["jax", "flax", "grpc", "nixl", "google.protobuf"]
    assert import_in_new_process(root, [module], unwanted=unwanted) == []


def test_the_model_needs_no_network(root: Path, files: list[str]) -> None:
    modules = modules_of("dsv4", files) + modules_of("pallas_kernels", files)
    assert import_in_new_process(root, modules, unwanted=["grpc", "nixl", "torch"]) == []
