"""The trees that are captured: each made once, whole or not at all, and kept in the work folder.

A tree's folder carries a digest of its recipe, so another recipe makes another tree.  What does not fit on the
disk, or cannot be made for want of a program or a network, is left out with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark import LeftOutError, note
from benchmark.processes import CommandError, run

MIB = 1 << 20
CHANGED_EVERY = 100
SETTLE_S = 65  # a row counts as settled 60 s after its last change
SPARE_BYTES = 2 << 30

# About 22,000 files and 410 MB, 28 of them above 1 MiB and together 247 MB.
NPM_PACKAGES = (
    "@babel/core@7.25.2",
    "@babel/preset-env@7.25.3",
    "@swc/core@1.7.11",
    "date-fns@3.6.0",
    "eslint@8.57.0",
    "jest@29.7.0",
    "lodash@4.17.21",
    "next@14.2.5",
    "prettier@3.3.3",
    "react-dom@18.3.1",
    "react@18.3.1",
    "typescript@5.5.4",
    "vite@5.4.0",
    "webpack@5.93.0",
)
WHEELS = (
    "matplotlib==3.10.3",
    "numpy==2.2.6",
    "pandas==2.2.3",
    "pyarrow==19.0.1",
    "scikit-learn==1.6.1",
    "scipy==1.15.3",
)
MILLION_DIRECTORIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the trees are made."""

    quick_files: int = 3_000
    million_files: int = 1_000_000
    commits: int = 4_000
    huge_mib: int = 2_048
    sparse_mib: int = 10_240
    bulk_mib: int = 10_240


FULL = Scale()
QUICK = Scale(million_files=10_000, commits=200, huge_mib=32, sparse_mib=256, bulk_mib=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a tree holds."""

    files: int
    directories: int
    links: int
    bytes: int
    """Apparent sizes of regular files, summed."""
    path_bytes: int
    blocks: int
    newest_s: float
    """The latest change of any entry, in seconds since 1970."""

    @property
    def entries(self) -> int:
        return self.files + self.directories + self.links

    @property
    def table_bytes(self) -> int:
        """The columns of such a tree: paths, a mode and four numbers an entry, a digest a block."""
        return self.path_bytes + 36 * self.entries + 32 * self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree that is there to be captured."""

    role: str
    path: Path
    facts: Facts

    def unsettled_s(self) -> float:
        """For how long a file's last change is still so recent that a capture would read it again."""
        return min(SETTLE_S, max(0.0, SETTLE_S - (time.time() - self.facts.newest_s)))


def facts_of(tree: Path) -> Facts:
    """Walk a tree, its root left out; links are not followed."""
    files = directories = links = size_bytes = path_bytes = blocks = 0
    newest_s = os.lstat(tree).st_ctime
    prefix = len(os.fsencode(tree)) + 1
    todo = [os.fsencode(tree)]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                newest_s = max(newest_s, status.st_ctime)
                path_bytes += len(entry.path) - prefix + 1
                if entry.is_dir(follow_symlinks=False):
                    directories += 1
                    todo.append(entry.path)
                elif entry.is_symlink():
                    links += 1
                else:
                    files += 1
                    size_bytes += status.st_size
                    blocks += -(-status.st_size // MIB)
    return Facts(
        files=files,
        directories=directories,
        links=links,
        bytes=size_bytes,
        path_bytes=path_bytes,
        blocks=blocks,
        newest_s=newest_s,
    )


# Recipes


def make_npm(folder: Path, scale: Scale) -> None:
    if shutil.which("npm") is None:
        raise LeftOutError("npm is missing, and makes the reference workspace: apt-get install npm; or try --quick")
    (folder / "package.json").write_text('{"name": "reference", "version": "1.0.0", "private": true}\n')
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    run(["npm", "install", *options, *NPM_PACKAGES])


def make_quick(folder: Path, scale: Scale) -> None:
    """Files whose sizes are spread like those of source trees, compressible about as well."""
    chance = random.Random(20)
    words = words_of(chance)
    for index in range(scale.quick_files):
        place = folder / f"d{index % 17}" / f"e{index % 173}"
        place.mkdir(parents=True, exist_ok=True)
        size = 3_000_000 if index % 1000 == 999 else int(chance.lognormvariate(7, 1.5))
        (place / f"f{index}.txt").write_bytes(text_of(chance, words, size))
        if index % 100 == 0:
            (place / f"l{index}").symlink_to(f"f{index}.txt")


def make_venv(folder: Path, scale: Scale) -> None:
    """A virtual environment with large wheels: shared objects, many sources, and links to the interpreter."""
    venv.create(folder / "env", with_pip=True, symlinks=True)
    python = str(folder / "env" / "bin" / "python")
    run([python, "-m", "pip", "install", "-q", "--no-compile", "--only-binary", ":all:", *WHEELS])


def make_git(folder: Path, scale: Scale) -> None:
    """A repository: a pack of all commits but the last thirty, those as loose objects, and a checkout."""
    if shutil.which("git") is None:
        raise LeftOutError("git is missing: apt-get install git")
    git = ["git", "-c", "init.defaultBranch=main", "-C", str(folder)]
    run([*git, "init", "-q"])
    stream = folder / ".git" / "stream"
    loose = min(30, scale.commits)
    parts = ((0, scale.commits - loose, 1), (scale.commits - loose, scale.commits, 10_000))
    for first, last, unpack_limit in parts:
        with stream.open("wb") as file:
            file.writelines(commits(first, last))
        words = [*git, "-c", f"fastimport.unpackLimit={unpack_limit}", "fast-import", "--quiet", "--force"]
        run(" ".join([*map(quoted, words), "<", quoted(str(stream))]))
    stream.unlink()
    run([*git, "reset", "-q", "--hard", "main"])


def commits(first: int, last: int) -> Iterator[bytes]:
    """The stream of git fast-import for a range of one history; a commit changes two files of some thousands."""
    chance = random.Random(first)
    words = words_of(random.Random(20))
    for number in range(first, last):
        message = b"Change %d" % number
        yield b"commit refs/heads/main\ncommitter A <a@example.org> %d +0000\n" % (1_700_000_000 + 600 * number)
        yield b"data %d\n%s\n" % (len(message), message)
        if number == first and first:
            yield b"from refs/heads/main^0\n"
        for index in (number, chance.randrange(number + 1)):
            text = text_of(chance, words, int(chance.lognormvariate(8, 1.2)))
            yield b"M 100644 inline src/d%d/f%d.txt\ndata %d\n%s\n" % (index % 97, index, len(text), text)


def make_million(folder: Path, scale: Scale) -> None:
    """Files of 12 bytes, all different, evenly in a thousand directories (fewer when there are few files)."""
    directories = min(MILLION_DIRECTORIES, scale.million_files // 20)
    for directory in range(directories):
        (folder / f"d{directory:03}").mkdir()
        place = os.open(folder / f"d{directory:03}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            for number in range(directory, scale.million_files, directories):
                file = os.open(f"f{number:06}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=place)
                os.write(file, b"%012d" % number)
                os.close(file)
        finally:
            os.close(place)


def make_huge(folder: Path, scale: Scale) -> None:
    """One large file whose halves alternate between text and noise, and a smaller one of noise alone."""
    chance = random.Random(20)
    text = text_of(chance, words_of(chance), 8 * MIB)
    with (folder / "mixed.bin").open("wb") as file:
        for index in range(scale.huge_mib):
            start = chance.randrange(len(text) - MIB)
            file.write(chance.randbytes(MIB) if index % 2 else text[start : start + MIB])
    with (folder / "noise.bin").open("wb") as file:
        for _ in range(scale.huge_mib // 8):
            file.write(chance.randbytes(MIB))


def make_sparse(folder: Path, scale: Scale) -> None:
    """One file that is almost all hole: a MiB of noise in every 128."""
    chance = random.Random(20)
    with (folder / "disk.img").open("wb") as file:
        for index in range(0, scale.sparse_mib, 128):
            file.seek(index * MIB + 4096)
            file.write(chance.randbytes(MIB))
        file.truncate(scale.sparse_mib * MIB)


def make_bulk(folder: Path, scale: Scale) -> None:
    """One file without holes whose blocks all differ and compress to little, so that storing it costs no room."""
    line = random.Random(20).randbytes(4096)
    with (folder / "bulk.bin").open("wb") as file:
        for index in range(scale.bulk_mib):
            file.write((index.to_bytes(8, "big") + line[8:]) * (MIB // 4096))


def words_of(chance: random.Random) -> list[bytes]:
    return [bytes(chance.choices(range(97, 123), k=chance.randint(2, 12))) for _ in range(4000)]


def text_of(chance: random.Random, words: list[bytes], size_bytes: int) -> bytes:
    return b" ".join(chance.choices(words, k=max(1, size_bytes // 8)))[:size_bytes]


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


# Each with what of the recipe decides the content, and the bytes of disk that it may take.
RECIPES: dict[str, tuple[Callable[[Path, Scale], None], Callable[[Scale], str], Callable[[Scale], int]]] = {
    "npm": (make_npm, lambda _: " ".join(NPM_PACKAGES), lambda _: 700 * MIB),
    "quick": (make_quick, lambda scale: f"quick {scale.quick_files}", lambda _: 100 * MIB),
    "venv": (make_venv, lambda _: " ".join((sys.version, *WHEELS)), lambda _: 1200 * MIB),
    "git": (make_git, lambda scale: str(scale.commits), lambda scale: scale.commits * MIB // 20),
    "million": (make_million, lambda scale: str(scale.million_files), lambda scale: 5000 * scale.million_files),
    "huge": (make_huge, lambda scale: str(scale.huge_mib), lambda scale: scale.huge_mib * MIB * 5 // 4),
    "sparse": (make_sparse, lambda scale: str(scale.sparse_mib), lambda scale: scale.sparse_mib * MIB // 100),
    "bulk": (make_bulk, lambda scale: str(scale.bulk_mib), lambda scale: scale.bulk_mib * MIB),
}


def ready(work: Path, role: str, scale: Scale) -> Tree:
    """The tree of a role, made on first use.  Raises LeftOutError."""
    make, recipe, needed_bytes = RECIPES[role]
    path = work / f"{role}-{hashlib.sha256(recipe(scale).encode()).hexdigest()[:12]}"
    if not path.is_dir():
        free_bytes = shutil.disk_usage(work).free - SPARE_BYTES
        if free_bytes < needed_bytes(scale):
            raise LeftOutError(
                f"the {role} tree needs {needed_bytes(scale) // MIB:,} MiB in {work}, {free_bytes // MIB:,} are free"
            )
        note(f"making the {role} tree, once")
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=work))
        try:
            partial.chmod(0o755)
            make(partial, scale)
            facts_file(path).unlink(missing_ok=True)
            partial.rename(path)
        except CommandError as error:
            raise LeftOutError(f"the {role} tree cannot be made: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Tree(role=role, path=path, facts=kept_facts(path))


def kept_facts(path: Path) -> Facts:
    """The facts of a tree that nobody changes, from the file beside it or by a walk that makes the file."""
    file = facts_file(path)
    if file.exists():
        return Facts(**json.loads(file.read_text()))
    facts = facts_of(path)
    file.write_text(json.dumps(asdict(facts)) + "\n")
    return facts


def facts_file(path: Path) -> Path:
    return path.with_name(path.name + ".facts.json")


def copy_of(tree: Tree, suffix: str) -> Tree:
    """A copy beside a tree, made on first use, whose own facts are looked up each time: it may be changed."""
    path = tree.path.with_name(f"{tree.path.name}-{suffix}")
    if not path.is_dir():
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=path.parent))
        run(["cp", "-a", "--sparse=auto", f"{tree.path}/.", str(partial)])
        partial.rename(path)
    return Tree(role=f"{tree.role}-{suffix}", path=path, facts=facts_of(path))


# Changes


def change_some(tree: Path) -> None:
    """Alter one byte in every hundredth file, sizes as they were."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files[::CHANGED_EVERY]:
        change_byte(path, 0)


def change_byte(path: Path, offset: int) -> None:
    """Alter one byte of a file, where it has that byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        if old:
            file.seek(offset)
            file.write(bytes([old[0] ^ 1]))
