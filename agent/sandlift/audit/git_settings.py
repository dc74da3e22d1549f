"""Which settings of git run a program, redirect git, or hold a secret: judged against git-config(1), 2.39 to 2.55.

A repository's own configuration counts in full for whoever opens it: ``safe.directory`` protects from repositories
of other users only, and a restored tree belongs to who restored it.  Git itself does not honour every one of these
in a repository; they are told all the same, because another program might, and nobody puts them there by chance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sandlift.audit.findings import Severity
from sandlift.audit.git_config import Setting, truth

ANY: bytes = b"*"
"""In a rule: any subsection, or none."""
SOME: bytes = b"+"
"""In a rule: any subsection, but one."""

_TRANSPORT = re.compile(rb"[A-Za-z0-9+.-]{1,32}::|-")
_PASSWORD = re.compile(rb"://[^/@\s:]{0,256}:[^/@\s]{1,1024}@")
_COMMAND_LIKE = re.compile(rb"(?:command|cmd|program|helper|hook|hooks|driver|textconv)\Z")
_EXECUTABLE = re.compile(rb"\s{0,64}[!|`]|.{0,4096}\$\(", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    section: bytes
    key: bytes
    """`ANY` for any."""
    what: str
    subsection: bytes | None = ANY
    """None for a setting without one; else `ANY`, `SOME`, or the one that counts."""
    test: Callable[[Setting], bool] = lambda setting: True
    severity: Severity = "runs-code"

    def fits(self, setting: Setting) -> bool:
        if self.key not in (ANY, setting.key):
            return False
        if self.subsection is None:
            return setting.subsection is None and self.test(setting)
        if self.subsection == SOME:
            return setting.subsection is not None and self.test(setting)
        return self.subsection in (ANY, setting.subsection) and self.test(setting)


def _is_no_boolean(setting: Setting) -> bool:
    return truth(setting.value) is None


def _is_true(setting: Setting) -> bool:
    return truth(setting.value) is not False


def _is_alias_command(setting: Setting) -> bool:
    value = (setting.value or b"").lstrip()
    return value.startswith((b"!", b"-")) or setting.key == b"command"


def _leads_to_helper(setting: Setting) -> bool:
    return _TRANSPORT.match((setting.value or b"").strip()) is not None


def _base_leads_to_helper(setting: Setting) -> bool:
    return _TRANSPORT.match((setting.subsection or b"").strip()) is not None


def _is_own_command(setting: Setting) -> bool:
    return (setting.value or b"").lstrip().startswith(b"!")


def _is_path_or_command(setting: Setting) -> bool:
    return b"/" in (setting.value or b"")


def _is_not_never(setting: Setting) -> bool:
    return (setting.value or b"").lower() != b"never"


def _authorizes(setting: Setting) -> bool:
    return b"authorization" in (setting.value or b"").lower() or b"token" in (setting.value or b"").lower()


def _many(section: bytes, keys: str, what: str, subsection: bytes | None = ANY) -> Iterator[_Rule]:
    for key in keys.split():
        yield _Rule(section=section, key=key.encode(), what=what, subsection=subsection)


_RULES = (
    _Rule(section=b"core", key=b"fsmonitor", what="git runs it on status, diff, add and more", test=_is_no_boolean),
    *_many(b"core", "hookspath", "git runs the hooks in that directory", None),
    *_many(b"core", "pager", "git runs it to show output", None),
    *_many(b"core", "editor", "git runs it to edit a message", None),
    *_many(b"core", "sshcommand gitproxy", "git runs it to reach a remote", None),
    *_many(b"core", "askpass", "git runs it to ask for a password", None),
    *_many(b"core", "alternaterefscommand", "git runs it when it fetches or pushes", None),
    _Rule(section=b"core", key=b"attributesfile", what="attributes from a file that it chooses", severity="privilege"),
    _Rule(section=b"core", key=b"worktree", what="git works on another directory than this", severity="privilege"),
    *_many(b"sequence", "editor", "git runs it to edit a rebase", None),
    _Rule(section=b"pager", key=ANY, what="git runs it to show a command's output", test=_is_no_boolean),
    *_many(b"diff", "external", "git runs it on diff", None),
    *_many(b"diff", "command textconv", "git runs it on diff, log -p, show and blame", SOME),
    *_many(b"filter", "clean smudge process", "git runs it on status, diff, add and checkout", SOME),
    *_many(b"merge", "driver", "git runs it when it merges", SOME),
    *_many(b"difftool", "cmd path", "git difftool runs it", SOME),
    *_many(b"mergetool", "cmd path", "git mergetool runs it", SOME),
    *_many(b"browser", "cmd path", "git runs it to show help or a page", SOME),
    *_many(b"man", "cmd path", "git help runs it", SOME),
    *_many(b"guitool", "cmd", "git gui runs it", SOME),
    *_many(b"instaweb", "httpd browser modulepath", "git instaweb runs it"),
    _Rule(section=b"web", key=b"browser", what="git runs it to show a page", test=_is_path_or_command),
    _Rule(section=b"help", key=b"browser", what="git help runs it", test=_is_path_or_command),
    _Rule(section=b"alias", key=ANY, what="a git command that runs what it says", test=_is_alias_command),
    *_many(b"include", "path", "more configuration from another file"),
    *_many(b"includeif", "path", "more configuration from another file, if a condition holds"),
    _Rule(section=b"extensions", key=b"worktreeconfig", what="more configuration in config.worktree", test=_is_true),
    _Rule(
        section=b"extensions",
        key=b"partialclone",
        what="reading commands fetch from that remote what is missing",
        severity="privilege",
    ),
    *_many(b"credential", "helper", "git runs it when it needs a password"),
    *_many(b"gpg", "program", "git runs it to sign, or to check a signature"),
    *_many(b"gpg", "defaultkeycommand", "git runs it to sign"),
    *_many(b"remote", "uploadpack receivepack", "git runs it to fetch or push", SOME),
    *_many(b"remote", "vcs", "git runs git-remote-<name> to fetch or push", SOME),
    _Rule(section=b"remote", key=b"url", what="an address that runs a program", test=_leads_to_helper),
    _Rule(section=b"remote", key=b"pushurl", what="an address that runs a program", test=_leads_to_helper),
    _Rule(section=b"url", key=ANY, what="addresses become one that runs a program", test=_base_leads_to_helper),
    _Rule(section=b"submodule", key=b"update", what="git submodule update runs it", test=_is_own_command),
    _Rule(section=b"submodule", key=b"url", what="an address that runs a program", test=_leads_to_helper),
    _Rule(section=b"submodule", key=b"path", what="a path that git takes for an option", test=_leads_to_helper),
    *_many(b"uploadpack", "packobjectshook", "git runs it when somebody fetches from here", None),
    *_many(b"interactive", "difffilter", "git runs it on add -p", None),
    _Rule(section=b"protocol", key=b"allow", what="allows addresses that git refuses by default", test=_is_not_never),
    _Rule(section=b"safe", key=ANY, what="trusts repositories of other users", severity="privilege"),
    *_many(b"init", "templatedir", "new repositories get hooks from there", None),
    *_many(b"trailer", "command cmd", "git runs it when it writes a commit message", SOME),
    *_many(b"sendemail", "tocmd cccmd headercmd sendmailcmd", "git send-email runs it"),
    _Rule(section=b"sendemail", key=b"smtpserver", what="git send-email runs it", test=_is_path_or_command),
    *_many(b"imap", "tunnel", "git imap-send runs it"),
    *_many(b"hook", "command", "git runs it as a hook", SOME),
    *_many(b"lfs", "path clean smudge", "git lfs runs it", SOME),
    _Rule(section=b"http", key=b"proxy", what="sends requests through a proxy of its choice", severity="privilege"),
    _Rule(section=b"http", key=b"extraheader", what="a credential for requests", test=_authorizes, severity="secret"),
    _Rule(section=b"sendemail", key=b"smtppass", what="a password for mail", severity="secret"),
    _Rule(section=b"imap", key=b"pass", what="a password for mail", severity="secret"),
    _Rule(section=b"github", key=b"token", what="a token for GitHub", severity="secret"),
)
_BY_SECTION: dict[bytes, list[_Rule]] = {}
for _rule in _RULES:
    _BY_SECTION.setdefault(_rule.section, []).append(_rule)


_WITH_FREE_TEXT = frozenset((b"alias", b"branch", b"remote", b"submodule", b"url", b"user"))
"""Sections whose values begin with anything, in good faith."""


def judge(setting: Setting) -> Iterator[tuple[Severity, str]]:
    """Yields severity and meaning of what there is to say about one setting; usually nothing."""
    told = False
    for rule in _BY_SECTION.get(setting.section, ()):
        if rule.fits(setting):
            told = True
            yield rule.severity, rule.what
    value = setting.value or b""
    if _PASSWORD.search(value) or _PASSWORD.search(setting.subsection or b""):
        yield "secret", "an address with a password in it"
    if told or setting.section in _WITH_FREE_TEXT:
        return
    if _COMMAND_LIKE.search(setting.key) and _is_no_boolean(setting):
        yield "runs-code", "no setting of git's own, but by its name a command"
    elif _EXECUTABLE.match(value):
        yield "runs-code", "no setting that is known, but its value looks like a command"
