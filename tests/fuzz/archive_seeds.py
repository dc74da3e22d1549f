"""Archives to begin with: what real writers emit, in small, and some that two readers would take differently."""

from __future__ import annotations

import io
import tarfile

from archive import archives
from archive.archives import DIRECTORY, FIFO, GNU, HARD_LINK, LINK, PAX_GLOBAL, V7, Member


def _written(form: int) -> bytes:
    """A small tree, as Python's tarfile writes it in one of its formats."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as opened:
        for name, kind, link, content in (
            ("./", tarfile.DIRTYPE, "", b""),
            ("./a", tarfile.REGTYPE, "", b"text\n"),
            ("./d/", tarfile.DIRTYPE, "", b""),
            ("./d/b", tarfile.REGTYPE, "", bytes(range(256)) * 5),
            ("./d/" + "n" * 110, tarfile.REGTYPE, "", b"long"),
            ("./d/caf\udce9", tarfile.REGTYPE, "", b""),
            ("./hard", tarfile.LNKTYPE, "./a", b""),
            ("./l", tarfile.SYMTYPE, "d/b", b""),
            ("./m", tarfile.SYMTYPE, "/srv/w/a", b""),
            ("./out", tarfile.SYMTYPE, "/etc/passwd", b""),
            ("./pipe", tarfile.FIFOTYPE, "", b""),
        ):
            if form == tarfile.USTAR_FORMAT and len(name) > 100:
                continue
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            info.mode, info.mtime = 0o644, 1_600_000_000.25 if form == tarfile.PAX_FORMAT else 1_600_000_000
            opened.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _sparse() -> list[bytes]:
    regions, real = [(512, 512), (2048, 3)], 4096
    data = b"s" * 512 + b"end"
    old = Member(b"s", data, kind=archives.GNU_SPARSE, magic=GNU, raw=archives.sparse_fields(regions, real))
    keys = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": b"s"}
    new = Member(
        b"GNUSparseFile.1/s",
        archives.sparse_map(regions) + data,
        pax={**keys, b"GNU.sparse.realsize": b"%d" % real},
    )
    map_01 = {
        b"GNU.sparse.size": b"4096",
        b"GNU.sparse.numblocks": b"2",
        b"GNU.sparse.map": b"512,512,2048,3",
        b"GNU.sparse.name": b"s",
    }
    return [
        archives.archive(old),
        archives.archive(new),
        archives.archive(Member(b"GNUSparseFile.1/s", data, pax=map_01)),
    ]


def archive_seeds() -> list[bytes]:
    """Returns the seeds of the target ``archive``."""
    gnu, pax, ustar = (_written(form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT))
    below = [Member(b"w/", kind=DIRECTORY), Member(b"w/a", b"x"), Member(b"w/l", kind=LINK, link=b"../w/a")]
    whole = [Member(b"/srv/w/a", b"x"), Member(b"/srv/w/d/b", b"y"), Member(b"/srv/w/p", kind=FIFO)]
    comment = archives.pax_header({b"comment": b"0" * 40}, kind=PAX_GLOBAL)
    return [
        gnu,
        pax,
        ustar,
        archives.gz(gnu),
        archives.zst(pax),
        archives.xz(ustar),
        *_sparse(),
        archives.archive(*below),
        archives.archive(*whole),
        archives.archive(comment, Member(b"a", b"x"), Member(b"h", kind=HARD_LINK, link=b"a")),
        archives.archive(Member(b"old/", magic=V7, kind=b"\0"), Member(b"old/f", b"x", magic=V7, kind=b"\0")),
        archives.archive(archives.long_link(b"t" * 150), Member(b"l", kind=LINK, link=b"t" * 100, magic=GNU)),
        archives.archive(Member(b"a", b"x" * 600, pax={b"size": b"600", b"mtime": b"-1.5", b"uid": b"7"})),
        # Refused: the same name twice, a size that differs, two archives, nothing.
        archives.archive(Member(b"a", b"x"), Member(b"./a", b"y")),
        archives.archive(Member(b"a", b"x" * 600, size=0, pax={b"size": b"600"})),
        archives.archive(Member(b"a", b"x")) * 2,
        archives.END,
    ]
