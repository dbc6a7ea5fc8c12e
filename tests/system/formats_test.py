"""Every format served disaggregated, from safetensors and from Orbax, gives the golden tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4.checkpoint.convert import convert
from tests.system.conftest import GoldenCase
from tests.system.servers import Fleet, generate_all, greedy

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

GOLDENS = Path(__file__).parents[1] / "goldens"
PAIRS = [
    pytest.param("mxfp4", "safetensors", "orbax"),
    pytest.param("nvfp4", "safetensors", "orbax", marks=pytest.mark.soak),
    pytest.param("mxfp4", "orbax", "safetensors", marks=pytest.mark.soak),
    pytest.param("mxfp4", "orbax", "orbax", marks=pytest.mark.soak),
    pytest.param("nvfp4", "orbax", "orbax", marks=pytest.mark.soak),
    pytest.param("mxfp4", "safetensors", "safetensors", marks=pytest.mark.soak),
    pytest.param("nvfp4", "safetensors", "safetensors", marks=pytest.mark.soak),
    pytest.param("bf16", "safetensors", "orbax", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("form", "prefill_kind", "decode_kind"), PAIRS)
def test_golden_greedy_tokens_come_out_whatever_stores_the_weights(
    form: str,
    prefill_kind: str,
    decode_kind: str,
    tmp_path: Path,
    compile_cache: Path,
    read_golden: Callable[[Path], list[GoldenCase]],
):
    source = GOLDENS / f"flash-tiny-{form}"
    folders = {"safetensors": source, "orbax": tmp_path / "converted"}
    if "orbax" in (prefill_kind, decode_kind):
        convert(source, folders["orbax"])
    golden = read_golden(source)
    fleet = Fleet(tmp_path, "--compile-cache", str(compile_cache), "--max-context", "2048")
    try:
        _, decode = fleet.pair(
            ("--model", str(folders[prefill_kind]), "--kernels", "reference"),  # device digests
            ("--model", str(folders[decode_kind])),
        )
        prompts = [case.prompt for case in golden]
        sampling = [greedy(len(case.greedy)) for case in golden]
        results = generate_all(decode.target, prompts, sampling, concurrency=len(prompts))
        assert [result.error for result in results] == [None] * len(golden)
        assert [result.token_ids for result in results] == [case.greedy for case in golden]
    finally:
        fleet.close()
