"""The audit of a snapshot: every rule on every entry, each file read once, in the order of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from sandlift.audit import accounts, names, secrets, tools
from sandlift.audit.findings import Audit, Finding, Gathering, clip
from sandlift.audit.git_findings import GitFindings
from sandlift.audit.rules import Rule, Rulebook
from sandlift.manifest import Manifest
from sandlift.repositories import Tree, git_name
from sandlift.small_files import SIZE_MAX, SmallFiles
from sandlift_helper import table

if TYPE_CHECKING:
    from sandlift.store import BlockReader, Store

_RULEBOOK = Rulebook((*tools.RULES, *accounts.RULES))
# A pattern's shortest match is longer than that, and these are no text.
_SECRET_MIN = 16
_NO_TEXT: Final = frozenset(
    b"png jpg jpeg gif webp ico bmp tif tiff svgz woff woff2 ttf otf eot zip gz tgz xz zst bz2 br lz4 7z rar jar whl"
    b" deb rpm so dylib dll exe o a lib obj pyc pyo class wasm node mp3 mp4 mkv webm ogg flac wav avi mov pdf"
    b" parquet npy npz pt safetensors onnx h5".split()
)


def audit(store: Store, ref: str, *, paths: Sequence[bytes] = ()) -> Audit:
    """Returns what in the snapshot *ref* would run code on, or otherwise harm, a host that opens the restored tree.

    With *paths*, only what is at or below these.  Nothing is run or written.  Files of more than 1 MiB are not looked
    into.  Raises UnknownRef, UnknownPath, StoreDamaged, StoreNewer.
    """
    snapshot = store.load(store.resolve(ref))
    manifest = Manifest.decode(snapshot.manifest, snapshot.originals)
    return audit_manifest(manifest, store.blocks(snapshot), paths=paths)


def audit_manifest(manifest: Manifest, reader: BlockReader, *, paths: Sequence[bytes] = ()) -> Audit:
    """Audits a manifest whose blocks *reader* reads; see `audit`."""
    return _Auditor(manifest, reader, paths).run()


class _Auditor:
    def __init__(self, manifest: Manifest, reader: BlockReader, paths: Sequence[bytes]) -> None:
        self._rows = manifest.rows
        self._tree = Tree(manifest.rows)
        self._contents = SmallFiles(manifest, reader)
        self._scopes = frozenset(paths)
        self._gathering = Gathering()
        self._too_large = 0
        self._files_read = 0
        # Row -> the rules that look into the file.
        self._checks: dict[int, list[Rule]] = {}

    def run(self) -> Audit:
        git = GitFindings(self._rows, self._contents.read)
        wanted = list(self._by_name(git.repositories.paths))
        for found in (git.all(), names.findings(self._rows), self._excluded_links()):
            for finding in found:
                if self._is_in_scope(finding.path):
                    self._gathering.add(finding)
        for rows, data in self._contents.in_order(wanted):
            self._files_read += len(rows)
            self._look_into(rows, data)
        return self._gathering.end(files_read=self._files_read, too_large=self._too_large)

    def _is_in_scope(self, path: bytes) -> bool:
        if not self._scopes:
            return True
        while path not in self._scopes:
            if not path:
                return False
            path = path.rpartition(b"/")[0]
        return True

    def _by_name(self, repositories: frozenset[bytes]) -> Iterator[int]:
        """Judges names and modes, and yields the rows of the files to look into."""
        rows = self._rows
        objects: bytes | None = None
        for row, path in enumerate(rows.paths):
            kind = rows.kinds[row]
            if objects is not None and path.startswith(objects):
                continue
            if kind == table.DIRECTORY:
                parent, _, name = path.rpartition(b"/")
                # What git keeps there is compressed; nothing can be seen in it, nor is it opened by anybody else.
                if parent in repositories and git_name(name) == b"objects":
                    objects = path + b"/"
                continue
            if not self._is_in_scope(path):
                continue
            if kind == table.FILE and rows.modes[row] & 0o6000:
                self._privileged(row, path)
            yield from self._wanted(row, path, kind)

    def _wanted(self, row: int, path: bytes, kind: int) -> Iterator[int]:
        """Judges one file or link by its name, and yields its row if it is to be read."""
        looking = []
        for rule in _RULEBOOK.rules_for(path):
            if rule.check is None:
                self._tell(rule, path, rule.what, self._tree.text(path) if kind == table.LINK else b"")
            else:
                looking.append(rule)
        if kind == table.LINK:
            data = self._tree.content(row, self._contents.read, SIZE_MAX) if looking else None
            if data is not None:
                self._check(looking, path, data)
            return
        size = self._rows.sizes[row]
        if size > SIZE_MAX:
            self._too_large += bool(looking)
        elif size and (looking or (size >= _SECRET_MIN and path.rpartition(b".")[2].lower() not in _NO_TEXT)):
            if looking:
                self._checks[row] = looking
            yield row

    def _look_into(self, rows: Sequence[int], data: bytes) -> None:
        """Judges the content that some files share."""
        hits = list(secrets.scan(data)) if len(data) >= _SECRET_MIN else []
        for row in rows:
            path = self._rows.paths[row]
            self._check(self._checks.get(row, ()), path, data)
            for what, line in hits:
                self._gathering.add(
                    Finding(category="secrets", severity="secret", path=path, what=what, detail=b"line %d" % line)
                )

    def _check(self, rules: Sequence[Rule], path: bytes, data: bytes) -> None:
        for rule in rules:
            assert rule.check is not None
            for what, detail in rule.check(data):
                self._tell(rule, path, what or rule.what, detail)

    def _tell(self, rule: Rule, path: bytes, what: str, detail: bytes) -> None:
        self._gathering.add(
            Finding(category=rule.category, severity=rule.severity, path=path, what=what, detail=clip(detail))
        )

    def _privileged(self, row: int, path: bytes) -> None:
        mode = self._rows.modes[row]
        bits = " and ".join(name for bit, name in ((0o4000, "setuid"), (0o2000, "setgid")) if mode & bit)
        what = f"{bits}: it runs with its owner's rights, where special bits and owner are restored"
        detail = b"mode %o, owner %d:%d" % (mode, self._rows.uids[row], self._rows.gids[row])
        self._gathering.add(Finding(category="modes", severity="privilege", path=path, what=what, detail=detail))

    def _excluded_links(self) -> Iterator[Finding]:
        rows = self._rows
        for path, reason, detail in zip(rows.excluded_paths, rows.excluded_reasons, rows.details, strict=True):
            if reason == table.OUTSIDE_LINK:
                what = "a link that left the workspace and is not restored"
                yield Finding(category="links", severity="link", path=path, what=what, detail=clip(detail))
