"""What is the local transport's own: the whole process group ends."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from transports.contract import far, is_alive, read_all, read_some, settles, traces

from sandlift.deadline import Deadline
from sandlift.errors import Refused, StoreDamaged, Truncated
from sandlift.transports.command import PIPE_BYTES, CommandChannel, CommandTransport
from sandlift.transports.local import CAPABILITIES, local

LIMIT_S = 15.0


# cases: onyx-dot-app/onyx#11892, Kilo-Org/cloud#2433
def test_a_command_that_ignores_signals_ends_with_its_children() -> None:
    channel = local().open(far("stubborn"), deadline=Deadline.after(LIMIT_S))
    pids = [int(word) for word in read_some(channel).split()]
    assert all(map(is_alive, pids))
    begin = time.monotonic()
    channel.close(0.3)
    assert time.monotonic() - begin < 1.2
    assert settles(lambda: not any(map(is_alive, pids)), 1)


def test_children_end_also_when_their_parent_left_by_itself() -> None:
    script = 'sleep 30 & echo "$!"'
    channel = local().open(["sh", "-c", script], deadline=Deadline.after(LIMIT_S))
    child = int(read_some(channel))
    assert channel.wait(5) == 0
    assert is_alive(child)
    channel.close(0.3)
    assert settles(lambda: not is_alive(child), 1)


def test_a_stray_process_that_keeps_the_pipes_does_not_hold_us() -> None:
    """It left the group, so it is nobody's to kill, and stdout and stderr never end."""
    before = traces()
    stray_does = "(os.setsid(), os.write(1, str(os.getpid()).encode()), time.sleep(20))"
    script = f"import os,time; os.fork() or {stray_does}; time.sleep(0.5)"
    channel = local().open([sys.executable, "-c", script], deadline=Deadline.after(LIMIT_S))
    stray = int(read_some(channel))
    begin = time.monotonic()
    channel.close(1.0)
    assert time.monotonic() - begin < 1.8
    assert is_alive(stray)
    os.kill(stray, 9)
    assert traces() == before


@pytest.mark.parametrize(("number", "status"), [(9, 137), (15, 143)])
def test_death_by_a_signal_is_told_as_a_shell_does(number: int, status: int) -> None:
    channel = local().open(["sh", "-c", f"kill -{number} $$"], deadline=Deadline.after(LIMIT_S))
    with contextlib.closing(channel):
        assert read_all(channel) == b""
        assert channel.wait(5) == status


def test_a_program_that_cannot_be_started() -> None:
    before = traces()
    with pytest.raises(Refused, match="No such file"):
        local().open(["/nonexistent"], deadline=Deadline.after(LIMIT_S))
    with pytest.raises(Refused, match="Permission denied"):
        local().open(["/etc/passwd"], deadline=Deadline.after(LIMIT_S))
    assert traces() == before


def test_the_environment_is_added_to() -> None:
    transport = CommandTransport(
        (), quoting="argv", capabilities=CAPABILITIES, name="local", env={"SANDLIFT_TEST": "here"}
    )
    channel = transport.open(["sh", "-c", 'echo "$SANDLIFT_TEST $PATH"'], deadline=Deadline.after(LIMIT_S))
    with contextlib.closing(channel):
        assert read_all(channel).decode().strip() == f"here {os.environ['PATH']}"


def test_no_descriptor_is_inherited() -> None:
    reading, writing = os.pipe()
    try:
        os.set_inheritable(writing, True)
        channel = local().open(["ls", "/proc/self/fd"], deadline=Deadline.after(LIMIT_S))
        with contextlib.closing(channel):
            # The fourth is ls's own, of the folder that it lists.
            assert read_all(channel).split() == [b"0", b"1", b"2", b"3"]
    finally:
        os.close(reading)
        os.close(writing)


def test_many_at_once_leave_nothing() -> None:
    before = traces()
    channels = [local().open(["cat"], deadline=Deadline.after(LIMIT_S)) for _ in range(60)]
    for channel in channels:
        channel.write(b"x", 5)
    assert [channel.read(1, 5) for channel in channels] == [b"x"] * 60
    for channel in channels:
        channel.close()
    assert traces() == before


def test_importing_transports_does_not_import_paramiko() -> None:
    script = (
        "import sys, sandlift.transports as t, sandlift.targets as g; t.open_transport(g.parse_target('/w'));"
        "t.open_transport(g.parse_target('ssh://box/w')); print('paramiko' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False\n"


def echo() -> CommandChannel:
    channel = local().open(["cat"], deadline=Deadline.after(LIMIT_S))
    assert isinstance(channel, CommandChannel)
    return channel


def _refuse(*_: object) -> int:
    raise OSError(errno.EINVAL, "this file system cannot")


def _from_file(channel: CommandChannel, path: Path, offset: int, size: int) -> bytes:
    """What a command gets of a file, ``head`` before it, while somebody else writes as well."""
    got = bytearray()
    fd = os.open(path, os.O_RDONLY)
    writer = threading.Thread(target=channel.write_file, args=(b"head", fd, offset, size, LIMIT_S))
    writer.start()
    other = threading.Thread(target=channel.write, args=(b"<other>", LIMIT_S))
    other.start()
    while len(got) < len(b"head<other>") + size:
        got += channel.read(1 << 20, LIMIT_S) or b""
    writer.join()
    other.join()
    os.close(fd)
    channel.close()
    return bytes(got)


@pytest.mark.parametrize("can", [True, False])
def test_a_part_of_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    data = os.urandom(3 * PIPE_BYTES)
    (tmp_path / "file").write_bytes(data)
    if not can:
        monkeypatch.setattr(os, "sendfile", _refuse)
    part = b"head" + data[17:-19]
    got = _from_file(echo(), tmp_path / "file", 17, len(data) - 36)
    assert got in (b"<other>" + part, part + b"<other>")


@pytest.mark.parametrize("can", [True, False])
def test_a_file_that_ends_too_early_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    (tmp_path / "file").write_bytes(b"short")
    if not can:
        monkeypatch.setattr(os, "sendfile", _refuse)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    channel = echo()
    with pytest.raises(StoreDamaged):
        channel.write_file(b"head", fd, 2, 4, LIMIT_S)
    channel.close()
    os.close(fd)


def test_a_part_of_a_file_for_a_command_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4 * PIPE_BYTES))
    channel = local().open(["true"], deadline=Deadline.after(LIMIT_S))
    assert isinstance(channel, CommandChannel)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(Truncated):
        channel.write_file(b"head", fd, 0, 4 * PIPE_BYTES, LIMIT_S)
    channel.close()
    os.close(fd)
