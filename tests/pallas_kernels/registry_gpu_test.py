"""Every kernel on the GPU that is there, against its reference on the same device."""

import pytest

from pallas_kernels import registry, target
from tests.pallas_kernels import agreement

CASES = [case for case in registry.all_cases() if "gpu" in case.uses]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_on_the_gpu_is_as_its_reference(case):
    found = target.current()
    assert found.has_kernels, f"{found.kind}: kernels do not compile for it"
    agreement.check(case, agreement.run(case, "pallas"), agreement.run(case, "reference"))
