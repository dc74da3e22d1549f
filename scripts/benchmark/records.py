"""What was measured, the budgets, and the ratios that follow: pure functions of values."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run of one contestant."""

    group: str
    tree: str
    name: str
    round: int
    wall_s: float
    cpu_s: float
    """Processor time of everything that we started, in the sandbox too."""
    sent_bytes: int | None = None
    received_bytes: int | None = None
    disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioBudget:
    """*subject* may take at most *at_most* times as long as *peer*; None where nothing is promised."""

    work: str
    group: str
    subject: str
    peer: str
    at_most: float | None = None
    tree: str = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBudget:
    """The figure of that name may be at most *at_most*."""

    work: str
    figure: str
    at_most: float | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result."""

    work: str
    against: str
    value: float
    lowest: float
    highest: float
    at_most: float | None
    unit: str
    count: int
    """Rounds, or runs, that the value is the median of."""
    disturbed: int = 0
    """How many of them others disturbed."""
    cpu: float | None = None
    """The same ratio of processor time, in the sandbox and here together, which others disturb less."""

    @property
    def is_kept(self) -> bool:
        return self.at_most is None or self.value <= self.at_most


FULL = "ssh tar c | zstd -1"
BUDGETS: tuple[RatioBudget | FigureBudget, ...] = (
    RatioBudget(work="first capture", group="capture", subject="sandlift", peer=FULL, at_most=0.85),
    RatioBudget(work="first capture", group="capture", subject="sandlift", peer="rsync -a", at_most=0.95),
    RatioBudget(
        work="first capture, no libzstd", group="capture", subject="sandlift, no libzstd", peer=FULL, at_most=1.05
    ),
    RatioBudget(
        work="first capture, no libzstd", group="capture", subject="sandlift, no libzstd", peer="rsync -a", at_most=1.15
    ),
    RatioBudget(work="nothing changed", group="unchanged", subject="sandlift", peer="rsync -a", at_most=1.0),
    FigureBudget(work="nothing changed, bytes of the workspace", figure="unchanged bytes", at_most=0.1, unit="%"),
    RatioBudget(
        work="nothing changed, many files",
        group="unchanged",
        tree="million",
        subject="sandlift",
        peer="rsync -a",
        at_most=0.6,
    ),
    FigureBudget(
        work="nothing changed, many files, on the wire", figure="unchanged KiB, million", at_most=None, unit="KiB"
    ),
    RatioBudget(work="1 % changed", group="changed", subject="sandlift", peer="rsync -a", at_most=1.0),
    RatioBudget(work="sibling sandbox", group="sibling", subject="sandlift --like", peer=FULL, at_most=0.35),
    FigureBudget(work="sibling sandbox, bytes of the workspace", figure="sibling bytes", at_most=0.5, unit="%"),
    RatioBudget(work="one byte of a huge file", group="one byte", tree="huge", subject="sandlift", peer="rsync -a"),
    FigureBudget(work="one byte of a huge file, on the wire", figure="one byte, received", at_most=None, unit="MiB"),
    RatioBudget(work="restore", group="restore", subject="sandlift", peer="zstd -dc | tar x", at_most=0.95),
    RatioBudget(work="restore", group="restore", subject="sandlift", peer="tar x", at_most=1.3),
    RatioBudget(work="restore", group="restore", subject="sandlift", peer="tarfile, data filter", at_most=0.2),
    RatioBudget(work="into a sandbox", group="into", subject="sandlift", peer="zstd -dc | ssh tar x", at_most=0.8),
    RatioBudget(work="local capture", group="backup", subject="sandlift", peer="restic backup"),
    RatioBudget(work="local capture", group="backup", subject="sandlift", peer="borg create"),
    RatioBudget(work="local capture", group="backup", subject="sandlift", peer="UnixLocal persist"),
    RatioBudget(work="local capture, unchanged", group="backup again", subject="sandlift", peer="restic backup"),
    RatioBudget(work="local capture, unchanged", group="backup again", subject="sandlift", peer="borg create"),
    RatioBudget(work="local restore", group="bring back", subject="sandlift", peer="restic restore"),
    RatioBudget(work="local restore", group="bring back", subject="sandlift", peer="borg extract"),
    RatioBudget(work="local restore", group="bring back", subject="sandlift", peer="UnixLocal hydrate"),
    FigureBudget(work="store size to restic's", figure="store / restic", at_most=1.0, unit="x"),
    FigureBudget(work="store size to borg's", figure="store / borg", at_most=None, unit="x"),
    FigureBudget(work="helper memory", figure="helper, reference", at_most=64, unit="MiB"),
    FigureBudget(work="helper memory, unchanged", figure="helper, reference unchanged", at_most=64, unit="MiB"),
    FigureBudget(work="helper memory, restore", figure="helper, reference restore", at_most=64, unit="MiB"),
    FigureBudget(work="helper memory, many files", figure="helper, million", at_most=320, unit="MiB"),
    FigureBudget(
        work="helper memory, many files, unchanged", figure="helper, million unchanged", at_most=320, unit="MiB"
    ),
    FigureBudget(work="helper memory, one large file", figure="helper, bulk", at_most=64, unit="MiB"),
    FigureBudget(work="host memory", figure="host, reference", at_most=256, unit="MiB"),
    FigureBudget(work="host memory, restore", figure="host, reference restore", at_most=256, unit="MiB"),
    FigureBudget(work="host memory, many files, beyond tables", figure="host, million", at_most=256, unit="MiB"),
    FigureBudget(work="host memory, many files, unchanged", figure="host, million unchanged", at_most=256, unit="MiB"),
    FigureBudget(work="host memory, one large file", figure="host, bulk", at_most=256, unit="MiB"),
    FigureBudget(work="helper start above the interpreter", figure="helper start", at_most=25, unit="ms"),
    FigureBudget(work="bundle, the largest", figure="bundle", at_most=32, unit="KiB"),
    FigureBudget(work="many captures at once, failures", figure="many failures", at_most=0, unit=""),
    FigureBudget(work="many at once, best rate / rate", figure="many slowdown", at_most=1.25, unit="x"),
    FigureBudget(work="many at once, event loop", figure="many event loop", at_most=50, unit="ms"),
    RatioBudget(work="command start", group="start", subject="sandlift --version", peer="import click", at_most=1.25),
    *(
        RatioBudget(work=f"{work}, {tree}", group=group, tree=tree, subject="sandlift", peer=peer)
        for tree in ("venv", "git", "huge", "sparse")
        for work, group, peer in (
            ("first capture", "capture", FULL),
            ("first capture", "capture", "rsync -a"),
            ("restore", "restore", "zstd -dc | tar x"),
        )
    ),
)


def rows(
    records: Sequence[Record],
    figures: Mapping[str, Sequence[float]],
    budgets: Iterable[RatioBudget | FigureBudget] = BUDGETS,
) -> list[Row]:
    """One row for each budget that was measured."""
    measured = (
        _figure_row(budget, figures.get(budget.figure, ()))
        if isinstance(budget, FigureBudget)
        else _ratio_row(budget, _pairs(records, budget))
        for budget in budgets
    )
    return [row for row in measured if row is not None]


def _figure_row(budget: FigureBudget, values: Sequence[float]) -> Row | None:
    if not values:
        return None
    return Row(
        work=budget.work,
        against="",
        value=statistics.median(values),
        lowest=min(values),
        highest=max(values),
        at_most=budget.at_most,
        unit=budget.unit,
        count=len(values),
    )


def _ratio_row(budget: RatioBudget, pairs: Sequence[tuple[Record, Record]]) -> Row | None:
    """Of the quiet rounds alone, where there are some."""
    clean = [pair for pair in pairs if not (pair[0].disturbed or pair[1].disturbed)]
    counted = clean or pairs
    if not counted:
        return None
    ratios = [subject.wall_s / peer.wall_s for subject, peer in counted]
    cpu = [subject.cpu_s / peer.cpu_s for subject, peer in counted if peer.cpu_s]
    return Row(
        work=budget.work,
        against=budget.peer,
        value=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        at_most=budget.at_most,
        unit="x",
        count=len(ratios),
        disturbed=0 if clean else len(pairs),
        cpu=statistics.median(cpu) if cpu else None,
    )


def _pairs(records: Sequence[Record], budget: RatioBudget) -> list[tuple[Record, Record]]:
    """Subject and peer of each round that both ran in."""
    sides: dict[str, dict[int, Record]] = {budget.subject: {}, budget.peer: {}}
    for record in records:
        if (record.group, record.tree) == (budget.group, budget.tree) and record.name in sides:
            sides[record.name][record.round] = record
    subjects, peers = sides[budget.subject], sides[budget.peer]
    return [(subjects[number], peers[number]) for number in sorted(subjects.keys() & peers.keys())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the runs of one contestant took, in the middle."""

    group: str
    tree: str
    name: str
    wall_s: float
    lowest_s: float
    highest_s: float
    cpu_s: float
    wire_bytes: int | None
    count: int
    disturbed: int


def lines(records: Sequence[Record]) -> list[Line]:
    """One line for each contestant, in the order in which they first ran."""
    runs: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        runs.setdefault((record.tree, record.group, record.name), []).append(record)
    found = []
    for (tree, group, name), each in runs.items():
        walls = [record.wall_s for record in each]
        wires = [
            record.sent_bytes + record.received_bytes
            for record in each
            if record.sent_bytes is not None and record.received_bytes is not None
        ]
        found.append(
            Line(
                group=group,
                tree=tree,
                name=name,
                wall_s=statistics.median(walls),
                lowest_s=min(walls),
                highest_s=max(walls),
                cpu_s=statistics.median(record.cpu_s for record in each),
                wire_bytes=int(statistics.median(wires)) if wires else None,
                count=len(each),
                disturbed=sum(record.disturbed for record in each),
            )
        )
    return found
