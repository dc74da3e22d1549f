"""Chance changes to a workspace, and rounds of them: each time an incremental capture must equal a fresh one.

mutations.py FOLDER ROUNDS SEED     prints a row of JSON for each round, and ends with 1 at the first difference
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from e2e.conftest import local
from incremental.again import TICK_S, Repeated

import sandlift.tracking
from sandlift.capturing import SETTLE_S
from sandlift.model import Rules

PART_ROWS = 6
"""Parts so small that most changes touch some and leave others."""
BLOCK = 1 << 20
NAMES = "abcdefgh"
RULES = (
    Rules(),
    Rules(),
    Rules(),
    Rules(patterns=((b"a*", b"test"),)),
    Rules(patterns=((b"*/b", b"test"), (b"!c", b"test"))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round did, and what it cost."""

    number: int
    changes: tuple[str, ...]
    settle_s: float
    files: int
    files_read: int
    received: int
    received_fresh: int
    reused: bool


def _write_new(path: Path, data: bytes) -> None:
    """Writes a file, never through a link: a test may run as root, and its links lead anywhere."""
    if path.is_symlink():
        path.unlink()
    # Where a FIFO stands it is refused: else it would wait for a reader for ever.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)


def _opened(path: Path) -> BinaryIO:
    """Opens a file to change it, never through a link."""
    return open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b")


class Mutator:
    """Changes a tree by chance, and nothing beside it, wherever its links lead."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._changes: dict[str, Callable[[], None]] = {
            "new file": self._new_file,
            "new directory": self._new_directory,
            "content": self._content,
            "content, same size and time": self._same_size_and_time,
            "exchange": self._exchange,
            "append": self._append,
            "truncate": self._truncate,
            "hole": self._hole,
            "rename": self._rename,
            "delete": self._delete,
            "hard link": self._hard_link,
            "link": self._link,
            "mode": self._mode,
            "time": self._time,
            "fifo": self._fifo,
            "kind": self._kind,
            "copy": self._copy,
            "read": self._read,
        }

    def change(self) -> str:
        """Do one thing; returns its name."""
        name = self._chance.choice(list(self._changes))
        with contextlib.suppress(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, OSError):
            self._changes[name]()
        return name

    def paths(self) -> list[Path]:
        """All entries."""
        return sorted(self._root.rglob("*"))

    def files(self) -> list[Path]:
        """All regular files."""
        return [path for path in self.paths() if path.is_file() and not path.is_symlink()]

    def _file(self) -> Path:
        found = self.files()
        if not found:
            raise FileNotFoundError
        return self._chance.choice(found)

    def _any(self) -> Path:
        found = self.paths()
        if not found:
            raise FileNotFoundError
        return self._chance.choice(found)

    def _directory(self) -> Path:
        found = [path for path in self.paths() if path.is_dir() and not path.is_symlink()]
        return self._chance.choice([self._root, *found])

    def _place(self) -> Path:
        name = "".join(self._chance.choices(NAMES, k=self._chance.randint(1, 2)))
        return self._directory() / name

    def _data(self) -> bytes:
        size = self._chance.choice((0, 1, 10, 100, 5000, 5000, BLOCK, BLOCK + 1, 2 * BLOCK + 77))
        return self._chance.randbytes(min(size, 5000)).ljust(size, self._chance.choice((b"\0", b"x")))

    def _new_file(self) -> None:
        _write_new(self._place(), self._data())

    def _new_directory(self) -> None:
        place = self._place()
        place.mkdir()
        for name in NAMES[: self._chance.randint(0, 4)]:
            _write_new(place / name, self._data())

    def _content(self) -> None:
        _write_new(self._file(), self._data())

    def _same_size_and_time(self) -> None:
        path = self._file()
        status = path.stat()
        with _opened(path) as file:
            file.seek(self._chance.randrange(max(1, status.st_size)))
            file.write(b"?" if status.st_size else b"")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)

    def _exchange(self) -> None:
        one, two = self._file(), self._file()
        aside = self._root / "exchange"
        os.rename(one, aside)
        os.rename(two if two != one else aside, one)
        if aside.exists():
            os.rename(aside, two)

    def _append(self) -> None:
        with _opened(self._file()) as file:
            file.seek(0, os.SEEK_END)
            file.write(self._data())

    def _truncate(self) -> None:
        path = self._file()
        with _opened(path) as file:
            file.truncate(self._chance.randint(0, 2 * path.stat().st_size + 10))

    def _hole(self) -> None:
        path = self._file()
        size = path.stat().st_size
        with _opened(path) as file:
            file.seek(self._chance.randrange(size + 1))
            file.write(bytes(min(size, self._chance.choice((100, BLOCK)))))

    def _rename(self) -> None:
        os.rename(self._any(), self._place())

    def _delete(self) -> None:
        path = self._any()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def _hard_link(self) -> None:
        os.link(self._file(), self._place())

    def _link(self) -> None:
        text = self._chance.choice(
            ("a", "../b", f"{self._root}-outside", f"{self._root}/a/b", ".", "nowhere", "a/../../x")
        )
        os.symlink(text, self._place())

    def _mode(self) -> None:
        path = self._any()
        if not path.is_symlink():
            path.chmod(0o700 | self._chance.randrange(0o100))

    def _time(self) -> None:
        time_ns = self._chance.randrange(10**18)
        os.utime(self._any(), ns=(time_ns, time_ns), follow_symlinks=False)

    def _fifo(self) -> None:
        os.mkfifo(self._place())

    def _kind(self) -> None:
        path = self._file()
        path.unlink()
        path.mkdir()
        _write_new(path / "a", self._data())

    def _copy(self) -> None:
        source, place = self._file(), self._place()
        _write_new(place, source.read_bytes())
        shutil.copystat(source, place, follow_symlinks=False)

    def _read(self) -> None:
        self._file().read_bytes()


def play(repeated: Repeated, rounds: int, seed: int) -> Iterator[Round]:
    """Plays so many rounds in a new workspace.  Raises AssertionError when a capture is not as a fresh one."""
    chance = random.Random(seed)
    mutator = Mutator(repeated.root, chance)
    sentinel = Path(f"{repeated.root}-outside")
    sentinel.write_bytes(b"untouched")
    seen = sentinel.stat()
    for _ in range(25):
        mutator.change()
    for number in range(rounds):
        settle_s = chance.choice((0.0, 0.0, 0.0, SETTLE_S))
        rules = chance.choice(RULES)
        base = "none" if chance.random() < 0.03 else "auto"
        changes = tuple(mutator.change() for _ in range(chance.choice((0, 1, 1, 2, 4, 8))))
        time.sleep(TICK_S)
        taken = repeated.again(settle_s=settle_s, rules=rules, base=base, rehash=chance.random() < 0.05)
        fresh = repeated.fresh(rules=rules)
        if taken.identity != fresh.identity:
            from incremental.again import assert_same

            print(f"seed {seed}, round {number}: {changes}", file=sys.stderr)
            assert_same(taken, fresh)
        yield Round(
            number=number,
            changes=changes,
            settle_s=settle_s,
            files=taken.capture.counts.files,
            files_read=taken.files_read,
            received=taken.received,
            received_fresh=fresh.received,
            reused=taken.capture.reused,
        )
    after = sentinel.stat()
    assert (after.st_ctime_ns, after.st_mode) == (seen.st_ctime_ns, seen.st_mode), (
        "something was written through a link"
    )


def main(folder: str, rounds: str, seed: str) -> None:
    sandlift.tracking.PART_ROWS = PART_ROWS
    with closing(Repeated(Path(folder), local)) as repeated:
        repeated.root.mkdir()
        for row in play(repeated, int(rounds), int(seed)):
            print(json.dumps(asdict(row)), flush=True)
        assert repeated.store.verify().is_sound


if __name__ == "__main__":
    main(*sys.argv[1:])
