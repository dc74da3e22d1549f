"""Files that hold credentials, known by their names, and credentials in files, known by how they begin.

Each pattern begins with a literal.  The literal is looked for first, and the pattern is tried only where it stands;
all repetitions are bounded.  So the time is proportional to the bytes, whatever they are.  What is found is told by
kind and line; the secret itself is never part of a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

HITS_MAX: Final = 20
"""How many places of one file are told."""
TRIES_MAX: Final = 50_000
"""How often one pattern is tried in one file."""

_W = rb"[A-Za-z0-9_-]"
_END = rb"(?![A-Za-z0-9_])"

# What it is, the literals that it may begin with, and the rest.
_TABLE: tuple[tuple[str, str, bytes], ...] = (
    ("a private key", "-----BEGIN", rb"[ A-Z0-9]{0,40} ?PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\:.,]{0,16384}+"),
    ("a private key of age", "AGE-SECRET-KEY-1", rb"[A-Z0-9]{50,70}"),
    ("a private key of PuTTY", "PuTTY-User-Key-File-", rb"[23]: "),
    ("an access key of AWS", "AKIA ASIA ABIA ACCA", rb"[A-Z2-7]{16}" + _END),
    ("a secret key of AWS", "aws_secret_access_key", rb"[\"']?\s{0,8}[:=]\s{0,8}[\"']?[A-Za-z0-9/+=]{40}"),
    ("a token of GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", rb"[A-Za-z0-9]{36,255}" + _END),
    ("a token of GitHub", "github_pat_", rb"[A-Za-z0-9_]{22,255}"),
    ("a token of GitLab", "glpat- gldt- glrt- glcbt- glptt-", _W + rb"{20,255}"),
    ("a token of Slack", "xox", rb"[abcdeprs]-[A-Za-z0-9%-]{10,512}"),
    ("a token of Slack", "xapp-", rb"[A-Za-z0-9-]{10,512}"),
    ("a webhook of Slack", "https://hooks.slack.com/services/", rb"[A-Za-z0-9/]{24,100}"),
    ("a webhook of Discord", "https://discord.com/api/webhooks/", rb"[0-9]{10,25}/" + _W + rb"{40,100}"),
    ("a key of Anthropic", "sk-", rb"ant-[a-z0-9]{2,16}-" + _W + rb"{40,255}"),
    ("a key of OpenAI", "sk-", rb"(?:proj|svcacct|admin|None)-" + _W + rb"{40,255}"),
    ("a key of OpenAI", "sk-", rb"[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}" + _END),
    ("a key of OpenRouter", "sk-", rb"or-v1-[0-9a-f]{64}" + _END),
    ("a key of Google", "AIza", _W + rb"{35}(?![A-Za-z0-9_-])"),
    ("a client secret of Google", "GOCSPX-", _W + rb"{28}(?![A-Za-z0-9_-])"),
    ("an access token of Google", "ya29.", rb"[A-Za-z0-9_.-]{30,512}"),
    ("a key of a Google service account", '"private_key"', rb"\s{0,8}:\s{0,8}\"-----BEGIN"),
    ("a key of Stripe", "k_live_", rb"(?<=[rs]k_live_)[A-Za-z0-9]{20,255}"),
    ("a token of npm", "npm_", rb"[A-Za-z0-9]{36}" + _END),
    ("a token of npm", ":_authToken", rb"\s{0,8}=\s{0,8}[^\s$\"{][^\s]{7,512}"),
    ("a token of PyPI", "pypi-AgEIcHlwaS5vcmc", _W + rb"{20,255}"),
    ("a token of Hugging Face", "hf_", rb"[A-Za-z]{34}" + _END),
    ("a token of SendGrid", "SG.", _W + rb"{22}\." + _W + rb"{43}(?![A-Za-z0-9_-])"),
    ("a token of DigitalOcean", "_v1_", rb"(?<=do[opr]_v1_)[a-f0-9]{64}" + _END),
    ("a token of Vault", "hvs. hvb. hvr.", _W + rb"{24,255}"),
    ("a token of Databricks", "dapi", rb"[a-f0-9]{32}" + _END),
    ("a token of Docker Hub", "dckr_pat_", _W + rb"{27,64}"),
    ("a token of Linear", "lin_api_", rb"[A-Za-z0-9]{40}" + _END),
    ("a token of Groq", "gsk_", rb"[A-Za-z0-9]{52}" + _END),
    ("a token of Replicate", "r8_", rb"[A-Za-z0-9]{37}" + _END),
    ("a token of Fly.io", "fm2_", rb"[A-Za-z0-9+/=,_]{40,512}"),
    ("an account key of Azure", "AccountKey=", rb"[A-Za-z0-9+/]{80,100}={0,2}"),
    ("a JSON web token", "eyJ", _W + rb"{8,512}+\.eyJ" + _W + rb"{8,8192}+\." + _W + rb"{16,4096}+"),
    (
        "a password in an address",
        "://",
        rb"[^\s:@/\"'<>{}$\\]{0,128}:[^\s:@/\"'<>{}$\\]{3,256}@(?=[A-Za-z0-9\[])",
    ),
)
_PATTERNS: dict[bytes, list[tuple[str, re.Pattern[bytes]]]] = {}
for _what, _literals, _rest in _TABLE:
    for _literal in _literals.encode().split():
        _PATTERNS.setdefault(_literal, []).append((_what, re.compile(re.escape(_literal) + _rest)))
_INFIXES: Final = frozenset((b"k_live_", b"_v1_"))
"""Literals that stand after the first letters of what they belong to."""
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
# What is given to a name like these is not shown, whatever it is.
_ASSIGNED = re.compile(
    rb"((?:passw(?:or)?d|passphrase|secret|token|api_?key|access_?key|auth|bearer)[\w-]{0,20}[\"']?"
    rb"\s{0,8}[:= ]\s{0,8}[\"']?)[^\s;'\"]{3,1024}",
    re.IGNORECASE,
)


def scan(data: bytes) -> Iterator[tuple[str, int]]:
    """Yields (kind, line) of the credentials in a file's bytes, at most `HITS_MAX`."""
    for what, start, _ in islice(_places(data), HITS_MAX):
        yield what, data.count(b"\n", 0, start) + 1


def redact(text: bytes) -> bytes:
    """Returns some text with ``[...]`` for every credential in it, and for what may be one by its name."""
    out, at = bytearray(), 0
    for _, start, end in sorted(_places(text), key=lambda place: place[1:]):
        if start >= at:
            out += text[at:start] + b"[...]"
        at = max(at, end)
    return _ASSIGNED.sub(rb"\1[...]", bytes(out + text[at:]))


def _places(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yields (kind, start, end) of each credential, literal by literal."""
    for literal, patterns in _PATTERNS.items():
        at, tries = data.find(literal), 0
        # In the middle of a word a literal that begins like one is no beginning, but of something else.
        is_word = literal[0] in _WORD and literal not in _INFIXES
        while at >= 0 and tries < TRIES_MAX:
            end, tries = at + 1, tries + 1
            if not (at and is_word and data[at - 1] in _WORD):
                for what, pattern in patterns:
                    found = pattern.match(data, at)
                    if found is not None:
                        yield what, at, found.end()
                        end = found.end()
                        break
            at = data.find(literal, end)
