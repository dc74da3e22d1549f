"""One quoting for every login shell that is here."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from sandlift.errors import LocalProtocolError
from sandlift.transports.base import StderrTail, harmless_text, last_line, shell_command
from sandlift.transports.local import CAPABILITIES

SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "csh", "tcsh", "fish", "ksh", "mksh") if shutil.which(name)]
WORDS = ["", " ", "a  b", "$HOME", "${x}", "`id`", "*", "?", "[a]", "~", '"', "#x", ";", "|", "&", "<", ">", "(", "=ls"]
WORDS += ["%1", "{a,b}", "^", "é", "-n", "\t", "x=y", "@", "\x7f", "\r", "z" * 1000]


@pytest.mark.parametrize("shell", SHELLS)
def test_words_survive(shell: str) -> None:
    command = shell_command(["printf", "%s:", *WORDS], CAPABILITIES)
    done = subprocess.run([shell, "-c", command], capture_output=True, timeout=20)
    assert done.stderr == b""
    assert done.stdout == ":".join([*WORDS, ""]).encode()


@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_stays_in_between(shell: str) -> None:
    process = subprocess.Popen([shell, "-c", shell_command(["cat"], CAPABILITIES)], stdin=-1, stdout=-1)
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    with open(f"/proc/{process.pid}/comm") as comm:
        assert comm.read() == "cat\n"
    process.communicate(timeout=10)


@pytest.mark.parametrize("word", ["it's", "a\\b", "hey!", "a\nb", "a\0b"])
def test_words_that_no_quoting_fits_are_our_fault(word: str) -> None:
    with pytest.raises(LocalProtocolError):
        shell_command(["echo", word], CAPABILITIES)


def test_text_of_the_far_side_is_made_harmless() -> None:
    text = harmless_text(b"\x1b[31mred\r\nline\x00\xff token\n", secret="token")
    assert text == "\\x1b[31mred\nline\\x00\\xff ***"
    assert last_line("first\n\n last \n\n") == "last"
    assert last_line("") == ""


def test_the_tail_keeps_the_end() -> None:
    tail = StderrTail()
    for number in range(50_000):
        tail.add(b"%05d\n" % number)
    assert len(tail.value()) == 65536
    assert tail.value().endswith(b"49998\n49999\n")
