"""The public names of the library, imported as its users do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sandlift


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", sandlift.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sandlift, name) is not None
    assert name in dir(sandlift)


def test_the_names_are_what_they_are_called() -> None:
    from sandlift import box, errors, results, store

    assert sandlift.capture is box.capture
    assert sandlift.restore is box.restore
    assert sandlift.connect is box.connect
    assert sandlift.Capture is results.Capture
    assert sandlift.Store is store.Store
    assert sandlift.SandliftError is errors.SandliftError


@pytest.mark.parametrize("first", ["pass", "from sandlift.box import connect", "sandlift.connect"])
def test_no_module_hides_a_function(first: str) -> None:
    code = f"import sandlift; {first}; from sandlift import capture, restore; "
    code += "print(capture.__module__, restore.__module__)"
    assert python(code) == "sandlift.box sandlift.box"
    package = Path(sandlift.__file__).parent
    modules = {path.stem for path in package.iterdir()}
    assert not modules & set(sandlift.__all__)


def test_importing_the_package_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import sandlift; "
    code += "print(sorted(name for name in set(sys.modules) - before if 'sandlift' in name))"
    assert python(code) == "['sandlift']"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        getattr(sandlift, "frobnicate")  # noqa: B009  (mypy would refuse it)
