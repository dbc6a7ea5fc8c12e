"""Rules for the repository as a whole: sizes, names, mirrored tests, what may not be committed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
# Written in pieces so that this file passes its own test.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry.npm" + "js",
    "deb.deb" + "ian.org",
]
MACHINE_PATHS = ["/ro" + "ot/", "/ho" + r"me/\w", "/Us" + r"ers/\w", "/wo" + "rk/"]
# A folder of a URL, a proto import or a longer path is not a path of this machine.
FORBIDDEN = re.compile("|".join([*REGISTRY_HOSTS, rf"(?<![\w.)}}-])(?:{'|'.join(MACHINE_PATHS)})"]))

# Races planted in a kernel, and addresses past 2**31, are not one module's.
ABOUT_THE_WHOLE = re.compile(
    r"tests/(system|project|mutants)/|tests/pallas_kernels/(\w+/races|addressing)_test"
)


def is_generated(path: str) -> bool:
    return "_pb2" in Path(path).name


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    first, last = function.lineno, function.end_lineno or function.lineno
    if ast.get_docstring(function, clean=False) is None:
        return last - first + 1
    docstring = function.body[0]
    return last - first + 1 - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def mirrored_module_exists(test_file: str, files: set[str]) -> bool:
    """tests/p/q/name_test.py covers p/q/name.py or p/q/name/; an aspect may follow after `_`.

    A test of a test's own support lies beside it.
    """
    path = Path(test_file).relative_to("tests")
    words = path.name.removesuffix("_test.py").split("_")
    stems = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    targets = [str(path.parent / stem) for stem in stems]
    targets += [f"tests/{target}" for target in targets]
    return any(f"{target}.py" in files or f"{target}/__init__.py" in files for target in targets)


def test_no_hand_written_file_is_too_long(root: Path, python_files: list[str]) -> None:
    lengths = {
        path: len((root / path).read_text().splitlines())
        for path in python_files
        if not is_generated(path)
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_too_long(root: Path, python_files: list[str], packages: list[str]) -> None:
    too_long = {}
    for path in python_files:
        if is_generated(path) or path.split("/")[0] not in packages:
            continue
        for node in ast.walk(ast.parse((root / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if code_lines(node) > MAX_FUNCTION_LINES:
                    too_long[f"{path}:{node.lineno} {node.name}"] = code_lines(node)
    assert too_long == {}


def test_module_names_say_something(python_files: list[str]) -> None:
    vague = [path for path in python_files if VAGUE_NAMES & set(Path(path).with_suffix("").parts)]
    assert vague == []


def test_every_test_mirrors_a_module_or_is_about_the_whole(
    python_files: list[str], packages: list[str]
) -> None:
    known = set(python_files)
    tests = [path for path in python_files if path.endswith("_test.py")]
    stray = [
        path
        for path in tests
        if not ABOUT_THE_WHOLE.match(path)
        and not (path.split("/")[1] in packages and mirrored_module_exists(path, known))
    ]
    assert stray == []


def test_no_file_names_a_registry_host_or_a_path_of_this_machine(
    root: Path, files: list[str]
) -> None:
    found = []
    for path in files:
        try:
            lines = (root / path).read_text().splitlines()
        except UnicodeDecodeError:
            continue  # binary data names nothing a person would follow
        found += [
            f"{path}:{n}: {line[:120]}" for n, line in enumerate(lines, 1) if FORBIDDEN.search(line)
        ]
    assert found == []


@pytest.mark.parametrize(
    "line, is_forbidden",
    [
        ("see https://" + REGISTRY_HOSTS[0] + "/simple", True),
        ("MODEL=/ro" + "ot/model", True),
        ("https://example.org/ho" + "me/page", False),
        ("a relative wo" + "rk/path", False),
    ],
)
def test_the_search_for_forbidden_names_sees_them(line: str, is_forbidden: bool) -> None:
    assert bool(FORBIDDEN.search(line)) == is_forbidden


def test_uv_lock_is_not_committed(files: list[str]) -> None:
    assert "uv.lock" not in files


def test_the_lock_holds_every_requirement_in_an_allowed_version(
    root: Path, pyproject: dict
) -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    versions = {canonicalize_name(name): version for name, version in pins}
    lines = [*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["dev"]]
    for requirement in map(Requirement, lines):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement}: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"


def test_the_lock_names_no_source_and_no_torch(root: Path) -> None:
    text = (root / "requirements.lock").read_text()
    assert re.findall(r"https?://|--index|--find-links|file:", text) == []
    assert re.findall(r"^torch\b", text, re.MULTILINE) == []
