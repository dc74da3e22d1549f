"""Stores and names of snapshots that cannot be used, and damage."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from cli.program import Place, expect, run

from sandlift.store import records
from support.needs import lacking


def test_a_store_on_a_full_disk(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacking("a small file system can only be mounted by root: run the tests as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "noise").write_bytes(os.urandom(2 << 20))
    mount = f'mount -t tmpfs -o size=1m tmpfs {shlex.quote(str(disk))} && exec "$@"'
    words = ("capture", tmp_path / "w", "--as", "w", "--json", "--store", disk / "store")
    error = expect(run(*words, prefix=["unshare", "-m", "sh", "-c", mount, "sh"]), 1, "store-full")
    assert error["retryable"] is True


def test_stores_that_cannot_be_used(own_place: Place, tmp_path: Path) -> None:
    for words in (
        ["log"],
        ["show", "demo"],
        ["ls", "demo"],
        ["cat", "demo", "x"],
        ["verify"],
        ["restore", "demo", "x"],
    ):
        done = run(*words, "--json", "--store", tmp_path / "none", cwd=tmp_path)
        expect(done, 1, "store-missing", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    expect(run("log", "--json", "--store", own_place.root), 1, "store-missing", str(own_place.root))
    capture = ("capture", own_place.root, "--as", "demo", "--json", "--store", own_place.root)
    expect(run(*capture), 1, "store-missing", "holds other files")
    expect(run("log", "--json", "--store", "s3://bucket"), 2, "url")
    identity = own_place.run("show", "demo@1", "--json").object["snapshot"]
    path = own_place.store / "snapshots" / identity[:2] / identity
    path.rename(tmp_path / "away")
    expect(own_place.run("show", "demo@1", "--json"), 1, "store-damaged", "missing")
    mark = records.decode((own_place.store / "format").read_bytes(), "mark")
    (own_place.store / "format").write_bytes(records.encode({**mark, "sandlift-store": 2}))
    error = expect(own_place.run("log", "--json"), 1, "store-newer", "format 2")
    assert error["context"] == {"format": 2}
    expect(own_place.run("capture", own_place.root, "--as", "demo", "--json"), 1, "store-newer")
    (own_place.store / "format").write_bytes(b"rubbish")
    expect(own_place.run("log", "--json"), 1, "store-damaged")


def test_damage_of_one_workspace_does_not_hide_the_others(own_place: Place) -> None:
    own_place.run("capture", own_place.root / "empty", "--as", "other")
    (own_place.store / "refs" / "demo" / "@0000000002").write_bytes(b"rubbish")
    done = own_place.run("log", "--json")
    assert done.status == 1
    row, failure = done.objects
    assert row["ref"] == "other@1"
    assert failure["error"]["code"] == "store-damaged"


def test_cat_stops_at_damage(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    root.mkdir()
    whole = os.urandom(5 << 20)
    (root / "file").write_bytes(whole)
    assert run("capture", root, "--as", "w", "--store", store).status == 0
    (pack,) = (path for path in (store / "packs").rglob("*") if path.is_file())
    data = bytearray(pack.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    pack.write_bytes(data)
    done = run("cat", "w", "file", "--json", "--store", store)
    assert done.status == 1
    # The bytes that went out before are right, and the error object is not mixed with them.
    assert 0 < len(done.stdout) < len(whole)
    assert whole.startswith(done.stdout)
    assert json.loads(done.err)["error"]["code"] == "store-damaged"


def test_names_of_snapshots(own_place: Place, tmp_path: Path) -> None:
    expect(own_place.run("show", "nope", "--json"), 1, "unknown-ref")
    expect(own_place.run("show", "demo@9", "--json"), 1, "unknown-ref", "demo@9", "sandlift log demo")
    expect(own_place.run("show", "demo~2", "--json"), 1, "unknown-ref")
    expect(own_place.run("show", "", "--json"), 1, "unknown-ref")
    expect(own_place.run("show", "abcdef", "--json"), 1, "unknown-ref")
    expect(own_place.run("restore", "dem", tmp_path / "out", "--json"), 1, "unknown-ref", "did you mean demo?")
    assert not (tmp_path / "out").exists()
    identity = own_place.run("show", "demo", "--json").object["snapshot"]
    twin = identity[:10] + ("0" * 54 if identity[10] != "0" else "1" * 54)
    (own_place.store / "snapshots" / identity[:2] / twin).touch()
    expect(own_place.run("show", identity[:8], "--json"), 2, "ambiguous-prefix", "give more digits")
    assert own_place.run("show", identity[:11], "--json").object["snapshot"] == identity
