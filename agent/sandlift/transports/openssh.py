"""The user's own ``ssh``: configuration, agent, jump hosts, tokens and known hosts stay in force.

Only what would break a byte stream or serve a hostile sandbox is set: no terminal, no escape character,
no forwarding of any kind (an agent forwarded into a sandbox could be used by whoever lives there), no
local or remote command of the configuration.  ssh keeps the first value that it sees, so the user's extra
options stand before ours; only a shared connection and a pinned host key stand before theirs.

Without ``reuse`` every command is a connection of its own.  With it, a master connection is made at the
first command, in a private folder, and serves up to ``SESSIONS_MAX`` commands at a time until ``close``; for more
at once further masters are made.  A server that allows fewer on a connection refuses a session, and ssh
then makes a connection for that command alone.

Either way a start has its turn in the queue of its server's handshakes, until the command's first byte.

ssh exits with 255 for its own failures, for a command killed by a signal and for a command's own 255, so
the text on stderr decides what happened.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandlift.deadline import Deadline
from sandlift.errors import (
    AuthFailed,
    HostKeyChanged,
    HostKeyUnknown,
    Refused,
    SandliftError,
    Unreachable,
    UsageError,
)
from sandlift.rate import RateLimit
from sandlift.targets import USER_SHOWN_MAX

from .base import Capabilities, Channel, harmless_text, last_line
from .command import CommandChannel, CommandTransport, start
from .handshakes import RETRIES_MAX, gate_of, pause_s
from .known_hosts import KnownHosts
from .openssh_channel import OpenSSHChannel, was_dropped

CONNECT_MAX_S = 30
SESSIONS_MAX = 10
"""Commands at once on one connection: what OpenSSH's server allows (``MaxSessions 10``)."""
# 9,000 bytes: dropbear drops the connection for a longer command; OpenSSH's server takes far more.
CAPABILITIES = Capabilities(
    duplex=True, max_argument_bytes=9_000, max_command_bytes=9_000, max_call_s=None, link_cost="cheap"
)
_OPTIONS = (
    *("-T", "-a", "-x", "-e", "none"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
)
# A control socket's path: 104 bytes on some systems, and ssh appends 17 while it makes the socket.
_SOCKET_PATH_MAX = 104 - 17 - 1


@dataclass(slots=True, kw_only=True)
class _Master:
    """A connection that commands share."""

    channel: CommandChannel
    path: str
    """Its control socket."""
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class _Sign:
    """A text on ssh's stderr, and what it means."""

    pattern: str
    """Compiled when an error is explained: a connection waits for none of it."""
    error: type[SandliftError]
    meaning: str
    hint: str = ""


# In this order: a changed key is followed by "verification failed", a jump host's trouble by "connection closed".
_SIGNS = (
    _Sign(
        r"HOST IDENTIFICATION HAS CHANGED|\bREVOKED\b.*HOST KEY|host key .*revoked",
        HostKeyChanged,
        "the host key is not the known one",
        "find out why before anything else; if the change is right, remove the old key with ssh-keygen -R",
    ),
    _Sign(
        r"Host key verification failed|No \S+ host key is known for",
        HostKeyUnknown,
        "the host key is not known",
        "connect once with ssh and compare the fingerprint, or pin the key with --host-key-file",
    ),
    _Sign(
        r"Permission denied \(|Too many authentication failures|No supported authentication methods",
        AuthFailed,
        "the server does not accept the offered identity",
        "check that `ssh HOST true` works without a question; load the key into an agent if it has a passphrase",
    ),
    _Sign(
        r"Bad configuration option|Bad owner or permissions on|unsupported option|illegal option|^usage: ssh",
        UsageError,
        "ssh does not accept its options or configuration",
    ),
    _Sign(r"Connection refused", Refused, "the connection was refused", "check the port, and that sshd runs there"),
    _Sign(r"administratively prohibited|open failed", Refused, "the server refused the session"),
    _Sign(
        r"Could not resolve hostname|Name or service not known|nodename nor servname",
        Unreachable,
        "the host name is not known",
        "check the name, or the alias in the ssh configuration",
    ),
    _Sign(r"timed out|Timeout, server .* not responding", Unreachable, "no answer in time"),
    _Sign(r"No route to host|Network is unreachable|Host is down", Unreachable, "there is no way to the host"),
    _Sign(
        r"kex_exchange_identification|Connection (closed|reset)",
        Unreachable,
        "the server ended the connection at once",
        "it may have too many connections already; try again",
    ),
)


def explain_ssh(status: int | None, stderr: bytes, *, host: str, secret: str | None = None) -> SandliftError | None:
    """ssh's own failure as an error of ours; None unless the status is 255."""
    if status != 255:
        return None
    text = harmless_text(stderr, secret=secret)
    for sign in _SIGNS:
        if re.search(sign.pattern, text, re.IGNORECASE):
            return sign.error(f"cannot reach {host} with ssh: {sign.meaning}", hint=sign.hint, stderr=text)
    said = last_line(text)
    return Unreachable(
        f"ssh to {host} ended before the stream began" + (f": {said}" if said else ""),
        hint="try the same host with ssh by hand",
        stderr=text,
    )


class OpenSSH:
    """Runs commands on a host with the OpenSSH client; see ``Transport`` for the contract.

    ``ssh_options`` are further words for ssh (``-F FILE``, ``-o Name=value``).  ``host_key_file`` pins the
    host's key (public keys, or lines of known_hosts) in place of the known hosts, ``accept_new_host_key`` lets
    ssh accept and write down the key of a host that was never seen, ``key_files`` are the only keys offered.
    """

    name = "ssh"
    capabilities = CAPABILITIES

    def __init__(
        self,
        host: str,
        *,
        user: str | None = None,
        port: int | None = None,
        ssh_options: Sequence[str] = (),
        host_key_file: str | None = None,
        accept_new_host_key: bool = False,
        key_files: Sequence[str] = (),
        reuse: bool = False,
        rate: RateLimit | None = None,
    ) -> None:
        self.rate = rate
        self._gate = gate_of(host, port or 22)
        self._host = host
        self._user = user
        self._port = port
        self._ssh_options = tuple(ssh_options)
        self._accept_new = accept_new_host_key
        self._key_files = tuple(key_files)
        self._secret = user if user is not None and len(user) > USER_SHOWN_MAX else None
        self._pinned = KnownHosts.pinned(host_key_file) if host_key_file is not None else None
        self._reuse = reuse
        self._lock = threading.Lock()
        self._folder: str | None = None
        # Held while a master is made, by one thread at a time.
        self._making = threading.Lock()
        self._masters: list[_Master] = []
        self._masters_made = 0

    def open(self, argv: Sequence[str], *, deadline: Deadline) -> Channel:
        """Start ssh in its turn; with ``reuse``, first a master connection, whose failure is raised here."""
        turn = self._gate.enter(deadline, f"waiting to connect to {self._host} with ssh")
        master: _Master | None = None
        shared: tuple[str, ...] = ()
        try:
            if self._reuse:
                master = self._take_master(deadline)
                shared = ("-o", "ControlMaster=no", "-o", f"ControlPath={master.path}")

            def begin() -> CommandChannel:
                # The caller's deadline is given to ssh in whole seconds, so that it can say what it waited for.
                return self._command(self._prefix(deadline, shared)).begin(argv, deadline=deadline)

            return OpenSSHChannel(begin, turn, deadline=deadline, closed=lambda: self._give_back(master))
        except BaseException:
            self._give_back(master)
            turn.leave()
            raise

    def explain(self, channel: Channel) -> SandliftError | None:
        """Reads ssh's exit status and stderr."""
        return self._command(()).explain(channel)

    def close(self) -> None:
        """End the master connections, and remove the private folder."""
        with self._lock:
            masters, self._masters = self._masters, []
        for master in masters:
            master.channel.close(grace_s=0)
        with self._lock:
            if self._folder is not None:
                import shutil

                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _command(self, prefix: Sequence[str]) -> CommandTransport:
        return CommandTransport(
            prefix,
            quoting="shell",
            capabilities=self.capabilities,
            name=self.name,
            explain=lambda status, stderr: explain_ssh(status, stderr, host=self._host, secret=self._secret),
            own_session=not _can_ask(),
        )

    def _prefix(self, deadline: Deadline, shared: Sequence[str]) -> tuple[str, ...]:
        connect_s = max(1, math.ceil(deadline.remaining_s(CONNECT_MAX_S)))
        words = [os.environ.get("SANDLIFT_SSH") or "ssh", *shared]
        if self._pinned is not None:
            path = os.path.join(self._private_folder(), "hosts")
            words += ["-o", f"UserKnownHostsFile={path}", "-o", "GlobalKnownHostsFile=/dev/null"]
            words += ["-o", "StrictHostKeyChecking=yes"]
        elif self._accept_new:
            words += ["-o", "StrictHostKeyChecking=accept-new"]
        words += [*self._ssh_options, *_OPTIONS]
        words += ["-o", f"BatchMode={'no' if _can_ask() else 'yes'}", "-o", f"ConnectTimeout={connect_s}"]
        for path in self._key_files:
            words += ["-i", path]
        if self._key_files:
            words += ["-o", "IdentitiesOnly=yes"]
        if self._port is not None:
            words += ["-p", str(self._port)]
        if self._user is not None:
            words += ["-l", self._user]
        return (*words, "--", self._host)

    def _private_folder(self) -> str:
        """A folder of mode 0700 with a short path, made once; the pinned keys lie in it."""
        with self._lock:
            return self._make_folder()

    def _make_folder(self) -> str:
        if self._folder is None:
            import tempfile

            folder = tempfile.mkdtemp(prefix="sl-")
            if len(os.fsencode(folder)) + len("/c9999") > _SOCKET_PATH_MAX and os.path.isdir("/tmp"):
                os.rmdir(folder)
                folder = tempfile.mkdtemp(prefix="sl-", dir="/tmp")
            self._folder = folder
            if self._pinned is not None:
                lines = "".join(key.line() + "\n" for key in self._pinned.keys)
                with open(os.path.join(folder, "hosts"), "x", encoding="utf-8") as file:
                    file.write(lines)
        return self._folder

    def _take_master(self, deadline: Deadline) -> _Master:
        """A master with room for one more command, made if there is none; given back with `_give_back`."""
        while not self._making.acquire(timeout=deadline.slice_s()):
            deadline.check(f"waiting to connect to {self._host} with ssh")
        try:
            master = self._free_master()
            if master is None:
                # The folder is there before its name is needed: making it takes the same lock.
                self._private_folder()
                master = self._make_master(deadline)
                with self._lock:
                    self._masters.append(master)
            with self._lock:
                master.sessions += 1
            return master
        finally:
            self._making.release()

    def _free_master(self) -> _Master | None:
        """The first living master that has room; dead ones are put away."""
        with self._lock:
            dead = [master for master in self._masters if master.channel.wait(0) is not None]
            self._masters = [master for master in self._masters if master not in dead]
            free = next((master for master in self._masters if master.sessions < SESSIONS_MAX), None)
        for master in dead:
            master.channel.close(grace_s=0)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(master.path)
        return free

    def _give_back(self, master: _Master | None) -> None:
        if master is not None:
            with self._lock:
                master.sessions -= 1

    def _make_master(self, deadline: Deadline) -> _Master:
        """Log in, again where the server drops the handshake."""
        tries = 1
        while True:
            self._masters_made += 1
            path = os.path.join(self._private_folder(), f"c{self._masters_made}")
            words = self._prefix(deadline, ("-M", "-N", "-o", f"ControlPath={path}", "-o", "ControlPersist=no"))
            command = self._command(words)
            channel = start(words, own_session=not _can_ask(), cancel=deadline.cancel, missing=command.missing)
            try:
                self._await_master(channel, path, command, deadline)
                return _Master(channel=channel, path=path)
            except Unreachable:
                dropped = was_dropped(channel.wait(0), channel.stderr_tail())
                channel.close(grace_s=0)
                if not dropped or tries > RETRIES_MAX:
                    raise
            except BaseException:
                channel.close(grace_s=0)
                raise
            deadline.pause(pause_s(tries), f"connecting to {self._host} with ssh")
            tries += 1

    def _await_master(self, master: CommandChannel, path: str, command: CommandTransport, deadline: Deadline) -> None:
        """Wait for the socket, which ssh makes when it is logged in, or for its failure."""
        while not os.path.exists(path):
            deadline.check(f"connecting to {self._host} with ssh")
            if master.wait(0) is not None:
                text = harmless_text(master.stderr_tail(), secret=self._secret)
                raise command.explain(master) or Unreachable(
                    f"ssh to {self._host} ended instead of connecting", stderr=text
                )
            time.sleep(0.01)


def _can_ask() -> bool:
    """Whether ssh may ask the user for a passphrase: our stdin is a terminal."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False
