"""Every kernel compiles for every target, with no GPU and no CUDA toolkit."""

import os

import pytest

from pallas_kernels import registry
from tests.pallas_kernels.deviceless import reports

pytestmark = pytest.mark.skipif(bool(reports.unavailable()), reason=str(reports.unavailable()))


def check(target, folder, *, soak):
    made = reports.compile_for(target, folder / "dumps", soak=soak)
    expected = {case.id for case in registry.compiled_cases(soak=soak)}
    assert {f"{report.kernel}-{report.case}" for report in made} == expected
    problems = [f"{r.kernel}-{r.case}: {problem}" for r in made for problem in r.problems()]
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(reports.TIMEOUT_S + 20)
@pytest.mark.parametrize("target", reports.TARGETS)
def test_every_kernel_compiles_as_its_target_demands(target, tmp_path):
    check(target, tmp_path, soak=False)


@pytest.mark.soak
@pytest.mark.timeout(reports.TIMEOUT_S + 20)
@pytest.mark.parametrize("target", reports.TARGETS)
def test_every_shape_compiles_as_its_target_demands(target, tmp_path):
    check(target, tmp_path, soak=True)


def test_the_packages_are_where_the_environment_puts_them():
    assert os.access(reports.COMPILER / "nvidia/cuda_nvcc/bin/ptxas", os.X_OK), "run make env"


def test_a_process_that_dies_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)sm_42: exit status 1.*KeyError: 'sm_42'"):
        reports.compile_for("sm_42", tmp_path / "dumps")
