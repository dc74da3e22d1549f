"""Fuzz targets: functions of bytes that return nothing, and raise when an invariant does not hold.

A typed refusal is a fine end.  What is accepted must keep its promises: it encodes to the same bytes again, it does
not depend on how the bytes came, another reader reads the same, and a second, plain telling of the rules
(`fuzz.oracles`) finds nothing wrong.  Anything else that is raised is a finding.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzz.archive_targets import archive
from fuzz.manifest_targets import gathering, listing, segment
from fuzz.rule_targets import link, rules
from fuzz.store_targets import pack, ref, snapshot
from fuzz.stream_targets import content, message, packed, reader, run, session

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {
    "reader": reader,
    "session": session,
    "message": message,
    "run": run,
    "content": content,
    "packed": packed,
    "segment": segment,
    "gathering": gathering,
    "listing": listing,
    "link": link,
    "rules": rules,
    "pack": pack,
    "snapshot": snapshot,
    "ref": ref,
    "archive": archive,
}
