"""Targets: which place is meant, and how it is reached, written as one line of text.

    target   = "ssh://" place | "paramiko://" place | "local:" path | path
    place    = [ user "@" ] host [ ":" port ] path       path begins with "/"

In a URL, percent escapes stand for bytes, ``/~`` is the home directory and ``/~/x`` lies below it
(``/%7E/x`` is a directory really called ``~``).  ``local:`` and a bare path are taken as they stand.
With a command prefix (``via``), the text is the path in the place that the prefix leads to; there ``~``
and ``~/x`` mean the home directory too, because the shell on this side cannot know it.

Text before the first slash that holds a colon is never a bare path: ``box:/work`` is refused with the URL
that was probably meant, instead of capturing a directory that nobody has.

Threats: a name that begins with ``-`` would be an option of the program it is handed to, and ssh expands
host and user into commands of the user's configuration; both are refused as OpenSSH refuses them.  A
password never belongs in a URL, and is not repeated in the refusal.  A user name of more than
``USER_SHOWN_MAX`` characters is taken for a gateway's access token: it is used, and never shown or recorded.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shlex
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote_from_bytes

from .errors import BadURL

URL_SCHEMES = ("ssh", "paramiko")
USER_SHOWN_MAX = 20

# What OpenSSH's client itself refuses in a host or user since 9.6: characters with which a name could
# break out of a ProxyCommand or a `Match exec`.  In a host also what has a meaning in a URL.
_UNSAFE_USER = re.compile(r"[\x00-\x20\x7f'`\";&<>|(){}]|\\\Z")
_UNSAFE_HOST = re.compile(r"[\x00-\x20\x7f'`\"$\\;&<>|(){}\[\]/?#@*!:]")
_SCHEME = re.compile(r"([^/:@]*):")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_PATH_SAFE = "/!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place and the root in it."""

    scheme: str
    """``ssh``, ``paramiko``, ``local`` or ``via``."""
    root: bytes
    """The workspace's directory there; relative to the home directory if ``home``, any bytes but NUL."""
    home: bool = False
    user: str | None = None
    host: str | None = None
    """A name, an alias of the ssh configuration, or an address without brackets."""
    port: int | None = None
    via: tuple[str, ...] = ()
    """The words that go before every command, for the scheme ``via``."""
    via_shell: bool = False
    """Whether the prefix wants the command as one word for a shell."""

    @property
    def public_user(self) -> str | None:
        """The user as it may be shown and recorded: a token is replaced by a name made from its digest."""
        if self.user is None or len(self.user) <= USER_SHOWN_MAX:
            return self.user
        return "token-" + hashlib.sha256(self.user.encode("utf-8", "surrogateescape")).hexdigest()[:12]

    def source(self) -> str:
        """Where this is, without credentials, as a ref records it: valid text, one line's worth.

        A command prefix may hold secrets, so only its program's name is told.  A relative local path is
        told from the top.  A URL can be parsed again and gives the same target, unless the user is a token.
        """
        if self.scheme == "local":
            return "local:" + _text(_from_top(self.root))
        if self.scheme == "via":
            path = b"/".join(part for part in (b"~", self.root) if part) if self.home else self.root
            return f"via:{_text(os.path.basename(os.fsencode(self.via[0])))}:{_text(path)}"
        user = "" if self.public_user is None else quote_from_bytes(os.fsencode(self.public_user), safe="") + "@"
        host = self.host or ""
        if ":" in host:
            host = "[" + host.replace("%", "%25") + "]"
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{user}{host}{port}{_url_path(self.root, home=self.home)}"

    def key(self) -> str:
        """64 hex digits that are equal for the same target and no other: all fields count.

        Two containers reached with ``docker exec`` have the same ``source()`` and different keys.
        """
        parts = [self.scheme, self.user or "", self.host or "", str(self.port or ""), str(self.home), *self.via]
        parts.append(str(self.via_shell))
        root = _from_top(self.root) if self.scheme == "local" else self.root
        words = [os.fsencode(part) for part in parts] + [root]
        return hashlib.sha256(b"".join(b"%d:%s," % (len(word), word) for word in words)).hexdigest()


def parse_target(text: str, *, via: str | None = None, via_shell: str | None = None) -> Target:
    """The target that ``text`` names; raises BadURL, which says what is wrong and what to write instead.

    ``via`` and ``via_shell`` are command prefixes, split into words as a shell would: the first is followed
    by the words of a command, the second by one word for a shell.  Bytes that are no text may stand in
    ``text`` as ``os.fsdecode`` writes them.
    """
    if "\0" in text:
        raise BadURL("a target cannot hold a NUL byte")
    if via is not None and via_shell is not None:
        raise BadURL("a command prefix is given twice", hint="use one of --via and --via-shell")
    if via is not None or via_shell is not None:
        return _parse_via(text, via if via is not None else via_shell or "", shell=via_shell is not None)
    if not text:
        raise BadURL("the target is empty", hint="name a directory or a URL, such as ssh://me@box/work")
    scheme = _SCHEME.match(text)
    if scheme is None:
        if ":" in text.partition("/")[0]:
            _refuse_scp_form()
        return Target(scheme="local", root=os.fsencode(text))
    name, rest = scheme[1].lower(), text[scheme.end() :]
    if name == "local":
        if not rest:
            raise BadURL("local: names no directory", hint="write local:PATH")
        return Target(scheme="local", root=os.fsencode(rest))
    if name not in URL_SCHEMES:
        _refuse_scheme(scheme[1])
    if not rest.startswith("//"):
        raise BadURL(f"{name}: is not followed by //", hint=f"write {name}://[user@]host[:port]/path")
    return _parse_place(name, rest[2:])


def _parse_via(text: str, prefix: str, *, shell: bool) -> Target:
    try:
        words = tuple(shlex.split(prefix))
    except ValueError as error:
        raise BadURL(f"the command prefix cannot be split into words: {error}") from None
    if not words or not words[0]:
        raise BadURL("the command prefix is empty", hint="for example: --via 'docker exec -i NAME'")
    if any("\0" in word for word in words):
        raise BadURL("a command prefix cannot hold a NUL byte")
    if "://" in text.partition("/")[0] + "//" and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise BadURL("with a command prefix the target is a path, not a URL", hint="leave the prefix or the URL out")
    if not text:
        raise BadURL("the target is empty", hint="name the directory in the place that the prefix leads to")
    root, home = os.fsencode(text), False
    if text == "~" or text.startswith("~/"):
        root, home = root[1:].lstrip(b"/"), True
    elif text.startswith("~"):
        raise BadURL("the home directory of another user is not looked up", hint="write the whole path, or ./~NAME")
    return Target(scheme="via", root=root, home=home, via=words, via_shell=shell)


def _parse_place(scheme: str, text: str) -> Target:
    """``[user@]host[:port]/path``, what follows the two slashes of a URL."""
    authority, slash, path = text.partition("/")
    user, host, port = _parse_authority(scheme, authority)
    if not slash:
        shown = f"[{host}]" if ":" in host else host
        raise BadURL(
            f"the URL names no directory on {host}",
            hint=f"the root must be named: {scheme}://{shown}/path, or /~/path below the home directory",
        )
    raw = "/" + path
    home = raw == "/~" or raw.startswith("/~/")
    if not home and raw.startswith("/~"):
        raise BadURL(
            "the home directory of another user is not looked up",
            hint="write the whole path; a directory whose name begins with ~ is written %7E",
        )
    root = _unescape(os.fsencode(raw))
    if home:
        root = root[2:].lstrip(b"/")
    return Target(scheme=scheme, user=user, host=host, port=port, root=root, home=home)


def _parse_authority(scheme: str, authority: str) -> tuple[str | None, str, int | None]:
    userinfo, at, place = authority.rpartition("@")
    user: str | None = None
    if at:
        if ":" in userinfo:
            raise BadURL(
                "a password does not belong in a URL",
                hint="use a key or an agent; the URL may be in your shell's history now",
            )
        user = os.fsdecode(_unescape(os.fsencode(userinfo)))
        if not user or user.startswith("-") or _UNSAFE_USER.search(user):
            raise BadURL("the user name in the URL cannot be used", hint=f"write {scheme}://user@host/path")
    if place.startswith("["):
        host, bracket, port_text = place[1:].partition("]")
        host = host.replace("%25", "%")
        if not bracket or not _is_ipv6(host) or (port_text and not port_text.startswith(":")):
            raise BadURL("the address in brackets is no IPv6 address", hint=f"write {scheme}://[::1]:22/path")
        return user, host, _parse_port(port_text[1:]) if port_text else None
    host, colon, port_text = place.partition(":")
    if ":" in port_text:
        raise BadURL("an IPv6 address needs brackets", hint=f"write {scheme}://[::1]:22/path")
    if not host:
        raise BadURL("the URL names no host", hint=f"write {scheme}://host/path")
    if host.startswith("-") or _UNSAFE_HOST.search(host) or "%" in host:
        raise BadURL(f"the host name {host!a} cannot be used", hint="use a name, an alias or an address")
    return user, host, _parse_port(port_text) if colon else None


def _is_ipv6(text: str) -> bool:
    address, _, zone = text.partition("%")
    if _UNSAFE_HOST.search(zone):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _parse_port(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535:
        return int(text)
    raise BadURL(f"the port {text!a} is no number from 1 to 65535")


def _unescape(data: bytes) -> bytes:
    """Percent escapes as bytes; raises BadURL for a lone ``%`` and for NUL."""

    def byte(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise BadURL("a % in the URL is not followed by two hex digits", hint="write %25 for the character itself")
        if match[1] == b"00":
            raise BadURL("a target cannot hold a NUL byte")
        return bytes([int(match[1], 16)])

    return _ESCAPE.sub(byte, data)


def _url_path(root: bytes, *, home: bool) -> str:
    if home:
        return "/~/" + quote_from_bytes(root, safe=_PATH_SAFE) if root else "/~"
    path = quote_from_bytes(root, safe=_PATH_SAFE)
    return "/%7E" + path[2:] if path.startswith("/~") else path


def _from_top(path: bytes) -> bytes:
    """An absolute spelling of a local path, without touching ``..``: a link may stand before it."""
    if path.startswith(b"/"):
        return path
    while path.startswith(b"./"):
        path = path[2:].lstrip(b"/")
    return os.getcwdb() if path in (b"", b".") else os.path.join(os.getcwdb(), path)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _refuse_scheme(name: str) -> NoReturn:
    known = ", ".join(f"{scheme}://" for scheme in URL_SCHEMES)
    raise BadURL(
        f"the scheme {name!a} is not known; known are {known} and local:",
        hint="write ssh://HOST/PATH for a directory on a host, ./PATH for a path with a colon in it",
    )


def _refuse_scp_form() -> NoReturn:
    raise BadURL(
        "the target looks like scp's user@host:path",
        hint="write ssh://USER@HOST/PATH, or ssh://USER@HOST/~/PATH below the home directory",
    )
