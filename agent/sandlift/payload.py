"""What is sent into a sandbox: the bundle of the helper's modules, its digest, and the command that starts it.

Nothing is written there and nothing stays.  The command line holds only the start text, which reads a
length and that many bytes from standard input, and runs them: the stage.  The stage reads the bundle.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import re
import sys
import zlib
from functools import cache

import sandlift_helper
from sandlift_helper import wire

# The interpreters that are tried, in order: the system's own first, since version managers' shims cost time.
PYTHONS = (
    "/usr/bin/python3",
    "python3",
    "python",
    *(f"python3.{minor}" for minor in range(13, 5, -1)),
    "/usr/libexec/platform-python",
)

# The helper's own watch over its host begins once it runs; until then an alarm ends a start that got stuck.
START_LIMIT_S = 60

# Holds no quote, backslash, dollar or exclamation mark, so it survives every login shell.  A buffer of one byte
# reads exactly what is asked for, so the rest of the input stays for the stage and the helper.
START = (
    "import io,signal,sys;signal.alarm(%d);sys.version_info<(3,6) and sys.exit(%d);sys.stdin.isatty() and sys.exit(%d);"
    "r=io.BufferedReader(io.FileIO(0,closefd=0),1);n=int(r.readline() or 0);s=r.read(n);"
    "sys.exit(%d) if len(s)<n or n<1 else exec(s)"
) % (START_LIMIT_S, wire.EXIT_PYTHON_OLD, wire.EXIT_TERMINAL, wire.EXIT_SHORT_PAYLOAD)

# In the place of the stage: reads the nonce and, instead of a bundle, the folder that the package lies in.
_LOCAL_STAGE = """\
import os, sys
head = r.readline().split()
sys.path.append(os.fsdecode(r.read(int(head[0]))))
sys.dont_write_bytecode = %r
from sandlift_helper.main import run
run(bytes.fromhex(head[1].decode()))
"""

_QUOTES = '"""'
# Of a parameter.
_ANNOTATION = re.compile(r""": (?:"[^"]*"|[\w.]+)(?=[,)]| = )""")
# Of a variable that gets its first value.
_VARIABLE = re.compile(r"""^([\w.]+): (?:"[^"]*"|[\w.]+) = """)
# Behind code, and with no quote in it, so that it is no part of a text.
_COMMENT = re.compile(r"""  # [^"']*$""")
_INDENT = 4
# A text, which stays as it is, or an operator that does not begin the line, with the spaces around it.
_SPACED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<=\S) ?([=!<>+\-|]=|[-=+*,<>%&|/:]) ?""")
_FOR_MYPY = ("MYPY = False", "if MYPY:")
# Names are bytes whatever the locale: a multibyte codec such as Big5 would not give them back as they were.
PYTHON_OPTIONS = ("-I", "-S", "-X", "utf8", "-c")


def without_prose(source: str) -> str:
    """Returns the source of one of our modules without comments, docstrings and what only mypy reads.

    Prose is a third of the bundle, and no sandbox reads it; nor does one need more than a space to indent by, or any
    around operators.  Lines keep their numbers.  A docstring becomes ``0``, so that a body which is nothing but a
    docstring stays one.  It relies on how these modules are written: triple quotes begin a line and are docstrings
    only, no other text goes over a line's end, and ``if MYPY:`` stands at the top level.  A test compares the syntax
    trees.
    """
    lines = []
    inside = for_mypy = in_signature = False
    for line in source.split("\n"):
        text = line.strip()
        for_mypy = line in _FOR_MYPY or (for_mypy and (not text or line.startswith(" ")))
        if for_mypy:
            line = ""
        elif inside:
            inside = not text.endswith(_QUOTES)
            line = ""
        elif text.startswith(_QUOTES):
            inside = text == _QUOTES or not text.endswith(_QUOTES)
            line = line[: line.index(_QUOTES)] + "0"
        elif text.startswith("#"):
            line = ""
        elif text.endswith(":") and ") -> " in text:
            line = line[: line.rindex(") -> ")] + "):"
            in_signature = text.startswith("def ")
        elif text.startswith("def "):
            in_signature = True
        if in_signature:
            line = _ANNOTATION.sub("", line)
            in_signature = not line.endswith(":")
        text = line.lstrip(" ")
        indent = (len(line) - len(text)) // _INDENT
        text = _COMMENT.sub("", _VARIABLE.sub(r"\1 = ", text))
        lines.append(" " * indent + _SPACED.sub(lambda found: found[1] or found[2], text))
    return "\n".join(lines)


@cache
def sources() -> dict[str, bytes]:
    """Returns the source of each module of the bundle by its name below the package; the package's own is ``""``."""
    names = {"": "__init__", **{f".{name}": name for name in sandlift_helper.MODULES}}
    return {name: _source(module) for name, module in names.items()}


def _source(module: str) -> bytes:
    # importlib.resources would say the same, and take longer to import than all of this takes.
    text = pkgutil.get_data("sandlift_helper", f"{module}.py")
    assert text is not None
    return without_prose(text.decode("utf-8")).encode()


def stage() -> bytes:
    """Returns the source of the stage."""
    return _source("_stage")


@cache
def bundle(operation: str) -> bytes:
    """Returns the compressed modules of an operation in the form that the stage reads."""
    wanted = ("", *(f".{name}" for name in (*sandlift_helper.COMMON, *sandlift_helper.OPERATIONS[operation], "main")))
    plain = b"".join(b"%s\0%d\0%s" % (name.encode(), len(sources()[name]), sources()[name]) for name in wanted)
    return zlib.compress(plain, 9)


@cache
def digest() -> str:
    """Returns the SHA-256 (hex) of everything that runs in the sandbox, for whichever operation.

    It covers the sources rather than their compressed form, which differs among builds of zlib.
    """
    summed = hashlib.sha256(START.encode() + b"\0" + stage())
    for name, text in sources().items():
        summed.update(b"\0%s\0%d\0" % (name.encode(), len(text)))
        summed.update(text)
    return summed.hexdigest()


def opening(nonce: bytes, operation: str) -> bytes:
    """Returns the bytes that start the helper for one operation: stage, then bundle; frames follow."""
    return _opening(stage(), nonce, bundle(operation))


def local_opening(nonce: bytes, operation: str) -> bytes:
    """Returns the same for this machine: the helper's modules are imported from where they are installed.

    So they need neither be packed nor compiled.  Where they are in an archive, it is the same.
    """
    (package,) = sandlift_helper.__path__
    if not os.path.isdir(package):
        return opening(nonce, operation)
    # Last on the path, what lies beside the package can stand for nothing of the standard library.
    text = _LOCAL_STAGE % sys.dont_write_bytecode
    return _opening(text.encode(), nonce, os.fsencode(os.path.dirname(package)))


def _opening(text: bytes, nonce: bytes, rest: bytes) -> bytes:
    return b"%d\n%s%d %s\n%s" % (len(text), text, len(rest), nonce.hex().encode(), rest)


def local_argv(python: str) -> list[str]:
    """Returns the command that starts the helper on this machine."""
    return [python, *PYTHON_OPTIONS, START]


def sandbox_argv(python: str | None = None) -> list[str]:
    """Returns the command that finds a Python in a sandbox and starts the helper on it.

    One ``sh`` script, without quotes of its own: it tries each interpreter, and goes on to the next where one
    is missing (126, 127), too old (96), or so old that it does not know the options (2).
    """
    names = " ".join([python] if python else PYTHONS)
    script = (
        # Python 3.6 knows no -X utf8, and takes bytes as they are in the locale C.
        "LC_ALL=C; export LC_ALL; o=0; for p in %s; do command -v $p >/dev/null 2>&1 || continue; "
        '$p %s "%s"; s=$?; case $s in 2|%d) o=1;; 126|127) ;; *) exit $s;; esac; done; '
        "test $o = 1 && exit %d; exit %d"
    ) % (names, " ".join(PYTHON_OPTIONS), START, wire.EXIT_PYTHON_OLD, wire.EXIT_PYTHON_OLD, wire.EXIT_NO_PYTHON)
    return ["sh", "-c", script]
