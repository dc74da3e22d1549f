"""What paramiko and the sockets below it raise, as errors of ours.

One table names every class; a class that is not in it is found through its bases, and a test compares the
table with what paramiko defines, so that a new class cannot slip into the wrong one.
"""

from __future__ import annotations

from sandlift.errors import (
    AuthFailed,
    HostKeyChanged,
    Refused,
    SandliftError,
    TransportError,
    Truncated,
    Unreachable,
    UsageError,
)

from .base import harmless_text

_KEY_HINT = "load the key into an agent, or set SANDLIFT_SSH_PASSPHRASE"

# name of the class → our error, what it means, what to do
ERRORS: dict[str, tuple[type[SandliftError], str, str]] = {
    # authentication
    "AuthenticationException": (AuthFailed, "the server does not accept the offered identity", ""),
    "BadAuthenticationType": (AuthFailed, "the server wants another kind of login", "sandlift logs in with keys"),
    "PartialAuthentication": (AuthFailed, "the server wants a second proof", "use an ssh:// URL"),
    "UnableToAuthenticate": (AuthFailed, "no offered identity was accepted", ""),
    "AuthFailure": (AuthFailed, "no offered identity was accepted", ""),
    "PasswordRequiredException": (AuthFailed, "the key has a passphrase", _KEY_HINT),
    "UnknownKeyType": (AuthFailed, "the key is of a kind that cannot be used", "use Ed25519, ECDSA or RSA"),
    "AgentError": (AuthFailed, "the agent does not answer as it should", ""),
    # host keys and configuration
    "BadHostKeyException": (HostKeyChanged, "the host key is not the known one", ""),
    "InvalidHostKey": (UsageError, "a line of the known hosts cannot be read", ""),
    "ConfigParseError": (UsageError, "the ssh configuration cannot be read", ""),
    "CouldNotCanonicalize": (Unreachable, "the host name cannot be made canonical", ""),
    "ProxyCommandFailure": (Unreachable, "the proxy command failed", ""),
    # sessions on a connection that stands
    "ChannelException": (Refused, "the server refused the session", "it may allow no more of them at once"),
    "SFTPError": (Refused, "the file transfer was refused", ""),
    # the connection itself
    "IncompatiblePeer": (Unreachable, "the server and paramiko have no algorithm in common", "use an ssh:// URL"),
    "MessageOrderError": (Unreachable, "the server broke the protocol", ""),
    "NeedRekeyException": (Truncated, "the connection was lost while keys were renewed", ""),
    "BERException": (UsageError, "a key file is damaged", ""),
    "PipeTimeout": (Unreachable, "no answer in time", ""),
    "SSHException": (Unreachable, "the connection failed", ""),
    "NoValidConnectionsError": (Refused, "the connection was refused", "check the port, and that sshd runs there"),
    "ConnectionRefusedError": (Refused, "the connection was refused", "check the port, and that sshd runs there"),
    "gaierror": (Unreachable, "the host name is not known", "check the name, or the alias in the ssh configuration"),
    "TimeoutError": (Unreachable, "no answer in time", ""),
    "EOFError": (Truncated, "the connection was lost", ""),
    "ConnectionError": (Truncated, "the connection was lost", ""),
    "OSError": (Unreachable, "there is no way to the host", ""),
}
_OWN_WORDS = frozenset({"EOFError", "BadHostKeyException", "NoValidConnectionsError"})


def map_error(error: BaseException, host: str) -> SandliftError:
    """The error of ours for whatever came out of paramiko; our own pass through."""
    if isinstance(error, SandliftError):
        return error
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS:
            ours, meaning, hint = ERRORS[kind.__name__]
            detail = "" if kind.__name__ in _OWN_WORDS else harmless_text(str(error).encode()[:300])
            message = f"cannot reach {host}: {meaning}" if issubclass(ours, TransportError) else f"{host}: {meaning}"
            return ours(message + (f" ({detail})" if detail else ""), hint=hint)
    return Unreachable(f"cannot reach {host}: paramiko failed with {type(error).__name__}")
