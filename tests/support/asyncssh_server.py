"""An SSH server inside this process, for machines without sshd: asyncssh in a thread with its own loop.

Commands run as this user through ``/bin/sh``; only 127.0.0.1 is listened on.  It offers what ``Sshd``
offers: ``host``, ``port``, ``user``, ``key_file``, ``known_hosts_file``, ``ssh_options`` and ``url``.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote

import asyncssh

from support.sshd import HOST, KeyFolder

STOP_S = 5.0


class AsyncsshServer(KeyFolder):
    """A running server; ``with AsyncsshServer() as server``."""

    def __init__(self, *, host_key_type: str = "ssh-ed25519") -> None:
        self.host = HOST
        self.user = getpass.getuser()
        self.port = 0
        self.folder = Path()
        self._host_key_type = host_key_type
        self._children: set[subprocess.Popen[bytes]] = set()
        # A command blocks up to four threads; one that waits for a free thread would look like a slow network.
        self._pool = ThreadPoolExecutor(128, thread_name_prefix="asyncssh-server")
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="asyncssh-server", daemon=True)

    def __enter__(self) -> AsyncsshServer:
        self.folder = Path(tempfile.mkdtemp(prefix="sl-asyncssh-"))
        self._thread.start()
        self._ready.wait(20)
        if self.port == 0:
            self.stop()
            raise RuntimeError("the asyncssh server does not start") from self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_idle(self) -> bool:
        """Whether no command runs any more."""
        return not self._children

    def url(self, path: str, *, scheme: str = "ssh") -> str:
        """The target URL of an absolute path on this server."""
        return f"{scheme}://{quote(self.user)}@{self.host}:{self.port}{quote(path)}"

    def stop(self) -> None:
        """Stop listening, kill the commands that still run, remove the keys; twice is harmless."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_S)
        self._pool.shutdown(wait=False)
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        host_key = asyncssh.generate_private_key(self._host_key_type)
        user_key = asyncssh.generate_private_key("ssh-ed25519")
        host_key.write_public_key(self.host_key_file)
        user_key.write_private_key(self.key_file)
        user_key.write_public_key(self.key_file + ".pub")
        os.chmod(self.key_file, 0o600)
        server = await asyncssh.listen(
            self.host,
            0,
            server_host_keys=[host_key],
            authorized_client_keys=self.key_file + ".pub",
            process_factory=self._serve_command,
            line_editor=False,
            encoding=None,
        )
        self.port = server.get_port()
        public = host_key.export_public_key().decode().split()
        Path(self.known_hosts_file).write_text(f"[{self.host}]:{self.port} {public[0]} {public[1]}\n")
        self._ready.set()
        await self._stopping.wait()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        server.close()
        await server.wait_closed()
        # Commands whose client has gone are cleaned up by their own tasks.
        while self._children:
            await asyncio.sleep(0.01)

    async def _serve_command(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run one command; when the client has gone, it gets the end of its input, a second, and SIGKILL."""
        child = subprocess.Popen(
            ["/bin/sh", "-c", process.command or "exit 2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._children.add(child)
        feed = asyncio.create_task(self._feed(process.stdin, child))
        work = asyncio.create_task(self._collect(process, child))
        gone = asyncio.create_task(self._closing(process))
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(work), 1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.gather(work, feed, gone, return_exceptions=True)
        await self._in_thread(child.wait)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._children.discard(child)

    async def _closing(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Until the client has closed the channel; ``wait_closed`` waits for a reader of what still lies there."""
        while not process.is_closing():
            await asyncio.sleep(0.02)

    async def _collect(self, process: asyncssh.SSHServerProcess[bytes], child: subprocess.Popen[bytes]) -> None:
        """Output and exit status to the client."""
        assert child.stdout is not None
        assert child.stderr is not None
        await asyncio.gather(self._pump(child.stdout, process.stdout), self._pump(child.stderr, process.stderr))
        status = await self._in_thread(child.wait)
        process.exit(status if status >= 0 else 255)

    async def _pump(self, source: IO[bytes], sink: asyncssh.SSHWriter[bytes]) -> None:
        """All of the source; once the client has gone, the rest is read and dropped."""
        gone = False
        while data := await self._in_thread(os.read, source.fileno(), 1 << 16):
            if not gone:
                try:
                    sink.write(data)
                    await sink.drain()
                except (OSError, asyncssh.Error):
                    gone = True

    async def _feed(self, source: asyncssh.SSHReader[bytes], child: subprocess.Popen[bytes]) -> None:
        """The client's input to the command; a lost client is the end of it."""
        assert child.stdin is not None
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await source.read(1 << 16):
                view = memoryview(data)
                while view:
                    view = view[await self._in_thread(os.write, child.stdin.fileno(), view) :]
        child.stdin.close()

    async def _in_thread(self, function: Callable[..., int | bytes], *values: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *values)
