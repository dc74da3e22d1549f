"""An inert repository can be read and runs nothing; the same one, kept as it was, does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from audit.conftest import Lifted, Planted, lift
from audit.planting import PLANTS, Plant, git, git_on_terminal, make_repository, write_tree

from sandlift.restoring.git import Treated, drop, inert
from sandlift_helper import table
from sandlift_helper.table import Segment


def use(plant: Plant, tree: Path) -> None:
    """Gives the plant's commands in its repository."""
    folder = tree / plant.name / plant.where
    for command in plant.commands:
        git_on_terminal(folder, *command.split())


CUT_OFF = {"commondir-outside", "git-file-outside"}
"""Their repositories lie outside of the tree."""


@pytest.mark.parametrize("name", PLANTS)
def test_it_runs_when_kept_and_when_inert_reads_as_before(planted: Planted, name: str) -> None:
    plant = PLANTS[name]
    if name not in CUT_OFF:
        assert_same_history(planted.source.root / name / plant.where, planted.inert / name / plant.where)
    planted.ran()
    use(plant, planted.inert)
    assert planted.ran() == []
    use(plant, planted.keep)
    assert set(planted.ran()) == {name}


def assert_same_history(source: Path, made: Path) -> None:
    history = git(made, "log", "--all", "--format=%H %s %D")
    assert history == git(source, "log", "--all", "--format=%H %s %D")
    assert history.count("\n") >= 3
    if source.name != "data":
        assert "a.txt" in git(made, "ls-files")
        assert git(made, "status", "--porcelain") == git(source, "status", "--porcelain", check=False)


def test_drivers_that_the_tree_names_stay_named(planted: Planted) -> None:
    """Attributes in a commit are content; it is the missing configuration that makes them harmless."""
    for name in ("filter-clean", "filter-smudge", "diff-command", "diff-textconv", "merge-driver"):
        path = f"{name}/.gitattributes"
        assert (planted.inert / path).read_bytes() == (planted.keep / path).read_bytes()
    assert not (planted.inert / "filter-in-info/.git/info/attributes").exists()


def test_what_is_dropped_and_changed_is_told(planted: Planted) -> None:
    treated = planted.treated
    rows = planted.source.manifest.rows
    before, after = set(rows.paths), set(treated.rows.paths)
    gone = {path for path in before if any(path == top or path.startswith(top + b"/") for top in treated.dropped)}
    assert gone == before - after
    assert len(gone) == treated.left_out
    assert after <= before
    assert set(treated.reasons) == {*treated.dropped, *treated.changed}
    assert b"hooks-link/.git/hooks" in treated.dropped
    assert b"hook-pre-commit/.git/hooks" in treated.dropped
    assert b"config-worktree/.git/config.worktree" in treated.dropped
    assert b"commondir-outside/.git/commondir" in treated.dropped
    assert b"git-file-outside/.git" in treated.dropped
    assert b"rebase-exec/.git/rebase-merge" in treated.dropped
    assert b"config-link/.git/config" in treated.changed
    assert b"hook-pre-commit/.git/config" not in treated.changed  # there was nothing in it to leave out
    kinds = dict(zip(treated.rows.paths, treated.rows.kinds, strict=True))
    for path in treated.changed:
        assert kinds[path] == table.FILE


def test_an_inert_table_is_canonical_and_stays_as_it_is(planted: Planted) -> None:
    rows = planted.treated.rows
    accepted(rows)
    known = {**planted.treated.blocks}

    def read(row: int) -> bytes:
        first, _, count = list(rows.contents())[row]
        digest = bytes(rows.digests[32 * first : 32 * first + 32])
        return b"" if not count else known[digest] if digest in known else planted.source.block(digest)

    again = inert(rows, read)
    assert (again.dropped, again.changed, again.blocks) == ((), (), {})
    assert table.encode(again.rows) == table.encode(rows)


def accepted(rows: Segment) -> None:
    """It is sorted, whole, and its hard-link groups are numbered from 1 as they come."""
    whole = table.decode(table.encode(rows))
    ordered = table.decode(table.encode(rows))
    ordered.sort()
    assert ordered.paths == whole.paths
    groups = [group for group in whole.groups if group]
    assert list(dict.fromkeys(groups)) == list(range(1, len(set(groups)) + 1))
    assert all(groups.count(group) > 1 for group in groups)
    for row in whole.first_of_groups().values():
        assert bool(whole.counts[row]) == bool(whole.sizes[row])
    places = set(whole.paths)
    assert all(not (parent := path.rpartition(b"/")[0]) or parent in places for path in whole.paths)


def set_down(lifted: Lifted, treated: Treated, folder: Path) -> Path:
    return write_tree(treated.rows, lambda digest: treated.blocks.get(digest) or lifted.block(digest), folder)


def captured(root: Path) -> tuple[Lifted, Treated]:
    lifted = lift(root, root.parent / "store")
    return lifted, inert(lifted.manifest.rows, lifted.contents.read)


def test_an_ordinary_repository_keeps_its_bytes(tmp_path: Path) -> None:
    lifted, treated = captured(make_repository(tmp_path / "w"))
    assert (treated.dropped, treated.changed, treated.blocks, treated.left_out) == ((), (), {}, 0)
    assert treated.rows.paths == lifted.manifest.rows.paths


def test_other_formats_still_work(tmp_path: Path) -> None:
    """SHA-256 objects, a sparse working tree, line ends, and a bare repository."""
    root = tmp_path / "w"
    sha256 = make_repository(root / "sha256", "--object-format=sha256")
    sparse = make_repository(root / "sparse")
    (sparse / "deep").mkdir()
    (sparse / "deep" / "file").write_text("deep\n")
    git(sparse, "add", "deep")
    git(sparse, "commit", "-q", "-m", "deep")
    git(sparse, "checkout", "-q", "--", "a.txt")
    git(sparse, "sparse-checkout", "set", "--cone", "nothing")
    lines = make_repository(root / "lines")
    git(lines, "config", "core.autocrlf", "true")
    (lines / "a.txt").write_bytes(b"two words\r\n")
    git(lines, "add", "a.txt")
    git(lines, "config", "core.fsmonitor", "/bin/false")
    git(sha256, "config", "remote.origin.url", "https://example.com")
    git(root, "clone", "-q", "--bare", "sha256", "bare")
    lifted, treated = captured(root)
    assert {b"sha256/.git/config", b"lines/.git/config", b"bare/config"} <= set(treated.changed)
    made = set_down(lifted, treated, tmp_path / "out")
    for name in ("sha256", "sparse", "lines"):
        for words in (("status", "--porcelain"), ("log", "--all", "--format=%H"), ("ls-files", "-t")):
            assert git(made / name, *words) == git(root / name, *words)
    assert git(made / "lines", "status", "--porcelain") == ""
    assert git(made / "sparse", "status", "--porcelain") == ""
    assert len(git(made / "sha256", "rev-parse", "HEAD").strip()) == 64
    assert git(made / "bare", "log", "--format=%s") == git(root / "bare", "log", "--format=%s")
    assert "example.com" not in (made / "sha256/.git/config").read_text()


def test_what_takes_the_place_of_a_configuration(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "w")
    config = root / ".git" / "config"
    os.link(config, root / "other-name")
    os.utime(config, ns=(0, 1_500_000_000_000_000_001))
    make_repository(root / "dir")
    (root / "dir/.git/config").unlink()
    (root / "dir/.git/config/below").mkdir(parents=True)
    make_repository(root / "dangling")
    (root / "dangling/.git/config").unlink()
    os.symlink("nothing", root / "dangling/.git/config")
    make_repository(root / "upper")
    (root / "upper/.git/config").rename(root / "upper/.git/CONFIG")
    make_repository(root / "info")
    for name in ("HEAD", "objects", "refs", "attributes"):
        (root / "info/.git/info" / name).touch()
    make_repository(root / "large")
    with open(root / "large/.git/config", "ab") as file:
        file.write(b"#" * (1 << 20))
    lifted, treated = captured(root)
    rows = treated.rows
    row = {path: row for row, path in enumerate(rows.paths)}
    # The hard link is taken apart, and nothing but that: its content was harmless.
    assert rows.groups[row[b".git/config"]] == rows.groups[row[b"other-name"]] == 0
    assert rows.mtimes_ns[row[b".git/config"]] == 1_500_000_000_000_000_001
    made = set_down(lifted, treated, tmp_path / "out")
    assert (made / "other-name").read_bytes() == config.read_bytes() == (made / ".git/config").read_bytes()
    assert (made / "other-name").stat().st_nlink == 1
    for name in ("dir", "dangling"):
        assert (made / name / ".git/config").read_bytes() == b""
        assert not (made / name / ".git/config").is_symlink()
        assert (made / name / ".git/config").stat().st_mode & 0o777 == 0o644
        assert git(made / name, "log", "--format=%s").splitlines() == ["commit 1", "commit 0"]
    assert b"upper/.git/CONFIG" in treated.dropped
    assert (made / "upper/.git/config").read_bytes() == (root / "upper/.git/CONFIG").read_bytes()
    assert (made / "large/.git/config").read_bytes() == b""
    assert b"info/.git/info/attributes" in treated.dropped
    assert treated.blocks == {}


def test_object_stores_in_the_tree_stay(tmp_path: Path) -> None:
    root = tmp_path / "w"
    make_repository(root / "one")
    git(root, "clone", "-q", "--shared", "one", "two")
    alternates = root / "two/.git/objects/info/alternates"
    assert alternates.read_text().startswith("/")
    alternates.write_text("../../../one/.git/objects\n/etc\n../../../../outside\n")
    lifted, treated = captured(root)
    made = set_down(lifted, treated, tmp_path / "out")
    assert (made / "two/.git/objects/info/alternates").read_text() == "../../../one/.git/objects\n"
    assert git(made / "two", "log", "--format=%s").splitlines() == ["commit 1", "commit 0"]
    assert b"two/.git/objects/info/alternates" in treated.changed
    new = b"../../../one/.git/objects\n"
    assert treated.blocks[hashlib.sha256(new).digest()] == new


def test_drop_leaves_no_git(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "w")
    make_repository(root / "deep/er")
    git(root, "clone", "-q", "--bare", ".", "data")
    (root / "link").mkdir()
    os.symlink("../data", root / "link/.git")
    (root / "file").mkdir()
    (root / "file/.git").write_text("gitdir: ../data\n")
    (root / "GIT~1").mkdir()
    os.link(root / ".git/HEAD", root / "head")
    lifted = lift(root, tmp_path / "store")
    treated = drop(lifted.manifest.rows, lifted.contents.read)
    accepted(treated.rows)
    assert treated.dropped == (b".git", b"GIT~1", b"deep/er/.git", b"file/.git", b"link/.git")
    assert treated.changed == ()
    assert treated.blocks == {}
    made = set_down(lifted, treated, tmp_path / "out")
    assert (made / "head").read_text() == "ref: refs/heads/main\n"
    assert {path.name for path in made.iterdir()} == {"a.txt", "data", "deep", "file", "head", "link"}
    assert git(made / "data", "log", "--format=%s").splitlines() == ["commit 1", "commit 0"]


def test_links_out_of_a_repository_must_not_come_back(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "w")
    (root / ".git/hooks").mkdir()
    os.symlink("/usr/bin", root / ".git/hooks/post-checkout")
    os.symlink("/usr/share", root / ".git/common")
    os.symlink("/usr/lib", root / "lib")
    (root / "data").mkdir()
    (root / "data/HEAD").write_text("ref: refs/heads/main\n")
    os.symlink("/usr/objects", root / "data/objects")
    os.symlink("/usr/refs", root / "data/refs")
    os.symlink("/usr/config", root / "data/config")
    lifted, treated = captured(root)
    assert treated.barred == (
        b".git/common",
        b".git/hooks/post-checkout",
        b"data/config",
        b"data/objects",
        b"data/refs",
    )
    assert drop(lifted.manifest.rows, lifted.contents.read).barred == (b".git/common", b".git/hooks/post-checkout")
