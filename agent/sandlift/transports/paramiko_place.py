"""Where paramiko connects to: the URL's parts, completed from the user's ssh configuration."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from types import ModuleType

from sandlift.errors import BadURL, UsageError

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to connect to, after the ssh configuration."""

    host: str
    port: int
    user: str
    key_name: str
    """The name under which the host key is looked up."""
    key_files: tuple[str, ...]
    only_files: bool


def find_place(
    module: ModuleType,
    host: str,
    user: str | None,
    port: int | None,
    key_files: tuple[str, ...],
    config_file: str | None,
) -> Place:
    """The URL's parts, completed from the ssh configuration.  Raises BadURL, UsageError."""
    config = _read(module, host, config_file)
    for option in ("proxyjump", "proxycommand"):
        if config.get(option, "none") != "none":
            raise BadURL(
                f"the ssh configuration reaches {host} through another host, which paramiko:// cannot",
                hint=f"use ssh://{host}/... instead",
            )
    identities = config.get("identityfile", [])
    files = key_files or tuple(identities if isinstance(identities, list) else [identities])
    only = bool(key_files) or config.get("identitiesonly") == "yes"
    real = str(config.get("hostname", host))
    return Place(
        host=real,
        port=port or int(str(config.get("port", 22))),
        user=user or str(config.get("user", "")) or getpass.getuser(),
        key_name=str(config.get("hostkeyalias", real)),
        key_files=files if files and only else (*files, *DEFAULT_KEYS),
        only_files=only,
    )


def _read(module: ModuleType, host: str, config_file: str | None) -> dict[str, str | list[str]]:
    path = os.path.expanduser(config_file) if config_file else None
    if path is None or not os.path.exists(path):
        return {}
    try:
        return dict(module.SSHConfig.from_path(path).lookup(host))
    except ImportError:
        # paramiko needs a further package for `Match exec`.
        raise UsageError(f"{path!a} holds a `Match exec`, which paramiko:// cannot ask", hint="use ssh://") from None
    except (OSError, ValueError, module.SSHException) as error:
        raise UsageError(f"the ssh configuration {path!a} cannot be read: {error}") from None
