"""A real OpenSSH server for tests and measurements: own keys, a free port of 127.0.0.1, this user.

It needs no root, no PAM and no change to the machine.  It stops with the ``with`` block, and also when this
process dies: a shell beside it waits for the end of a pipe and then kills the server.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

HOST = "127.0.0.1"
START_S = 10.0
_GUARD = '( "$@"; kill -9 0 ) & read -r _; kill -9 0'


class KeyFolder:
    """What a test's server keeps in its folder for clients: their key, its own, and the options that name them."""

    folder: Path

    @property
    def key_file(self) -> str:
        """The private key of the user."""
        return str(self.folder / "id")

    @property
    def host_key_file(self) -> str:
        """The server's public key."""
        return str(self.folder / "host_key.pub")

    @property
    def known_hosts_file(self) -> str:
        """A known_hosts with this server alone."""
        return str(self.folder / "known_hosts")

    @property
    def ssh_options(self) -> tuple[str, ...]:
        """Words for the ssh client: this server's keys, no agent, no configuration of the user's."""
        return client_options(self.key_file, self.known_hosts_file)


class Sshd(KeyFolder):
    """A running server; ``ssh_options`` make the ssh client use its keys and nothing of the user's.

    ``banner`` is shown before login, ``noise`` is printed on stdout before every command's own output, as a
    talkative shell start-up file does.  ``max_startups`` None leaves the server its own limit of logins at once.
    ``config`` are further lines for sshd_config.
    """

    def __init__(
        self,
        *,
        host_key_type: str = "ed25519",
        banner: str | None = None,
        noise: str | None = None,
        max_sessions: int | None = None,
        max_startups: int | None = 100,
        config: Sequence[str] = (),
    ) -> None:
        self.host = HOST
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.port = 0
        self.folder = Path()
        self._host_key_type = host_key_type
        self._banner = banner
        self._noise = noise
        self._max_sessions = max_sessions
        self._max_startups = max_startups
        self._config = tuple(config)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sshd:
        self.folder = Path(tempfile.mkdtemp(prefix="sl-sshd-"))
        try:
            make_key(self.folder / "host_key", self._host_key_type)
            (self.folder / "authorized_keys").touch(0o600)
            self.add_user_key("id")
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def url(self, path: str, *, scheme: str = "ssh") -> str:
        """The target URL of an absolute path on this server."""
        return f"{scheme}://{quote(self.user)}@{self.host}:{self.port}{quote(path)}"

    def add_user_key(self, name: str, key_type: str = "ed25519", *, passphrase: str = "") -> str:
        """Make a further key that the server accepts; returns the path of its private half."""
        path = self.folder / name
        make_key(path, key_type, passphrase=passphrase)
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(Path(f"{path}.pub").read_text())
        return str(path)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its connections, not to the guard beside it."""
        assert self._process is not None
        for pid in descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Kill the server with all its connections, wait for it, and remove its folder; twice is harmless."""
        process, self._process = self._process, None
        if process is not None:
            # Connections and commands are in sessions of their own.
            for pid in (*descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(10)
            if process.stdin is not None:
                process.stdin.close()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        program = find_sshd()
        if os.geteuid() == 0:
            # Debian's sshd wants its empty folder even when it is not started by the system.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for _ in range(5):
            self.port = free_port()
            self._write_files(program)
            self._process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    _GUARD,
                    "sh",
                    program,
                    "-D",
                    "-f",
                    str(self.folder / "config"),
                    "-E",
                    str(self.folder / "log"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if self._is_ready():
                return
            process, self._process = self._process, None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=10)
        raise RuntimeError(f"sshd does not start: {self.log[-2000:]}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            # Another server may have taken the port meanwhile, and would answer in this one's place.
            if f"Server listening on {self.host} port {self.port}." not in self.log:
                time.sleep(0.01)
                continue
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1) as sock:
                sock.settimeout(5)
                if sock.recv(4) == b"SSH-":
                    return True
            time.sleep(0.01)
        return False

    def _write_files(self, program: str) -> None:
        folder = self.folder
        host_key = Path(self.host_key_file).read_text().split()
        Path(self.known_hosts_file).write_text(f"[{self.host}]:{self.port} {host_key[0]} {host_key[1]}\n")
        lines = [
            f"Port {self.port}",
            f"ListenAddress {self.host}",
            f"HostKey {folder}/host_key",
            f"PidFile {folder}/pid",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "PrintMotd no",
            "LogLevel VERBOSE",
            "Subsystem sftp internal-sftp",
        ]
        if self._banner is not None:
            (folder / "banner").write_text(self._banner)
            lines.append(f"Banner {folder}/banner")
        if self._noise is not None:
            (folder / "noise").write_text(self._noise)
            lines.append(f'ForceCommand cat {folder}/noise; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"')
        if self._max_startups is not None:
            lines.append(f"MaxStartups {self._max_startups}")
        if self._max_sessions is not None:
            lines.append(f"MaxSessions {self._max_sessions}")
        lines += self._config
        config = folder / "config"
        # Newer servers shut out a host whose logins fail; older ones do not know the word.
        config.write_text("\n".join([*lines, "PerSourcePenalties no", ""]))
        if subprocess.run([program, "-t", "-f", str(config)], capture_output=True, timeout=20).returncode:
            config.write_text("\n".join([*lines, ""]))


def find_sshd() -> str:
    """The absolute path of sshd, which it needs to start itself again; raises FileNotFoundError."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which("sshd", path=path)
    if found is None:
        raise FileNotFoundError("sshd is not installed: apt-get install openssh-server")
    return os.path.abspath(found)


def client_options(key_file: str, known_hosts_file: str) -> tuple[str, ...]:
    """Words for the ssh client that leave the user's configuration, agent and known hosts out."""
    options = {
        "UserKnownHostsFile": known_hosts_file,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
    }
    return ("-F", "/dev/null", "-i", key_file, *(word for item in options.items() for word in ("-o", "=".join(item))))


def make_key(path: Path, key_type: str, *, passphrase: str = "") -> None:
    """Make a key pair with ssh-keygen; RSA keys have 2,048 bits, for speed."""
    bits = ["-b", "2048"] if key_type == "rsa" else []
    words = ["ssh-keygen", "-q", "-t", key_type, *bits, "-N", passphrase, "-C", "test", "-a", "1", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def descendants(ancestor: int) -> list[int]:
    """The living processes below one, itself not included."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name in brackets may hold anything; state and parent are the first fields behind it.
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry)] = int(parent)
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
