"""Every Pallas kernel, interpreted, against its reference, and without a race.

One run serves both: race detection changes no result. Uninitialised memory reads as NaN, and each
case poisons in its arguments what must not be read.
"""

import importlib.util
import itertools
from pathlib import Path

import pytest

import pallas_kernels
from pallas_kernels import registry
from tests.pallas_kernels import agreement, racing

CASES = [case for case in registry.all_cases() if "interpret" in case.uses]


@pytest.mark.timeout(racing.TIMEOUT_S)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_interpreted_is_as_its_reference_and_has_no_race(case, monkeypatch):
    racing.detect(monkeypatch)
    agreement.check(case, agreement.run(case, "pallas"), agreement.run(case, "reference"))


def test_every_folder_of_a_kernel_is_listed():
    folder = Path(pallas_kernels.__file__).parent
    assert sorted(registry.KERNELS) == sorted(file.parent.name for file in folder.glob("*/api.py"))


@pytest.mark.parametrize("kernel", registry.KERNELS)
@pytest.mark.parametrize("role", ["api", "reference", "pallas", "arg_specs", "bench"])
def test_every_kernel_has_the_same_roles_of_files(kernel, role):
    assert importlib.util.find_spec(f"pallas_kernels.{kernel}.{role}"), f"{kernel} has no {role}"


@pytest.mark.parametrize("kernel", registry.KERNELS)
def test_every_kernel_is_tried_in_every_way(kernel):
    cases = registry.cases(kernel)
    uses = {use for case in cases for use in case.uses}
    assert uses - {"compile_soak"} == {"interpret", "compile", "gpu"}
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), f"{kernel}: names of cases are not unique: {names}"
    assert all(case.kernel == kernel for case in cases)


def test_instructions_are_named_for_every_matmul_or_for_none():
    for case in registry.all_cases():
        assert set(case.instructions) in (set(), {"mma", "wgmma", "tcgen05"}), case.id


def test_names_of_cases_tell_kernels_apart():
    names = [case.id for case in registry.all_cases()]
    assert not [a for a, b in itertools.pairwise(sorted(names)) if a == b]
