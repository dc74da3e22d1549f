"""Our reader of git's configuration language against git's own, and what it takes for dangerous."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from audit.planting import environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlift.audit.git_config import Setting, parse, safe_config
from sandlift.audit.git_settings import judge
from support.needs import require


def as_git_reads(data: bytes, folder: Path) -> list[tuple[bytes, bytes | None]] | None:
    """The settings by git's account, or None where it refuses the file."""
    (folder / "config").write_bytes(data)
    done = subprocess.run(
        ["git", "config", "--file", "config", "--no-includes", "--null", "--list"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return None
    items = done.stdout.split(b"\0")[:-1]
    return [(name, value if equals else None) for name, equals, value in (item.partition(b"\n") for item in items)]


def as_we_read(data: bytes) -> list[tuple[bytes, bytes | None]]:
    return [(setting.name, setting.value) for setting in parse(data).settings]


KNOWN = (
    b'[core]\n\tbare = false\n[a "B \\"c\\" \\\\ d"] e=f # g\n\th = "i # j" ; k\n',
    b"[A.B]\nc\nd =\n e=  x  y  \n f = x\\\n  y\n",
    b'\xef\xbb\xbf[x]y=1\r\n[z "q"]\r\n\tw = "a\\tb\\nc" d\\\\e\n',
    b'[core] bare = true\n[core]editor = "a\\"b" \'c\' ; d\n# [no]\n;no = no\n[b]a-1=2',
    b'[s "x.y]"]\nk = v\n[s]\nk = \\\n\\\n v\n',
)


@pytest.mark.parametrize("data", KNOWN)
def test_it_reads_what_git_reads(data: bytes, tmp_path: Path) -> None:
    require("git")
    expected = as_git_reads(data, tmp_path)
    assert expected
    assert as_we_read(data) == expected
    assert parse(data).unreadable_lines == ()


LINES = st.lists(
    st.sampled_from(
        [b"[core]", b'[a "B"]', b"[x.Y]", b"fsmonitor", b" = ", b"=", b"v", b'"', b"\\", b"\\\\", b'\\"', b"\n", b"\n",
         b"#", b";", b" ", b"\t", b"k", b"\r\n", b"!", b"[", b"]", b"\\n"]
    ),
    max_size=24,
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=LINES)
def test_nothing_that_git_accepts_escapes(parts: list[bytes], tmp_path: Path) -> None:
    """Where git accepts a file, we find the same names and values; where it refuses, we may find more."""
    data = b"[core]" + b"".join(parts)
    expected = as_git_reads(data, tmp_path)
    if expected is not None:
        assert as_we_read(data) == expected


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_it_never_raises_and_what_is_kept_is_harmless(data: bytes) -> None:
    kept = safe_config([data, b"[core]\n" + data])
    assert safe_config([kept]) == kept
    assert [hit for setting in parse(kept).settings for hit in judge(setting)] == []


def test_only_known_values_of_known_settings_are_kept() -> None:
    config = b"""
        [core] repositoryformatversion = 1 ; a comment
            bare = no
            fileMode
            worktree = /home
            autocrlf = INPUT
            eol = $(evil)
            logAllRefUpdates = always
            symlinks = maybe
        [core "sub"] ignorecase = true
        [extensions] objectFormat = SHA256
            refStorage = reftable:///elsewhere
            partialClone = origin
            worktreeConfig = true
        [remote "origin"] url = ext::evil
        [core] bare = yes
    """
    assert safe_config([config]) == (
        b"[core]\n\trepositoryformatversion = 1\n\tbare = true\n\tfilemode = true\n\tautocrlf = input\n"
        b"\tlogallrefupdates = always\n[extensions]\n\tobjectformat = sha256\n"
    )
    assert safe_config([b"[extensions]\n\trefstorage = reftable\n"]) == b"[extensions]\n\trefstorage = reftable\n"


def hits(text: str) -> list[tuple[str, str]]:
    return [hit for setting in parse(text.encode()).settings for hit in judge(setting)]


# Each setting by which git-config(1) and the pages that it refers to let a program be run, or more be read.
RUNS = """
core.fsmonitor core.hooksPath core.pager core.editor core.sshCommand core.askPass core.gitProxy
core.alternateRefsCommand sequence.editor pager.log diff.external diff.D.command diff.D.textconv filter.F.clean
filter.F.smudge filter.F.process merge.M.driver difftool.T.cmd difftool.T.path mergetool.T.cmd mergetool.T.path
browser.B.cmd browser.B.path man.M.cmd man.M.path guitool.G.cmd instaweb.httpd instaweb.browser web.browser
help.browser alias.A include.path includeIf.C.path credential.helper credential.U.helper gpg.program gpg.ssh.program
gpg.ssh.defaultKeyCommand remote.R.uploadpack remote.R.receivepack remote.R.vcs submodule.S.update
uploadpack.packObjectsHook interactive.diffFilter protocol.allow protocol.ext.allow init.templateDir trailer.T.command
trailer.T.cmd sendemail.toCmd sendemail.ccCmd sendemail.I.headerCmd sendemail.smtpServer imap.tunnel hook.H.command
lfs.customtransfer.path annex.freezecontent-command
""".split()  # fmt: skip


def setting(name: str, value: bytes) -> Setting:
    section, _, rest = name.partition(".")
    middle, _, key = rest.rpartition(".")
    return Setting(
        section=section.lower().encode(),
        subsection=middle.encode() or None,
        key=key.lower().encode(),
        value=value,
        line=1,
    )


@pytest.mark.parametrize("name", RUNS)
def test_settings_that_run_something(name: str) -> None:
    assert [severity for severity, _ in judge(setting(name, b"!/x/evil"))] == ["runs-code"]


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        ("[remote.o]url=ext::sh -c evil", ["runs-code"]),
        ("[remote.o]url=--upload-pack=evil", ["runs-code"]),
        ("[submodule.o]url=-evil", ["runs-code"]),
        ("[submodule.o]path=-evil", ["runs-code"]),
        ('[url "ext::sh -c evil "]insteadOf=https://', ["runs-code"]),
        ("[alias]x=-c core.fsmonitor=evil status", ["runs-code"]),
        ("[extensions]worktreeConfig", ["runs-code"]),
        ("[extensions]partialClone=origin", ["privilege"]),
        ("[core]worktree=/home", ["privilege"]),
        ("[core]attributesFile=x", ["privilege"]),
        ("[safe]directory=*", ["privilege"]),
        ("[remote.o]url=https://me:secret@host/x", ["secret"]),
        ("[http.u]extraheader=AUTHORIZATION: basic abc", ["secret"]),
        ("[unknown]x=!evil", ["runs-code"]),
        ("[unknown]x=$(evil)", ["runs-code"]),
    ],
)
def test_settings_that_depend_on_the_value(text: str, severities: list[str]) -> None:
    assert [severity for severity, _ in hits(text)] == severities


def test_ordinary_settings_are_not_told() -> None:
    assert (
        hits(
            """
            [core] repositoryformatversion = 0
                fsmonitor = true
                filemode = true
                bare = false
                excludesfile = x
            [remote "origin"] url = git@github.com:a/b.git
                fetch = +refs/heads/*:refs/remotes/origin/*
            [branch "main"] remote = origin
                merge = refs/heads/main
            [submodule "s"] url = https://github.com/a/c
                active = true
                update = rebase
            [pager] log = false
            [alias] st = status -sb
            [user] name = A
            [extensions] worktreeConfig = false
            [protocol] allow = never
            [web] browser = firefox
            """
        )
        == []
    )
