"""Large files that several workers read in spans, and that change meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own, since workers are forked.  It scans, reads as a capture does on two cores, and changes one
# byte of the file on the way; then it says what it found.
SCRIPT = """
import hashlib, os, sys
from sandlift_helper import members, reading, table, wire
from sandlift_helper.blocks import Cutter
from sandlift_helper.channel import Channel
from sandlift_helper.codec import Packer
from sandlift_helper.mounts import read_mounts
from sandlift_helper.scan import Limits, Scan

root, when = sys.argv[1:]
path = os.path.join(root, "big")
reading.usable_cores = lambda: 2
root_fd = os.open(root, os.O_RDONLY)
limits = Limits(10, 1000, 10, 1000, 1 << 40)
scan = Scan(root_fd, limits, None, read_mounts(os.fsencode(root)), frozenset(), None, lambda *_: None)
scan.run()
spans = [unit.first for unit in reading.units(scan.files, spans=True) if unit.count]
assert spans == [0, 8, 16], spans

def change():
    with open(path, "r+b") as file:
        file.write(b"!")

cut_span = Cutter.cut_span

def cut_and_change(self, row, first, count):
    if first == 16 and not os.path.exists(root + ".changed"):
        open(root + ".changed", "w").close()
        change()
    return cut_span(self, row, first, count)

if when == "before":
    change()
elif when == "between":
    Cutter.cut_span = cut_and_change
elif when == "gone":
    os.unlink(path)

watched, _ = os.pipe()
with open(root + ".out", "w+b") as out:
    channel = Channel(watched, out.fileno())
    channel.credit = 1000
    rows = table.Segment()
    for part in reading.Reading(channel, root_fd, Packer(wire.CODEC_NONE), 1 << 40).rows(scan.files, scan.bytes):
        if part is not None:
            rows.extend(part)
    out.seek(0)
    frames = wire.Reader().feed(out.read())

sent = {}
for kind, payload in frames:
    assert kind == wire.CONTENT
    run = memoryview(payload)[wire.PACKED_HEADER_SIZE :]
    for digest, start, size in members.parse_run(run):
        assert hashlib.sha256(run[start : start + size]).digest() == digest
        sent[digest] = size

joined = lambda column: {bytes(column[at : at + 32]) for at in range(0, len(column), 32)}
if when == "gone":
    assert (rows.paths, rows.flag_paths) == ([], [b"big"]), (rows.paths, rows.flag_paths)
else:
    with open(path, "rb") as file:
        content = file.read()
    named = [hashlib.sha256(content[at : at + (1 << 20)]).digest() for at in range(0, len(content), 1 << 20)]
    assert (rows.paths, rows.flag_paths, rows.excluded_paths) == ([b"big"], [], [])
    assert rows.sizes[0] == len(content) and rows.mtimes_ns[0] == os.stat(path).st_mtime_ns
    assert bytes(rows.digests) == b"".join(named) and not rows.positions
    assert set(named) <= set(sent)
assert set(sent) - joined(rows.digests) <= joined(rows.orphans)
assert bool(rows.orphans) == (when == "between"), len(rows.orphans)
"""


@pytest.mark.parametrize("when", ["never", "before", "between", "gone"])
def test_a_file_that_is_read_in_spans(tmp_path: Path, when: str) -> None:
    root = tmp_path / "w"
    root.mkdir()
    block = bytes(range(256)) * 4096
    with open(root / "big", "wb") as file:
        file.writelines(b"%04d" % number + block[4:] for number in range(17))
        file.write(b"the end")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, root, when],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
