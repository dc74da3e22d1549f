"""The plot of a result: one bar a comparison, as SVG without a library.

A bar is sandlift's share of the peer's time, the line at 1 is as long as the peer takes, and a mark on each bar is
the budget.  Colours follow the reader's light or dark mode, and each bar's figure stands beside it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmark.records import Row
from benchmark.report import Result

WIDTH = 800
LABEL_WIDTH = 340
RIGHT = 70
ROW_HEIGHT = 22
BAR_HEIGHT = 12
TOP = 46
BOTTOM = 26
LEAST_SCALE = 1.2
MOST_SCALE = 2.0
STYLE = """
text{font:12px system-ui,sans-serif;fill:#24292f}
.title{font-weight:600;font-size:14px}
.small{font-size:11px;fill:#57606a}
.kept{fill:#2da44e}.over{fill:#cf222e}.free{fill:#8c959f}
.one{stroke:#57606a;stroke-dasharray:3 3}.mark{stroke:#24292f;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.one{stroke:#9198a1}.mark{stroke:#e6edf3}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What is drawn for one row."""

    label: str
    ratio: float
    at_most: float | None
    kind: str
    """``kept``, ``over``, or ``free`` where nothing is promised."""


def bars(result: Result) -> list[Bar]:
    """The rows that are ratios of times, in their order."""
    return [_bar(row, judged=result.reference != "quick") for row in result.rows if row.unit == "x" and row.against]


def _bar(row: Row, *, judged: bool) -> Bar:
    kind = "free" if row.at_most is None or not judged else "kept" if row.is_kept else "over"
    return Bar(label=f"{row.work} / {row.against}", ratio=row.value, at_most=row.at_most, kind=kind)


def scale_of(found: Sequence[Bar]) -> float:
    """The ratio at the right edge; what is longer is cut there, and its figure says so."""
    return min(MOST_SCALE, max(LEAST_SCALE, *(1.05 * max(bar.ratio, bar.at_most or 0) for bar in found), 0.0))


def svg(result: Result) -> str:
    """The whole picture as text."""
    found = bars(result)
    scale = scale_of(found)
    height = TOP + ROW_HEIGHT * len(found) + BOTTOM
    pixels = (WIDTH - LABEL_WIDTH - RIGHT) / scale
    one = LABEL_WIDTH + pixels
    about = "sandlift's time / the other program's time"
    head = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{about}"'
    legend = "shorter is better; the dashed line is the other program, a mark is the budget"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}>',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="18">{about} ({reference_text(result)})</text>',
        f'<text class="small" x="8" y="34">{legend}</text>',
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 6}" y2="{height - BOTTOM + 4}"/>',
    ]
    for index, bar in enumerate(found):
        y = TOP + ROW_HEIGHT * index
        length = pixels * min(bar.ratio, scale)
        middle = y + BAR_HEIGHT - 2
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(
            f'<rect class="{bar.kind}" x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2"/>'
        )
        if bar.at_most is not None:
            x = LABEL_WIDTH + pixels * min(bar.at_most, scale)
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + BAR_HEIGHT + 2}"/>')
        after = LABEL_WIDTH + max(length, pixels * min(bar.at_most or 0, scale)) + 6
        parts.append(f'<text x="{after:.1f}" y="{middle}">{bar.ratio:.2f}</text>')
    parts.append(f'<text class="small" x="{one:.1f}" y="{height - 8}" text-anchor="middle">1.0</text>')
    return "\n".join([*parts, "</svg>", ""])


def reference_text(result: Result) -> str:
    facts = result.trees.get("reference", {"files": 0, "bytes": 0})
    return f"{facts['files']:,} files, {facts['bytes'] / 1e6:,.0f} MB"
