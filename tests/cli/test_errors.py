"""Bad input: each has its own word and its exit status, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cli.program import Place, expect, run, store_files

from support.needs import lacking


def without_rights() -> list[str]:
    """The prefix that runs a command without root's rights over files, when we are root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        lacking("setpriv is not installed: apt-get install util-linux")
    return ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]


def test_roots_that_cannot_be_captured(place: Place, tmp_path: Path) -> None:
    capture = ("--as", "demo", "--json")
    before = store_files(place.store)
    expect(place.run("capture", tmp_path / "none", *capture), 1, "root-missing", str(tmp_path / "none"))
    (tmp_path / "file").touch()
    expect(place.run("capture", tmp_path / "file", *capture), 1, "root-not-directory")
    expect(place.run("doctor", tmp_path / "none", "--json"), 1, "root-missing")
    assert store_files(place.store) == before


# cases: Backblaze/B2_Command_Line_Tool#174, djmaze/resticker#107
def test_what_an_ordinary_user_may_not_read(tmp_path: Path) -> None:
    prefix = without_rights()
    root, store = tmp_path / "w", tmp_path / "stores" / "s"
    (root / "locked").mkdir(parents=True)
    (root / "locked" / "x").touch()
    (root / "secret").write_bytes(b"x")
    (root / "open").write_bytes(b"y")
    (root / "secret").chmod(0)
    (root / "locked").chmod(0)
    env: dict[str, str | None] = {"SANDLIFT_STORE": str(store)}
    strict = run("capture", root, "--as", "w", "--strict", "--json", env=env, prefix=prefix)
    error = expect(strict, 1, "strict-loss", "2 entries lost")
    assert error["context"] == {"lost": 2, "changed": 0, "vanished": 0}
    assert not list((store / "refs").rglob("@*"))
    done = run("capture", root, "--as", "w", "--json", env=env, prefix=prefix)
    assert (done.status, done.object["outcome"], done.object["counts"]["lost"]) == (3, "incomplete", 2)
    text = run("capture", root, "--as", "w", env=env, prefix=prefix)
    assert (text.status, "2 LOST; why: sandlift show w@2" in text.out) == (3, True)
    found = run("doctor", root, "--json", env=env, prefix=prefix)
    assert (found.status, found.object["ok"], found.object["would_lose"]) == (3, False, {"unreadable": 2})
    shown = run("show", "w", "--json", env=env, prefix=prefix).object
    assert [(row["path"], row["reason"]) for row in shown["excluded"]] == [
        ("locked", "unreadable"),
        ("secret", "unreadable"),
    ]
    restored = run("restore", "w", store.parent / "out", env=env, prefix=prefix)
    assert restored.status == 0
    assert "warning: w@2 is incomplete" in restored.err
    words = ("restore", "w", store.parent / "out2", "--strict", "--json")
    assert run(*words, env=env, prefix=prefix).status == 3
    root.chmod(0)
    expect(run("capture", root, "--as", "w", "--json", env=env, prefix=prefix), 1, "root-unreadable")
    root.chmod(0o700)
    (root / "locked").chmod(0o700)
    (tmp_path / "closed").mkdir(mode=0o500)
    unusable = {"SANDLIFT_STORE": str(tmp_path / "closed" / "store")}
    expect(run("capture", root, "--as", "w", "--json", env=unusable, prefix=prefix), 1, "store-unusable")
    expect(run("restore", "w", tmp_path / "closed" / "x", "--json", env=env, prefix=prefix), 1, "target-unusable")


def test_paths_in_a_snapshot(place: Place, tmp_path: Path) -> None:
    expect(place.run("cat", "demo", "none", "--json"), 1, "unknown-path", "sandlift ls demo")
    expect(place.run("cat", "demo", "src", "--json"), 1, "unknown-path", "src is a directory, not a file")
    expect(place.run("cat", "demo", "inside", "--json"), 1, "unknown-path", "is a link")
    expect(place.run("cat", "demo", ".", "--json"), 1, "unknown-path")
    error = expect(place.run("cat", "demo", "src.log", "--json"), 1, "unknown-path", "was left out (pattern)")
    assert error["context"] == {"reason": "pattern"}
    expect(place.run("ls", "demo", "none", "--json"), 1, "unknown-path")
    expect(place.run("ls", "demo", "../x", "--json"), 2, "options")
    expect(place.run("ls", "demo", "/a.txt", "--json"), 2, "options")
    expect(place.run("restore", "demo", tmp_path / "out", "--path", "none", "--json"), 1, "unknown-path")
    assert not (tmp_path / "out").exists()


def test_targets_of_a_restore(place: Place, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    expect(place.run("restore", "demo", tmp_path / "full", "--json"), 1, "target-not-empty", str(tmp_path / "full"))
    assert place.run("restore", "demo", tmp_path / "file", "--json").status == 1
    assert os.listdir(tmp_path / "full") == ["mine"]
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_a_link_that_a_subset_would_let_out(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "store"
    (root / "sub" / "deep").mkdir(parents=True)
    os.symlink("sub/deep", root / "alias")
    os.symlink("alias/../../data", root / "way")
    assert run("capture", root, "--as", "w", "--store", store).status == 0
    words = ("restore", "w", tmp_path / "out", "--path", "way", "--json", "--store", store)
    expect(run(*words), 4, "unsafe-link", "way")
    assert not (tmp_path / "out").exists()
    assert run(*words, "--path", "alias").status == 0


# cases: actions/cache#1659, paperclipai/paperclip#9814, crocs-muni/sec-certs#476, wick3dr0se/archstrap#11
# cases: timvisee/ffsend#136
@pytest.mark.parametrize("when", ["before anything is written", "in the middle"])
def test_a_target_on_a_full_disk(tmp_path: Path, when: str) -> None:
    """The room is looked at first; where that was not enough, what was begun goes away again."""
    if os.geteuid() != 0:
        lacking("a small file system can only be mounted by root: run the tests as root")
    root, store, disk = tmp_path / "w", tmp_path / "store", tmp_path / "disk"
    root.mkdir()
    disk.mkdir()
    if when == "in the middle":
        # Each takes a page, though it holds a byte.
        for number in range(300):
            (root / f"{number}").write_bytes(b"%d" % (number % 10))
    else:
        (root / "noise").write_bytes(os.urandom(1 << 20))
    assert run("capture", root, "--as", "w", "--store", store).status == 0
    script = 'mount -t tmpfs -o size=512k tmpfs "$DISK" && { "$@"; s=$?; ls -A "$DISK" >"$DISK.left"; exit $s; }'
    done = run(
        *("restore", "w", disk / "out", "--json", "--store", store),
        prefix=["unshare", "-m", "env", f"DISK={disk}", "sh", "-c", script, "sh"],
    )
    says = [f"{disk}/out needs {1 << 20} bytes", "has 524288"]
    middle = [f"{disk}/out: No space left on device"]
    error = expect(done, 1, "target-full", *(middle if when == "in the middle" else says))
    assert error["retryable"] is True
    assert (tmp_path / "disk.left").read_text() == ""
