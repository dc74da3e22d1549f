"""SSH inside the process, with paramiko: few connections, many commands.

For places without an ``ssh`` program.  Of the user's ssh configuration it honours HostName, HostKeyAlias,
Port, User, IdentityFile and IdentitiesOnly; ProxyJump and ProxyCommand are refused with a word about ssh://.

The host key is checked before anything is proven to the server: against the user's and the system's known
hosts, or against a pinned key.  An unknown host is refused, unless the caller accepts new ones, which are
then written down; a changed key is refused always.

A connection carries up to ``SESSIONS_MAX`` commands at once, or as many as its server allows; for more a further
one is made, in its turn among the server's handshakes, and again where the server drops the handshake.

Connecting runs in a thread that is waited for in slices, so that a cancel or a deadline is seen whatever
paramiko waits for; the connection is then closed under it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from sandlift.deadline import Deadline
from sandlift.errors import (
    HostKeyChanged,
    HostKeyUnknown,
    MissingExtra,
    SandliftError,
    Truncated,
    Unreachable,
)
from sandlift.rate import RateLimit

from .base import Capabilities, Channel, shell_command
from .dialing import dial
from .handshakes import RETRIES_MAX, Turn, gate_of, pause_s
from .known_hosts import KnownHosts, fingerprint, host_names, remember
from .paramiko_channel import ParamikoChannel
from .paramiko_errors import map_error
from .paramiko_login import PASSPHRASE_VARIABLE, Passphrase, log_in
from .paramiko_place import Place, find_place

if TYPE_CHECKING:
    import paramiko

CONNECT_MAX_S = 30.0
SESSIONS_MAX = 10
"""Commands at once on one connection: what OpenSSH's server allows (``MaxSessions 10``)."""
KEEPALIVE_S = 15
KNOWN_HOSTS = "~/.ssh/known_hosts"
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
CAPABILITIES = Capabilities(
    duplex=True, max_argument_bytes=9_000, max_command_bytes=9_000, max_call_s=None, link_cost="dear"
)


@dataclass(slots=True, kw_only=True, eq=False)
class _Shared:
    """A connection, and how many commands are on it."""

    connection: paramiko.Transport
    sessions: int = 0
    room: int = SESSIONS_MAX


class _Dropped(Exception):
    """The server hung up before it had said its name; the cause is what paramiko made of it."""


class ParamikoTransport:
    """Runs commands on a host over shared connections; see ``Transport`` for the contract.

    ``host_key_file`` pins the host's key, ``accept_new_host_key`` accepts a host that was never seen and
    appends it to the first of ``known_hosts_files`` (default: the user's and the system's).  ``key_files`` are
    the only keys offered; without them the agent's, the configuration's and the user's own are tried.
    ``passphrase`` is asked for a key that needs one, after the variable SANDLIFT_SSH_PASSPHRASE.
    ``config_file`` None reads no configuration.  Raises MissingExtra when paramiko is not installed.
    """

    name = "paramiko"
    capabilities = CAPABILITIES

    def __init__(
        self,
        host: str,
        *,
        user: str | None = None,
        port: int | None = None,
        host_key_file: str | None = None,
        accept_new_host_key: bool = False,
        key_files: Sequence[str] = (),
        passphrase: Passphrase | None = None,
        known_hosts_files: Sequence[str] | None = None,
        config_file: str | None = "~/.ssh/config",
        rate: RateLimit | None = None,
    ) -> None:
        self.rate = rate
        self._paramiko = _load()
        self._host = host
        self._user = user
        self._port = port
        self._pinned = KnownHosts.pinned(host_key_file) if host_key_file is not None else None
        self._accept_new = accept_new_host_key
        self._key_files = tuple(key_files)
        self._passphrase = passphrase
        files = (KNOWN_HOSTS, SYSTEM_KNOWN_HOSTS) if known_hosts_files is None else known_hosts_files
        self._known_hosts_files = tuple(os.path.expanduser(path) for path in files)
        self._config_file = config_file
        self._connect_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._connections: list[_Shared] = []
        self._lost: weakref.WeakKeyDictionary[paramiko.Transport, BaseException] = weakref.WeakKeyDictionary()

    def open(self, argv: Sequence[str], *, deadline: Deadline) -> Channel:
        """Start a command, on a new connection if there is none with room for it."""
        command = shell_command(argv, self.capabilities)
        deadline.check(f"connecting to {self._host}")
        attempt = _Attempt()
        thread = threading.Thread(
            target=self._attempt, args=(attempt, command, deadline), name="sandlift-connect", daemon=True
        )
        thread.start()
        try:
            while not attempt.finished.wait(deadline.slice_s()):
                deadline.check(f"connecting to {self._host}")
        except BaseException:
            if attempt.abandon():
                self._drop(attempt.connection)
                thread.join(0.5)
            elif attempt.channel is not None:
                attempt.channel.close(grace_s=0)
            raise
        thread.join(0.5)
        if attempt.error is not None:
            if deadline.cancelled:
                # The connecting thread may have seen the cancel first, and made an error of its own of it.
                deadline.check(f"connecting to {self._host}")
            raise map_error(attempt.error, self._host)
        assert attempt.channel is not None
        return attempt.channel

    def explain(self, channel: Channel) -> SandliftError | None:
        """The loss of the connection, if it is lost; the command's own failure is not for a transport to tell."""
        connection = channel.connection if isinstance(channel, ParamikoChannel) else None
        if connection is None or connection.is_active():
            return None
        # paramiko tells its reason once only, and several channels may ask.
        with self._state_lock:
            lost = connection.get_exception() or self._lost.get(connection)
            if lost is not None:
                self._lost[connection] = lost
        if lost is None:
            return Truncated(f"the connection to {self._host} was closed by the server")
        return map_error(lost, self._host)

    def close(self) -> None:
        """Close the connections."""
        with self._state_lock:
            connections, self._connections = self._connections, []
        for shared in connections:
            self._drop(shared.connection)

    def _attempt(self, attempt: _Attempt, command: str, deadline: Deadline) -> None:
        """The thread of one ``open``: leaves a channel or an error in the attempt."""
        channel = None
        turn: Turn | None = None
        try:
            place = find_place(self._paramiko, self._host, self._user, self._port, self._key_files, self._config_file)
            gate = gate_of(place.host, place.port)
            turn = gate.enter(deadline, f"waiting to connect to {self._host}")
            while channel is None:
                deadline.check(f"connecting to {self._host}")
                shared, fresh = self._take(place, attempt, deadline)
                try:
                    channel = self._begin(shared, command, turn, deadline)
                except self._paramiko.ChannelException:
                    if not self._shrink(shared) and fresh:
                        raise
                except BaseException:
                    self._give_back(shared)
                    raise
        except BaseException as error:
            attempt.error = error
            if turn is not None:
                turn.leave()
        attempt.channel = channel
        if not attempt.finish() and channel is not None:
            channel.close(grace_s=0)

    def _begin(self, shared: _Shared, command: str, turn: Turn, deadline: Deadline) -> ParamikoChannel:
        session = shared.connection.open_session(timeout=deadline.remaining_s(CONNECT_MAX_S))
        session.exec_command(command)
        return ParamikoChannel(
            session,
            drop=lambda: self._drop(shared.connection),
            turn=turn,
            closed=lambda: self._give_back(shared),
            cancel=deadline.cancel,
        )

    def _take(self, place: Place, attempt: _Attempt, deadline: Deadline) -> tuple[_Shared, bool]:
        """A connection with room for one more command, and whether it is new; only one thread connects at a time."""
        while not self._connect_lock.acquire(timeout=deadline.slice_s()):
            deadline.check(f"connecting to {self._host}")
        try:
            with self._state_lock:
                dead = [shared for shared in self._connections if not shared.connection.is_active()]
                self._connections = [shared for shared in self._connections if shared not in dead]
                free = next((shared for shared in self._connections if shared.sessions < shared.room), None)
                if free is not None:
                    free.sessions += 1
            for shared in dead:
                self._drop(shared.connection)
            if free is not None:
                return free, False
            made = _Shared(connection=self._connect(place, attempt, deadline), sessions=1)
            with self._state_lock:
                self._connections.append(made)
            # From here on other threads may use it: this attempt must not close it.
            attempt.connection = None
            return made, True
        finally:
            self._connect_lock.release()

    def _give_back(self, shared: _Shared) -> None:
        with self._state_lock:
            shared.sessions -= 1

    def _shrink(self, shared: _Shared) -> bool:
        """A server has refused one session more: takes that back, and no more are tried; False if it was the only one.

        A server counts a command that has just ended for a while longer, so an old connection may refuse the first.
        """
        with self._state_lock:
            shared.sessions -= 1
            shared.room = max(1, min(shared.room, shared.sessions))
            if shared.sessions:
                return True
            self._connections = [other for other in self._connections if other is not shared]
        self._drop(shared.connection)
        return False

    def _connect(self, place: Place, attempt: _Attempt, deadline: Deadline) -> paramiko.Transport:
        """Log in, again where the server drops the handshake."""
        tries = 1
        while True:
            try:
                return self._log_in(place, attempt, deadline.sooner(CONNECT_MAX_S))
            except _Dropped as drop:
                if tries > RETRIES_MAX:
                    raise drop.__cause__ or EOFError() from None
            deadline.pause(pause_s(tries), f"connecting to {self._host}")
            tries += 1

    def _log_in(self, place: Place, attempt: _Attempt, limit: Deadline) -> paramiko.Transport:
        try:
            sock = dial(place.host, place.port, limit)
        except ConnectionResetError as error:
            raise _Dropped from error
        connection: paramiko.Transport | None = None
        try:
            connection = self._paramiko.Transport(sock)
            attempt.connection = connection
            known = self._pinned or KnownHosts.load(self._known_hosts_files)
            names = host_names(place.key_name, place.port)
            _prefer(connection, known.key_types(names))
            limit_s = limit.remaining_s(CONNECT_MAX_S)
            connection.banner_timeout = connection.auth_timeout = limit_s
            connection.handshake_timeout = limit_s
            self._shake_hands(connection, limit)
            self._check_host_key(connection, known, names)
            log_in(
                self._paramiko,
                connection,
                host=self._host,
                user=place.user,
                key_files=place.key_files,
                only_files=place.only_files,
                ask=self._ask,
            )
            connection.set_keepalive(KEEPALIVE_S)
        except BaseException:
            self._drop(connection)
            sock.close()
            raise
        return connection

    def _shake_hands(self, connection: paramiko.Transport, limit: Deadline) -> None:
        ready = threading.Event()
        connection.start_client(event=ready)
        while not ready.wait(limit.slice_s()):
            if limit.over:
                raise Unreachable(f"cannot reach {self._host}: the server does not answer as an SSH server would")
        if not connection.is_active():
            error = connection.get_exception() or EOFError()
            # paramiko wraps an end of the stream, a reset and a time-out in the same words.
            gone = (EOFError, ConnectionError)
            lost = isinstance(error, gone) or isinstance(error.__context__, gone)
            if lost and not connection.remote_version:
                raise _Dropped from error
            raise error

    def _check_host_key(self, connection: paramiko.Transport, known: KnownHosts, names: tuple[str, ...]) -> None:
        key = connection.get_remote_server_key()
        key_type, blob = key.get_name(), key.asbytes()
        verdict = known.judge(names, key_type, blob)
        if verdict == "known":
            return
        print_of_key = fingerprint(blob)
        if verdict in ("changed", "revoked") or self._pinned is not None:
            raise HostKeyChanged(
                f"cannot reach {self._host}: its host key is "
                + ("revoked" if verdict == "revoked" else "not the known one"),
                hint="find out why before anything else; if the change is right, correct the known hosts",
                key_type=key_type,
                fingerprint=print_of_key,
            )
        if not self._accept_new or not self._known_hosts_files:
            raise HostKeyUnknown(
                f"cannot reach {self._host}: its host key is not known ({key_type} {print_of_key})",
                hint="compare the fingerprint and connect once with ssh, or pin the key with --host-key-file",
                key_type=key_type,
                fingerprint=print_of_key,
            )
        remember(self._known_hosts_files[0], names[0], key_type, blob)

    def _ask(self, path: str) -> str | None:
        passphrase = os.environ.get(PASSPHRASE_VARIABLE)
        return passphrase or (self._passphrase(path) if self._passphrase is not None else None)

    def _drop(self, connection: paramiko.Transport | None) -> None:
        """Close a connection however it hangs; ends every wait of paramiko's on it."""
        if connection is None:
            return
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            connection.close()
        # paramiko forgets the timer of a handshake that failed; its thread would hold up the interpreter's end.
        connection.packetizer.complete_handshake()
        with contextlib.suppress(OSError):
            connection.sock.close()
        if connection.is_alive() and connection is not threading.current_thread():
            connection.join(0.5)


class _Attempt:
    """What one ``open`` and its thread share; exactly one of ``finish`` and ``abandon`` succeeds."""

    def __init__(self) -> None:
        self.finished = threading.Event()
        self.channel: ParamikoChannel | None = None
        self.error: BaseException | None = None
        self.connection: paramiko.Transport | None = None
        """The connection that this attempt makes; one that stood before is not its own to close."""
        self._lock = threading.Lock()
        self._abandoned = False

    def finish(self) -> bool:
        """The thread is done; False if nobody waits any more."""
        with self._lock:
            if not self._abandoned:
                self.finished.set()
            return not self._abandoned

    def abandon(self) -> bool:
        """The caller waits no longer; False if the thread has finished meanwhile."""
        with self._lock:
            self._abandoned = not self.finished.is_set()
            return self._abandoned


def _load() -> ModuleType:
    try:
        import paramiko
    except ImportError:
        raise MissingExtra(
            "paramiko:// needs the package paramiko", hint="pip install 'sandlift[ssh]', or use an ssh:// URL"
        ) from None
    # Without a handler, Python would print what paramiko logs, tracebacks of lost connections among it.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    return paramiko


def _prefer(connection: paramiko.Transport, key_types: tuple[str, ...]) -> None:
    """Ask for a host key of a known type, and for the cipher that costs least."""
    options = connection.get_security_options()
    known = {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in key_types else set()
    known |= set(key_types)
    options.key_types = sorted(options.key_types, key=lambda name: name not in known)
    options.ciphers = sorted(options.ciphers, key=lambda name: name != "aes128-gcm@openssh.com")
