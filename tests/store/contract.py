"""What every implementation of the six operations must do; a subject is a subclass with an ``objects`` fixture."""

from __future__ import annotations

import threading

import pytest

from sandlift.errors import StoreDamaged
from sandlift.store.objects import ObjectInfo, Objects, UnknownObject


def put(objects: Objects, key: str, data: bytes) -> None:
    with objects.put(key) as writer:
        writer.write(data)
        writer.commit()


class ObjectsContract:
    def test_an_object_comes_back_as_it_was_put(self, objects: Objects) -> None:
        data = bytes(range(256)) * 5000
        with objects.put("packs/ab/one") as writer:
            writer.write(data[:1000])
            writer.write(memoryview(data)[1000:])
            writer.write(b"")
            assert writer.size_bytes == len(data)
            writer.commit()
        assert objects.get("packs/ab/one", max_bytes=len(data)) == data
        assert objects.size("packs/ab/one") == len(data)

    def test_an_empty_object_is_an_object(self, objects: Objects) -> None:
        put(objects, "empty", b"")
        assert objects.get("empty", max_bytes=0) == b""
        assert objects.get_range("empty", 0, 0) == b""
        assert list(objects.list("")) == [ObjectInfo(key="empty", size_bytes=0)]

    def test_nothing_is_visible_before_the_commit(self, objects: Objects) -> None:
        writer = objects.put("a/b")
        writer.write(b"data")
        assert list(objects.list("")) == []
        with pytest.raises(UnknownObject):
            objects.get("a/b", max_bytes=10)
        writer.commit()
        assert [info.key for info in objects.list("")] == ["a/b"]

    @pytest.mark.parametrize("ends", ["abort", "leave", "raise"])
    def test_what_is_not_committed_is_gone(self, objects: Objects, ends: str) -> None:
        put(objects, "a/b", b"old")
        try:
            with objects.put("a/b") as writer:
                writer.write(b"new")
                if ends == "abort":
                    writer.abort()
                    writer.abort()
                if ends == "raise":
                    raise RuntimeError
        except RuntimeError:
            pass
        assert objects.get("a/b", max_bytes=3) == b"old"
        assert [info.key for info in objects.list("")] == ["a/b"]

    def test_abort_after_commit_does_nothing(self, objects: Objects) -> None:
        writer = objects.put("a")
        writer.write(b"data")
        writer.commit()
        writer.abort()
        assert objects.get("a", max_bytes=4) == b"data"

    def test_a_put_replaces_an_older_object_whole(self, objects: Objects) -> None:
        put(objects, "a", b"a long first version")
        put(objects, "a", b"second")
        assert objects.get("a", max_bytes=100) == b"second"

    def test_a_range_is_exact(self, objects: Objects) -> None:
        put(objects, "a", b"0123456789")
        assert objects.get_range("a", 0, 10) == b"0123456789"
        assert objects.get_range("a", 3, 4) == b"3456"
        assert objects.get_range("a", 10, 0) == b""

    @pytest.mark.parametrize(("offset", "size"), [(0, 11), (9, 2), (11, 0), (-1, 2), (0, -1), (1 << 70, 1)])
    def test_a_range_beyond_the_object_is_damage(self, objects: Objects, offset: int, size: int) -> None:
        put(objects, "a", b"0123456789")
        with pytest.raises(StoreDamaged):
            objects.get_range("a", offset, size)

    def test_an_object_over_the_cap_is_damage(self, objects: Objects) -> None:
        put(objects, "a", b"0123456789")
        with pytest.raises(StoreDamaged, match="at most 9"):
            objects.get("a", max_bytes=9)

    @pytest.mark.parametrize("key", ["missing", "packs/missing", "a/below"])
    def test_a_missing_object_is_unknown(self, objects: Objects, key: str) -> None:
        put(objects, "packs/here", b"")
        with pytest.raises(UnknownObject):
            objects.get(key, max_bytes=10)
        with pytest.raises(UnknownObject):
            objects.get_range(key, 0, 1)
        with pytest.raises(UnknownObject):
            objects.size(key)

    def test_a_listing_is_sorted_by_key(self, objects: Objects) -> None:
        # '-' and '.' sort before the slash, digits and letters after it.
        keys = ["a/x", "a-b/x", "a.b", "a0", "a/@0000000001", "a/b/c", "B", "a"[:1] + "b/y"]
        for number, key in enumerate(keys):
            put(objects, key, bytes(number))
        expected = [ObjectInfo(key=key, size_bytes=size) for size, key in enumerate(keys)]
        assert list(objects.list("")) == sorted(expected, key=lambda info: info.key)
        assert [info.key for info in objects.list("a/")] == ["a/@0000000001", "a/b/c", "a/x"]
        assert list(objects.list("none/")) == []
        assert list(objects.list("a/none/")) == []

    def test_a_prefix_names_a_folder(self, objects: Objects) -> None:
        with pytest.raises(ValueError, match="not a prefix"):
            list(objects.list("pack"))

    def test_deleting_twice_is_success(self, objects: Objects) -> None:
        put(objects, "a/b", b"data")
        objects.delete("a/b")
        objects.delete("a/b")
        objects.delete("never/was")
        assert list(objects.list("")) == []

    def test_create_if_absent_creates_once(self, objects: Objects) -> None:
        assert objects.create_if_absent("refs/a/@1", b"first") is True
        assert objects.create_if_absent("refs/a/@1", b"second") is False
        assert objects.get("refs/a/@1", max_bytes=10) == b"first"

    def test_create_if_absent_after_a_put_and_a_delete(self, objects: Objects) -> None:
        put(objects, "a", b"put")
        assert objects.create_if_absent("a", b"created") is False
        objects.delete("a")
        assert objects.create_if_absent("a", b"created") is True

    def test_create_if_absent_has_one_winner(self, objects: Objects) -> None:
        barrier = threading.Barrier(6)
        won: list[int] = []

        def race(number: int) -> None:
            barrier.wait()
            if objects.create_if_absent("refs/race", b"%d" % number):
                won.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert objects.get("refs/race", max_bytes=10) == b"%d" % won[0]

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/.",
            ".hidden",
            "-rf",
            "a\0b",
            "a\nb",
            "é",
            "a b",
            "~",
            "a" * 256,
        ],
    )
    def test_a_key_is_a_plain_relative_path(self, objects: Objects, key: str) -> None:
        for operation in (
            objects.put,
            objects.size,
            objects.delete,
            lambda key: objects.get(key, max_bytes=1),
            lambda key: objects.get_range(key, 0, 1),
            lambda key: objects.create_if_absent(key, b""),
            lambda key: list(objects.list(key + "/")),
        ):
            with pytest.raises(ValueError, match="not a key"):
                operation(key)
