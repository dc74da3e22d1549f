"""What a test needs from the machine: skipped with the command that supplies it, or failed where all must run."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where servers lie that are not on an ordinary user's PATH."""

PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ssh-agent": "openssh-client",
    "rsync": "rsync",
    "zstd": "zstd",
    "git": "git",
    "bsdtar": "libarchive-tools",
    "busybox": "busybox",
    "xz": "xz-utils",
    "pzstd": "zstd",
    "node": "nodejs",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "strace": "strace",
    "mount": "mount",
    "umount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


def find_program(name: str) -> str | None:
    """The absolute path of a program, looked for on PATH and among the system's servers."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM_FOLDERS))
    found = shutil.which(name, path=path)
    return os.path.abspath(found) if found else None


def require(*programs: str) -> None:
    """Skip the test unless all programs are here; with SANDLIFT_REQUIRE_ALL=1 fail it."""
    for name in programs:
        if find_program(name) is None:
            lacking(f"{name} is not installed: apt-get install {PACKAGES.get(name, name)}, or scripts/setup --services")


def lacking(reason: str) -> NoReturn:
    """Skip for that reason, which ends with how to supply what is missing; fail where all must run."""
    if os.environ.get("SANDLIFT_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
