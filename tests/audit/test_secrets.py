"""Credentials are found by how they begin, in time proportional to the bytes, and never shown."""

from __future__ import annotations

import random
import time

import pytest

from sandlift.audit.secrets import HITS_MAX, redact, scan

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def text(count: int, letters: str = LETTERS) -> str:
    return "".join(random.Random(count).choices(letters, k=count))


HEX, UPPER, ALPHA = "0123456789abcdef", LETTERS[:26], LETTERS[:52]
# Put together here, so that no file of ours holds anything that looks like one.
SAMPLES = {
    "a private key": ["-----BEGIN" + kind + "PRIVATE KEY-----" for kind in (" ", " RSA ", " OPENSSH ", " EC ")],
    "an access key of AWS": ["AKIA" + text(16, UPPER), "ASIA" + text(16, UPPER)],
    "a secret key of AWS": ["aws_secret_access_key = " + text(40)],
    "a token of GitHub": ["gh" + kind + "_" + text(36) for kind in "pousr"] + ["github_pat_" + text(82)],
    "a token of GitLab": ["glpat-" + text(20)],
    "a token of Slack": ["xoxb-" + text(40), "xapp-1-" + text(30)],
    "a key of Anthropic": ["sk-ant-api03-" + text(95)],
    "a key of OpenAI": ["sk-proj-" + text(60), "sk-" + text(20) + "T3BlbkFJ" + text(20)],
    "a key of Google": ["AIza" + text(35)],
    "an access token of Google": ["ya29." + text(60)],
    "a key of Stripe": ["sk_live_" + text(24)],
    "a token of npm": ["npm_" + text(36), "//registry.npmjs.org/:_authToken=" + text(36, HEX)],
    "a token of PyPI": ["pypi-AgEIcHlwaS5vcmc" + text(60)],
    "a token of Hugging Face": ["hf_" + text(34, ALPHA)],
    "a token of DigitalOcean": ["dop_v1_" + text(64, HEX)],
    "a token of Vault": ["hvs." + text(30)],
    "a JSON web token": ["eyJ" + text(20) + ".eyJ" + text(60) + "." + text(43)],
    "a password in an address": [
        "https://me:hunter2x@example.com",
        "postgres://u:hunter2x@db/x",
        "redis://:hunter2x@r",
    ],
}
CASES = [(what, sample) for what, samples in SAMPLES.items() for sample in samples]


@pytest.mark.parametrize(("what", "sample"), CASES)
def test_a_credential_is_told_with_its_line(what: str, sample: str) -> None:
    data = f"first\nKEY='{sample}'\nlast\n".encode()
    assert (what, 2) in list(scan(data))
    assert next(scan(sample.encode())) == (what, 1)


@pytest.mark.parametrize(("what", "sample"), CASES)
def test_a_credential_is_never_shown(what: str, sample: str) -> None:
    shown = redact(b"before " + sample.encode() + b" after")
    assert sample.encode() not in shown
    assert b"[...]" in shown
    assert shown.startswith(b"before")
    secret = sample.encode()[-20:] if what != "a password in an address" else b"hunter2x"
    assert secret not in shown


@pytest.mark.parametrize(
    "value",
    ["password=hunter2x", "PASSWORD: hunter2x", '"apiKey": "hunter2x"', "token hunter2x", "--secret=hunter2x"],
)
def test_what_is_a_secret_by_its_name_is_not_shown(value: str) -> None:
    assert b"hunter2x" not in redact(f"!f() {{ echo {value}; }}; f".encode())


@pytest.mark.parametrize(
    "harmless",
    [
        b"a sk-ip-proj- list, task-force, disk-usage",
        b"-----BEGIN CERTIFICATE-----",
        b"-----BEGIN PUBLIC KEY-----",
        b"https://example.com/a:b@c git@github.com:a/b ssh://git@host/x",
        b"https://user:${PASSWORD}@host https://user:<password>@host",
        b"eyJhbGciOiJIUzI1NiJ9 alone",
        b"AKIA and ghp_ and npm_config_cache and xoxb-",
        b"ABCAKIA" + text(16, UPPER).encode(),
        b"",
    ],
)
def test_what_only_looks_similar_is_not_told(harmless: bytes) -> None:
    assert list(scan(harmless)) == []


def test_a_text_without_any_stays_as_it_is() -> None:
    assert redact(b"core.pager=less -R") == b"core.pager=less -R"


def test_a_file_full_of_them_is_bounded() -> None:
    data = (f"AKIA{text(16, UPPER)}\n" * 1000).encode()
    assert len(list(scan(data))) == HITS_MAX


@pytest.mark.parametrize(
    "unit",
    [b"-eyJ", b"-eyJaaaaaaaaa.eyJ", b"://a", b"://a:bcd", b"sk-", b"-----BEGIN ", b"a:b@://", b"aws_secret_access_key ",
     b"xapp-xapp-", b"AccountKey=/"],
)  # fmt: skip
def test_hostile_text_takes_no_longer_than_its_length_calls_for(unit: bytes) -> None:
    def seconds(size: int) -> float:
        data = unit * (size // len(unit))
        started = time.process_time()
        list(scan(data))
        return time.process_time() - started

    small = min(seconds(1 << 17) for _ in range(3))
    # Eight times the bytes: a quadratic search would take 64 times as long.
    assert seconds(1 << 20) < 25 * max(small, 0.01)
