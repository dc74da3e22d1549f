"""A helper that lies about its base: answers that do not fit, claims of what it has not, questions out of turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from incremental.again import scan_of
from protocol.replay import fix_nonce, leaves_nothing, run_prefix
from protocol.stream import Stream, add_file, digest_of, message, root_segment

from sandlift import errors
from sandlift.capturing import CaptureSpec, capture
from sandlift.deadline import Deadline
from sandlift.errors import SandliftError
from sandlift.holding import SnapshotHolding
from sandlift.limits import Limits
from sandlift.manifest import Manifest
from sandlift.results import Capture
from sandlift.session import HAVE_MAX
from sandlift.store import Store
from sandlift.store.blocks import BlockReader
from sandlift.targets import Target
from sandlift.transports.command import via
from sandlift_helper import table, wire
from sandlift_helper.table import Segment
from support.hostile import Play

FILES = {b"a": b"first\n", b"b": b"second\n" * 100, b"c": b"third\n"}
INSTANCE = b"i" * 32


def stamped(paths: dict[bytes, bytes], *, root: bool = True, settled: bool = True) -> Segment:
    """Rows of small files, with stamps."""
    segment = root_segment() if root else Segment()
    for number, (path, block) in enumerate(paths.items()):
        add_file(segment, path, block)
        segment.stamp(1000 + number, 10 + number, settled)
    return segment


def have(made: Stream, same: object = b"", kept: object = b"", instance: object = INSTANCE) -> Stream:
    return made.add(wire.HAVE, message(instance=instance, same=same, kept=kept))


def want(made: Stream, parts: object) -> Stream:
    return made.add(wire.WANT, message(parts=parts))


def claimed(made: Stream, count: int = 1) -> Stream:
    return made.add(wire.HAVE, message(claimed=count))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with one snapshot of three files, all of them settled, and its scan cache."""
    fix_nonce(monkeypatch)
    with Store.open(tmp_path / "store", create=True) as opened:
        made = have(Stream().hello()).content(*FILES.values()).manifest(stamped(FILES)).end(steady=1)
        run(made, opened, tmp_path)
        assert scan_of(opened) is not None
        yield opened


def run(
    made: Stream,
    store: Store,
    folder: Path,
    *,
    like: tuple[str, ...] = (),
    base: str = "auto",
    limits: Limits | None = None,
) -> Capture:
    """Capture from a far side that sends this, whatever it is told."""
    prefix = Play().mark().send(made.data).save(folder / "play")
    if limits is not None:
        return run_prefix(prefix, store, limits=limits)
    target = Target(scheme="via", root=b"/w", via=tuple(prefix))
    spec = CaptureSpec(target=target, workspace="demo", like=like, base=base, limits=Limits(silence_s=5))
    return capture(via(prefix, shell=False), store, spec, deadline=Deadline.after(20))


def manifest_of(store: Store) -> Manifest:
    snapshot = store.load(store.resolve("demo"))
    return Manifest.decode(snapshot.manifest, snapshot.originals)


def content(store: Store) -> dict[bytes, bytes]:
    """Path to content of the newest snapshot's small files."""
    snapshot = store.load(store.resolve("demo"))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    index = {digest: at for at, digest in enumerate(manifest.blocks)}
    names = list(table.split_digests(manifest.rows.digests))
    found = {}
    for path, (at, _, count) in zip(manifest.rows.paths, manifest.rows.contents(), strict=True):
        found[path] = b"".join(store.read_block(snapshot, index[name], name) for name in names[at : at + count])
    return found


# The truth, as its twin.


def test_all_is_the_same(store: Store, tmp_path: Path) -> None:
    taken = run(have(Stream().hello(), same=b"\1").end(steady=1), store, tmp_path)
    assert (taken.reused, taken.number) == (True, 2)


def test_some_are_kept(store: Store, tmp_path: Path) -> None:
    """The second changed: its row and block come, the others stand."""
    made = have(want(Stream().hello(), [0]), same=b"\0", kept=b"\5")
    made.content(b"other").manifest(stamped({b"b": b"other"})).end(steady=1)
    assert run(made, store, tmp_path).counts.files == 3
    assert content(store) == {**FILES, b"b": b"other"}


def test_a_block_of_the_base_is_named(store: Store, tmp_path: Path) -> None:
    """Of an own base, a block counts by its full name."""
    made = have(want(Stream().hello(), [0]), same=b"\0", kept=b"\7")
    made.manifest(stamped({b"d": FILES[b"a"]}))
    run(claimed(made).end(steady=1), store, tmp_path)
    assert content(store) == {**FILES, b"d": FILES[b"a"]}


# Lies.


def begun() -> Stream:
    return Stream().hello()


def rest(made: Stream) -> Stream:
    """All files anew."""
    return made.content(*FILES.values()).manifest(stamped(FILES)).end(steady=1)


UNKNOWN = stamped({b"x": b"never sent"}, root=False)


def of_another_size() -> Segment:
    segment = Segment()
    segment.add_file(b"y", 0o644, 1, 0, 0, 3, 0, [digest_of(FILES[b"a"])])
    segment.stamp(1, 1, True)
    return segment


def left_out() -> Segment:
    segment = Segment()
    segment.exclude(b"a", table.FILE, table.UNREADABLE)
    return segment


def without_stamps() -> Segment:
    segment = root_segment()
    add_file(segment, b"new", b"new")
    return segment


LIES: dict[str, tuple[Stream, type[SandliftError], str]] = {
    "too many bits of parts": (
        rest(have(begun(), same=b"\0\0", kept=b"\0")),
        errors.RemoteProtocolError,
        "wrong length",
    ),
    "no bits of parts": (rest(have(begun(), same=b"", kept=b"\0")), errors.RemoteProtocolError, "wrong length"),
    "too many bits of files": (
        rest(have(begun(), same=b"\0", kept=b"\0\0")),
        errors.RemoteProtocolError,
        "wrong length",
    ),
    "no bits of files": (rest(have(begun(), same=b"\0")), errors.RemoteProtocolError, "wrong length"),
    "bits of files, none in question": (
        rest(have(begun(), same=b"\1", kept=b"\1")),
        errors.RemoteProtocolError,
        "wrong length",
    ),
    "a number for bits": (rest(have(begun(), same=1)), errors.RemoteProtocolError, "lacks a field"),
    "a text for bits": (rest(have(begun(), same=b"\1", kept="x")), errors.RemoteProtocolError, "lacks a field"),
    "no instance": (rest(have(begun(), same=b"\1", instance=None)), errors.RemoteProtocolError, "lacks a field"),
    "two answers": (
        rest(have(have(begun(), same=b"\1"), same=b"\1")),
        errors.RemoteProtocolError,
        "answers to the base twice",
    ),
    "an answer without end": (
        rest(have(begun(), same=b"\0" * HAVE_MAX)),
        errors.RemoteProtocolError,
        f"at most {HAVE_MAX}",
    ),
    "a question without end": (rest(want(begun(), [0] * HAVE_MAX)), errors.RemoteProtocolError, f"at most {HAVE_MAX}"),
    "two questions": (
        rest(want(want(begun(), [0]), [0])),
        errors.RemoteProtocolError,
        "asks for parts of the base twice",
    ),
    "a part that there is not": (rest(want(begun(), [1])), errors.RemoteProtocolError, "not offered"),
    "a part below the first": (rest(want(begun(), [-1])), errors.RemoteProtocolError, "not offered"),
    "a part twice": (rest(want(begun(), [0, 0])), errors.RemoteProtocolError, "not offered"),
    "a part that is true": (rest(want(begun(), [False])), errors.RemoteProtocolError, "not offered"),
    "a part by name": (rest(want(begun(), ["0"])), errors.RemoteProtocolError, "not offered"),
    "no parts": (rest(want(begun(), None)), errors.RemoteProtocolError, "not offered"),
    "counted twice": (
        rest(claimed(claimed(have(begun(), same=b"\0", kept=b"\0")))),
        errors.RemoteProtocolError,
        "counts what it did not send twice",
    ),
    "a block that nobody has": (
        have(begun(), same=b"\1").manifest(UNKNOWN).end(steady=1),
        errors.InvalidManifest,
        "was never sent: x",
    ),
    "a block that nobody has, asked for and forgotten": (
        claimed(have(begun(), same=b"\1").manifest(UNKNOWN)).end(steady=1),
        errors.InvalidManifest,
        "had to be sent after all was not: x",
    ),
    "a block that nobody has, asked for and named again": (
        claimed(have(begun(), same=b"\1").manifest(UNKNOWN)).manifest(UNKNOWN).end(steady=1),
        errors.InvalidManifest,
        "was never sent: x",
    ),
    "a block of the base under another size": (
        have(begun(), same=b"\1").manifest(of_another_size()).end(steady=1),
        errors.InvalidManifest,
        "has another size: y",
    ),
    "a row of what is kept": (
        have(begun(), same=b"\1").manifest(stamped({b"a": FILES[b"b"]}, root=False)).end(steady=1),
        errors.InvalidManifest,
        "two entries have the same path",
    ),
    "a left-out row of what is kept": (
        have(begun(), same=b"\1").manifest(left_out()).end(steady=1),
        errors.InvalidManifest,
        "an excluded row names an entry: a",
    ),
    "a directory that is a file of the base": (
        have(begun(), same=b"\1").manifest(stamped({b"a/x": FILES[b"a"]}, root=False)).end(steady=1),
        errors.InvalidManifest,
        "parent is no directory of the manifest: a/x",
    ),
    "content that only the base names": (
        have(begun(), same=b"\1").content(FILES[b"a"]).end(steady=1),
        errors.InvalidManifest,
        "sent that nothing names",
    ),
    "kept, and the new without stamps": (
        have(begun(), same=b"\0", kept=b"\1").content(b"new").manifest(without_stamps()).end(steady=1),
        errors.InvalidManifest,
        "has no stamps",
    ),
    "no root": (have(begun(), same=b"\0", kept=b"\7").end(steady=1), errors.InvalidManifest, "has no root"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies(name: str, store: Store, tmp_path: Path) -> None:
    made, error, says = LIES[name]
    with leaves_nothing(store), pytest.raises(error, match=says) as caught:
        run(made, store, tmp_path)
    assert type(caught.value) is error
    assert caught.value.exit == 4
    assert store.verify().is_sound


def test_a_base_that_was_not_offered(store: Store, tmp_path: Path) -> None:
    """Without a base there is nothing to ask for, to keep, or to claim."""
    for made, says in (
        (rest(want(begun(), [0])), "not offered"),
        (rest(have(begun(), same=b"\1")), "wrong length"),
        (rest(have(begun(), kept=b"\1")), "wrong length"),
        (claimed(have(begun()).manifest(stamped(FILES))).end(steady=1), "had to be sent after all was not: a"),
    ):
        with leaves_nothing(store), pytest.raises(errors.Refusal, match=says):
            run(made, store, tmp_path, base="none")


def test_what_is_kept_counts_towards_the_limits(store: Store, tmp_path: Path) -> None:
    new = {b"n%d" % number: b"n" for number in range(3)}
    made = have(begun(), same=b"\0", kept=b"\7").content(b"n").manifest(stamped(new)).end(steady=1)
    with leaves_nothing(store), pytest.raises(errors.HostLimit, match="entries: 6, allowed are 5"):
        run(made, store, tmp_path, limits=Limits(silence_s=5, entries=5))
    run(made, store, tmp_path, limits=Limits(silence_s=5, entries=6))


# Claims of blocks that a snapshot like this one holds.


def proof(block: bytes, nonce: bytes = bytes(range(16))) -> bytes:
    from hashlib import sha256

    return digest_of(block)[:8] + sha256(nonce + block).digest()[:16]


def claim(segment: Segment, *proofs: bytes) -> Segment:
    segment.claims += b"".join(proofs)
    return segment


def test_a_proof_counts(store: Store, tmp_path: Path) -> None:
    made = have(begun()).manifest(claim(stamped(FILES), *map(proof, FILES.values())))
    taken = run(claimed(made, 3).end(steady=1), store, tmp_path, like=("demo@1",), base="none")
    assert (taken.reused, taken.counts.files) == (True, 3)


NO_PROOFS: dict[str, list[bytes]] = {
    "none": [],
    "of another run": [proof(block, bytes(16)) for block in FILES.values()],
    "of the digest alone": [digest_of(block)[:8] + digest_of(digest_of(block))[:16] for block in FILES.values()],
    "of the digest after the nonce": [proof(block)[:8] + proof(digest_of(block))[8:] for block in FILES.values()],
    "of another block": [proof(block)[:8] + proof(b"other")[8:] for block in FILES.values()],
    "of zeros": [proof(block)[:8] + bytes(16) for block in FILES.values()],
    "right, but after a wrong one": [
        *(proof(block)[:8] + bytes(16) for block in FILES.values()),
        b"later",
        *map(proof, FILES.values()),
    ],
    "of a block that is nowhere": [proof(b"nowhere")],
}


@pytest.mark.parametrize("name", NO_PROOFS)
def test_a_guess_is_not_enough(name: str, store: Store, tmp_path: Path) -> None:
    """Who only knows a block's name, or saw another run, is asked for it in the words for one that is unknown."""
    proofs = NO_PROOFS[name]
    at = proofs.index(b"later") if b"later" in proofs else len(proofs)
    made = have(begun()).manifest(claim(stamped(FILES), *proofs[:at]))
    if proofs[at + 1 :]:
        made.manifest(claim(Segment(), *proofs[at + 1 :]))
    unknown = have(begun()).manifest(stamped({b"a": b"?", b"b": b"??", b"c": b"???"}))
    said = []
    for stream in (made, unknown):
        with leaves_nothing(store), pytest.raises(errors.InvalidManifest) as caught:
            run(claimed(stream, 3).end(steady=1), store, tmp_path, like=("demo@1",), base="none")
        said.append((caught.value.message, caught.value.issues))
    assert said[0] == said[1]
    assert "had to be sent after all was not: a (and 2 more)" in said[0][0]


def test_each_block_is_tried_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many claims come, the store reads each block once, and holds one of them in memory."""
    reads: list[bytes] = []
    read = BlockReader.read_unproved

    def counting(self: BlockReader, index: int) -> memoryview:
        block = read(self, index)
        reads.append(digest_of(bytes(block)))
        return block

    monkeypatch.setattr(BlockReader, "read_unproved", counting)
    wrong = [proof(block)[:8] + bytes(16) for block in FILES.values()]
    made = have(begun()).manifest(claim(stamped(FILES), *wrong * 3000))
    for _ in range(5):
        made.manifest(claim(Segment(), *wrong * 3000))
    made.content(*FILES.values())
    taken = run(claimed(made, 3).end(steady=1), store, tmp_path, like=("demo@1",), base="none")
    assert taken.counts.files == 3
    assert sorted(reads) == sorted(map(digest_of, FILES.values()))
    loaded = store.load(store.resolve("demo@1"))
    found = SnapshotHolding(store, loaded).read([digest_of(block) for block in FILES.values()])
    assert not isinstance(found, dict)
    assert {digest: bytes(block) for digest, block in found} == {digest_of(block): block for block in FILES.values()}


def test_claims_that_are_cut_off(store: Store, tmp_path: Path) -> None:
    made = have(begun()).manifest(claim(stamped(FILES), proof(FILES[b"a"])[:-1])).end(steady=1)
    with leaves_nothing(store), pytest.raises(errors.InvalidManifest, match="cannot be read"):
        run(made, store, tmp_path, like=("demo@1",), base="none")


def test_too_many_names_to_ask_for(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of the host's has a cap as well; who makes it ask for more is refused."""
    monkeypatch.setattr("sandlift.capturing.ASKED_MAX", 5)
    made = claimed(have(begun()).manifest(stamped(FILES)), 3).end(steady=1)
    with leaves_nothing(store), pytest.raises(errors.RemoteProtocolError, match="3 files that are not there"):
        run(made, store, tmp_path, base="none")


def test_rows_without_stamps_make_no_base(store: Store, tmp_path: Path) -> None:
    """An older way to answer: what is captured is right, and the next capture offers blocks alone."""
    plain = root_segment()
    for path, block in {**FILES, b"d": b"new"}.items():
        add_file(plain, path, block)
    made = have(begun(), same=b"\0", kept=b"\0").content(b"new", *FILES.values()).manifest(plain).end(steady=1)
    assert run(made, store, tmp_path).counts.files == 4
    cache = scan_of(store)
    assert cache is not None and cache.number == 1
    # It is that of the snapshot before, which is as it was.
    made = have(begun(), same=b"\1").end(steady=1)
    run(made, store, tmp_path)
    assert content(store) == FILES
