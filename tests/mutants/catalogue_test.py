"""The catalogue fits the sources of today."""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import ASSUMPTIONS, MUTANTS
from tests.mutants.copies import ROOT, files_of, mutated

each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@each
def test_every_replacement_fits_once_and_what_comes_out_compiles(mutant):
    for file in files_of(mutant):
        text = (ROOT / file).read_text()
        changed = mutated(text, mutant, file)
        assert changed != text
        compile(changed, file, "exec")


@each
def test_the_tests_that_should_find_it_exist(mutant):
    assert mutant.tests and mutant.where
    for test in mutant.tests:
        assert (ROOT / test.split("::")[0]).is_file()


def test_every_assumption_has_a_mutant():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.assumption for mutant in MUTANTS} == set(ASSUMPTIONS)
