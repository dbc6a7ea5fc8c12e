"""Loading holds the model once, plus pieces: no tensor is in memory twice."""

import os
import subprocess
import sys

import pytest

from tests.dsv4.checkpoint import synthetic

# A stack of this checkpoint's experts is 63 MB, its embedding 34 MB, a piece 1 MB.
MARGIN_BYTES = 30 << 20

SCRIPT = """
import sys
import jax
from dsv4.checkpoint.load import load_model

def peak_bytes():
    # Not ru_maxrss, which a process inherits from the one that started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

jax.block_until_ready(jax.device_put(1.0))
start = peak_bytes()
_, model = load_model(sys.argv[1], compute_dtype="bfloat16", weights=sys.argv[2])
resident = sum(leaf.nbytes for leaf in jax.tree.leaves(model))
print(start, resident, peak_bytes())
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "source"
    size = synthetic.build(folder, synthetic.with_layers(synthetic.MEDIUM, 1), shard_bytes=96 << 20)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder, size


@pytest.mark.parametrize("weights", ["packed", pytest.param("expanded", marks=pytest.mark.soak)])
def test_peak_memory_is_the_final_size_and_a_few_pieces(source, weights):
    folder, size = source
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), weights],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    start, resident, peak = (int(word) for word in run.stdout.split())
    assert abs(resident - size) < 1 << 20 if weights == "packed" else resident > 2 * size
    assert peak - start < resident + MARGIN_BYTES
