"""Transports: from a target to a way of running commands there, each loaded when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from sandlift.errors import BadURL, UsageError
from sandlift.rate import RateLimit
from sandlift.targets import Target

from .base import Capabilities, Channel, Transport

__all__ = ["Capabilities", "Channel", "Transport", "open_transport"]


def open_transport(
    target: Target,
    *,
    ssh_options: Sequence[str] = (),
    host_key_file: str | None = None,
    accept_new_host_key: bool = False,
    key_files: Sequence[str] = (),
    reuse: bool = False,
    rate: RateLimit | None = None,
) -> Transport:
    """The transport for a target; nothing is connected yet, and the caller closes it.

    The options are those of the two ssh transports; ``ssh_options`` and ``reuse`` mean nothing to the others,
    paramiko's connections are always reused.  ``rate`` is for all, and becomes the transport's own.  Raises
    MissingExtra when an optional package is needed, UsageError for options that do not fit.
    """
    if host_key_file is not None and accept_new_host_key:
        raise UsageError("a pinned host key and accepting new host keys exclude each other")
    match target.scheme:
        case "local":
            from .local import local

            return local(rate)
        case "via":
            from .command import via

            return via(target.via, shell=target.via_shell, rate=rate)
        case "ssh":
            from .openssh import OpenSSH

            return OpenSSH(
                target.host or "",
                user=target.user,
                port=target.port,
                ssh_options=ssh_options,
                host_key_file=host_key_file,
                accept_new_host_key=accept_new_host_key,
                key_files=key_files,
                reuse=reuse,
                rate=rate,
            )
        case "paramiko":
            from .paramiko_ssh import ParamikoTransport

            return ParamikoTransport(
                target.host or "",
                user=target.user,
                port=target.port,
                host_key_file=host_key_file,
                accept_new_host_key=accept_new_host_key,
                key_files=key_files,
                rate=rate,
            )
    raise BadURL(f"there is no transport for the scheme {target.scheme!a}")
