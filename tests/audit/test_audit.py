"""``sandlift audit`` on a tree in which much is planted: what is told, how, and that it runs and shows nothing."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from audit.conftest import Planted, lift
from audit.planting import PLANTS
from cli.program import Done, expect, run

from sandlift.audit import CATEGORIES, SEVERITIES
from sandlift.audit.accounts import RULES as ACCOUNT_RULES
from sandlift.audit.auditor import audit
from sandlift.audit.findings import PER_CATEGORY_MAX, Finding, Gathering
from sandlift.audit.rules import Rulebook
from sandlift.audit.tools import RULES as TOOL_RULES
from sandlift.store import Store

SECRET = "hunter2" + "x" * 29
TOKEN = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0" * 2

# Path, content, and the (category, severity) that must be told of it, or none.
FILES: list[tuple[str, str, tuple[str, str] | None]] = [
    (".vscode/tasks.json", '{"tasks": [{"runOptions": {"runOn": "folderOpen"}}]}', ("editor", "runs-code")),
    (".vscode/settings.json", '{"python.defaultInterpreterPath": "./evil"}', ("editor", "runs-code")),
    ("plain/.vscode/settings.json", '{"editor.tabSize": 2}', None),
    (".idea/runConfigurations/x.xml", "<x/>", ("editor", "runs-code")),
    (".nvimrc", "x", ("editor", "runs-code")),
    (".dir-locals.el", "((nil . ((eval . (evil)))))", ("editor", "runs-code")),
    ("plain/.dir-locals.el", "((nil . ((tab-width . 2))))", None),
    (".devcontainer/devcontainer.json", "{}", ("editor", "runs-code")),
    (".claude/settings.json", '{"hooks": {"Stop": []}}', ("agent", "runs-code")),
    (".mcp.json", '{"mcpServers": {"x": {"command": "evil"}}}', ("agent", "runs-code")),
    (".envrc", "evil", ("environment", "runs-code")),
    ("sub/mise.toml", "[hooks]", ("environment", "runs-code")),
    (".gdbinit", "x", ("environment", "runs-code")),
    ("package.json", '{"scripts": {"postinstall": "evil --token ' + SECRET + '"}}', ("packages", "runs-code")),
    ("plain/package.json", '{"scripts": {"test": "x"}}', None),
    ("odd/package.json", '{"scripts": {"preinstall": ', ("packages", "runs-code")),
    (".npmrc", "script-shell = ./evil\n", ("packages", "runs-code")),
    ("plain/.npmrc", "save-exact = true\n", None),
    ("setup.py", "x", ("packages", "runs-code")),
    ("tests/conftest.py", "x", ("packages", "runs-code")),
    ("lib/sitecustomize.py", "x", ("packages", "runs-code")),
    ("lib/a.pth", "import evil\n", ("packages", "runs-code")),
    ("lib/b.pth", "/some/path\nimportant\n", None),
    ("pyproject.toml", '[build-system]\nbackend-path = ["."]\n', ("packages", "runs-code")),
    ("plain/pyproject.toml", '[build-system]\nbuild-backend = "x"\n', None),
    (".pre-commit-config.yaml", "x", ("packages", "runs-code")),
    ("Makefile", "x:", ("build", "runs-code")),
    ("home/.bashrc", "x", ("shell", "runs-code")),
    ("home/.config/systemd/user/x.service", "x", ("startup", "runs-code")),
    ("home/.config/autostart/x.desktop", "x", ("startup", "runs-code")),
    ("var/spool/cron/crontabs/root", "x", ("startup", "runs-code")),
    ("home/.ssh/authorized_keys", "x", ("access", "privilege")),
    ("home/.ssh/config", "Host x\n  ProxyCommand evil\n", ("access", "runs-code")),
    ("plain/.ssh/config", "Host x\n  User me\n", None),
    ("home/.kube/config", "users:\n- user:\n    exec:\n", ("access", "runs-code")),
    ("home/.ssh/id_rsa", "x", ("secrets", "secret")),
    ("home/.ssh/id_rsa.pub", "x", None),
    ("home/.netrc", "x", ("secrets", "secret")),
    ("home/.aws/credentials", "x", ("secrets", "secret")),
    ("home/.docker/config.json", '{"auths": {"x": {"auth": "' + SECRET + '"}}}', ("secrets", "secret")),
    ("plain/.docker/config.json", '{"auths": {}}', None),
    ("key.p12", "x", ("secrets", "secret")),
    (".env.production", "x", ("secrets", "secret")),
    (".env.example", "x", None),
    ("src/code.py", f"TOKEN = '{TOKEN}'\n", ("secrets", "secret")),
    ("copy/code.txt", f"TOKEN = '{TOKEN}'\n", ("secrets", "secret")),
    ("src/ca.pem", "-----BEGIN CERTIFICATE-----\n", None),
    ("src/key.pem", "\n-----BEGIN " + "PRIVATE KEY-----\n", ("secrets", "secret")),
    (".gitmodules", '[submodule "x"]\n\tupdate = !evil\n', ("git", "runs-code")),
    ("plain/.gitmodules", '[submodule "x"]\n\turl = https://example.com/x\n', None),
    (".gitattributes", "* filter=evil diff=python\n", ("git", "runs-code")),
    ("plain/.gitattributes", "*.py diff=python text eol=lf\n", None),
    ("a\x1b[31mb", "x", ("names", "name")),
    ("case", "x", ("names", "name")),
    ("CASE", "x", ("names", "name")),
    ("plain/readme.txt", "nothing here at all\n", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(folder: Path) -> Path:
    """A store with a capture of all those files, as ``much``."""
    root = folder / "much"
    for name, text, _ in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "bin").mkdir()
    (root / "bin/su").write_text("x")
    (root / "bin/su").chmod(0o4755)
    (root / "bin/large.key").write_bytes(b"x" * (1 << 20) + b"y")
    (root / "large").mkdir()
    (root / "large/package.json").write_bytes(b"x" * (1 << 20) + b"y")
    os.symlink("/etc/passwd", root / "outside")
    os.symlink("Makefile", root / "linked")
    os.symlink("copy/code.txt", root / "src/.envrc")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_text("x")
    store = folder / "much-store"
    lift(root, store, "much")
    return store


def ask(store: Path, *words: str) -> Done:
    done = run("audit", *words, env={"SANDLIFT_STORE": str(store)})
    assert done.status == 0, done
    return done


def findings(store: Path, *words: str) -> list[dict[str, Any]]:
    found = ask(store, "--json", *words).object
    assert list(found) == "schema ref snapshot counts left_off files_read too_large findings".split()
    return list(found["findings"])


def test_each_file_is_told_for_what_it_is(place: Path) -> None:
    told: dict[str, set[tuple[str, str]]] = {}
    for finding in findings(place, "much"):
        assert list(finding)[:3] == ["category", "severity", "path"]
        assert finding["category"] in CATEGORIES
        assert finding["severity"] in SEVERITIES
        told.setdefault(finding["path"], set()).add((finding["category"], finding["severity"]))
    for name, _, expected in FILES:
        assert (told.get(name, set()) == set()) if expected is None else (expected in told[name]), name
    assert told["bin/su"] == {("modes", "privilege")}
    assert told["outside"] == {("links", "link")}
    assert told["src/.envrc"] == {("environment", "runs-code")}
    assert told["caf\udce9"] == {("names", "name")}


def test_json_has_what_a_program_needs(place: Path) -> None:
    found = ask(place, "--json", "much").object
    assert found["ref"] == "much@1"
    assert len(found["snapshot"]) == 64
    assert found["too_large"] == 1
    assert found["left_off"] == 0
    by_severity: dict[str, int] = {}
    for finding in found["findings"]:
        by_severity[finding["severity"]] = by_severity.get(finding["severity"], 0) + 1
        assert set(finding) - {"path_b64", "detail_b64"} == {"category", "severity", "path", "what", "detail"}
    assert found["counts"] == by_severity
    (odd,) = [finding for finding in found["findings"] if finding["path"].startswith("caf")]
    assert base64.b64decode(odd["path_b64"]) == b"caf\xe9"
    (link,) = [finding for finding in found["findings"] if finding["path"] == "outside"]
    assert link["detail"] == "/etc/passwd"
    categories = [finding["category"] for finding in found["findings"]]
    assert categories == sorted(categories, key=CATEGORIES.index)


def test_no_secret_and_no_control_character_is_shown(place: Path) -> None:
    for words in (("much",), ("--json", "much"), ("much", "-v")):
        done = ask(place, *words)
        for secret in (SECRET, TOKEN, TOKEN[5:30]):
            assert secret not in done.out + done.err
        assert "\x1b" not in done.out
    assert "postinstall: evil --token [...]" in ask(place, "much").out


def test_people_get_it_by_area(place: Path) -> None:
    out = ask(place, "much").out
    assert "  $'a\\e[31mb'\n      name: holds control characters, which a terminal obeys\n" in out
    assert "  src/code.py\n      secret: a token of GitHub: line 1\n" in out
    assert "  bin/su\n      privilege: setuid: " in out
    assert "1 file is too large to be looked into" in out
    assert out.index("Editors (") < out.index("Secrets; none is shown (") < out.index("Names (")


def test_one_place_alone(place: Path) -> None:
    assert {finding["path"] for finding in findings(place, "much", "--path", "home/.ssh")} == {
        "home/.ssh/authorized_keys",
        "home/.ssh/config",
        "home/.ssh/id_rsa",
    }
    assert {finding["path"] for finding in findings(place, "much", "--path", "outside", "--path", "./Makefile")} == {
        "outside",
        "Makefile",
    }
    assert findings(place, "much", "--path", "plain") == []
    assert len(findings(place, "much", "--path", ".")) == len(findings(place, "much"))
    assert "nothing found" in ask(place, "much", "--path", "plain").out
    done = run("audit", "much", "--path", "nowhere", "--json", env={"SANDLIFT_STORE": str(place)})
    expect(done, 1, "unknown-path", "nowhere")
    done = run("audit", "none", "--json", env={"SANDLIFT_STORE": str(place)})
    expect(done, 1, "unknown-ref")


def test_every_plant_is_told_and_none_runs(planted: Planted) -> None:
    planted.ran()
    with Store.open(planted.source.store) as store:
        found = audit(store, "demo")
    assert planted.ran() == []
    told = {finding.path.split(b"/")[0] for finding in found.findings if finding.severity == "runs-code"}
    assert told == {name.encode() for name in PLANTS}


def test_an_inert_tree_has_nothing_of_git_that_runs(planted: Planted) -> None:
    """The audit and the treatment agree: afterwards nothing is left but what is inert without configuration."""
    lifted = lift(planted.inert, planted.source.store.parent / "inert-store")
    with Store.open(lifted.store) as store:
        found = audit(store, "demo")
    harmless = ("names drivers", "git takes this directory for a repository", "configuration", "reads", "belongs")
    left = [finding for finding in found.findings if finding.category == "git"]
    for finding in left:
        assert finding.what.startswith(harmless[:2]), finding
    assert left


def test_rules_find_their_own_patterns() -> None:
    """No pattern is written so that it can never match."""
    book = Rulebook((*TOOL_RULES, *ACCOUNT_RULES))
    for rule in (*TOOL_RULES, *ACCOUNT_RULES):
        for pattern in rule.patterns:
            assert pattern == pattern.lower()
            for path in (pattern, "deep/er/" + pattern, pattern.upper()):
                name = path.replace("*", "x")
                assert rule in book.rules_for(name.encode()) or name.lower().endswith(rule.but), pattern
    assert book.rules_for(b"src/main.py") == []
    assert book.rules_for(b"x/my.bashrc") == []
    assert [rule.category for rule in book.rules_for(b"notvscode/tasks.json")] == ["secrets"]


def test_too_many_findings_are_counted() -> None:
    gathering = Gathering()
    for number in range(PER_CATEGORY_MAX + 5):
        gathering.add(Finding(category="names", severity="name", path=b"%d" % number, what="odd"))
    gathering.add(Finding(category="git", severity="runs-code", path=b"x", what="same"))
    gathering.add(Finding(category="git", severity="runs-code", path=b"x", what="same"))
    found = gathering.end(files_read=0, too_large=0)
    assert found.left_off == 5
    assert found.counts == {"runs-code": 1, "name": PER_CATEGORY_MAX + 5}
    assert len(found.findings) == PER_CATEGORY_MAX + 1
