"""Captures in a process of its own, for tests that kill it.

worker.py STORE WORKSPACE TARGET [SILENCE_S]    for each line on stdin: forks a process that captures; prints its
                                                number, and when it has ended its exit status
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from sandlift.box import connect
from sandlift.limits import Limits
from sandlift.store import Store

# A capture imports these when it needs them; here before the fork, so that its instants are those of its work.
EARLY = ("sandlift.content", "sandlift.gathering", "sandlift.restoring")


def capture(where: str, workspace: str, target: str, silence_s: str = "60") -> None:
    with Store.open(where) as store, connect(target) as box:
        box.capture(store, workspace, limits=Limits(silence_s=float(silence_s)))


def main(*arguments: str) -> None:
    for name in EARLY:
        importlib.import_module(name)
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                capture(*arguments)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
