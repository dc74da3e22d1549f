"""Persist or hydrate a workspace with the local backend of OpenAI's Agents SDK, and say what it took.

usage: python unix_local.py persist|hydrate WORKSPACE ARCHIVE
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
import uuid
from pathlib import Path

from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxSession, UnixLocalSandboxSessionState
from agents.sandbox.snapshot import NoopSnapshot


def main() -> None:
    action, root, archive = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    identity = uuid.uuid4()
    session = UnixLocalSandboxSession.from_state(
        UnixLocalSandboxSessionState(
            session_id=identity, manifest=Manifest(root=root), snapshot=NoopSnapshot(id=str(identity))
        )
    )
    data = io.BytesIO(archive.read_bytes() if action == "hydrate" else b"")
    started, started_cpu = time.monotonic(), time.process_time()
    if action == "hydrate":
        asyncio.run(session.hydrate_workspace(data))
    else:
        kept = asyncio.run(session.persist_workspace())
    seconds, cpu_s = time.monotonic() - started, time.process_time() - started_cpu
    if action != "hydrate":
        archive.write_bytes(kept.read())
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
