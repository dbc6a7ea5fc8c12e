"""Every kernel compiles for every target, with no GPU and no CUDA toolkit."""

import os

import pytest

from pallas_kernels import registry
from tests.pallas_kernels.deviceless import reports

pytestmark = pytest.mark.skipif(bool(reports.unavailable()), reason=str(reports.unavailable()))


@pytest.mark.timeout(reports.TIMEOUT_S + 20)
@pytest.mark.parametrize("target", reports.TARGETS)
def test_every_case_compiles_as_its_target_demands(target, tmp_path):
    made = reports.compile_for(target, tmp_path / "dumps")
    expected = {case.id for case in registry.all_cases() if "compile" in case.uses}
    assert {f"{report.kernel}-{report.case}" for report in made} == expected
    problems = [f"{r.kernel}-{r.case}: {problem}" for r in made for problem in r.problems()]
    assert not problems, "\n".join(problems)


def test_the_packages_are_where_the_environment_puts_them():
    assert os.access(reports.COMPILER / "nvidia/cuda_nvcc/bin/ptxas", os.X_OK), "run make env"


def test_a_process_that_dies_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)sm_42: exit status 1.*KeyError: 'sm_42'"):
        reports.compile_for("sm_42", tmp_path / "dumps")
