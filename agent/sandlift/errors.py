"""Every error that sandlift raises on purpose, in one tree.

A class has one stable ``code`` (the word in JSON), one ``exit`` status of the command line, and says
whether trying the same again can help (``retryable``: yes, no, or None for "unknown").  Exit statuses
are an interface: 1 the request cannot be met as things are, 2 the request itself is wrong, 4 what
arrived is refused, 5 the sandbox could not be reached or was lost, 6 the helper did not run there.

    SandliftError
    ├─ UsageError            2  options
    │  ├─ BadURL                url
    │  ├─ BadName               name
    │  ├─ AmbiguousPrefix       ambiguous-prefix
    │  └─ MissingExtra          missing-extra
    ├─ StoreError            1
    │  ├─ UnknownRef            unknown-ref
    │  ├─ UnknownPath           unknown-path
    │  ├─ StoreMissing          store-missing
    │  ├─ StoreNewer            store-newer
    │  ├─ StoreFull             store-full
    │  ├─ StoreDamaged          store-damaged
    │  └─ StoreUnusable         store-unusable
    ├─ RootError             1
    │  ├─ RootMissing           root-missing
    │  ├─ RootNotDirectory      root-not-directory
    │  └─ RootUnreadable        root-unreadable
    ├─ TargetError           1
    │  ├─ TargetNotEmpty        target-not-empty
    │  ├─ TargetFull            target-full
    │  └─ TargetUnusable        target-unusable
    ├─ StrictLoss            1  strict-loss
    ├─ DeadlineExceeded      1  deadline
    ├─ Refusal               4
    │  ├─ RemoteProtocolError   protocol
    │  ├─ InvalidManifest       invalid-manifest
    │  ├─ HostLimit             host-limit
    │  ├─ UnsafeArchive         unsafe-archive
    │  ├─ UnsafeLink            unsafe-link
    │  └─ Conflict              conflict
    ├─ TransportError        5
    │  ├─ Unreachable           unreachable
    │  ├─ Refused               refused
    │  ├─ AuthFailed            auth-failed
    │  ├─ HostKeyUnknown        host-key-unknown
    │  ├─ HostKeyChanged        host-key-changed
    │  ├─ SandboxGone           sandbox-gone
    │  └─ Truncated             truncated
    ├─ HelperError           6
    │  ├─ NoPython              no-python
    │  ├─ PythonOld             python-old
    │  ├─ HelperStart           helper-start
    │  └─ HelperCrashed         helper-crashed
    └─ Interrupted         130  interrupted

``LocalProtocolError`` stands outside the tree: it is a fault of sandlift itself, never of a sandbox.
"""

from __future__ import annotations

from typing import ClassVar


class SandliftError(Exception):
    """Base of all errors; ``str()`` says what happened and where, ``hint`` what to do next."""

    code: ClassVar[str] = "error"
    exit: ClassVar[int] = 1
    retryable: ClassVar[bool | None] = False

    def __init__(self, message: str, *, hint: str = "", **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context: dict[str, object] = context


class UsageError(SandliftError):
    """An option or its value is wrong."""

    code = "options"
    exit = 2


class BadURL(UsageError):
    """A target or store URL cannot be used."""

    code = "url"


class BadName(UsageError):
    """A workspace name breaks the naming rule."""

    code = "name"


class AmbiguousPrefix(UsageError):
    """A prefix of an identity fits several snapshots."""

    code = "ambiguous-prefix"


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    code = "missing-extra"


class StoreError(SandliftError):
    """The store cannot do what was asked."""


class UnknownRef(StoreError):
    """No snapshot goes by that name."""

    code = "unknown-ref"


class UnknownPath(StoreError):
    """The snapshot has no such path, or it is not of the kind that was asked for."""

    code = "unknown-path"


class StoreMissing(StoreError):
    """There is no store at that place."""

    code = "store-missing"


class StoreNewer(StoreError):
    """The store, or an object in it, was written by a newer sandlift."""

    code = "store-newer"


class StoreFull(StoreError):
    """The store's disk or quota is full."""

    code = "store-full"
    retryable = True


class StoreDamaged(StoreError):
    """An object of the store is missing or does not hash to its name."""

    code = "store-damaged"


class StoreUnusable(StoreError):
    """The store's medium refused a read or a write."""

    code = "store-unusable"
    retryable = None


class RootError(SandliftError):
    """The workspace's root cannot be captured."""


class RootMissing(RootError):
    """The root does not exist in the sandbox."""

    code = "root-missing"


class RootNotDirectory(RootError):
    """The root is no directory."""

    code = "root-not-directory"


class RootUnreadable(RootError):
    """The root cannot be opened or listed."""

    code = "root-unreadable"


class TargetError(SandliftError):
    """The place to restore to cannot be used."""


class TargetNotEmpty(TargetError):
    """The target of a *new* restore holds something already."""

    code = "target-not-empty"


class TargetFull(TargetError):
    """The target's file system has no room for the snapshot."""

    code = "target-full"
    retryable = True


class TargetUnusable(TargetError):
    """The target cannot be created or written."""

    code = "target-unusable"


class StrictLoss(SandliftError):
    """Something was lost, changed or vanished, and ``strict`` forbids that."""

    code = "strict-loss"
    retryable = None


class DeadlineExceeded(SandliftError):
    """The caller's own time limit ran out."""

    code = "deadline"
    retryable = True


class Refusal(SandliftError):
    """What arrived is not acceptable, so nothing of it was kept."""

    exit = 4


class RemoteProtocolError(Refusal):
    """The sandbox's bytes break the stream's rules."""

    code = "protocol"


class InvalidManifest(Refusal):
    """A manifest breaks the rules; ``issues`` lists what, in full sentences."""

    code = "invalid-manifest"

    def __init__(self, message: str, *, issues: tuple[str, ...] = (), hint: str = "", **context: object) -> None:
        super().__init__(message, hint=hint, **context)
        self.issues = issues


class HostLimit(Refusal):
    """What arrived exceeds a limit that the request had set; the context names it."""

    code = "host-limit"


class UnsafeArchive(Refusal):
    """A foreign archive cannot be taken in: hostile, damaged, or two readers could disagree about it."""

    code = "unsafe-archive"


class UnsafeLink(Refusal):
    """A link would leave the tree that it stands in."""

    code = "unsafe-link"


class Conflict(Refusal):
    """The target cannot take the snapshot as asked; ``conflicts`` lists why, in full sentences."""

    code = "conflict"

    def __init__(self, message: str, *, conflicts: tuple[str, ...] = (), hint: str = "", **context: object) -> None:
        super().__init__(message, hint=hint, **context)
        self.conflicts = conflicts


class TransportError(SandliftError):
    """The sandbox could not be reached, or was lost."""

    exit = 5
    retryable: ClassVar[bool | None] = True


class Unreachable(TransportError):
    """No route, no such name, or no answer in time."""

    code = "unreachable"


class Refused(TransportError):
    """The other side actively refused the connection or the command."""

    code = "refused"


class AuthFailed(TransportError):
    """The sandbox does not accept the offered identity."""

    code = "auth-failed"
    retryable = False


class HostKeyUnknown(TransportError):
    """The server's host key is not among the known hosts."""

    code = "host-key-unknown"
    retryable = False


class HostKeyChanged(TransportError):
    """The server's host key is another than the known one."""

    code = "host-key-changed"
    retryable = False


class SandboxGone(TransportError):
    """The sandbox fell silent, or no longer exists."""

    code = "sandbox-gone"
    retryable = None


class Truncated(TransportError):
    """The stream ended before its end frame."""

    code = "truncated"


class HelperError(SandliftError):
    """The sandbox was reached, but the helper did not run there."""

    exit = 6


class NoPython(HelperError):
    """The sandbox has no Python that the helper can run on."""

    code = "no-python"


class PythonOld(HelperError):
    """The sandbox has only a Python older than 3.6."""

    code = "python-old"


class HelperStart(HelperError):
    """The command ran, but the helper's stream never began."""

    code = "helper-start"
    retryable = None


class HelperCrashed(HelperError):
    """The helper failed by a fault of its own; the context holds its report."""

    code = "helper-crashed"
    retryable = None


class Interrupted(SandliftError):
    """The caller cancelled, or a signal came; ``signal`` 15 exits with 143, all else with 130."""

    code = "interrupted"
    exit = 130
    retryable = True


class LocalProtocolError(Exception):
    """sandlift itself broke its own stream rules: a bug, worth a report."""
