"""What is set once instead of on every command line: the store and the limits.

Flags count before the environment, the environment before the configuration file, and that before the defaults;
each limit by itself.  The environment has ``SANDLIFT_STORE``, ``SANDLIFT_LIMITS`` (``entries=1000,silence_s=5``,
as with ``--limit``) and ``SANDLIFT_CONFIG``, which names the file; empty, it says that there is none.  Otherwise
the file is ``config.toml`` in the user's configuration folder, and need not be there::

    store = "~/snapshots"

    [limits]
    file_bytes = "20G"
    silence_s = 30

The file decides where snapshots go and how much a sandbox may send, so one that somebody else can write is
refused, and a key that nobody knows is an error: a limit that is misspelled would be no limit.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sandlift.errors import UsageError

KEYS = ("store", "limits")
FILE_MAX_BYTES = 1 << 20
XDG_PLATFORMS = ("linux",)

_INT_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"([0-9]+)([KMGT]?)", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What environment and file set; empty where they set nothing."""

    store: str = ""
    """Where snapshots are kept, as `Store.open` takes it."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits by name, those alone that are set."""


def read_configuration(environ: Mapping[str, str] | None = None) -> Configuration:
    """Returns what the environment and the configuration file set.

    Raises UsageError that names the variable, or file and key, and what exists.
    """
    given = os.environ if environ is None else environ
    path = configuration_path(given)
    from_file = Configuration() if path is None else _read_file(path, must_exist="SANDLIFT_CONFIG" in given)
    texts = [text for text in re.split(r"[,\s]+", given.get("SANDLIFT_LIMITS", "")) if text]
    limits = dict(from_file.limits)
    for text in texts:
        limits.update((parse_limit(text, "SANDLIFT_LIMITS"),))
    return Configuration(store=given.get("SANDLIFT_STORE") or from_file.store, limits=limits)


def configuration_path(environ: Mapping[str, str]) -> Path | None:
    """Returns where the configuration file is, or would be; None when there is to be none."""
    named = environ.get("SANDLIFT_CONFIG")
    if named is not None:
        return Path(named) if named else None
    if sys.platform in XDG_PLATFORMS:
        # As platformdirs has it, whose import would stand before every connection.
        folder = environ.get("XDG_CONFIG_HOME", "").strip() or os.path.expanduser("~/.config")
        return Path(folder, "sandlift", "config.toml")
    import platformdirs

    return Path(platformdirs.user_config_path("sandlift", appauthor=False)) / "config.toml"


def parse_limit(text: str, where: str) -> tuple[str, float]:
    """Returns name and value of a limit that is written NAME=VALUE; *where* says where.  Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or name not in limit_names():
        names = ", ".join(limit_names())
        raise UsageError(f"{where} takes NAME=VALUE, not {text!a}", hint=f"the names are {names}")
    return name, limit_value(name, value, f"{where} {text!a}")


def limit_names() -> list[str]:
    """Returns the names of all limits."""
    from sandlift.limits import Limits

    return [field.name for field in fields(Limits)]


def limit_value(name: str, value: object, where: str) -> float:
    """Returns the value of the limit *name*: a number, or text as people write it.  Raises UsageError."""
    if name.endswith("_s"):
        try:
            seconds = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if not 0.1 <= seconds <= 86_400:
            raise UsageError(f"{where}: the value is no number of seconds from 0.1 to 86400")
        return seconds
    number = size_value(value)
    if number is None:
        raise UsageError(f"{where}: the value is no number above 0", hint="for example 20G, or 500000")
    return number


def size_value(value: object) -> int | None:
    """Returns a whole number above 0, also from text, where K, M, G or T may follow; else None."""
    number = value if type(value) is int else 0
    if isinstance(value, str) and len(value) < 21 and (match := _NUMBER.fullmatch(value)):
        number = int(match[1]) * _FACTORS[match[2].upper()]
    return number if 0 < number <= _INT_MAX else None


def _read_file(path: Path, *, must_exist: bool) -> Configuration:
    where = f"the configuration {str(path)!a}"
    text = _read_text(path, where, must_exist=must_exist)
    if text is None:
        return Configuration()
    import tomllib

    try:
        table = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not valid TOML: {error}", hint="see https://toml.io") from None
    _check_keys(table, KEYS, where, "")
    limits = table.get("limits", {})
    if not isinstance(limits, dict):
        raise UsageError(f"{where}: limits is no table", hint="write a line [limits], and below it entries = 1000000")
    _check_keys(limits, limit_names(), where, "limits.")
    return Configuration(
        store=_read_store(table["store"], where) if "store" in table else "",
        limits={name: limit_value(name, value, f"{where}: limits.{name}") for name, value in limits.items()},
    )


def _read_text(path: Path, where: str, *, must_exist: bool) -> bytes | None:
    """Returns what the file holds, or None when it is not there and need not be.  Raises UsageError."""
    try:
        # Who can exchange the file for a pipe must not make us wait for him.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not must_exist:
            return None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "SANDLIFT_CONFIG names it; empty, it says that there is none" if must_exist else ""
        raise UsageError(f"{where} cannot be read: {reason}", hint=hint) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{where} is no file")
        if status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{where} belongs to another user", hint="make one of your own")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UsageError(f"{where} can be written by others", hint=f"chmod go-w {str(path)!a}")
        with open(fd, "rb", closefd=False) as file:
            text = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(text) > FILE_MAX_BYTES:
        raise UsageError(f"{where} is over 1 MiB")
    return text


def _check_keys(table: Mapping[str, Any], known: list[str] | tuple[str, ...], where: str, prefix: str) -> None:
    for key in table:
        if key not in known:
            names = ", ".join(prefix + name for name in known)
            raise UsageError(f"{where}: the key {(prefix + key)!a} is not known", hint=f"there are {names}")


def _read_store(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: store is no text", hint='for example store = "/srv/snapshots"')
    home = os.path.expanduser(value)
    if not os.path.isabs(home) and not _SCHEME.match(home):
        # It would be another store in every folder.
        raise UsageError(f"{where}: store is no absolute path: {value!a}", hint="begin it with / or ~/")
    return home
