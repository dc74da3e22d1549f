"""The bundle: which modules, what is left of them, how large, and the same from every kind of installation."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from helper.drive import HELPER_FOLDER

import sandlift_helper
from sandlift import payload
from support.pythons import PYTHONS, Interpreter

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = HELPER_FOLDER / "sandlift_helper"
NOT_SHIPPED = {"__init__", "__main__", "_stage"}
BUDGET_BYTES = 32 << 10
BUILD_TIMEOUT_S = 120
# `signal` brings `enum`, and that `collections` with most versions; the rest costs more than the whole start.
SLOW_TO_IMPORT = "re typing threading subprocess tempfile linecache traceback tokenize contextlib json pathlib".split()

modules = pytest.mark.parametrize("name", [*sandlift_helper.MODULES, "__init__", "_stage"])


def source_of(name: str) -> str:
    return (PACKAGE / f"{name}.py").read_text(encoding="utf-8")


def test_every_module_is_shipped() -> None:
    names = {path.stem for path in PACKAGE.glob("*.py")}
    assert set(sandlift_helper.MODULES) == names - NOT_SHIPPED
    assert len(set(sandlift_helper.MODULES)) == len(sandlift_helper.MODULES)
    assert not [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "MYPY"


def imported(node: ast.AST) -> set[str]:
    """The modules that are imported anywhere below, but for those that only types need."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0
            assert child.module is not None
            if child.module == "sandlift_helper":
                found |= {f"sandlift_helper.{alias.name}" for alias in child.names}
            else:
                found.add(child.module)
        elif not is_for_types(child):
            found |= imported(child)
    return found


@modules
def test_a_module_imports_earlier_ones_and_the_standard_library(name: str) -> None:
    order = sandlift_helper.MODULES
    earlier = order[: order.index(name)] if name in order else order if name == "_stage" else ()
    for module in imported(ast.parse(source_of(name))):
        if module.startswith("sandlift_helper"):
            assert module.partition(".")[2] in earlier, module
        else:
            assert module.partition(".")[0] in sys.stdlib_module_names, module


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_what_is_slow_to_import_is_not_imported(python: Interpreter) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HELPER_FOLDER)!r}); before = set(sys.modules)\n"
        f"for name in {list(sandlift_helper.MODULES)!r}: __import__('sandlift_helper.' + name)\n"
        f"print([name for name in {SLOW_TO_IMPORT!r} if name in sys.modules and name not in before])"
    )
    command = [python.path, "-I", "-S", "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


class _WithoutProse(ast.NodeTransformer):
    """Takes out statements that are nothing but a text, the zero that stands for one, and what only mypy reads."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_If(self, node: ast.If) -> ast.If | None:
        self.generic_visit(node)
        return None if is_for_types(node) else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        target = node.targets[0]
        return None if isinstance(target, ast.Name) and target.id == "MYPY" else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_prose = isinstance(node.value, ast.Constant) and (isinstance(node.value.value, str) or node.value.value == 0)
        return None if is_prose else node


def code_of(source: str, indent: int) -> tuple[str, list[tuple[int, int]]]:
    """The tree without its prose, and where each statement begins: its line, and how many times *indent* deep."""
    tree = _WithoutProse().visit(ast.parse(source))
    places = [divmod(node.col_offset, indent) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert not any(rest for _, rest in places)
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return ast.dump(tree), list(zip(lines, [depth for depth, _ in places], strict=True))


@modules
def test_blanking_takes_nothing_but_prose(name: str) -> None:
    source = source_of(name)
    blanked = payload.without_prose(source)
    assert code_of(blanked, 1) == code_of(source, 4)
    assert blanked.count("\n") == source.count("\n")
    assert '"""' not in blanked
    assert not [line for line in blanked.split("\n") if line.strip().startswith("#")]


operations = pytest.mark.parametrize("operation", sorted(sandlift_helper.OPERATIONS))


@operations
def test_the_bundle_holds_the_sources_that_its_operation_needs(operation: str) -> None:
    rest = zlib.decompress(payload.bundle(operation))
    found = {}
    while rest:
        name, length, rest = rest.split(b"\0", 2)
        found[name.decode()], rest = rest[: int(length)], rest[int(length) :]
    needed = (*sandlift_helper.COMMON, *sandlift_helper.OPERATIONS[operation], "main")
    assert list(found) == ["", *(f".{name}" for name in needed)]
    for module, text in found.items():
        assert text == payload.sources()[module]
        assert text.decode() == payload.without_prose(source_of(module[1:] or "__init__"))


def test_every_module_belongs_to_an_operation() -> None:
    files = {path.stem for path in Path(sandlift_helper.__file__).parent.glob("*.py")}
    assert files == {*sandlift_helper.MODULES, "__init__", "__main__", "_stage"}
    assert list(payload.sources()) == ["", *(f".{name}" for name in sandlift_helper.MODULES)]


@operations
def test_the_bundle_is_small(operation: str) -> None:
    assert len(payload.bundle(operation)) <= BUDGET_BYTES
    assert len(payload.stage()) <= 4096


@operations
def test_the_opening(operation: str) -> None:
    nonce = bytes(range(16))
    first, rest = payload.opening(nonce, operation).split(b"\n", 1)
    stage, rest = rest[: int(first)], rest[int(first) :]
    head, modules = rest.split(b"\n", 1)
    assert stage == payload.stage()
    assert head == b"%d %s" % (len(payload.bundle(operation)), nonce.hex().encode())
    assert modules == payload.bundle(operation)


def test_the_digest_covers_all_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert payload.digest() == payload.digest.__wrapped__()
    seen = {payload.digest()}
    changed, stage = dict(payload.sources()), payload.stage()
    changed[".scan"] += b"\n"
    values = {"sources": lambda: changed, "stage": lambda: stage + b"\n", "START": payload.START + " "}
    for name, value in values.items():
        with monkeypatch.context() as patch:
            patch.setattr(payload, name, value)
            seen.add(payload.digest.__wrapped__())
    assert len(seen) == 4


def digest_with(*paths: Path, cwd: Path) -> str:
    """The digest and the size of the bundle, as the packages at *paths* tell them."""
    code = "from sandlift import payload; print(payload.digest(), len(payload.bundle('apply')), payload.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    digest, size, place = done.stdout.split()
    assert any(place.startswith(str(path)) for path in paths)
    assert int(size) == len(payload.bundle("apply"))
    return digest


@pytest.mark.xdist_group("distribution")
def test_one_digest_from_every_kind_of_installation(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    (tmp_path / "sdist").mkdir()
    subprocess.run(["tar", "xf", sdist, "-C", tmp_path / "sdist"], check=True)
    (source,) = (tmp_path / "sdist").iterdir()
    digests = {
        digest_with(ROOT / "agent", ROOT / "helper", cwd=tmp_path),
        digest_with(wheel, cwd=tmp_path),
        digest_with(source / "agent", source / "helper", cwd=tmp_path),
    }
    assert digests == {payload.digest()}


def test_the_digest_is_written_down_nowhere_else() -> None:
    """It is computed from what is sent, so it cannot be stale."""
    parts = [payload.START.encode(), payload.stage()]
    summed = hashlib.sha256(b"\0".join(parts))
    for name, text in payload.sources().items():
        summed.update(b"\0%s\0%d\0" % (name.encode(), len(text)) + text)
    assert summed.hexdigest() == payload.digest()
