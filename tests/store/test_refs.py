"""Refs: numbers that never mean two captures, and the words that name a snapshot."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.samples import record_of, save, snapshot_of

from sandlift.errors import AmbiguousPrefix, BadName, SandliftError, StoreDamaged, StoreNewer, UnknownRef, UsageError
from sandlift.store import RefRecord, Store, Tombstone, records, refs
from sandlift.store.objects import Objects

SNAPSHOT = snapshot_of([])


def write(store: Store, key: str, data: bytes) -> None:
    with store.objects.put(key) as writer:
        writer.write(data)
        writer.commit()


def bury(store: Store, workspace: str, number: int) -> None:
    fields = {"format": 1, "sealed": None, "workspace": workspace, "number": number, "pruned": "2026-02-03T04:05:06Z"}
    write(store, refs.key_of(workspace, number), records.encode(fields))


def add(store: Store, workspace: str = "demo", **changes: Any) -> RefRecord:
    return store.create_ref(record_of(SNAPSHOT, workspace, **changes))


def test_a_ref_comes_back_as_it_was(store: Store) -> None:
    record = record_of(SNAPSHOT)
    created = store.create_ref(record)
    assert created == dataclasses.replace(record, number=1)
    assert created.name == "demo@1"
    assert refs.read(store.objects, "demo", 1) == created
    assert store.resolve("demo") == created
    assert (Path(store.location) / "refs/demo/@0000000001").is_file()


def test_numbers_count_up_for_each_workspace(store: Store) -> None:
    assert [add(store, name).number for name in ("demo", "demo", "other", "demo", "demo/sub")] == [1, 2, 1, 3, 1]
    assert [record.number for record in store.log("demo")] == [3, 2, 1]
    assert store.workspaces() == ["demo", "demo/sub", "other"]


def test_a_workspace_named_like_a_number_collides_with_nothing(store: Store) -> None:
    first = add(store, "a")
    second = add(store, "a/0000000001")
    third = add(store, "a/0000000001")
    assert [record.name for record in (first, second, third)] == ["a@1", "a/0000000001@1", "a/0000000001@2"]
    assert list(store.log("a")) == [first]
    assert list(store.log("a/0000000001")) == [third, second]
    assert store.workspaces() == ["a", "a/0000000001"]


def test_the_same_capture_makes_one_ref(store: Store) -> None:
    record = record_of(SNAPSHOT)
    first = store.create_ref(record)
    assert store.create_ref(record) == first
    # Also when others came in between, and when the answer comes late.
    later = [add(store, started="2026-01-02T03:04:07Z", ended="2026-01-02T03:04:08Z") for _ in range(30)]
    assert store.create_ref(record) == first
    assert [each.number for each in store.log("demo")] == [each.number for each in reversed(later)] + [1]


def test_an_old_store_is_not_read_through(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        add(store, started="2026-01-01T00:00:00Z", ended="2026-01-01T00:00:01Z")
    reads: list[int] = []
    original = refs.read

    def read(objects: Objects, workspace: str, number: int) -> RefRecord | Tombstone:
        reads.append(number)
        return original(objects, workspace, number)

    monkeypatch.setattr(refs, "read", read)
    assert add(store).number == 41
    assert len(reads) == 16


def test_the_loser_of_a_race_takes_the_next_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates two refs between our listing and our creation."""
    add(store)
    original = store.objects.create_if_absent
    raced: list[RefRecord] = []

    def create_late(key: str, data: bytes) -> bool:
        if not raced:
            raced.append(record_of(SNAPSHOT))
            other = Store.open(store.location)
            raced[:] = [other.create_ref(record_of(SNAPSHOT)) for _ in range(2)]
            other.close()
        return original(key, data)

    monkeypatch.setattr(store.objects, "create_if_absent", create_late)
    assert add(store).number == 4
    assert [record.number for record in raced] == [2, 3]


def test_a_lost_answer_is_success(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object was created, but the medium said that it was there already (a repeated network request)."""
    original = store.objects.create_if_absent
    monkeypatch.setattr(store.objects, "create_if_absent", lambda key, data: original(key, data) and False)
    assert add(store).number == 1
    assert [record.number for record in store.log("demo")] == [1]


# cases: fdupoux/fsarchiver#9, Esposter/Esposter#953
def test_eight_processes_get_distinct_numbers(store: Store, start: Callable[..., subprocess.Popen[str]]) -> None:
    save(store, "demo", [[b"block"]])
    workers = [start("refs", store.location, 5) for _ in range(8)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    numbers = [int(line) for worker in workers for line in worker.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(2, 42))
    captures = {record.capture_id for record in store.log("demo")}
    assert len(captures) == 41


@pytest.mark.parametrize(
    "changes",
    [
        {"started": "yesterday"},
        {"capture_id": "x"},
        {"snapshot": "ab"},
        {"content": "AB" * 32},
        {"outcome": "fine"},
        {"flags": {"changed": -1}},
        {"policy_version": -1},
    ],
)
def test_what_could_not_be_read_back_is_not_written(store: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a new ref has a wrong"):
        add(store, **changes)
    assert store.workspaces() == []


def test_a_ref_has_a_size_limit(store: Store) -> None:
    with pytest.raises(UsageError, match="rules, labels and note"):
        add(store, note="x" * (17 << 20))


def test_a_bad_name_is_refused(store: Store) -> None:
    with pytest.raises(BadName):
        add(store, "../demo")
    with pytest.raises(BadName):
        list(store.log("a@1"))


# --- tombstones ---------------------------------------------------------------------------------------------------


def test_a_pruned_number_is_never_used_again(store: Store) -> None:
    for _ in range(3):
        add(store)
    bury(store, "demo", 3)
    bury(store, "demo", 1)
    assert refs.read(store.objects, "demo", 3) == Tombstone(workspace="demo", number=3, pruned="2026-02-03T04:05:06Z")
    assert [record.number for record in store.log("demo")] == [2]
    assert add(store).number == 4
    with pytest.raises(UnknownRef, match="demo@3 was pruned at 2026-02-03T04:05:06Z"):
        store.resolve("demo@3")
    newest = store.resolve("demo~1")
    assert isinstance(newest, RefRecord)
    assert newest.number == 2


def test_a_workspace_of_tombstones_alone(store: Store) -> None:
    add(store)
    bury(store, "demo", 1)
    with pytest.raises(UnknownRef) as caught:
        store.resolve("demo")
    assert "pruned" in caught.value.hint
    assert list(store.log("demo")) == []
    assert store.workspaces() == ["demo"]


# --- names of snapshots -------------------------------------------------------------------------------------------


def test_resolve(store: Store) -> None:
    made = [add(store) for _ in range(3)]
    assert store.resolve("demo") == made[2]
    assert store.resolve("demo~0") == made[2]
    assert store.resolve("demo~1") == made[1]
    assert store.resolve("demo~2") == made[0]
    assert store.resolve("demo@1") == made[0]
    assert store.resolve("demo@0000000002") == made[1]


def test_resolve_by_identity(store: Store) -> None:
    saved = save(store, "demo", [[b"block"]])
    identity = bytes.fromhex(saved.snapshot)
    for length in (6, 7, 40, 64):
        assert store.resolve(saved.snapshot[:length]) == identity
        assert store.resolve(saved.snapshot[:length].upper()) == identity
    # A workspace of that name wins.
    named = add(store, saved.snapshot[:8])
    assert store.resolve(saved.snapshot[:8]) == named
    assert store.resolve(saved.snapshot[:9]) == identity


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("dem", "did you mean demo?"),
        ("dmeo@3", "did you mean demo?"),
        ("zzz", "there are demo, team/web"),
        ("demo@9", "sandlift log demo"),
        ("demo@0", "numbered from 1"),
        ("demo~1", "sandlift log demo"),
        ("demo~99", "sandlift log demo"),
        ("abcde", "at least 6 digits"),
        ("abcdef", "there are demo"),
        ("", "demo@7"),
        ("demo@", "demo@7"),
        ("demo@x", "demo@7"),
        ("demo@-1", "demo@7"),
        ("demo~1~1", "demo@7"),
        ("../demo", "demo@7"),
        ("demo\n", "demo@7"),
        ("demo@99999999999", "demo@7"),
        ("@1", "demo@7"),
    ],
)
def test_unknown_refs_say_what_there_is(store: Store, text: str, hint: str) -> None:
    add(store)
    add(store, "team/web")
    with pytest.raises(UnknownRef) as caught:
        store.resolve(text)
    assert hint in caught.value.hint
    assert caught.value.message.isprintable()


def test_an_empty_store_says_so(store: Store) -> None:
    with pytest.raises(UnknownRef) as caught:
        store.resolve("demo")
    assert caught.value.hint == "the store holds no snapshot yet"
    with pytest.raises(UnknownRef):
        list(store.log("demo"))


def test_an_ambiguous_prefix_lists_what_it_fits(store: Store) -> None:
    folder = Path(store.location) / "snapshots" / "ab"
    folder.mkdir(parents=True)
    for last in range(6):
        (folder / ("abcdef" + "0" * 57 + str(last))).write_bytes(b"")
    with pytest.raises(AmbiguousPrefix, match=r"abcdef begins 6 identities: abcdef000000, .* and 2 more"):
        store.resolve("abcdef")


# --- damage -------------------------------------------------------------------------------------------------------


def test_a_damaged_ref_is_named_and_keeps_its_number(store: Store) -> None:
    for _ in range(2):
        add(store)
    path = Path(store.location) / "refs/demo/@0000000002"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreDamaged, match="demo@2"):
        store.resolve("demo")
    assert store.resolve("demo@1") is not None
    assert add(store).number == 3


def test_a_ref_in_the_wrong_place_is_damage(store: Store) -> None:
    add(store)
    data = store.objects.get("refs/demo/@0000000001", max_bytes=10_000)
    write(store, "refs/demo/@0000000002", data)
    write(store, "refs/other/@0000000001", data)
    for text in ("demo@2", "other"):
        with pytest.raises(StoreDamaged, match="another capture"):
            store.resolve(text)


@pytest.mark.parametrize("field", [item.name for item in dataclasses.fields(RefRecord)])
def test_every_field_is_checked(store: Store, field: str) -> None:
    record = add(store)
    fields = records.decode(store.objects.get("refs/demo/@0000000001", max_bytes=10_000), "it")
    for wrong in ({"x": [1]}, 2.5, ["x", 1]):
        write(store, "refs/demo/@0000000001", records.encode(fields | {field: wrong}))
        with pytest.raises(SandliftError) as caught:
            store.resolve(record.name)
        assert isinstance(caught.value, StoreDamaged if field != "sealed" else StoreNewer)
        assert "demo@1" in caught.value.message


# cases: quirq-ai/xo-space#42, onyx-dot-app/onyx#11909
@pytest.mark.parametrize(("change", "text"), [({"format": 2}, "format 2"), ({"sealed": "age"}, "sealed as 'age'")])
def test_a_newer_ref_is_refused_by_name(store: Store, change: dict[str, Any], text: str) -> None:
    add(store)
    fields = records.decode(store.objects.get("refs/demo/@0000000001", max_bytes=10_000), "it")
    write(store, "refs/demo/@0000000001", records.encode(fields | change))
    with pytest.raises(StoreNewer, match=f"demo@1.*{text}"):
        store.resolve("demo")
    # Not even its number is reused.
    with pytest.raises(StoreNewer):
        add(store)
