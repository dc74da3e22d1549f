"""Runs parts of the store in a process of its own, for tests that kill it.

worker.py crash OPERATION FOLDER    dies before the N-th system call of an operation, for N = 1, 2, ... until it
                                    survives; prints one JSON line for each N
worker.py refs STORE COUNT          waits for a line on stdin, then creates refs; prints their numbers
worker.py hold STORE                begins an object, prints "ready", and waits
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from store.samples import check, digest, put_pack, record_of, save, snapshot_of
from store.seam import watched

from sandlift.errors import StoreMissing
from sandlift.store import RefRecord, Store, StoredSnapshot
from sandlift.store.packs import key_of

# Names by chance would now and then share a folder that else has to be made, which moves all later calls by one.
NAME = "ab" * 16
CAPTURE = "cd" * 16
OLD_NAME = "12" * 16
OLD_CAPTURE = "34" * 16
CRASHED = 99
OLD = [[b"old one", b"old two"]]
NEW = [[b"new one"], [b"new two", b"new three"]]


def _nothing(store: Store) -> None:
    """The store as it was prepared."""


def _pack(store: Store) -> None:
    put_pack(store, NEW, NAME)


def _snapshot(store: Store) -> None:
    places = [(digest(block), NAME, offset) for block, offset in ((b"new one", 0), (b"new two", 1024))]
    store.put_snapshot(snapshot_of(places))


def _ref(store: Store) -> None:
    store.create_ref(record_of(_newest(store), capture_id=CAPTURE))


def _capture(store: Store) -> None:
    save(store, "demo", NEW, NAME, capture_id=CAPTURE)


def _delete(store: Store) -> None:
    store.objects.delete(key_of(NAME))


def _newest(store: Store) -> StoredSnapshot:
    record = store.resolve("demo")
    assert isinstance(record, RefRecord)
    return store.load(record)


def _has_pack(store: Store) -> bool:
    return any(info.key == key_of(NAME) for info in store.objects.list("packs/"))


# operation -> what goes before it, the operation, whether it is done
OPERATIONS: dict[str, tuple[Callable[[Store], None], Callable[[Store], None], Callable[[Store], bool]]] = {
    "create": (_nothing, _nothing, lambda store: True),
    "pack": (_nothing, _pack, _has_pack),
    "snapshot": (_pack, _snapshot, lambda store: sum(1 for _ in store.objects.list("snapshots/")) == 2),
    "ref": (_nothing, _ref, lambda store: any(record.capture_id == CAPTURE for record in store.log("demo"))),
    "capture": (_nothing, _capture, lambda store: any(record.capture_id == CAPTURE for record in store.log("demo"))),
    "delete": (_pack, _delete, lambda store: not _has_pack(store)),
}


def crash(operation: str, folder: Path) -> None:
    prepare, act, is_done = OPERATIONS[operation]
    for number in range(1, 1000):
        path = folder / f"{operation}{number}"
        if operation != "create":
            with Store.open(path, create=True) as store:
                save(store, "demo", OLD, OLD_NAME, capture_id=OLD_CAPTURE)
                prepare(store)
        survived = _run_and_die(path, act, number)
        row = _state(path, operation, is_done)
        # Whatever was left behind, the same again succeeds, and nothing unfinished remains.
        with Store.open(path, create=True) as store:
            act(store)
            row["again"] = is_done(store)
            row["sound"] = row["sound"] and check(store).is_sound
            row["refs"] = sum(1 for name in store.workspaces() for _ in store.log(name))
            store.objects.create_if_absent("probe", b"")
        row["left"] = len(os.listdir(path / "tmp"))
        print(json.dumps(row | {"number": number, "survived": survived}))
        shutil.rmtree(path)
        if survived:
            return
    raise SystemExit("the operation never ends")


def _run_and_die(path: Path, act: Callable[[Store], None], number: int) -> bool:
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, CRASHED):
            raise SystemExit(f"the child ended with {status}")
        return status == 0

    def before(count: int, name: str, args: object, kwargs: object) -> None:
        if count == number:
            os._exit(CRASHED)

    try:
        with watched(before):
            with Store.open(path, create=True) as store:
                act(store)
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _state(path: Path, operation: str, is_done: Callable[[Store], bool]) -> dict[str, object]:
    try:
        store = Store.open(path)
    except StoreMissing:
        return {"done": False, "sound": operation == "create", "old": operation == "create"}
    with store:
        # What was there before must be there still, readable to the last byte.
        old = operation == "create" or all(
            store.read_block(snapshot, index, digest(block)) == block
            for snapshot in [store.load(next(record for record in store.log("demo") if record.number == 1))]
            for index, block in enumerate(OLD[0])
        )
        return {"done": is_done(store), "sound": check(store).is_sound, "old": old}


def refs(path: Path, count: int) -> None:
    with Store.open(path) as store:
        snapshot = _newest(store)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(count):
            print(store.create_ref(record_of(snapshot)).number)


def hold(path: Path) -> None:
    with Store.open(path) as store, store.objects.put("packs/held") as writer:
        writer.write(b"half of it")
        print("ready", flush=True)
        time.sleep(60)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["crash", operation, folder]:
            crash(operation, Path(folder))
        case ["refs", path, count]:
            refs(Path(path), int(count))
        case ["hold", path]:
            hold(Path(path))
        case _:
            raise SystemExit(__doc__)
