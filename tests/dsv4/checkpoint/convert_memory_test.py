"""4 GB of sharded checkpoint are converted and loaded within a gigabyte of what they end up as."""

import os
import subprocess
import sys

import pytest

from tests.dsv4.checkpoint import synthetic

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

LAYERS = 19
MARGIN_BYTES = 1 << 30
# Conversion holds a layer of 205 MB, what of it is on its way to the disk, and the interpreter.
CONVERT_BYTES = 1200 << 20

CONVERT = """
from dsv4.checkpoint.convert import convert
convert(sys.argv[1], sys.argv[2])
"""
LOAD = """
from dsv4.checkpoint.load import load_model
load_model(sys.argv[1], compute_dtype="bfloat16")
"""
PEAK = """
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")))
"""


def peak_bytes(code, *arguments):
    """Runs code in a process of its own; returns the most memory it had, interpreter and all."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{PEAK}", *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "source"
    size = synthetic.build(folder, synthetic.with_layers(synthetic.MEDIUM, LAYERS))
    return folder, size


def test_conversion_holds_a_layer_and_loading_holds_the_model_once(source, tmp_path):
    folder, size = source
    assert size > 4e9
    converted = peak_bytes(CONVERT, folder, tmp_path / "out")
    assert converted < CONVERT_BYTES
    loaded = peak_bytes(LOAD, tmp_path / "out")
    assert size < loaded < size + MARGIN_BYTES
    print(f"{size=} {converted=} {loaded=}")


def test_loading_the_source_holds_the_model_once(source):
    folder, size = source
    assert size < peak_bytes(LOAD, folder) < size + MARGIN_BYTES
