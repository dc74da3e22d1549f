"""Target URLs: what is understood, what is refused, and what a record of them tells."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlift.errors import BadURL
from sandlift.targets import Target, parse_target

SECRET = "hunter2-hunter2"

UNDERSTOOD = {
    "url": ("ssh://me@box:2222/work", Target(scheme="ssh", user="me", host="box", port=2222, root=b"/work")),
    "alias": ("ssh://box/work", Target(scheme="ssh", host="box", root=b"/work")),
    "paramiko": ("paramiko://me@box/w", Target(scheme="paramiko", user="me", host="box", root=b"/w")),
    "scheme-case": ("SSH://Box/w", Target(scheme="ssh", host="Box", root=b"/w")),
    "root": ("ssh://box/", Target(scheme="ssh", host="box", root=b"/")),
    "slashes-stay": ("ssh://box//a//b/", Target(scheme="ssh", host="box", root=b"//a//b/")),
    "home": ("ssh://box/~", Target(scheme="ssh", host="box", root=b"", home=True)),
    "home-slash": ("ssh://box/~/", Target(scheme="ssh", host="box", root=b"", home=True)),
    "below-home": ("ssh://box/~/a/b", Target(scheme="ssh", host="box", root=b"a/b", home=True)),
    "below-home-slashes": ("ssh://box/~//a", Target(scheme="ssh", host="box", root=b"a", home=True)),
    "really-tilde": ("ssh://box/%7E/a", Target(scheme="ssh", host="box", root=b"/~/a")),
    "tilde-inside": ("ssh://box/a/~", Target(scheme="ssh", host="box", root=b"/a/~")),
    "escapes": ("ssh://box/a%20b%FF%25%2F", Target(scheme="ssh", host="box", root=b"/a b\xff%/")),
    "unicode": ("ssh://box/é", Target(scheme="ssh", host="box", root="/é".encode())),
    "odd-bytes": (os.fsdecode(b"ssh://box/\xff"), Target(scheme="ssh", host="box", root=b"/\xff")),
    "query-is-path": ("ssh://box/a?b#c", Target(scheme="ssh", host="box", root=b"/a?b#c")),
    "colon-in-path": ("ssh://box/a:b@c", Target(scheme="ssh", host="box", root=b"/a:b@c")),
    "user-escaped": ("ssh://a%40b@box/w", Target(scheme="ssh", user="a@b", host="box", root=b"/w")),
    "user-with-at": ("ssh://a@b@box/w", Target(scheme="ssh", user="a@b", host="box", root=b"/w")),
    "ipv6": ("ssh://[::1]/w", Target(scheme="ssh", host="::1", root=b"/w")),
    "ipv6-port": ("ssh://me@[fe80::1]:22/w", Target(scheme="ssh", user="me", host="fe80::1", port=22, root=b"/w")),
    "ipv6-zone": ("ssh://[fe80::1%25eth0]/w", Target(scheme="ssh", host="fe80::1%eth0", root=b"/w")),
    "port-low": ("ssh://box:1/w", Target(scheme="ssh", host="box", port=1, root=b"/w")),
    "port-high": ("ssh://box:65535/w", Target(scheme="ssh", host="box", port=65535, root=b"/w")),
    "local": ("local:/a/b", Target(scheme="local", root=b"/a/b")),
    "local-verbatim": ("local:a%20b:c", Target(scheme="local", root=b"a%20b:c")),
    "local-tilde": ("local:~/x", Target(scheme="local", root=b"~/x")),
    "local-odd-bytes": (os.fsdecode(b"local:/\xff"), Target(scheme="local", root=b"/\xff")),
    "bare": ("/a/b", Target(scheme="local", root=b"/a/b")),
    "bare-relative": ("a/b", Target(scheme="local", root=b"a/b")),
    "bare-dot": (".", Target(scheme="local", root=b".")),
    "bare-colon-later": ("./box:/w", Target(scheme="local", root=b"./box:/w")),
    "bare-dash": ("-x", Target(scheme="local", root=b"-x")),
    "bare-odd-bytes": (os.fsdecode(b"/\xfe\xff"), Target(scheme="local", root=b"/\xfe\xff")),
}

REFUSED = {
    "empty": ("", "empty"),
    "nul": ("/a\0b", "NUL"),
    "escaped-nul": ("ssh://box/%00", "NUL"),
    "password": (f"ssh://me:{SECRET}@box/w", "password"),
    "unknown-scheme": ("docker://c1/work", "'docker' is not known.*ssh://, paramiko:// and local:"),
    "unknown-opaque": ("file:/work", "not known"),
    "scp": ("box:/work", "not known"),
    "scp-user": ("me@box:/work", "scp"),
    "no-slashes": ("ssh:box/w", "//"),
    "no-path": ("ssh://box", "names no directory"),
    "no-host": ("ssh:///w", "no host"),
    "user-no-host": ("ssh://me@/w", "no host"),
    "empty-user": ("ssh://@box/w", "user name"),
    "host-option": ("ssh://-oProxyCommand=x/w", "host name"),
    "user-option": ("ssh://-oProxyCommand=x@box/w", "user name"),
    "escaped-option": ("ssh://%2DoProxyCommand=x@box/w", "user name"),
    "host-shell": ("ssh://`id`/w", "host name"),
    "host-dollar": ("ssh://$(id)/w", "host name"),
    "host-percent": ("ssh://a%20b/w", "host name"),
    "host-newline": ("ssh://a\nb/w", "host name"),
    "user-shell": ("ssh://a;b@box/w", "user name"),
    "user-space": ("ssh://a%20b@box/w", "user name"),
    "port-zero": ("ssh://box:0/w", "port"),
    "port-big": ("ssh://box:65536/w", "port"),
    "port-empty": ("ssh://box:/w", "port"),
    "port-word": ("ssh://box:ssh/w", "port"),
    "port-digits": ("ssh://box:²/w", "port"),
    "port-sign": ("ssh://box:+22/w", "port"),
    "ipv6-bare": ("ssh://::1/w", "brackets"),
    "ipv6-wrong": ("ssh://[box]/w", "IPv6"),
    "ipv6-open": ("ssh://[::1/w", "IPv6"),
    "ipv6-tail": ("ssh://[::1]x/w", "IPv6"),
    "bad-escape": ("ssh://box/%zz", "hex digits"),
    "lone-percent": ("ssh://box/100%", "hex digits"),
    "other-home": ("ssh://box/~bob/x", "another user"),
    "local-empty": ("local:", "no directory"),
}


@pytest.mark.parametrize(("text", "target"), UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_understood(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(BadURL, match=said) as caught:
        parse_target(text)
    assert SECRET not in str(caught.value) + caught.value.hint + repr(caught.value.context)
    assert caught.value.exit == 2


def test_a_prefix_is_split_as_a_shell_would() -> None:
    target = parse_target("/srv/w", via="docker exec -i 'my box'")
    assert target == Target(scheme="via", root=b"/srv/w", via=("docker", "exec", "-i", "my box"))
    assert parse_target("w", via_shell="sh -c") == Target(scheme="via", root=b"w", via=("sh", "-c"), via_shell=True)


@pytest.mark.parametrize(
    ("text", "root", "home"), [("~", b"", True), ("~/a", b"a", True), ("a:b", b"a:b", False), ("./~x", b"./~x", False)]
)
def test_the_path_behind_a_prefix(text: str, root: bytes, home: bool) -> None:
    target = parse_target(text, via="x")
    assert (target.root, target.home) == (root, home)


@pytest.mark.parametrize(
    ("text", "via", "via_shell", "said"),
    [
        ("/w", "a", "b", "twice"),
        ("/w", "", None, "empty"),
        ("/w", None, "", "empty"),
        ("/w", "'' x", None, "empty"),
        ("/w", "a 'b", None, "cannot be split"),
        ("/w", "a\0b", None, "NUL"),
        ("", "a", None, "empty"),
        ("ssh://box/w", "a", None, "not a URL"),
        ("~bob", "a", None, "another user"),
    ],
)
def test_a_wrong_prefix_is_refused(text: str, via: str | None, via_shell: str | None, said: str) -> None:
    with pytest.raises(BadURL, match=said):
        parse_target(text, via=via, via_shell=via_shell)


def test_the_source_of_a_prefix_is_the_program_alone() -> None:
    target = parse_target("/srv/work", via=f"/usr/bin/docker -H tcp://{SECRET} exec -i c")
    assert target.source() == "via:docker:/srv/work"
    assert parse_target("~/work", via="docker").source() == "via:docker:~/work"
    assert parse_target("~", via="docker").source() == "via:docker:~"


def test_a_token_is_used_and_never_recorded() -> None:
    token = "dtn_0123456789abcdef0123456789"
    target = parse_target(f"ssh://{token}@gate.example/w")
    other = parse_target(f"ssh://{token}x@gate.example/w")
    assert target.user == token
    assert token not in target.source()
    assert target.source() != other.source()
    assert parse_target("ssh://someone@box/w").source() == "ssh://someone@box/w"


def test_a_local_source_is_told_from_the_top(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    assert parse_target(".").source() == f"local:{here}"
    assert parse_target("./a").source() == f"local:{here}/a"
    assert parse_target("a/../b").source() == f"local:{here}/a/../b"
    assert parse_target("/x").source() == "local:/x"
    assert parse_target(os.fsdecode(b"/\xff")).source() == "local:/\\xff"


def test_keys_tell_targets_apart() -> None:
    texts = ["ssh://box/w", "ssh://box/~/w", "ssh://me@box/w", "ssh://box:22/w", "paramiko://box/w", "/w"]
    targets = [parse_target(text) for text in texts]
    targets += [parse_target("/w", via=prefix) for prefix in ("docker exec a", "docker exec b")]
    targets.append(parse_target("/w", via_shell="docker exec a"))
    assert len({target.key() for target in targets}) == len(targets)
    assert parse_target("ssh://box/w").key() == targets[0].key()


paths = st.binary(min_size=0, max_size=30).filter(lambda data: b"\0" not in data)


@given(
    root=paths,
    home=st.booleans(),
    user=st.sampled_from([None, "me", "a@b", "ü", "a:b"]),
    host=st.sampled_from(["box", "a.b-c", "::1", "fe80::1%eth0"]),
    port=st.one_of(st.none(), st.integers(1, 65535)),
    scheme=st.sampled_from(["ssh", "paramiko"]),
)
def test_a_source_can_be_parsed_again(
    root: bytes, home: bool, user: str | None, host: str, port: int | None, scheme: str
) -> None:
    root = root.lstrip(b"/") if home else b"/" + root
    target = Target(scheme=scheme, user=user, host=host, port=port, root=root, home=home)
    assert parse_target(target.source()) == target
    assert target.source().isascii()


@given(st.text(max_size=40).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for candidate in (text, "ssh://" + text, "ssh://box/" + text):
        try:
            target = parse_target(candidate)
        except BadURL:
            continue
        assert b"\0" not in target.root
        assert target.home or target.root
        for name in (target.host, target.user):
            assert name is None or (name and not name.startswith("-"))
