"""The table of docs/kernels.md."""

import dataclasses

import pytest

from pallas_kernels import registry
from tests.pallas_kernels.deviceless import dumps, reports, table

NUMBERS = dumps.KernelNumbers(
    name="body_0",
    target="sm_90a",
    registers=92,
    spill_bytes=0,
    stack_bytes=0,
    static_shared_bytes=1,
    dynamic_shared_bytes=1023,
    tensor_memory_columns=0,
    matrix_instructions=0,
    code_bytes=2048,
)


def report(target, *registers):
    kernels = [dataclasses.replace(NUMBERS, target=target, registers=r) for r in registers]
    return reports.CaseReport("topk", "small", target, None, [], kernels=kernels)


def test_every_case_that_is_compiled_has_its_row():
    compiled = {case.id for case in registry.compiled_cases(soak=True)}
    rows = table.rows(table.DOCUMENT.read_text())
    assert rows.keys() == compiled, "run make kernel-table"


def test_a_cell_has_a_number_for_each_target_or_one_where_all_agree(monkeypatch, tmp_path):
    monkeypatch.setattr(table, "DOCUMENT", tmp_path / "kernels.md")
    text = f"before\n{table.BEGIN}\n| `old` | 1 |\n{table.END}\nafter\n"
    table.DOCUMENT.write_text(text)
    assert [*table.rows(text)] == ["old"]
    made = [report(t, 90 + i, 12) for i, t in enumerate(reports.TARGETS)]
    table.write(made)
    written = table.DOCUMENT.read_text()
    assert [*table.rows(written)] == ["topk-small"]
    cells = [cell.strip() for cell in table.rows(written)["topk-small"].split("|")]
    assert cells[2] == "90+12 / 91+12 / 92+12 / 93+12"
    assert cells[3] == "1024+1024"
    assert written.startswith("before\n") and written.endswith("\nafter\n")
    table.write(made)
    assert table.DOCUMENT.read_text() == written


def test_no_table_is_written_of_what_has_a_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(table, "DOCUMENT", tmp_path / "kernels.md")
    with pytest.raises(RuntimeError, match="sm_90a topk-small: no PTX"):
        table.write([report("sm_90a")])
    assert not table.DOCUMENT.exists()
