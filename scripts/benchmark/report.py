"""The result of a run: as text, as JSON, and as the table of figures in the README."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmark import BenchError
from benchmark.records import Line, Record, Row, lines, rows

SCHEMA = 1
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
VERSION_WORDS = {
    "rsync": "--version",
    "restic": "version",
    "borg": "--version",
    "zstd": "--version",
    "tar": "--version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that a run gave; JSON and back."""

    reference: str
    """``npm``, or ``quick`` for the made-up tree, by which no budget is judged."""
    rounds: int
    machine: dict[str, str]
    trees: dict[str, dict[str, int]]
    records: list[Record]
    figures: dict[str, list[float]]
    left_out: list[str]
    ended_early: bool = False
    """Whether a failure or an interrupt ended the run; what was measured before is here all the same."""

    @property
    def rows(self) -> list[Row]:
        return rows(self.records, self.figures)

    @property
    def over(self) -> list[Row]:
        """The rows over their budget; none where the tree is too small to judge by."""
        return [] if self.reference == "quick" else [row for row in self.rows if not row.is_kept]


def to_json(result: Result) -> str:
    data: dict[str, object] = {"schema": SCHEMA, **asdict(result)}
    # For readers; what is read back is made of the records again.
    data["rows"] = [{**asdict(row), "kept": row.is_kept} for row in result.rows]
    return json.dumps(data, indent=1) + "\n"


def from_json(text: str) -> Result:
    """Raises BenchError for a file that is not a result of this schema."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise BenchError(f"a result of schema {data['schema']}; this program reads {SCHEMA}")
        records = [Record(**record) for record in data.pop("records")]
        return Result(
            records=records, **{name: value for name, value in data.items() if name not in ("schema", "rows")}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"this is no result of scripts/bench: {error!r}") from error


def machine_facts() -> dict[str, str]:
    """What the figures were measured with; no name and no path of the machine."""
    facts = {
        "processors": str(os.cpu_count()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    for program, word in VERSION_WORDS.items():
        if shutil.which(program):
            done = subprocess.run([program, word], capture_output=True, text=True, timeout=20, check=False)
            found = re.search(r"\d+(?:\.\d+)+", done.stdout)
            facts[program] = found[0] if found else "?"
    return facts


def text(result: Result) -> str:
    """The tables for people."""
    parts = [
        f"{name}: {facts['files']:,} files, {facts['bytes'] / 1e6:,.0f} MB" for name, facts in result.trees.items()
    ]
    parts += ["", " ".join(f"{name} {value}" for name, value in result.machine.items()), ""]
    parts += contestant_table(lines(result.records))
    found = result.rows
    if found:
        parts += [
            "",
            f"{'work':42} {'against':22} {'value':>9} {'lowest':>8} {'highest':>8} {'budget':>7} {'cpu':>5} {'n':>2}",
        ]
        parts += [row_text(row, judged=result.reference != "quick") for row in found]
    if result.reference == "quick":
        parts += ["", "the made-up tree is small, so start-up rules: no budget is judged by it"]
    parts += [f"left out: {reason}" for reason in result.left_out]
    return "\n".join(parts) + "\n"


def contestant_table(found: Sequence[Line]) -> list[str]:
    parts = []
    title: tuple[str, str] | None = None
    for line in found:
        if (line.group, line.tree) != title:
            title = (line.group, line.tree)
            head = f"{line.group}, {line.tree}"
            parts.append(f"{head:30} {'median s':>9} {'lowest':>8} {'highest':>8} {'cpu s':>7} {'wire MB':>9} {'n':>2}")
        wire = "" if line.wire_bytes is None else f"{line.wire_bytes / 1e6:.3f}"
        disturbed = f"  {line.disturbed} disturbed" if line.disturbed else ""
        parts.append(
            f"  {line.name:28} {line.wall_s:9.3f} {line.lowest_s:8.3f} {line.highest_s:8.3f}"
            f" {line.cpu_s:7.2f} {wire:>9} {line.count:2}{disturbed}"
        )
    return parts


def row_text(row: Row, *, judged: bool) -> str:
    budget = "" if row.at_most is None else f"{row.at_most:g}"
    verdict = "" if row.is_kept or not judged else "  OVER"
    disturbed = "  disturbed" if row.disturbed else ""
    cpu = "" if row.cpu is None else f"{row.cpu:.2f}"
    return (
        f"{row.work:42} {row.against:22} {value_text(row.value, row.unit):>9} {row.lowest:8.2f} {row.highest:8.2f}"
        f" {budget:>7} {cpu:>5} {row.count:2}{verdict}{disturbed}"
    )


def value_text(value: float, unit: str) -> str:
    """A figure with its unit: three digits or more, and four behind the point for small shares."""
    if unit == "%" and value < 0.1:
        return f"{value:.4f} %"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def markdown(result: Result) -> str:
    """The README's table of the rows that have a budget, and what they were measured on."""
    facts = result.trees.get("reference", {"files": 0, "bytes": 0})
    what = "a made-up tree" if result.reference == "quick" else "an npm workspace"
    versions = ", ".join(
        f"{name} {result.machine[name]}" for name in ("rsync", "restic", "borg") if name in result.machine
    )
    about = (
        f"Medians of the rounds' ratios, whole processes, over SSH on loopback with {result.machine['processors']}"
        f" processors shared by both sides; {what} of {facts['files']:,} files and {facts['bytes'] / 1e6:,.0f} MB"
        f" unless another tree is named{f'; {versions}' if versions else ''}. Below 1 sandlift takes less."
    )
    disturbed = sum(row.disturbed > 0 for row in result.rows if row.at_most is not None)
    if disturbed:
        about += f" Other work on the machine disturbed every round of {disturbed} of these rows."
    parts = [*textwrap.wrap(about, 118), "", "| work | against | figure | at most |", "| --- | --- | --- | --- |"]
    for row in result.rows:
        if row.at_most is not None:
            # A bar ends a cell even between backquotes.
            against = f"`{row.against}`".replace("|", r"\|") if row.against else ""
            over = "" if row.is_kept else " (over)"
            parts.append(f"| {row.work} | {against} | {value_text(row.value, row.unit)}{over} | {row.at_most:g} |")
    return "\n".join(parts) + "\n"


def with_figures(readme: str, table: str) -> str:
    """A README with the table between its marks.  Raises BenchError when it has none."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"the README has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}{END}{after}"


def write(path: Path, content: str) -> None:
    """Write a file whole, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content)
    partial.replace(path)


def tree_facts(trees: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Of each tree that was used: files, entries and bytes."""
    return {
        role: {"files": tree.facts.files, "entries": tree.facts.entries, "bytes": tree.facts.bytes}
        for role, tree in trees.items()
    }
