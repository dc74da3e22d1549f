"""A Python that the kernel refuses some system calls to, as an old kernel or a container's filter does.

`write_wrapper` makes a program that installs a real seccomp filter (seccomp(2)) and then becomes the interpreter; its
children inherit the filter.  Run by that interpreter itself, so that nothing needs to be compiled.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path

NUMBERS = {
    "x86_64": {
        "fsync": 74,
        "rename": 82,
        "renameat": 264,
        "syncfs": 306,
        "renameat2": 316,
        "landlock_create_ruleset": 444,
    },
    "aarch64": {
        "renameat": 38,
        "fsync": 82,
        "syncfs": 267,
        "renameat2": 276,
        "landlock_create_ruleset": 444,
    },
}
"""System calls by machine; a machine that is not listed cannot run these tests."""

KILL = -1
"""In the place of an error's number: the process dies."""

_PROGRAM = """#!{python} -IS
import ctypes, os, struct, sys
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
code = struct.pack("=HBBI", LOAD, 0, 0, 0)
for number, what in {calls!r}:
    code += struct.pack("=HBBI", EQUAL, 0, 1, number)
    code += struct.pack("=HBBI", RETURN, 0, 0, KILL_PROCESS if what < 0 else ERRNO | what)
code += struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
kept = ctypes.create_string_buffer(code, len(code))
program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
prctl = ctypes.CDLL(None, use_errno=True).prctl
null = ctypes.c_ulong(0)
if prctl(38, ctypes.c_ulong(1), null, null, null) or prctl(22, ctypes.c_ulong(2), program, null, null):
    sys.exit("no filter: " + os.strerror(ctypes.get_errno()))
os.execv({python!r}, [{python!r}] + sys.argv[1:])
"""


def is_known_machine() -> bool:
    """Whether this machine's system calls are listed."""
    return sys.platform == "linux" and os.uname().machine in NUMBERS


def write_wrapper(path: Path, refused: Mapping[str, int], *, python: str = sys.executable) -> str:
    """Write the program; *refused* names system calls, and the error that each gives, or `KILL`.  Returns its path."""
    numbers = NUMBERS[os.uname().machine]
    calls = [(numbers[name], what) for name, what in refused.items() if name in numbers]
    path.write_text(_PROGRAM.format(python=os.path.realpath(python), calls=calls))
    path.chmod(0o755)
    return str(path)


ENOSYS, EPERM = errno.ENOSYS, errno.EPERM
