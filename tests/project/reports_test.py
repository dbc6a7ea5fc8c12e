"""Every public report of a fault that we could have has its row and a test that holds it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

CLASSES = frozenset("FRGOILVX")

REPORTS = """
1 R sglang#24580 sglang#24578 sglang#32564 sglang#38961
2 O sglang#30233 sglang#34208 sglang#32605
2a O sglang#33507
2b L,G InferenceX#2257
3 L sglang#36033 sglang#36612
4 G sglang#31482 sglang#31901
5 G sglang#28879
6 G sglang#27004
7 F sglang#37697
8 R sglang#38099
9 I,X sglang#40125
10 I sglang#26486 dynamo#14018
11 G sglang#24230
12 F sglang#35837
17 F,V sglang#22811
18 R sglang#12073
18a L sglang#26092
20 G,F sglang#31295 sglang#31968 sglang#22145
21 G sglang#10673 sglang#14474
23 L sglang#13657 sglang#12779
24 I sglang#35229
28 I sglang#29725
29 O vllm#52276
31 R vllm#21570
32 L vllm#46283 vllm#46289
33 L vllm#41269
34 O vllm#50754
35 G vllm#37703 vllm#46204
36 G vllm#42895
37 I,X vllm#49238
38 X vllm#46240 vllm#23587
39 I,L vllm#49796
40 G vllm#44238 Mooncake#2086
42 G vllm#42024
43 I vllm#10583 vllm#15041
45 G,C,L vllm-ascend#9220 vllm-ascend#10182 vllm-ascend#16270 vllm-ascend#10013 vllm-ascend#15070
46 I dynamo#14018
47 G dynamo#14416
48 L dynamo#11914 dynamo#6734 dynamo#6678
50 L TensorRT-LLM#17665
51 R TensorRT-LLM#12542 TensorRT-LLM#12540
53 L TensorRT-LLM#11715 TensorRT-LLM#12313 TensorRT-LLM#12314 TensorRT-LLM#13713
54 G LMCache#4463 LMCache#4467
55 G LMCache#2881 LMCache#2774 LMCache#2947 LMCache#5002 LMCache#1989
56 V LMCache#4870
57 G Mooncake#2815
58 R nixl#2044 nixl#2067
59 V nixl#182
61 L aibrix#1772 llm-d#187 DingoCache#231
"""
"""Number, classes and threads of every report of these classes that is known to us."""

ASSUMPTIONS = (
    "S1 S2 S3 S4 S5 S6 S7 S8 S10 S11 S12 S13 S14 S15 S16 S17 S18 V2 V4 V5 V7 V8 V9 V10 V11 V12"
)


@pytest.fixture(scope="module")
def rows(root: Path) -> dict[str, list[str]]:
    """Rows of docs/reports.md by their number."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (root / "docs/reports.md").read_text().splitlines()
        if re.match(r"\| [0-9SV]", line)
    ]
    numbers = [row[0] for row in cells]
    assert len(set(numbers)) == len(numbers)
    return {row[0]: row for row in cells}


def named_tests(row: list[str]) -> list[str]:
    return re.findall(r"`(tests/[\w/]+_test\.py::test_\w+)`", row[-1])


def test_every_report_and_every_assumption_has_a_row_and_no_other(
    rows: dict[str, list[str]],
) -> None:
    reports = [line.split() for line in REPORTS.strip().splitlines()]
    assert list(rows) == [report[0] for report in reports] + ASSUMPTIONS.split()
    for number, classes, *threads in reports:
        assert rows[number][1:3] == [classes, " ".join(threads)]
        assert set(classes.split(",")) & CLASSES


def test_every_row_says_what_went_wrong_and_what_holds_here(rows: dict[str, list[str]]) -> None:
    for number, row in rows.items():
        assert len(row) == (4 if number[0] in "SV" else 6), number
        assert all(row), number


def test_every_test_that_a_row_names_exists(root: Path, rows: dict[str, list[str]]) -> None:
    defined: dict[str, set[str]] = {}
    missing = []
    for number, row in rows.items():
        named = named_tests(row)
        assert named, f"row {number} names no test"
        assert len(named) == row[-1].count("::"), f"row {number} names what cannot be read"
        for path, name in (test.split("::") for test in named):
            if path not in defined:
                tree = ast.parse((root / path).read_text()) if (root / path).exists() else None
                defined[path] = {
                    node.name
                    for node in (tree.body if tree else [])
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                }
            if name not in defined[path]:
                missing.append(f"{number}: {path}::{name}")
    assert missing == []
