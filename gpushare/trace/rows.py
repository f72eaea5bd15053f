"""Files of rows: a CSV with a header, or a JSON list of objects with the same keys.

Handles compression (.xz, .gz), positions of rows and errors; independent of the columns' meaning.

Tested in `tests/unit/trace/test_nodes_and_pods.py`.
"""

import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from gpushare.errors import WireError

RawRows = Iterator[tuple[str, dict[str, str]]]
"""(position, cells by name) of each row."""

Columns = Mapping[str, tuple[str, ...]]
"""Role of a column -> possible names of the column."""

_MAX_BYTES = 128 * 1024 * 1024
"""Upper bound of the unpacked bytes of a file: a million pods are less."""

_WHOLE_FRACTION = re.compile(r"[0-9]+\.0*", re.ASCII)
_OTHER_SIGNS = ";\t|"
_SHOWN = 80
_MAX_NAME = 63 + 1 + 253
"""Upper bound of the characters of a name: namespace, slash and name of a pod."""


class TraceError(WireError):
    """A trace violates the format; the text names file, line and column."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row with the position in the file."""

    position: str
    columns: Mapping[str, str]
    """The names of the columns here, by role."""
    cells: Mapping[str, str]
    """The text by the name of the column."""

    def wrong(self, role: str, problem: str) -> TraceError:
        """Return the error for a wrong cell."""
        return TraceError(f"{self.position}, column {self.columns[role]}: {problem}")

    def text(self, role: str) -> str:
        """Return the cell; "" if there is no such column."""
        return self.cells[self.columns[role]] if role in self.columns else ""

    def name(self) -> str:
        """Return the name in the row."""
        name = self.text("name")
        if not name or not name.isprintable() or len(name) > _MAX_NAME:
            problem = f"is no name of 1 to {_MAX_NAME} printable characters: {name[:40]!r}"
            raise self.wrong("name", problem)
        return name

    def count(self, role: str, minimum: int, maximum: int) -> int:
        """Return a whole number within these bounds."""
        return self.number(role, self.text(role), minimum, maximum)

    def number(self, role: str, text: str, minimum: int, maximum: int) -> int:
        """Return a part of the cell as a whole number within these bounds."""
        # pandas writes all numbers of a column with an empty cell as fractions.
        digits = text.partition(".")[0] if _WHOLE_FRACTION.fullmatch(text) else text
        number = int(digits) if digits.isascii() and digits.isdigit() and len(text) <= 20 else -1
        if not minimum <= number <= maximum:
            raise self.wrong(role, f"is no whole number from {minimum} to {maximum}: {text[:40]!r}")
        return number

    def seconds(self, role: str) -> float | None:
        """Return a time; None if the cell is empty."""
        text = self.text(role)
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.wrong(role, f"is no time in seconds: {text[:40]!r}")
        return number


def read_rows(rows: RawRows, columns: Columns, optional: Collection[str]) -> Iterator[Row]:
    """Yield the rows with the known columns.

    Raises TraceError if a needed column is missing, or if two rows have the same name.
    """
    roles: dict[str, str] = {}
    header: Collection[str] = ()
    names: set[str] = set()
    for position, cells in rows:
        if cells.keys() != header:
            header, roles = cells.keys(), _roles(position, cells, columns, optional)
        row = Row(position, roles, cells)
        name = row.name()
        if name in names:
            raise row.wrong("name", f"{name!r} is there twice")
        names.add(name)
        yield row


def of_file(path: Path) -> RawRows:
    """Return the rows of a file. Raises TraceError."""
    text = _text(path)
    if ".json" not in path.suffixes:
        return _csv(path, text)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is no JSON: {error}") from error
    if isinstance(items, dict) and "items" in items:
        raise TraceError(
            f"{path}: is a list of Kubernetes' objects, as kubectl prints it, and no table: whatif"
            " without --nodes, and simulate with --from-cluster, read nodes and pods of the cluster"
        )
    return of_items(str(path), items)


def of_items(source: str, items: object) -> RawRows:
    """Yield the rows of a list of objects. Raises TraceError."""
    if not isinstance(items, list) or not items:
        raise TraceError(f"{source}: must be a list of objects, and not empty")
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise TraceError(f"{source} item {number}: is no object")
        cells = {}
        for key, value in item.items():
            if isinstance(value, list):  # of models, say
                cells[str(key)] = "|".join(map(str, value))
            else:
                cells[str(key)] = "" if value is None else str(value)
        yield f"{source} item {number}", cells


def _roles(
    position: str, header: Collection[str], columns: Columns, optional: Collection[str]
) -> dict[str, str]:
    """Return the names of the columns here, by role."""
    roles, missing = {}, []
    for role, names in columns.items():
        name = next((name for name in names if name in header), None)
        if name is not None:
            roles[role] = name
        elif role not in optional:
            missing.append(" or ".join(names))
    if missing:
        file, line, _ = position.rpartition(" line ")
        there_are = ", ".join(header)
        there_are = there_are if len(there_are) <= _SHOWN else f"{there_are[:_SHOWN]}..."
        raise TraceError(
            f"{f'{file} line 1' if line else position}: has no column {'; '.join(missing)}; it has:"
            f" {there_are!r}"
        )
    return roles


def _text(path: Path) -> str:
    try:
        with path.open("rb") as packed:
            content = _unpacked(packed, path.suffix).read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise TraceError(f"{path}: has more than {_MAX_BYTES} bytes when it is unpacked")
        # A table saved by a spreadsheet opens with a byte-order mark.
        return content.decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _unpacked(packed: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(packed))
    return cast(BinaryIO, gzip.open(packed)) if suffix == ".gz" else packed


def _csv(path: Path, text: str) -> RawRows:
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        if not header:
            raise TraceError(f"{path}: is empty")
        separator = next(
            (sign for sign in _OTHER_SIGNS if len(header) == 1 and sign in header[0]), ""
        )
        if separator:
            raise TraceError(
                f"{path} line 1: its columns are separated by {separator!r}: write commas"
            )
        if len(set(header)) < len(header):
            raise TraceError(f"{path} line 1: has a column twice")
        none = True
        for cells in lines:
            position = f"{path} line {lines.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise TraceError(f"{position}: has {len(cells)} columns, the header {len(header)}")
            none = False
            yield position, dict(zip(header, map(str.strip, cells), strict=True))
    except csv.Error as error:
        raise TraceError(f"{path} line {lines.line_num}: {error}") from error
    if none:
        raise TraceError(f"{path}: has a header and nothing under it")
