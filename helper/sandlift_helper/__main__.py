"""Runs the helper on the spot, for debugging: ``python -m sandlift_helper NONCE_HEX`` with frames on stdin."""

import sys

from sandlift_helper.main import run

run(bytes.fromhex(sys.argv[1]))
