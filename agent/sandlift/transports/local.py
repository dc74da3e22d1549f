"""This machine: the command itself, with nothing before it."""

from __future__ import annotations

from sandlift.rate import RateLimit

from .base import ARGUMENT_MAX_BYTES, Capabilities
from .command import CommandTransport

CAPABILITIES = Capabilities(
    duplex=True, max_argument_bytes=ARGUMENT_MAX_BYTES, max_command_bytes=None, max_call_s=None, link_cost="cheap"
)


def local(rate: RateLimit | None = None) -> CommandTransport:
    """A transport that starts commands here; they inherit the environment and the working directory."""
    return CommandTransport((), quoting="argv", capabilities=CAPABILITIES, name="local", rate=rate)
