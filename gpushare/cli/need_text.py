"""What `gpushare whatif --need` found, as lines and a table for people, and as a document.

Tested in `tests/unit/cli/test_need.py`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from gpushare.cli.plans import Plan
from gpushare.cli.tables import PLAIN, Style, align, device_kind, printable
from gpushare.cli.whatif_text import (
    NOT_JUDGED,
    first_fields,
    gated_line,
    judged_line,
    now_lines,
    number_of,
    placed_document,
    some,
    sums_document,
    sums_text,
    together,
)
from gpushare.core.model import ALL_CORES
from gpushare.explain.need import Need
from gpushare.explain.placer import PlacementResult
from gpushare.explain.shapes import Shape
from gpushare.explain.text import amount
from gpushare.explain.tries import LeftOut

KIND = "GPUShareNeed"
_MOST_NODES = 10
_MOST_LEFT_OUT = 8


def need_lines(found: Need, plan: Plan, policy: str, style: Style = PLAIN) -> str:
    """Return the text: what is needed, who is left out, what is left over, the nodes that come."""
    lines = [*_lines(found, plan), judged_line(plan.books, policy)]
    text = "".join(f"{printable(line)}\n" for line in lines)
    if not found.nodes:
        return text
    return f"{text}\n{_table(found, device_kind(plan.books.names.resource), style)}"


def _lines(found: Need, plan: Plan) -> Iterator[str]:
    unit = plan.books.unit
    yield from now_lines(found.before, plan)
    yield f"Need:     {_needed(found, unit)}"
    yield from (f"Least:    {text}" for text in _least(found))
    yield f"Pods:     {_fitting(found)}"
    if found.left_out:
        pods = number_of(sum(each.count for each in found.left_out))
        yield f"Left out: {pods} that no node of these shapes takes, and no other has room for"
        yield from (f"          {text}" for text in _left_out(found))
    if found.gated:
        yield gated_line(found.gated)
    yield f"Then:     {sums_text(found.after, unit)}{_largest(found, unit)}"


def _needed(found: Need, unit: str) -> str:
    """Return how many nodes are needed, of which shapes, and for which price."""
    number = sum(found.counts)
    nodes = "1 node" if number == 1 else f"{number} nodes"
    if not number:
        return f"{nodes}: what is there has room"
    shapes = [
        f"{count} x {shape.name}{_size(shape, unit)}" for shape, count in _counted(found) if count
    ]
    price = f", for {_price(found.cost)}" if found.shapes[0].price is not None else ""
    return f"{nodes}: {', '.join(shapes)}{price}"


def _size(shape: Shape, unit: str) -> str:
    """Return the devices of a shape that is told by a node that has them."""
    if not shape.name.startswith("like "):
        return ""
    sizes = Counter(shape.spec.capacity).items()
    return f" ({' and '.join(f'{devices} x {amount(units, unit)}' for units, devices in sizes)})"


def _least(found: Need) -> Iterator[str]:
    """Yield how near that is to the least."""
    if not any(found.counts):
        return
    priced = found.shapes[0].price is not None
    if found.least:
        yield f"nothing {'cheaper' if priced else 'fewer'} could do, by sums alone"
        return
    bound = f"for {_price(found.bound)}" if priced else str(found.bound or "none")
    yield (
        f"by sums alone {bound} might do; placed by this policy, the pods need these, and do not"
        " all fit with one node fewer"
    )


def _fitting(found: Need) -> str:
    """Return how many pods fit, whose they are, and where."""
    new = {node.name for node in found.nodes}
    fit = sum(each.fit for each in found.placed)
    on_new = sum(pods for each in found.placed for node, pods in each.on.items() if node in new)
    if not found.placed:
        return "none wait; --pods and --more say which would come"
    moved, waiting = found.moved, found.waiting
    asked = sum(each.wanted.count or 0 for each in found.placed)
    whose = [
        f"{number} {text}"
        for number, text in (
            (waiting, "wait already"),
            (moved, "are of nodes that go"),
            (asked - moved - waiting, "are asked for"),
        )
        if number
    ]
    return (
        f"{fit} of {asked} fit ({', '.join(whose)}): {fit - on_new} on nodes that are there,"
        f" {on_new} on new ones"
    )


def _left_out(found: Need) -> Iterator[str]:
    """Yield who is left out, and why; equal pods are told together."""
    every = [
        PlacementResult(each.wanted, each.wanted.count - each.count, {}, each.reasons)
        for each in found.left_out
        if each.wanted.count
    ]
    merged = together(every)
    for each in merged[:_MOST_LEFT_OUT]:
        count = (each.wanted.count or 0) - each.fit
        yield f"{each.wanted.name}: {count}: {'; '.join(each.reasons)}"
    if len(merged) > _MOST_LEFT_OUT:
        yield f"and {len(merged) - _MOST_LEFT_OUT} more kinds"


def _largest(found: Need, unit: str) -> str:
    """Return the largest pods that still fit; where pods have compute, of those without."""
    sizes = {units: devices for devices, units in enumerate(found.largest, 1)}
    texts = [
        f"{amount(units, unit)} on {'one device' if devices == 1 else f'each of {devices}'}"
        for units, devices in sizes.items()
    ]
    kind = "pod without compute" if found.any_cores else "pod"
    return f"; the largest {kind} that still fits: {some(texts, ' or ')}" if texts else ""


def _table(found: Need, kind: str, style: Style) -> str:
    """Return the nodes that come, with what is in use; on a terminal as narrow as that."""
    text = style.fitted(lambda narrower: _rows(found, kind, narrower))
    rest = len(found.nodes) - _MOST_NODES
    return f"{text}and {rest} more\n" if rest > 0 else text


def _rows(found: Need, kind: str, style: Style) -> str:
    shown = found.nodes[:_MOST_NODES]
    devices = max(len(node.used) for node in shown)
    rows = [["NODE", *(f"{kind}{index}" for index in range(devices)), "SHAPE"]]
    for node in shown:
        shape = found.shapes[node.shape]
        cells = [
            style.device(used, total, closed=False, stranded=cores >= ALL_CORES and used < total)
            for used, total, cores in zip(node.used, shape.spec.capacity, node.cores, strict=True)
        ]
        cells += [""] * (devices - len(cells))
        rows.append([node.name, *cells, printable(shape.name)])
    return align(rows)


def _counted(found: Need) -> Iterable[tuple[Shape, int]]:
    return zip(found.shapes, found.counts, strict=True)


def _price(price: Fraction) -> str:
    """Return a price, rounded up to hundredths."""
    return f"{ceil(price * 100) / 100:.2f}".removesuffix(".00")


def need_document(found: Need, plan: Plan, policy: str) -> dict[str, Any]:
    """Return the document."""
    moved, waiting = found.moved, found.waiting
    parts = {
        "moved": found.placed[:moved],
        "waiting": found.placed[moved : moved + waiting],
        "pods": found.placed[moved + waiting :],
    }
    priced = found.shapes[0].price is not None
    return {
        **first_fields(KIND, plan, policy, found.before),
        "needed": sum(found.counts),
        "price": float(found.cost) if priced else None,
        "least": float(found.bound),
        "optimal": found.least,
        "shapes": [_shape_document(shape, count) for shape, count in _counted(found)],
        "nodes": _node_documents(found),
        **{name: [placed_document(each) for each in part] for name, part in parts.items()},
        "gated": found.gated,
        "podsLeftOut": [_left_out_document(each) for each in found.left_out],
        "largest": [
            {"devices": devices, "units": units} for devices, units in enumerate(found.largest, 1)
        ],
        "after": sums_document(found.after),
        "notes": [*plan.books.notes, NOT_JUDGED],
    }


def _shape_document(shape: Shape, count: int) -> dict[str, Any]:
    spec = shape.spec
    return {
        "name": shape.name,
        "devices": [*spec.capacity],
        "model": next(iter(spec.models), "") or None,
        "cpu": spec.cpu,
        "memory": spec.memory,
        "price": None if shape.price is None else float(shape.price),
        "nodes": count,
    }


def _node_documents(found: Need) -> Sequence[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "shape": found.shapes[node.shape].name,
            "devices": [
                _device_document(index, total, *used, any_cores=found.any_cores)
                for index, (total, *used) in enumerate(
                    zip(found.shapes[node.shape].spec.capacity, node.used, node.cores, strict=True)
                )
            ],
        }
        for node in found.nodes
    ]


def _device_document(
    index: int, total: int, used: int, cores: int, *, any_cores: bool
) -> dict[str, int]:
    left = total - used
    free = 0 if cores >= ALL_CORES else left
    document = {"index": index, "total": total, "allocated": used, "free": free}
    if any_cores:
        document |= {"strandedByCores": left - free, "coresAllocated": cores}
    return document


def _left_out_document(each: LeftOut) -> dict[str, Any]:
    return {
        "name": each.wanted.name,
        "pods": each.count,
        "reasons": [{"reason": why, "shapes": count} for why, count in each.reasons.items()],
    }
