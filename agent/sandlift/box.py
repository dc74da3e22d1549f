"""A box: one target that is connected once and used many times.  This is the library's front door."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandlift.capturing import CaptureSpec, StoreSource
from sandlift.capturing import capture as run_capture
from sandlift.deadline import Cancel, Deadline
from sandlift.limits import DEFAULT_LIMITS, Limits
from sandlift.model import Codec, RestoreOptions, Rules
from sandlift.rate import RateLimit
from sandlift.targets import Target, parse_target
from sandlift.transports import Transport, open_transport
from sandlift.watch import OnEvent

if TYPE_CHECKING:
    from sandlift.results import Capture, Restore, Survey
    from sandlift.store import Store


class Box:
    """A sandbox, or a directory of this machine, to capture from and restore to.

    Made by `connect`; a context manager.  Its calls may be made from several threads.
    """

    def __init__(self, target: Target, transport: Transport, *, python: str | None = None) -> None:
        self.target = target
        self._transport = transport
        self._python = python or (sys.executable if target.scheme == "local" else None)

    def capture(
        self,
        store: StoreSource,
        workspace: str,
        *,
        rules: Rules | None = None,
        aliases: Sequence[bytes | str] = (),
        labels: Mapping[str, str] | None = None,
        note: str = "",
        base: str = "auto",
        like: Sequence[str] = (),
        rehash: bool = False,
        trust_ctime: bool = False,
        strict: bool = False,
        codec: Codec = "auto",
        level: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        deadline_s: float | None = None,
        cancel: Cancel | None = None,
        on_event: OnEvent | None = None,
    ) -> Capture:
        """Captures the target's root as the next snapshot of *workspace*.

        What policy leaves out is recorded; what is lost makes the outcome ``incomplete``.  With *strict*, anything
        lost, changed or vanished raises StrictLoss and nothing is stored.  *aliases* are other absolute names of the
        root, for links that use them.

        Only what changed since the *base* is read and travels: ``auto``, the newest snapshot of this very target;
        ``none``; or a ref of this target.  Of the snapshots *like* it, of whatever target, nothing travels that the
        sandbox proves to have; it can learn by that whether they hold a file that it guesses.  With *rehash* every
        file is read, whatever its times say; *trust_ctime* believes change times on file systems that are known to
        forget them, such as tmpfs and NFS.

        *codec* and *level* (1 to 22, zlib takes at most 9) say how content is compressed on its way; a *codec* that the
        sandbox lacks is a UsageError.
        *store* may be a function that opens one, which is then done while the connection is made.  Raises any error of
        `sandlift.errors`; the store is unchanged then, but for objects that nothing names.
        """
        return run_capture(
            self._transport,
            store,
            replace(
                self._spec(workspace, rules, limits, aliases),
                labels=labels or {},
                note=note,
                strict=strict,
                base=base,
                like=tuple(like),
                rehash=rehash,
                trust_ctime=trust_ctime,
                codec=codec,
                level=level,
            ),
            deadline=Deadline.after(deadline_s, cancel),
            on_event=on_event,
        )

    def survey(
        self,
        *,
        rules: Rules | None = None,
        aliases: Sequence[bytes | str] = (),
        limits: Limits = DEFAULT_LIMITS,
        deadline_s: float | None = None,
        cancel: Cancel | None = None,
        on_event: OnEvent | None = None,
    ) -> Survey:
        """Looks at what a capture would find, without taking anything."""
        from sandlift.survey import survey as run_survey

        spec = self._spec("survey", rules, limits, aliases)
        return run_survey(self._transport, spec, deadline=Deadline.after(deadline_s, cancel), on_event=on_event)

    def restore(
        self,
        store: StoreSource,
        ref: str,
        *,
        options: RestoreOptions | None = None,
        dry_run: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        deadline_s: float | None = None,
        cancel: Cancel | None = None,
        on_event: OnEvent | None = None,
    ) -> Restore:
        """Restores a snapshot to the target's root, as *options* say; with *dry_run*, only says what it would do.

        Without options the target must be absent or an empty directory, and the tree becomes visible whole, by one
        rename.  Raises any error of `sandlift.errors`; conflicts are found before the first write.
        """
        from sandlift.restoring import RestoreSpec
        from sandlift.restoring import restore as run_restore

        return run_restore(
            self._transport,
            store,
            RestoreSpec(
                ref=ref,
                target=self.target,
                options=options or RestoreOptions(),
                dry_run=dry_run,
                limits=limits,
                python=self._python,
            ),
            deadline=Deadline.after(deadline_s, cancel),
            on_event=on_event,
        )

    def _spec(self, workspace: str, rules: Rules | None, limits: Limits, aliases: Sequence[bytes | str]) -> CaptureSpec:
        return CaptureSpec(
            target=self.target,
            workspace=workspace,
            rules=rules or Rules(),
            limits=limits,
            aliases=tuple(os.fsencode(alias) for alias in aliases),
            python=self._python,
        )

    def close(self) -> None:
        """Ends the connection; may be called twice."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    target: str | Target,
    *,
    via: str | None = None,
    via_shell: str | None = None,
    python: str | None = None,
    ssh_options: Sequence[str] = (),
    host_key_file: str | None = None,
    accept_new_host_key: bool = False,
    key_files: Sequence[str] = (),
    reuse: bool = True,
    limit_rate: float | RateLimit | None = None,
) -> Box:
    """Returns the box for *target*; the connection itself is made by its first call, and kept with *reuse*.

    *via* and *via_shell* are command prefixes that lead into a sandbox; *python* names the interpreter there.
    *limit_rate* is how many bytes a second all runs of the box may move, both directions together; several boxes
    share one limit when they are given the same `sandlift.rate.RateLimit`.  A box may be used by many threads at
    once: it makes one SSH connection for ten runs at a time, and at most eight handshakes at a server at once.
    Raises BadURL, MissingExtra, UsageError; ValueError for a rate that is no number above 0.
    """
    rate = limit_rate if limit_rate is None or isinstance(limit_rate, RateLimit) else RateLimit(limit_rate)
    place = target if isinstance(target, Target) else parse_target(target, via=via, via_shell=via_shell)
    transport = open_transport(
        place,
        ssh_options=ssh_options,
        host_key_file=host_key_file,
        accept_new_host_key=accept_new_host_key,
        key_files=key_files,
        reuse=reuse,
        rate=rate,
    )
    return Box(place, transport, python=python)


def capture(
    target: str | Target,
    store: Store,
    workspace: str,
    *,
    rules: Rules | None = None,
    labels: Mapping[str, str] | None = None,
    note: str = "",
    base: str = "auto",
    like: Sequence[str] = (),
    strict: bool = False,
    codec: Codec = "auto",
    level: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    deadline_s: float | None = None,
    cancel: Cancel | None = None,
    on_event: OnEvent | None = None,
) -> Capture:
    """Connects to *target* for one capture; see `Box.capture`."""
    with connect(target, reuse=False) as box:
        return box.capture(
            store,
            workspace,
            rules=rules,
            labels=labels,
            note=note,
            base=base,
            like=like,
            strict=strict,
            codec=codec,
            level=level,
            limits=limits,
            deadline_s=deadline_s,
            cancel=cancel,
            on_event=on_event,
        )


def restore(
    store: Store,
    ref: str,
    target: str | Target,
    *,
    options: RestoreOptions | None = None,
    dry_run: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    deadline_s: float | None = None,
    cancel: Cancel | None = None,
    on_event: OnEvent | None = None,
) -> Restore:
    """Connects to *target* for one restore; see `Box.restore`."""
    with connect(target, reuse=False) as box:
        return box.restore(
            store,
            ref,
            options=options,
            dry_run=dry_run,
            limits=limits,
            deadline_s=deadline_s,
            cancel=cancel,
            on_event=on_event,
        )
