"""Logging in with keys: which are offered, in which order, and what is said when none is accepted."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from sandlift.errors import AuthFailed

from .known_hosts import KnownHosts

if TYPE_CHECKING:
    import paramiko

PASSPHRASE_VARIABLE = "SANDLIFT_SSH_PASSPHRASE"
# Each offered key is an attempt to the server, and OpenSSH's ends the connection at the sixth.
KEYS_MAX = 5

Passphrase = Callable[[str], str | None]
"""Path of a key file → its passphrase, or None."""


def log_in(
    module: ModuleType,
    connection: paramiko.Transport,
    *,
    host: str,
    user: str,
    key_files: Sequence[str],
    only_files: bool,
    ask: Passphrase,
) -> None:
    """Offer keys until one is accepted; raises AuthFailed, which says what could not be tried."""
    locked: list[str] = []
    offered = 0
    with contextlib.closing(_offers(module, key_files, only_files, ask, locked)) as keys:
        for key in itertools.islice(_distinct(keys), KEYS_MAX):
            offered += 1
            if _accepts(module, connection, host, user, key):
                return
        if not offered and _accepts_anybody(module, connection, user):
            return
    hint = "check that `ssh HOST true` works, or name a key with --key-file"
    if locked:
        hint = f"the key {locked[0]!a} has a passphrase: load it into an agent, or set {PASSPHRASE_VARIABLE}"
    tried = f"{offered} key{'' if offered == 1 else 's'} offered" if offered else "no key to offer"
    raise AuthFailed(f"cannot reach {host}: the server does not accept the identity ({tried})", hint=hint)


def _accepts(module: ModuleType, connection: paramiko.Transport, host: str, user: str, key: paramiko.PKey) -> bool:
    try:
        connection.auth_publickey(user, key)
    except module.BadAuthenticationType:
        raise
    except module.AuthenticationException:
        # paramiko asks for the login service with each key: OpenSSH goes on until it has had enough, others
        # end the connection at the second.
        if not connection.is_active():
            raise AuthFailed(
                f"cannot reach {host}: the server does not accept the identity, and ended the connection",
                hint="name the one right key with --key-file",
            ) from None
    return connection.is_authenticated()


def _accepts_anybody(module: ModuleType, connection: paramiko.Transport, user: str) -> bool:
    """Whether the server needs no proof: some gateways know who comes already."""
    try:
        connection.auth_none(user)
    except module.BadAuthenticationType:
        return False
    except module.AuthenticationException:
        # Nothing was offered, so a connection that ends here was not refused: it was lost.
        if not connection.is_active():
            raise EOFError from None
    return connection.is_authenticated()


def _offers(
    module: ModuleType, key_files: Sequence[str], only_files: bool, ask: Passphrase, locked: list[str]
) -> Generator[paramiko.PKey, None, None]:
    """The keys to offer: named files first, then the agent's, then the user's own files."""
    if only_files:
        yield from _file_keys(module, key_files, ask, locked)
    wanted = _public_blobs(key_files) if only_files else None
    agent = module.Agent()
    try:
        yield from (key for key in agent.get_keys() if wanted is None or key.asbytes() in wanted)
    finally:
        agent.close()
    if not only_files:
        yield from _file_keys(module, key_files, ask, locked)


def _distinct(keys: Iterator[paramiko.PKey]) -> Iterator[paramiko.PKey]:
    seen: set[bytes] = set()
    for key in keys:
        if (blob := key.asbytes()) not in seen:
            seen.add(blob)
            yield key


def _public_blobs(key_files: Sequence[str]) -> set[bytes]:
    """The public keys beside private ones, by which an agent's keys are told to be those of the files."""
    public = [os.path.expanduser(path) + ".pub" for path in key_files]
    return {key.blob for key in KnownHosts.load(public).keys}


def _file_keys(module: ModuleType, paths: Sequence[str], ask: Passphrase, locked: list[str]) -> Iterator[paramiko.PKey]:
    """The keys of those files that exist and can be opened; what needs a passphrase goes to ``locked``."""
    seen: set[str] = set()
    for path in map(os.path.expanduser, paths):
        if path in seen or not os.path.exists(path):
            continue
        seen.add(path)
        key = _load_key(module, path, None)
        if key is None and (passphrase := ask(path)) is not None:
            key = _load_key(module, path, passphrase)
        if key is None:
            locked.append(path)
        else:
            yield key


def _load_key(module: ModuleType, path: str, passphrase: str | None) -> paramiko.PKey | None:
    """The private key of a file; None if it needs a passphrase, or another one."""
    try:
        key: paramiko.PKey = module.PKey.from_path(path, None if passphrase is None else passphrase.encode())
        return key
    except (TypeError, module.PasswordRequiredException):
        return None
    except OSError as error:
        raise AuthFailed(f"the key file {path!a} cannot be read: {error.strerror}") from None
    except (ValueError, module.SSHException) as error:
        if passphrase is not None:
            return None
        raise AuthFailed(f"the key file {path!a} cannot be used: {type(error).__name__}") from None
