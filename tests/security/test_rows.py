"""The map from attack classes to tests is whole, and everything in it exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from security import rows
from security.rows import COUNT, NOTES, OTHERS, ROWS, TABLES, case_ids, described

TESTS = Path(__file__).resolve().parents[1]


def names_of(path: Path) -> set[str]:
    """The names of a module's tests; each is collected, since there are no classes and nothing is deselected."""
    body = ast.parse(path.read_bytes()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """The tests of every module that the map names, by the module's path; none for one that is not there."""
    modules = {node.partition("::")[0] for nodes in ROWS.values() for node in nodes}
    paths = {name: TESTS.parent / name for name in modules}
    return {name: names_of(path) if path.exists() else set() for name, path in paths.items()}


def test_every_class_has_a_test() -> None:
    assert list(ROWS) == list(range(1, COUNT + 1))
    assert all(ROWS.values())


def test_every_test_of_the_map_exists(known: dict[str, set[str]]) -> None:
    missing = []
    for node in (node for nodes in ROWS.values() for node in nodes):
        module, _, test = node.partition("::")
        if test.partition("[")[0] not in known[module]:
            missing.append(node)
    assert missing == []


def test_every_test_of_this_folder_is_in_the_map() -> None:
    """But the twins of others, and what looks after the tests themselves."""
    mapped = {node.partition("[")[0] for nodes in ROWS.values() for node in nodes}
    own = {
        f"tests/security/{path.name}::{test}"
        for path in (TESTS / "security").glob("test_*.py")
        for test in names_of(path)
        if path.name != Path(__file__).name
    }
    assert own - mapped == {
        "tests/security/test_archives.py::test_the_sentinel_would_notice",
        "tests/security/test_targets.py::test_the_twin_of_all_traps",
    }


def test_every_case_is_run() -> None:
    """Each table is what its test is given, and no case stands in it twice."""
    for module, test, cases in TABLES:
        (mark,) = getattr(getattr(rows, module), test).pytestmark
        assert mark.name == "parametrize"
        assert mark.args[0] == "slug"
        assert mark.args[1] is cases
    assert max(Counter(node for _, node in case_ids()).values()) == 1


def test_slugs_and_notes() -> None:
    """Slugs are what a person can type; notes and other tests are about rows that there are."""
    for _, _, cases in TABLES:
        for slug, case in cases.items():
            assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_-]*", slug), slug
            assert 1 <= case.row <= COUNT
    assert set(NOTES) | set(OTHERS) <= set(ROWS)
    for row in ROWS:
        assert re.search(rf"(?m)^{row}(: |$)", described())
