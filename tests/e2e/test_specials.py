"""What is no directory, file or link, what cannot be read, and what stays within the limits."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from e2e.conftest import give_to_nobody, local, unprivileged
from e2e.lift import Lift

from sandlift.errors import (
    BadURL,
    RootMissing,
    RootNotDirectory,
    RootUnreadable,
    StoreDamaged,
    StrictLoss,
    TargetNotEmpty,
    TargetUnusable,
    UnknownRef,
)
from sandlift.limits import Limits
from sandlift.model import Rules
from support.tree import BLOCK, Device, Dir, Entry, Fifo, File, HardLink, Link, Socket, assert_equal, read, tree


# cases: isaacs/node-tar#295, muesli/docker-backup#41, libarchive/libarchive#1220
def test_pipes_and_sockets_are_left_out(lift: Lift) -> None:
    source = tree(
        {
            b"aaa.txt": File(b"a"),
            b"b.sock": Socket(),
            b".gnupg/S.gpg-agent": Socket(mode=0o700),
            b"n" * 200: Socket(),
            b"pipe": Fifo(),
            b"locked-pipe": Fifo(mode=0o000),
            b"zzz.txt": File(b"z"),
        }
    )
    lift.make(source)
    taken = lift.capture()
    assert taken.excluded == {
        b"b.sock": ("socket", "socket", b""),
        b".gnupg/S.gpg-agent": ("socket", "socket", b""),
        b"n" * 200: ("socket", "socket", b""),
        b"pipe": ("fifo", "fifo", b""),
        b"locked-pipe": ("fifo", "fifo", b""),
    }
    assert taken.capture.outcome == "complete"
    assert taken.capture.counts.lost == 0
    assert_equal(source.without(*taken.excluded), lift.restore(taken))


# cases: borgbackup/borg#2324
def test_both_names_of_a_pipe_are_left_out(lift: Lift) -> None:
    lift.make(tree({b"a": Fifo(), b"d/b": HardLink(b"a"), b"s": Socket(), b"t": HardLink(b"s")}))
    assert lift.capture().reasons == {b"a": "fifo", b"d/b": "fifo", b"s": "socket", b"t": "socket"}


# cases: actions/cache#1429, podman-container-tools/podman#9630
@pytest.mark.usefixtures("as_root")
def test_devices_are_left_out(lift: Lift) -> None:
    source = tree(
        {
            b"dev/null": Device(mode=0o666),
            b"dev/ptmx": Device(number=(5, 2), mode=0o000),
            b"dev/loop": Device(block=True, number=(7, 200)),
            b"deleted": Device(number=(0, 0)),
            b"dev/file": File(b"x"),
        }
    )
    lift.make(source)
    taken = lift.capture()
    assert taken.excluded == {
        b"dev/null": ("char-device", "char-device", b""),
        b"dev/ptmx": ("char-device", "char-device", b""),
        b"dev/loop": ("block-device", "block-device", b""),
        b"deleted": ("char-device", "whiteout", b""),
    }
    assert taken.capture.outcome == "complete"
    assert_equal(source.without(*taken.excluded), lift.restore(taken))


# cases: NVIDIA/NemoClaw#12069, NVIDIA/OpenShell#2920, restic/restic#5288, NVIDIA/NemoClaw#2727, NVIDIA/NemoClaw#6455
def test_what_cannot_be_read_is_lost_and_the_rest_intact(nobodys_lift: Lift) -> None:
    source = tree(
        {
            b"before": File(b"b"),
            b"restricted/inside": File(b"never seen"),
            b"restricted": Dir(mode=0o000),
            b"only-list/file": File(b"x"),
            b"only-list": Dir(mode=0o444),
            b"only-enter/file": File(b"x"),
            b"only-enter": Dir(mode=0o311),
            b"secret": File(b"secret", mode=0o000),
            b"secret-too": HardLink(b"secret"),
            b"large-secret": File(os.urandom(BLOCK + 1), mode=0o200),
            b"empty-secret": File(b"", mode=0o000),
            b"zz-after": File(b"a"),
        }
    )
    nobodys_lift.make(source)
    give_to_nobody(nobodys_lift.root)
    taken = nobodys_lift.capture()
    assert taken.excluded == {
        b"restricted": ("directory", "unreadable", b"Permission denied"),
        b"only-list/file": ("unknown", "unreadable", b"Permission denied"),
        b"only-enter": ("directory", "unreadable", b"Permission denied"),
        b"secret": ("file", "unreadable", b"Permission denied"),
        b"secret-too": ("file", "unreadable", b"Permission denied"),
        b"large-secret": ("file", "unreadable", b"Permission denied"),
        b"empty-secret": ("file", "unreadable", b"Permission denied"),
    }
    assert taken.capture.outcome == "incomplete"
    assert taken.capture.counts.lost == 7
    assert taken.mode(b"restricted") == 0
    left = (b"secret", b"secret-too", b"large-secret", b"empty-secret")
    expected = source.without(*left, b"restricted/inside", b"only-list/file", b"only-enter/file")
    assert_equal(expected, nobodys_lift.restore(taken))
    assert [record.outcome for record in nobodys_lift.store.log("demo")] == ["incomplete"]


# cases: NVIDIA/OpenShell#2920
def test_strict_stores_nothing_when_something_is_lost(nobodys_lift: Lift) -> None:
    nobodys_lift.make(tree({b"secret": File(b"secret", mode=0o000), b"file": File(b"x")}))
    give_to_nobody(nobodys_lift.root)
    with pytest.raises(StrictLoss):
        nobodys_lift.capture(strict=True)
    with pytest.raises(UnknownRef):
        nobodys_lift.store.resolve("demo")
    # What policy leaves out is no loss.
    assert nobodys_lift.capture(strict=True, rules=Rules(paths=(b"secret",))).capture.outcome == "complete"


@pytest.mark.parametrize("count", [9, 10, 11, 40])
@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "link", "full-directory", "outside-link"])
def test_no_more_entries_than_the_limit(lift: Lift, kind: str, count: int) -> None:
    """Whatever there is too much of, the helper stays within what its request allows."""
    kinds: dict[str, Entry] = {
        "file": File(b"x"),
        "directory": Dir(),
        "fifo": Fifo(),
        "link": Link(b"x"),
        "full-directory": Dir(),
        "outside-link": Link(b"/x"),
    }
    entries: dict[bytes, Entry] = {b"%03d" % number: kinds[kind] for number in range(count)}
    if kind == "full-directory":
        entries |= {b"%03d/x" % number: Fifo() for number in range(count)}
    lift.make(tree(entries))
    taken = lift.capture(limits=Limits(entries=10))
    limited = [path for path, reason in taken.reasons.items() if reason == "limit"]
    fits = len(entries) <= 10
    assert taken.capture.outcome == ("complete" if fits else "incomplete")
    assert bool(limited) == (not fits)
    assert len(taken.paths) <= 10
    assert len(taken.excluded) <= 10
    if fits:
        assert len(taken.paths) + len(taken.excluded) == count
    lift.restore(taken)


@pytest.mark.parametrize("kind", ["file", "fifo", "excluded", "directory", "link"])
def test_no_path_longer_than_the_limit(lift: Lift, kind: str) -> None:
    kinds: dict[str, Entry] = {"directory": Dir(), "fifo": Fifo(), "link": Link(b"x")}
    entry = kinds.get(kind, File(b"x"))
    deep = b"/".join([b"n" * 100] * 9)
    source = tree({deep + b"/" + b"f" * 80: entry, deep + b"/" + b"s" * 20: File(b"fits"), b"t" * 255: File(b"top")})
    lift.make(source)
    rules = Rules(patterns=((b"ffff*", b"test"),)) if kind == "excluded" else None
    taken = lift.capture(limits=Limits(path_bytes=950), rules=rules)
    assert taken.excluded == {deep: ("directory", "limit", b"path")}
    assert taken.capture.outcome == "incomplete"
    assert_equal(source.without(deep + b"/" + b"f" * 80), lift.restore(taken))


def test_no_tree_deeper_than_the_limit(lift: Lift) -> None:
    source = tree({b"1/2/3/4/5/file": File(b"x"), b"1/2/file": File(b"y")})
    lift.make(source)
    taken = lift.capture(limits=Limits(depth=4))
    assert list(taken.reasons.values()) == ["limit"]
    (cut,) = taken.reasons
    assert cut == b"1/2/3/4"
    assert_equal(source.without(cut + b"/5"), lift.restore(taken))


def test_no_link_longer_than_the_limit(lift: Lift) -> None:
    source = tree({b"long": Link(b"x" * 11), b"fits": Link(b"x" * 10)})
    lift.make(source)
    taken = lift.capture(limits=Limits(link_text_bytes=10))
    assert taken.excluded == {b"long": ("link", "limit", b"link text")}
    assert_equal(source.without(b"long"), lift.restore(taken))


SOURCE = tree({b"sub/file": File(b"x"), b"l": Link(b"sub")})


# cases: borgbackup/borg#4737, UKGovernmentBEIS/inspect_ai#4369, moby/moby#30213
@pytest.mark.parametrize(
    "form",
    [
        "{w}",
        "{w}/",
        "{w}///",
        "{w}/.",
        "{w}/sub/..",
        "w",
        "./w",
        "../{f}/w",
        "w/",
        "local:{w}",
        "link",
        "link/",
        ".",
    ],
)
def test_forms_of_the_root(lift: Lift, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lift.make(SOURCE)
    (lift.folder / "link").symlink_to("w")
    monkeypatch.chdir(lift.root if form == "." else lift.folder)
    root = form.format(w=lift.root, f=lift.folder.name)
    taken = lift.capture(root)
    assert taken.excluded == {}
    assert_equal(SOURCE, lift.restore(taken))


# cases: kubernetes/kubernetes#52465, borgbackup/borg#10120
@pytest.mark.parametrize(
    ("root", "error"),
    [
        ("missing", RootMissing),
        ("missing/below", RootMissing),
        ("dangling", RootMissing),
        ("file", RootNotDirectory),
        ("file/", RootNotDirectory),
        ("file/below", RootNotDirectory),
        ("to-file", RootNotDirectory),
        ("fifo", RootNotDirectory),
        ("loop", RootUnreadable),
    ],
)
def test_what_is_no_root(far_lift: Lift, root: str, error: type[Exception]) -> None:
    (far_lift.folder / "file").touch()
    os.mkfifo(far_lift.folder / "fifo")
    (far_lift.folder / "dangling").symlink_to("missing")
    (far_lift.folder / "to-file").symlink_to("file")
    (far_lift.folder / "loop").symlink_to("loop")
    with pytest.raises(error) as caught:
        far_lift.capture(f"{far_lift.folder}/{root}")
    assert root.split("/", maxsplit=1)[0] in str(caught.value)
    with pytest.raises(UnknownRef):
        far_lift.store.resolve("demo")


# cases: kubernetes/kubernetes#52465
def test_no_root_at_all(lift: Lift) -> None:
    with pytest.raises(BadURL):
        lift.capture("")


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o111], ids=oct)
def test_a_root_that_cannot_be_listed(nobodys_lift: Lift, mode: int) -> None:
    nobodys_lift.make(SOURCE)
    give_to_nobody(nobodys_lift.root)
    nobodys_lift.root.chmod(mode)
    with pytest.raises(RootUnreadable, match="Permission denied"):
        nobodys_lift.capture()


# cases: quirq-ai/xo-space#55, NVIDIA/NemoClaw#10756, actions/cache#1659
@pytest.mark.parametrize("there", ["file", "fifo", "dangling", "full", "hidden"])
def test_a_target_that_is_taken(lift: Lift, there: str) -> None:
    lift.make(SOURCE)
    taken = lift.capture()
    target = lift.target()
    if there == "file":
        target.write_text("mine")
    elif there == "fifo":
        os.mkfifo(target)
    elif there == "dangling":
        (lift.folder / "nowhere").mkdir()
        target.symlink_to(lift.folder / "nowhere" / "at-all")
    else:
        target.mkdir()
        (target / (".x" if there == "hidden" else "x")).write_text("mine")
    before = sorted(os.listdir(lift.folder))
    if there == "dangling":
        # A link of the user's own names the place; what it names is made.
        lift.restore_to(taken, target)
        assert (lift.folder / "nowhere" / "at-all" / "sub" / "file").read_text() == "x"
        return
    with pytest.raises(TargetNotEmpty):
        lift.restore_to(taken, target)
    assert sorted(os.listdir(lift.folder)) == before


def test_an_empty_target_keeps_its_own_mode(lift: Lift) -> None:
    source = tree({b"f": File(b"x")}, root=Dir(mode=0o700))
    lift.make(source)
    taken = lift.capture()
    target = lift.target()
    target.mkdir(mode=0o711)
    os.utime(target, ns=(123, 456))
    back = lift.restore(taken, target)
    assert back.root == Dir(mode=0o711, mtime_ns=456)
    assert back.entries == source.entries


def test_a_target_whose_folder_cannot_be_written(nobodys_lift: Lift) -> None:
    nobodys_lift.make(SOURCE)
    give_to_nobody(nobodys_lift.root)
    taken = nobodys_lift.capture()
    closed = nobodys_lift.folder / "closed"
    closed.mkdir()
    give_to_nobody(closed)
    closed.chmod(0o555)
    with unprivileged(closed / "out") as box, pytest.raises(TargetUnusable):
        box.restore(nobodys_lift.store, taken.capture.ref)
    assert os.listdir(closed) == []


# cases: kubernetes/kubernetes#78211
def test_a_target_below_a_link_and_missing_folders(lift: Lift) -> None:
    lift.make(SOURCE)
    taken = lift.capture()
    (lift.folder / "real").mkdir()
    (lift.folder / "way").symlink_to("real")
    target = lift.folder / "way" / "to" / "out"
    with local(target) as box:
        box.restore(lift.store, taken.capture.ref)
    assert_equal(SOURCE, read(lift.folder / "real" / "to" / "out"))


def test_a_relative_target(lift: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    lift.make(SOURCE)
    taken = lift.capture()
    monkeypatch.chdir(lift.folder)
    with local(Path("here/out")) as box:
        box.restore(lift.store, taken.capture.ref)
    assert_equal(SOURCE, read(lift.folder / "here" / "out"))


# cases: ginlix-ai/LangAlpha#394, opensandbox-group/OpenSandbox#1016, Gitlawb/zero#993
@pytest.mark.parametrize("there", [True, False], ids=["empty", "absent"])
def test_a_target_of_a_restore_that_fails_is_as_it_was(far_lift: Lift, there: bool) -> None:
    """A block that is damaged, on a disk and not by chance, is met when much is written already."""
    far_lift.make(tree({b"%d" % number: File(os.urandom(BLOCK)) for number in range(8)}))
    taken = far_lift.capture()
    (pack,) = (path for path in (far_lift.folder / "store" / "packs").rglob("*") if path.is_file())
    data = bytearray(pack.read_bytes())
    # Far from a member's header, which a restore does not need.
    data[len(data) * 3 // 4 + BLOCK // 2] ^= 1
    pack.write_bytes(data)
    target = far_lift.target()
    if there:
        target.mkdir(mode=0o711)
    before, names = there and target.stat(), sorted(os.listdir(far_lift.folder))
    with pytest.raises(StoreDamaged):
        far_lift.restore_to(taken, target)
    assert sorted(os.listdir(far_lift.folder)) == names
    if before:
        assert os.listdir(target) == []
        assert (target.stat().st_ino, target.stat().st_mode) == (before.st_ino, before.st_mode)


# cases: paperclipai/paperclip#12187, paperclipai/paperclip#9814
def test_two_restores_to_one_target(lift: Lift) -> None:
    """No lock file is needed: the rename decides, and who loses leaves nothing."""
    lift.make(SOURCE)
    taken = lift.capture()
    target, together = lift.target(), threading.Barrier(2)
    ends: list[str] = []

    def restore() -> None:
        with local(target) as box:
            together.wait()
            try:
                box.restore(lift.store, taken.capture.ref)
                ends.append("restored")
            except TargetNotEmpty:
                ends.append("refused")

    threads = [threading.Thread(target=restore) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["refused", "restored"]
    assert_equal(SOURCE, read(target))
    assert sorted(os.listdir(lift.folder)) == sorted(["store", "w", target.name])
