"""The format in which OpenSSH keeps host keys, read as OpenSSH reads it.

    [marker] names key-type base64 [comment]      a line of known_hosts
    key-type base64 [comment]                     a public key file; here it stands for any name

``names`` are patterns with ``*``, ``?`` and ``!``, or one name hashed as ``|1|salt|hash``.  ``@revoked``
refuses a key; ``@cert-authority`` is passed over, because host certificates are not judged here.

A host that is known by keys of another type only has *changed*, also for who accepts new hosts: else an
attacker would offer just a type that the victim has not seen yet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sandlift.errors import UsageError

Verdict = Literal["known", "unknown", "changed", "revoked"]
_SIZE_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """One line."""

    names: str
    """Patterns joined by commas; ``*`` for a line of a public key file."""
    key_type: str
    blob: bytes
    revoked: bool = False

    def line(self) -> str:
        """The line as OpenSSH reads it, without a newline."""
        return f"{'@revoked ' if self.revoked else ''}{self.names} {self.key_type} {_base64(self.blob)}"


class KnownHosts:
    """Host keys, and the judgement of an offered one."""

    def __init__(self, keys: Iterable[HostKey]) -> None:
        self.keys = tuple(keys)

    @classmethod
    def load(cls, paths: Sequence[str | os.PathLike[str]]) -> KnownHosts:
        """The keys of all files that exist; raises UsageError for one that cannot be read."""
        keys: list[HostKey] = []
        for path in paths:
            try:
                keys += parse(_read(path))
            except FileNotFoundError:
                continue
        return cls(keys)

    @classmethod
    def pinned(cls, path: str | os.PathLike[str]) -> KnownHosts:
        """The keys of one file that the user named; raises UsageError if it is missing or holds no key."""
        try:
            keys = parse(_read(path))
        except FileNotFoundError:
            raise UsageError(f"the host key file {os.fspath(path)!a} does not exist") from None
        if not keys:
            raise UsageError(
                f"the host key file {os.fspath(path)!a} holds no host key",
                hint="it takes public keys, or lines of known_hosts",
            )
        return cls(keys)

    def judge(self, names: Sequence[str], key_type: str, blob: bytes) -> Verdict:
        """What is known about a key that a host offers; the names are tried in turn (see ``host_names``)."""
        if any(key.revoked and key.blob == blob and _matches(key.names, name) for key in self.keys for name in names):
            return "revoked"
        for name in names:
            known = self._of(name)
            if any(key.key_type == key_type and key.blob == blob for key in known):
                return "known"
            # OpenSSH looks up "host" after "[host]:22022"; a mere difference there says nothing about this port.
            if known and name == names[0]:
                return "changed"
        return "unknown"

    def key_types(self, names: Sequence[str]) -> tuple[str, ...]:
        """The types by which the host is known, so that the server can be asked for one of them."""
        return tuple(dict.fromkeys(key.key_type for name in names for key in self._of(name)))

    def _of(self, name: str) -> list[HostKey]:
        return [key for key in self.keys if not key.revoked and _matches(key.names, name)]


def host_names(host: str, port: int) -> tuple[str, ...]:
    """The names under which a host's key is looked up, first the one under which it is written."""
    return (host.lower(),) if port == 22 else (f"[{host.lower()}]:{port}", host.lower())


def parse(text: str) -> list[HostKey]:
    """The keys of a file; lines that say nothing usable are passed over, as OpenSSH does."""
    keys = []
    for line in text.splitlines():
        words = line.split()
        revoked = bool(words) and words[0] == "@revoked"
        if revoked:
            del words[0]
        if len(words) >= 2 and (blob := _blob(*words[:2])) is not None:
            keys.append(HostKey(names="*", key_type=words[0], blob=blob, revoked=revoked))
        elif len(words) >= 3 and words[0][0] not in "#@" and (blob := _blob(*words[1:3])) is not None:
            keys.append(HostKey(names=words[0], key_type=words[1], blob=blob, revoked=revoked))
    return keys


def remember(path: str, name: str, key_type: str, blob: bytes) -> None:
    """Append a line to the user's file, making it if need be; raises UsageError when that cannot be done."""
    line = HostKey(names=name, key_type=key_type, blob=blob).line() + "\n"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "r+b", 0) as file:
            size_bytes = file.seek(0, os.SEEK_END)
            if size_bytes:
                file.seek(size_bytes - 1)
                if file.read(1) != b"\n":
                    line = "\n" + line
            file.write(line.encode())
    except OSError as error:
        raise UsageError(f"the new host key cannot be written to {path!a}: {error.strerror}") from None


def fingerprint(blob: bytes) -> str:
    """The form in which ``ssh-keygen -l`` shows a key."""
    return "SHA256:" + _base64(hashlib.sha256(blob).digest()).rstrip("=")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _matches_hash(patterns, name)
    found = False
    for pattern in patterns.lower().split(","):
        if pattern.startswith("!"):
            if _glob(pattern[1:], name):
                return False
        elif _glob(pattern, name):
            found = True
    return found


def _glob(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def _matches_hash(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    # SHA-1 is OpenSSH's format; it hides names and proves nothing.
    return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)


def _blob(key_type: str, text: str) -> bytes | None:
    """The key's bytes if they are of that type by their own account."""
    try:
        blob = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    name = key_type.encode("utf-8", "surrogateescape")
    return blob if blob.startswith(struct.pack(">I", len(name)) + name) else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _read(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_SIZE_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"the host key file {os.fspath(path)!a} cannot be read: {error.strerror}") from None
