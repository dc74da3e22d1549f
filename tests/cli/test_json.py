"""What programs read: every object field by field, and nothing else on stdout."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli.program import Place, run

from sandlift import payload

TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
HEX64 = re.compile(r"[0-9a-f]{64}")
COUNTS = "directories files links bytes excluded lost changed vanished".split()


def shape(value: Any) -> Any:
    """The fields and the kinds of values of an object."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return type(value)


def test_capture(own_place: Place) -> None:
    done = own_place.run("capture", own_place.root, "--as", "new/one", "--json", "--label", "k=v", "--note", "ü")
    assert (done.status, done.err) == (0, "")
    assert done.stdout.isascii()
    found = done.object
    assert (
        list(found)
        == (
            "schema snapshot content ref workspace number outcome reused created source labels note counts wire seconds"
        ).split()
    )
    assert found["schema"] == 1
    assert HEX64.fullmatch(found["snapshot"])
    assert HEX64.fullmatch(found["content"])
    assert (found["ref"], found["workspace"], found["number"]) == ("new/one@1", "new/one", 1)
    assert (found["outcome"], found["reused"]) == ("complete", False)
    assert TIME.fullmatch(found["created"])
    assert found["source"] == f"local:{own_place.root}"
    assert (found["labels"], found["note"]) == ({"k": "v"}, "ü")
    sizes = 11 + 1500 + (1 << 21) + 3 + 4 + 6 + (3 << 20) + 4 + 7
    assert found["counts"] == dict(zip(COUNTS, (3, 8, 2, sizes, 2, 0, 0, 0), strict=True))
    assert list(found["wire"]) == ["sent", "received"]
    assert found["wire"]["sent"] > 500
    assert found["wire"]["received"] > 500
    assert isinstance(found["seconds"], float)
    again = own_place.run("--json", "capture", own_place.root, "--as", "new/one").object
    assert (again["ref"], again["reused"], again["snapshot"]) == ("new/one@2", True, found["snapshot"])


def test_show(place: Place) -> None:
    done = place.run("show", "demo", "--json")
    assert (done.status, done.err) == (0, "")
    found = done.object
    assert (
        list(found)
        == (
            "schema snapshot content ref workspace number outcome created source labels note counts"
            " excluded flagged rules policy_version helper_digest"
        ).split()
    )
    assert found["excluded"] == [
        {"path": "fifo", "kind": "fifo", "reason": "fifo", "detail": ""},
        {"path": "outside", "kind": "link", "reason": "outside-link", "detail": "/etc/passwd"},
        {"path": "src.log", "kind": "file", "reason": "pattern", "detail": "*.log (--exclude)"},
    ]
    assert found["flagged"] == []
    assert found["rules"] == ["*.log (--exclude)"]
    assert (found["policy_version"], found["helper_digest"]) == (1, payload.digest())
    assert list(found["counts"]) == COUNTS
    assert (found["ref"], found["workspace"], found["number"]) == ("demo@2", "demo", 2)
    assert (found["labels"], found["note"]) == ({"who": "me", "n": "1=2"}, "a note")


def test_show_of_an_identity_has_no_record(place: Place) -> None:
    known = place.run("show", "demo@1", "--json").object
    found = place.run("show", known["snapshot"][:12], "--json").object
    for name in ("snapshot", "content", "outcome", "counts", "excluded", "flagged"):
        assert found[name] == known[name]
    for name in ("ref", "workspace", "number", "created", "source", "policy_version", "helper_digest"):
        assert found[name] is None


def test_log(place: Place) -> None:
    done = place.run("log", "demo", "--json")
    assert (done.status, done.err) == (0, "")
    newest, oldest = done.objects
    assert list(newest) == "schema ref snapshot created outcome counts source labels note".split()
    assert (newest["ref"], oldest["ref"]) == ("demo@2", "demo@1")
    assert TIME.fullmatch(newest["created"])
    assert newest["created"] > oldest["created"]
    shown = place.run("show", "demo", "--json").object
    assert {name: shown[name] for name in newest} == newest
    assert place.run("log", "--json").objects == [newest]


def test_ls(place: Place) -> None:
    done = place.run("ls", "demo", "--json")
    assert (done.status, done.err) == (0, "")
    rows = {row["path"]: row for row in done.objects}
    raw = [base64.b64decode(r["path_b64"]) if "path_b64" in r else r["path"].encode() for r in rows.values()]
    assert raw == sorted(raw)
    assert len(raw) == 12
    assert rows["a.txt"] == {
        "schema": 1,
        "path": "a.txt",
        "kind": "file",
        "mode": 0o640,
        "size": 11,
        "mtime_ns": 1_500_000_000_123_456_789,
    }
    assert rows["src/same"] == {**rows["a.txt"], "path": "src/same", "hardlink_of": "a.txt"}
    assert rows["sparse"]["size"] == (3 << 20) + 4
    assert (rows["src"]["kind"], rows["src"]["mode"]) == ("directory", (place.root / "src").stat().st_mode & 0o7777)
    assert list(rows["inside"]) == "schema path kind mode size mtime_ns target".split()
    assert (rows["inside"]["kind"], rows["inside"]["target"]) == ("link", "src/main.py")
    assert rows["rebased"]["target"] == "a.txt"
    assert rows["rebased"]["original_target"] == f"{place.root}/a.txt"
    strange = rows["caf\udce9"]
    assert strange["path_b64"] == base64.b64encode(b"caf\xe9").decode()
    assert b'"caf\\udce9"' in done.stdout
    assert [row["path"] for row in place.run("ls", "demo", "src/deep", "--json").objects] == [
        "src/deep",
        "src/deep/data",
    ]


# cases: e2b-dev/E2B#884, anthropics/claude-code#65847, anthropics/claude-code#67211, anthropics/claude-code#45383
def test_restore(place: Place, tmp_path: Path) -> None:
    target = os.fsencode(tmp_path) + b"/out\xff"
    done = place.run("restore", "demo", target, "--json")
    assert (done.status, done.err) == (0, "")
    found = done.object
    named = "schema ref snapshot target target_b64 mode outcome counts excluded lossy left wire seconds"
    assert list(found) == named.split()
    assert base64.b64decode(found["target_b64"]) == target
    assert (found["ref"], found["mode"], found["outcome"]) == ("demo@2", "new", "complete")
    assert found["counts"] == {"created": 12, "replaced": 0, "updated": 0, "removed": 0, "kept": 0}
    assert found["lossy"] == dict.fromkeys("links_copied bits_dropped owners_refused links_left git_changed".split(), 0)
    assert found["left"] == []
    assert found["snapshot"] == place.run("show", "demo", "--json").object["snapshot"]
    assert shape(found["wire"]) == {"sent": int, "received": int}
    plain = place.run("restore", found["snapshot"], tmp_path / "plain", "--json").object
    assert plain["ref"] is None
    assert plain["target"] == str(tmp_path / "plain")
    assert "target_b64" not in plain


def test_verify(own_place: Place) -> None:
    done = own_place.run("verify", "--json")
    assert (done.status, done.err) == (0, "")
    size = sum(
        path.stat().st_size
        for name in ("packs", "snapshots", "refs")
        for path in (own_place.store / name).rglob("*")
        if path.is_file()
    )
    assert done.object == {"schema": 1, "packs": 2, "snapshots": 2, "refs": 2, "bytes": size, "damaged": []}


def test_verify_with_damage(own_place: Place) -> None:
    packs = sorted((own_place.store / "packs").rglob("*"), key=lambda path: path.stat().st_mtime_ns)
    pack = next(path for path in packs if path.is_file())
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    done = own_place.run("verify", "--json")
    assert (done.status, done.err) == (1, "")
    (damage,) = done.object["damaged"]
    assert list(damage) == ["object", "reason", "refs"]
    assert damage["object"] == str(pack.relative_to(own_place.store))
    assert "demo@1" in damage["refs"]
    text = own_place.run("verify")
    assert text.status == 1
    assert text.out.splitlines()[-1].endswith("1 object DAMAGED")
    assert damage["object"] in text.out


def test_doctor(place: Place) -> None:
    done = place.run("doctor", place.root, "--json", "--exclude", "src")
    assert (done.status, done.err) == (0, "")
    found = done.object
    assert (
        list(found)
        == ("schema target ok python codecs root entries bytes largest would_exclude would_lose noise").split()
    )
    assert (found["target"], found["ok"]) == (f"local:{place.root}", True)
    assert list(found["python"]) == ["path", "version"]
    assert re.fullmatch(r"3\.\d+\.\d+", found["python"]["version"])
    assert "none" in found["codecs"]
    assert found["root"]["path"] == os.path.realpath(place.root)
    assert found["root"]["filesystem"]
    assert found["entries"] == 8
    assert found["largest"][0] == {"path": "sparse", "bytes": (3 << 20) + 4}
    assert {"path": "caf\udce9", "path_b64": "Y2Fm6Q==", "bytes": 6} in found["largest"]
    assert found["would_exclude"] == {"fifo": 1, "outside-link": 1, "pattern": 1}
    assert (found["would_lose"], found["noise"]) == ({}, "")


def test_a_link_to_bytes_that_are_no_text(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    os.symlink(b"\xff/x", os.fsencode(root) + b"/in")
    os.symlink(b"/\xfe", os.fsencode(root) + b"/out")
    store = tmp_path / "store"
    assert run("capture", root, "--as", "x", "--store", store).status == 0
    row = run("ls", "x", "--json", "--store", store).object
    assert (row["target"], row["target_b64"]) == ("\udcff/x", base64.b64encode(b"\xff/x").decode())
    (left,) = run("show", "x", "--json", "--store", store).object["excluded"]
    assert (left["detail"], left["detail_b64"]) == ("/\udcfe", base64.b64encode(b"/\xfe").decode())


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "log", "nope"],
        ["log", "--json", "nope"],
        ["log", "nope", "--json"],
        ["cat", "nope", "x", "--json"],
        ["restore", "nope", "/nowhere/x", "--json"],
    ],
)
def test_a_failure_is_one_object_wherever_the_option_stands(place: Place, words: list[str]) -> None:
    done = place.run(*words)
    assert done.status == 1
    error = done.error
    assert (error["code"], error["retryable"]) == ("unknown-ref", False)
    assert error["message"] == "no workspace or snapshot is named 'nope'"
    assert error["hint"] == "there are demo"


@pytest.mark.parametrize(
    "words",
    [
        ["log", "--frob", "--json"],
        ["--json", "frobnicate"],
        ["--json"],
        ["capture", "--json"],
        ["cat", "demo", "--json"],
        ["log", "a", "b", "--json"],
        ["verify", "--store", "--json"],
        ["completion", "--json", "tcsh"],
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_answered_in_json(words: list[str]) -> None:
    done = run(*words)
    if words[:2] == ["verify", "--store"]:
        # The option's value is "--json", so no JSON was asked for.
        assert done.status == 1
        assert done.err.startswith("sandlift: error: there is no store at")
        return
    assert done.status == 2
    assert done.error["code"] == "options"
    assert done.error["hint"].endswith("--help lists the options")


def test_a_word_that_only_looks_like_the_option_asks_for_nothing(place: Place, tmp_path: Path) -> None:
    done = place.run("restore", "nope", tmp_path / "x", "--path", "--json")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("sandlift: error: no workspace")


def test_numbers_and_times_are_of_one_kind_everywhere(place: Place) -> None:
    for row in place.run("ls", "demo", "--json").objects:
        assert all(type(row[name]) is int for name in ("mode", "size", "mtime_ns"))
    line = place.run("show", "demo", "--json").stdout
    assert line.count(b"\n") == 1
    assert json.loads(line)["schema"] == 1
