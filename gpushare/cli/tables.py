"""Write the report as text tables: the original's summary and details, and wider forms of both. On
a terminal the tables have bars and colours.

Knows the original's layout to the byte (Go's tabwriter with a padding of two blanks, rows of dashes
as long as the first row). Control characters in names of the cluster are escaped.

Tested in `tests/unit/cli/test_inspect_parts.py` and `tests/unit/cli/test_inspect_terminal.py`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from gpushare.cli.report import NodeLine, Report
from gpushare.commandline import columns_of
from gpushare.core.amounts import memory_percent
from gpushare.core.model import ALL_CORES
from gpushare.wire.inventory import MAX_SHARERS
from gpushare.wire.printable import folded, printable

if TYPE_CHECKING:  # this module takes longer to load than the command
    from gpushare.cli.claims import ClaimsReport
    from gpushare.wire.held import HeldPlace

_PADDING = 2
_COLOURS = {"room": "32", "little": "33", "full": "31", "closed": "2", "head": "1"}
_ESCAPES = re.compile("\x1b\\[[0-9]*m")
_BAR = 8
_LITTLE = 0.75
"""The share in use of a device that is shown as nearly full."""

Row = Sequence[str]
"""Cells of a line. The last cell ends the line; before an empty last cell there is padding."""


@dataclass(frozen=True, slots=True)
class Style:
    """How tables and bars are drawn."""

    bars: bool = False
    """Whether devices have bars, as on a terminal."""
    colours: bool = False
    """Whether devices have the colour of their free share."""
    columns: int = 80
    """The width of the terminal."""
    bar: int = _BAR
    """Characters of a bar."""
    short: bool = False
    """Whether the heads of columns are short."""
    fold: int = 0
    """The columns where long reasons are broken at blanks, 0 for nowhere."""

    def fitted(self, draw: Callable[["Style"], str]) -> str:
        """Return the text of `draw` in this style, or in a narrower style for a narrow terminal."""
        text = draw(self)
        for bar in (_BAR, _BAR // 2, 0) if self.bars else ():
            if max(map(width, text.splitlines()), default=0) <= self.columns:
                break
            text = draw(replace(self, short=True, bar=bar))
        return text

    def device(self, used: int, total: int, *, is_closed: bool, is_stranded: bool = False) -> str:
        """Return the units in use of a device, with a bar in a style with bars.

        is_stranded: the free units cannot be allocated.
        """
        amount = f"{used}/{total}"
        if not self.bars:
            return amount
        if is_closed:
            return self.painted("closed", f"{'closed'.ljust(self.bar)} {amount}")
        share = used / total if total else 1.0
        # Only a full device has a full bar, and only an empty one an empty bar.
        partly = max(1, min(round(share * self.bar), self.bar - 1))
        filled = self.bar if share >= 1 else partly if used else 0
        full = share >= 1 or is_stranded
        colour = "full" if full else "little" if share >= _LITTLE else "room"
        if not self.bar:
            return self.painted(colour, amount)
        bar = self.painted(colour, "#" * filled) + ("x" if is_stranded else ".") * (
            self.bar - filled
        )
        return f"{bar} {amount}"

    def painted(self, colour: str, text: str) -> str:
        """Return the text in the colour, if there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours and text else text


PLAIN = Style()


def style_of(out: TextIO, environ: Mapping[str, str]) -> Style:
    """Return the style for this output.

    There are no colours if the variable NO_COLOR is set (https://no-color.org).
    """
    if not out.isatty():
        return PLAIN
    colours = "NO_COLOR" not in environ and environ.get("TERM") != "dumb"
    columns = columns_of(out)
    return Style(bars=True, colours=colours, columns=columns or 100, fold=columns)


def width(text: str) -> int:
    """Return the number of characters that a terminal shows."""
    return len(_ESCAPES.sub("", text)) if "\x1b" in text else len(text)


def align(rows: Iterable[Row]) -> str:
    """Return the lines in the layout of Go's text/tabwriter (minimal width 0, padding 2, blanks).

    A column has the width of its widest cell in adjacent lines with this column; the last cell of
    a line belongs to no column.
    """
    lines = list(rows)
    widths: list[list[int]] = [[0] * (len(row) - 1) for row in lines]
    for column in range(max(map(len, lines), default=0)):
        block: list[int] = []
        for index, row in enumerate([*lines, ()]):
            if column < len(row) - 1:
                block.append(index)
                continue
            widest = max((width(lines[member][column]) for member in block), default=0)
            for member in block:
                widths[member][column] = widest + _PADDING
            block = []
    return "".join(
        "".join(cell + " " * (wide - width(cell)) for cell, wide in zip(row, padded, strict=False))
        + row[-1]
        + "\n"
        for row, padded in zip(lines, widths, strict=True)
    )


def as_tables(report: Report, style: Style, *, pods: bool, wide: bool, headers: bool) -> str:
    """Return all tables with content, and the policy.

    pods: whether a node has a table of pods instead of one line. Without headers there are only the
    lines of nodes, or of pods.
    """
    tables = []
    if report.nodes and pods:
        tables.append(details(report, wide=wide, headers=headers, style=style))
    elif report.nodes and wide:
        tables.append(summary(report, wide=True, headers=headers, style=style))
    elif report.nodes:
        tables.append(style.fitted(lambda fit: summary(report, headers=headers, style=fit)))
    if not headers:
        return "".join(tables)
    if report.pending:
        tables.append(_waiting(report, style))
    # Programs may read the original's form, which has no other tables.
    if (style.bars or wide) and any(node.kept_reason for node in report.nodes):
        rows: list[Row] = [(style.painted("little", "KEPT FROM SCALE-DOWN"), "REASON")]
        rows += [
            (printable(line.name), printable(line.kept_reason))
            for line in report.nodes
            if line.kept_reason
        ]
        tables.append(align(rows))
    if report.holds:
        tables.append(held_places(report, style))
    claims = report.claims
    if claims is not None and claims.nodes:
        tables.append(_cards_of_claims(report, claims, style))
    if claims is not None and claims.claims:
        tables.append(_holders(report, claims, style))
    text = "\n".join(tables)
    if not report.nodes or report.policy is None:
        return text
    text += f"Policy: {printable(str(report.policy))}\n"
    shadow = report.policy.shadow
    return f"{text}Shadow: {printable(shadow)}\n" if shadow else text


def summary(
    report: Report, *, wide: bool = False, headers: bool = True, style: Style = PLAIN
) -> str:
    """Return a line for each node and the sum of the cluster; without headers the lines alone."""
    devices = max((len(node.devices) for node in report.nodes), default=0)
    pending = any(node.unplaced for node in report.nodes)
    rows = [_summary_row(node, devices, style, pending=pending) for node in report.nodes]
    # A terminal has no reader that counts columns, so a column of notes may be added.
    notes = style.bars and not wide and any(node.left_out for node in report.nodes)
    cores = report.any_cores
    for node, row in zip(report.nodes, rows, strict=True):
        if wide:
            compute = [str(node.stranded), " ".join(_cores_cells(node)) or "-"] * cores
            row += [str(node.free), *compute, str(len(node.pods)), _models(node)]
            row.append(_note(node) or "-")
        elif notes:
            row.append(node.left_out)
    if not headers:
        return align(rows)
    kind = device_kind(report.resource)
    suffix = "" if style.short else "(Allocated/Total)"
    head = ["NAME", "IPADDRESS", *(f"{kind}{i}{suffix}" for i in range(devices))]
    head += ["PENDING(Allocated)"] if pending else []
    head.append(report.unit if style.short else f"{kind} Memory({report.unit})")
    if wide:
        head.append(f"FREE({report.unit})")
        head += [f"STRANDED({report.unit})", f"{kind} Cores(%)"] * cores
        head += ["PODS", "MODEL"]
    head += ["NOTE"] * (wide or notes)
    plain = [_summary_row(node, devices, PLAIN, pending=pending) for node in report.nodes[:1]]
    total = [
        ["-" * (_bytes(plain, ended=False) + 20)],
        [f"Allocated/Total {kind} Memory In Cluster:"],
        [f"{report.allocated}/{report.total} ({_percent(report)}%)", ""],
    ]
    return align([head, *rows, *total])


def details(
    report: Report, *, wide: bool = False, headers: bool = True, style: Style = PLAIN
) -> str:
    """Return a table of pods for each node, then the sum of the cluster.

    Without headers there are only the lines of pods, with the node in the first column.
    """
    kind, cores = device_kind(report.resource), report.any_cores
    if not headers:
        devices = max((len(node.devices) for node in report.nodes), default=0)
        pending = any(node.unplaced for node in report.nodes)
        return align(
            [printable(node.name), *row]
            for node in report.nodes
            for row in _pod_rows(node, devices, pending=pending, cores=cores, wide=wide)
        )
    rows: list[Row] = []
    dashes = 10
    for number, node in enumerate(report.nodes):
        pending = bool(node.unplaced)
        if number == 0:
            plain = _pod_rows(node, len(node.devices), pending=pending, cores=cores)
            dashes += _bytes(plain, ended=True)
        rows += [[""], ["NAME:", printable(node.name)]]
        rows.append(["IPADDRESS:", printable(node.address or "unknown")])
        if wide:
            rows += [["MODEL:", _models(node)], ["NOTE:", _note(node) or "-"]]
        head = ["NAME", "NAMESPACE"]
        for device in node.devices:
            is_closed = style.bars and (node.closed_reason or not device.healthy)
            head.append(f"{kind}{device.index}({'closed' if is_closed else 'Allocated'})")
        head += ["Pending(Allocated)"] * pending + ["Cores(%)"] * cores
        rows += [[""], [*head, *(_WIDE_POD if wide else ()), ""]]
        pods = _pod_rows(node, len(node.devices), pending=pending, cores=cores, wide=wide)
        rows += [[*row, ""] for row in pods]
        if style.bars:
            rows.append(["", "", *_device_cells(node, style), ""])
        if cores:
            rows.append(["Cores :", "", *_cores_cells(node), ""])
        if cores and node.stranded:
            rows.append(["Stranded :", "", *(str(device.stranded) for device in node.devices), ""])
        rows.append(["Allocated :", f"{node.allocated} ({_percent(node)}%)", ""])
        rows.append(["Total :", f"{node.total} ", ""])
        rows.append(["-" * dashes])
    label = f"Allocated/Total {kind} Memory In Cluster:"
    total = f"{report.allocated}/{report.total} ({_percent(report)}%)"
    return align([*rows, [""], [""], [label, total, ""]])


def device_kind(resource: str) -> str:
    """Return the name of the devices: GPU for aliyun.com/gpu-mem, NPU for example.com/npu-mem."""
    name = resource.rpartition("/")[2]
    return name.removesuffix("-mem").upper() if name.endswith("-mem") else "GPU"


def _summary_row(node: NodeLine, devices: int, style: Style, *, pending: bool) -> list[str]:
    row = [printable(node.name), printable(node.address or "unknown")]
    row += _device_cells(node, style)
    # The original has cells for missing devices, and scripts count columns.
    row += ["" if style.bars else "0/0"] * (devices - len(node.devices))
    if pending:
        row.append(str(node.unplaced) if node.unplaced else "")
    return [*row, f"{node.allocated}/{node.total}"]


def _device_cells(node: NodeLine, style: Style) -> list[str]:
    return [
        style.device(
            device.allocated,
            device.total,
            is_closed=not device.healthy or bool(node.closed_reason),
            is_stranded=device.stranded > 0,
        )
        for device in node.devices
    ]


def _cores_cells(node: NodeLine) -> list[str]:
    return [f"{device.cores + node.unplaced_cores}/{ALL_CORES}" for device in node.devices]


def _waiting(report: Report, style: Style) -> str:
    kind, cores = device_kind(report.resource), any(pod.cores for pod in report.pending)
    rows: list[Row] = [
        (
            "PENDING POD",
            "NAMESPACE",
            f"{kind} Memory({report.unit})",
            *[f"{kind} Cores(%)"] * cores,
            "REASON",
        ),
        *(
            (
                printable(pod.ref.name),
                printable(pod.ref.namespace),
                f"{pod.share * pod.devices}%" if pod.share else str(pod.units),
                *[str(pod.cores * pod.devices)] * cores,
                printable(pod.reason),
            )
            for pod in report.pending
        ),
    ]
    lines = align(rows).splitlines(keepends=True)
    parts = (
        (row[0], folded(line, style.fold, len(line.rstrip("\n")) - len(row[-1])))
        for row, line in zip(rows, lines, strict=True)
    )
    return "".join(style.painted("little", name) + text[len(name) :] for name, text in parts)


def held_places(report: Report, style: Style) -> str:
    """Return a table of the places that filter holds for pods."""
    kind, cores = device_kind(report.resource), any(place.cores for place in report.holds or ())
    rows: list[Row] = [
        (
            "HELD FOR",
            "NAMESPACE",
            f"{kind} Memory({report.unit})",
            *[f"{kind} Cores(%)"] * cores,
            "NODE",
            "UNTIL",
        ),
        *(
            (
                printable(place.pod.name),
                printable(place.pod.namespace),
                _memory(place),
                *[_by_device(str(place.cores), place.devices)] * cores,
                printable(place.node),
                place.until_text,
            )
            for place in report.holds or ()
        ),
    ]
    return align([[style.painted("little", row[0]), *row[1:]] for row in rows])


def _cards_of_claims(report: Report, claims: "ClaimsReport", style: Style) -> str:
    kind, columns = device_kind(report.resource), max(len(lines) for _, lines in claims.nodes)
    head = ["CARDS OF CLAIMS", *(f"{kind}{at}(Allocated/Total)" for at in range(columns))]
    rows: list[Row] = [
        [style.painted("little", head[0]), *head[1:], f"{kind} Memory({report.unit})"]
    ]
    for name, lines in claims.nodes:
        cells = [
            style.device(line.allocated, line.card.units, is_closed=not line.card.is_offered)
            for line in lines
        ]
        cells += [""] * (columns - len(lines))
        allocated = sum(line.allocated for line in lines)
        total = sum(line.card.units for line in lines)
        rows.append([printable(name), *cells, f"{allocated}/{total}"])
    return align(rows)


def _holders(report: Report, claims: "ClaimsReport", style: Style) -> str:
    head = ["NAMESPACE", f"{device_kind(report.resource)} Memory({report.unit})", "NODE"]
    rows: list[Row] = [[style.painted("little", "CLAIM"), *head, "DEVICES", "PODS"]]
    for line in claims.claims:
        claim = line.claim
        devices = [
            card.key.device if card.units is None else f"{card.key.device}({card.units})"
            for card in claim.cards
        ]
        rows.append(
            [
                printable(claim.ref.name),
                printable(claim.ref.namespace),
                "-" if line.units is None else str(line.units),
                printable(claim.node) or "-",
                printable(",".join(devices)) or claim.state,
                printable(",".join(claim.pods)) or "-",
            ]
        )
    return align(rows)


def _memory(place: "HeldPlace") -> str:
    """Return the units by device, or the percentage; different parts in the form of the annotation,
    such as 30+10.
    """
    percent = memory_percent(place.percents)
    alike = _by_device(f"{percent}%" if percent else str(place.units), place.devices)
    return "+".join(map(str, place.split)) or alike


def _by_device(amount: str, devices: int) -> str:
    return f"{amount} x {devices}" if devices > 1 else amount


def _models(node: NodeLine) -> str:
    models = dict.fromkeys(device.model for device in node.devices if device.model)
    return printable(",".join(models)) or "-"


def _note(node: NodeLine) -> str:
    sick = [str(device.index) for device in node.devices if not device.healthy]
    notes = [f"unhealthy: {','.join(sick)}"] if sick else []
    limit = ((node.state and node.state.labels) or {}).get(MAX_SHARERS)
    if limit and not node.closed_reason:
        notes.append(f"at most {limit} pods a device")
    return "; ".join([*notes, *(note for note in (node.closed_reason, node.left_out) if note)])


_WIDE_POD = ("REQUEST", "PHASE", "ASSIGNED")


def _pod_rows(
    node: NodeLine, devices: int, *, pending: bool, cores: bool, wide: bool = False
) -> list[list[str]]:
    rows = []
    for pod in node.pods:
        units_by_device = dict(pod.shares)
        row = [printable(pod.ref.name), printable(pod.ref.namespace)]
        row += [str(units_by_device.get(device, 0)) for device in range(devices)]
        if pending:
            row.append(str(0 if pod.shares else pod.units))
        row += [str(pod.cores)] * cores
        if wide:
            assigned = "yes" if pod.assigned else "no"
            row += [str(pod.units), printable(pod.phase) or "-", assigned]
        rows.append(row)
    return rows


def _bytes(rows: Iterable[Row], *, ended: bool) -> int:
    """Return the number of bytes of these rows in the input of the original's tabwriter: cells,
    tabs, newlines.

    ended: whether a tab follows the last cell.
    """
    return sum(len("\t".join(row).encode()) + (2 if ended else 1) for row in rows)


def _percent(part: NodeLine | Report) -> int:
    """Return the allocated percentage, truncated as in the original; 0 without units."""
    return part.allocated * 100 // part.total if part.total else 0
