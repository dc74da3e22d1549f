"""Everything that is printed: JSON for programs, text for people, and names that no terminal can be fooled with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from sandlift.errors import SandliftError

SCHEMA = 1
RICH_ROWS_MAX = 500
"""A longer table is printed in plain columns, also on a terminal: laying it out would take longer than reading it."""

Align = Literal["<", ">"]
_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\x1b": "e"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_raw_bytes_written = False


# JSON.


def json_line(value: Mapping[str, object]) -> str:
    """Returns *value* with its schema as one line of ASCII; bytes that are no text are lone surrogates in it."""
    import json

    return json.dumps({"schema": SCHEMA, **value}, ensure_ascii=True, allow_nan=False) + "\n"


def write_json(value: Mapping[str, object]) -> None:
    """Writes one object to standard output."""
    write(json_line(value))


def text_fields(name: str, data: bytes) -> dict[str, str]:
    """Returns the field *name* for some bytes, and beside it ``<name>_b64`` where they are not UTF-8."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        import base64

        return {name: text, f"{name}_b64": base64.b64encode(data).decode("ascii")}
    return {name: text}


def plain(value: object) -> object:
    """Returns *value* in what JSON knows: bytes become text, tuples and sets lists, all else its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


# Text.


def write(text: str) -> None:
    """Writes to standard output.  Raises BrokenPipeError when nobody reads, SandliftError when it cannot be written."""
    if sys.stdout is None:
        raise BrokenPipeError
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SandliftError(f"cannot write the output: {error.strerror}") from error


def flush() -> None:
    """Sends on what was written; raises as `write`."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SandliftError(f"cannot write the output: {error.strerror}") from error


def write_bytes(data: bytes | memoryview) -> None:
    """Writes bytes as they are to standard output; raises as `write`."""
    global _raw_bytes_written
    if sys.stdout is None:
        raise BrokenPipeError
    _raw_bytes_written = True
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SandliftError(f"cannot write the output: {error.strerror}") from error


def raw_bytes_written() -> bool:
    """Whether some of a file's bytes went out."""
    return _raw_bytes_written


def harmless(text: str) -> str:
    """Returns *text* as one line that a terminal only shows: what is not printable is escaped.

    That covers control characters, newlines, the marks that turn the direction of writing, and lone surrogates.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def harmless_lines(text: str) -> str:
    """Returns the lines of *text*, each made harmless and marked as quoted."""
    return "\n".join("  | " + harmless(line.replace("\t", "    ")) for line in text.split("\n"))


def quoted(name: bytes | str) -> str:
    """Returns a name as it stands if that is safe and clear, else as a ``$'...'`` word, which a shell can read.

    The result has no unprintable character, and two names never look the same.
    """
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    if text and text.isprintable() and text == text.strip(" ") and not text.startswith("$'"):
        return text
    return "$'" + "".join(_in_quotes(c) for c in text) + "'"


def _in_quotes(character: str) -> str:
    if character in "'\\":
        return "\\" + character
    return character if character.isprintable() else _escaped(character)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return "\\" + _ESCAPES[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size_text(size_bytes: float) -> str:
    """Returns a size for people: ``812 B``, ``1.2 KiB``."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    return f"{value:.1f} {_UNITS[unit]}" if value < 99.95 else f"{value:.0f} {_UNITS[unit]}"


def number_of(count: int, singular: str, plural: str = "") -> str:
    """Returns ``1 file`` or ``1,234 files``."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def seconds_text(seconds: float) -> str:
    """Returns a time for people: ``0.3 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def local_time(created: str) -> str:
    """Returns an RFC 3339 time as date and time of this machine's zone, to the minute."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")


def local_time_ns(mtime_ns: int) -> str:
    """Returns a file's time as `local_time` does."""
    try:
        return datetime.fromtimestamp(mtime_ns // 1_000_000_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return f"{mtime_ns // 1_000_000_000} s"


# Tables.


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str, *, folded: int = 1) -> None:
    """Writes aligned columns; *align* has one of ``<`` and ``>`` for each.  Cells are harmless text already.

    On a terminal long cells of the last *folded* columns are folded to its width; elsewhere each row is one line.
    """
    if not rows:
        return
    if sys.stdout is not None and sys.stdout.isatty() and len(rows) <= RICH_ROWS_MAX:
        write(_rich_table(heads, rows, align, folded))
    else:
        write("".join(line + "\n" for line in columns([heads, *rows], align)))


def columns(rows: Iterable[Sequence[str]], align: str) -> list[str]:
    """Returns the rows as lines with aligned columns, two spaces apart."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str, folded: int) -> str:
    import shutil

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=shutil.get_terminal_size().columns, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, (head, side) in enumerate(zip(heads, align, strict=True)):
        fixed = index < len(heads) - folded
        width = max(len(head), *(len(row[index]) for row in rows)) if fixed else None
        justify: Literal["left", "right"] = "right" if side == ">" else "left"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=fixed, min_width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def fields_of(value: object) -> dict[str, object]:
    """Returns the fields of one of our values, for JSON."""
    return {name: getattr(value, name) for name in type(value).__slots__}  # type: ignore[attr-defined]
