"""A line that breaks: ``cut.py FILE COMMAND...`` runs a command and passes on so many bytes of its output.

In FILE stand the number, -1 for no limit, and the seconds to wait after each 64 KiB.  After so many bytes the command
is killed and nothing follows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main(settings: str, *command: str) -> int:
    with open(settings) as file:
        words = file.read().split()
    left, pause_s = int(words[0]), float(words[1])
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        while left:
            data = os.read(process.stdout.fileno(), 1 << 16 if left < 0 else min(left, 1 << 16))
            if not data:
                return process.wait()
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
            left -= len(data) if left > 0 else 0
            time.sleep(pause_s)
        os.killpg(process.pid, 9)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
