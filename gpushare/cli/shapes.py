"""Shapes of nodes as `gpushare whatif` is told them, and those that a cluster has.

A shape is `8x80GiB`, with more after commas, or a node that is there to be like. Every wrong word
is a SettingsError that says what to write.

Tested in `tests/unit/cli/test_whatif.py` and `tests/unit/cli/test_need.py`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice

from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.pod_specs import units_of_words
from gpushare.core.model import HOST_BOUND, NodeSpec
from gpushare.core.node_filters import CPU, MEMORY, NodeState
from gpushare.core.selectors import Demands
from gpushare.errors import QuantityError, SettingsError
from gpushare.explain.shapes import Shape, bare, state_like
from gpushare.wire.gpu_models import label_value
from gpushare.wire.inventory import MAX_DEVICES
from gpushare.wire.node_templates import SHAPE
from gpushare.wire.quantity import to_bytes, to_milli

_ADDED = re.compile(r"(\d{1,4}):(.+)")
_PRICE = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)
_SHOWN = 80
_MOST_SHAPES = 6
"""Shapes of a cluster that are looked at if none are named; with more an answer takes minutes."""


def shape_of_words(text: str, flag: str, books: ListedResource) -> Shape:
    """Return the shape of `8x80GiB,cpu=96,memory=768Gi,model=A100,price=12.5`, or of a node that is
    there, as `gpu-a,price=9`.
    """
    first, *rest = (part.strip() for part in text.split(","))
    wrong = f"{flag}: {text[:_SHOWN]!r}"
    pairs = [part.partition("=")[::2] for part in rest]
    more = dict(pairs)
    there = books.ledger.has_node(first)
    known = ("price",) if there else ("cpu", "memory", "model", "price")
    unknown = next((key for key, value in pairs if key not in known or not value), None)
    if unknown is not None or len(more) < len(pairs):
        what = f"{unknown[:40]!r} is not" if unknown is not None else "has something twice; write"
        raise SettingsError(f"{wrong}: {what} one of {', '.join(f'{key}=...' for key in known)}")
    price = _price(more["price"], wrong) if "price" in more else None
    if there:
        return replace(shape_like(first, books), price=price)
    shape = _shaped(first, wrong, books.unit)
    model = label_value(more.get("model", ""))
    spec = replace(
        shape,
        models=(model,) * len(shape.capacity),
        cpu=_host(CPU, more, wrong),
        memory=_host(MEMORY, more, wrong),
    )
    name = ",".join([first, *(f"{key}={more[key]}" for key in known[:3] if key in more)])
    return Shape(name, spec, None, price)


def shape_like(node: str, books: ListedResource) -> Shape:
    """Return what a node like this one is, with what DaemonSets take of it already taken."""
    spec, state = books.ledger.entries_and_specs()[1][node], books.states.get(node)
    taken = books.daemons.get(node, Counter[str]())
    cpu = None if spec.cpu is None else max(spec.cpu - taken[CPU], 0)
    memory = None if spec.memory is None else max(spec.memory - taken[MEMORY], 0)
    if state is not None and state.allocatable is not None:
        left = {name: max(units - taken[name], 0) for name, units in state.allocatable.items()}
        state = replace(state, allocatable=left)
    return Shape(f"like {node}", replace(bare(spec), name="", cpu=cpu, memory=memory), state)


def nodes_added(
    words: Iterable[str], books: ListedResource, names: Iterator[str]
) -> Iterator[tuple[NodeSpec, NodeState]]:
    """Yield the nodes of each N:SHAPE. names: for them."""
    for text in words:
        found = _ADDED.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise SettingsError(
                f"--add: {text[:_SHOWN]!r} is not N:8x80GiB, or N:NODE for nodes like that one"
            )
        shape = shape_of_words(found[2], "--add", books)
        for name in islice(names, int(found[1])):
            yield shape.node(name, books.names.resource)


def shapes_of_cluster(books: ListedResource, demands: Iterable[Demands]) -> list[Shape]:
    """Return the shapes that the nodes have, the commonest first; a note says what is left out.

    Nodes are of one shape if they are alike in what pods with these demands look at: devices,
    models, CPU, memory, taints and the labels that they name.
    """
    keys = frozenset(key for each in demands for key in _labels_of(each))
    alike: defaultdict[object, list[str]] = defaultdict(list)
    for name, spec in sorted(books.ledger.entries_and_specs()[1].items()):
        if any(spec.capacity):
            alike[_look(spec, books.states.get(name), keys, books.names.resource)].append(name)
    groups = sorted(alike.values(), key=lambda names: (-len(names), names[0]))
    if not groups:
        raise SettingsError("no node can be one to be like: say --shape 8x80GiB")
    if len(groups) > _MOST_SHAPES:
        books.notes.append(
            f"{len(groups) - _MOST_SHAPES} rarer shapes of nodes are not looked at: name them by"
            " --shape NODE"
        )
    return [shape_like(names[0], books) for names in groups[:_MOST_SHAPES]]


def _look(spec: NodeSpec, state: NodeState | None, keys: frozenset[str], resource: str) -> object:
    """Return what makes another shape."""
    host = spec.cpu, (spec.memory or 0) >> 30
    if state is None:
        return spec.capacity, spec.models, host
    like = state_like(spec, state, resource)
    labels = tuple((key, (like.labels or {}).get(key)) for key in sorted(keys))
    return spec.capacity, spec.models, host, frozenset(like.taints), labels


def _labels_of(demands: Demands) -> Iterator[str]:
    yield from (key for key, _ in demands.node_selector)
    for term in demands.terms or ():
        yield from (each.key for each in term.labels)


def _shaped(text: str, wrong: str, unit: str) -> NodeSpec:
    found = SHAPE.fullmatch(text)
    if found is None:
        raise SettingsError(f"{wrong}: there is no node {text[:40]!r}, nor is it as 8x80GiB")
    devices, size = int(found[1]), units_of_words(int(found[2]), found[3], unit, text)
    if not 0 < devices <= MAX_DEVICES:
        raise SettingsError(f"{wrong}: a node has from 1 to {MAX_DEVICES} devices")
    return NodeSpec("", (size,) * devices, (True,) * devices, ("",) * devices, ("",) * devices)


def _host(key: str, more: Mapping[str, str], wrong: str) -> int | None:
    """Return the CPU or the memory that is told."""
    if key not in more:
        return None
    try:
        found = (to_milli if key == CPU else to_bytes)(more[key])
    except QuantityError as error:
        raise SettingsError(f"{wrong}: {key}: {error}") from error
    if not 0 < found < HOST_BOUND:
        raise SettingsError(f"{wrong}: {key}={more[key][:40]} is no amount that a node has")
    return found


def _price(text: str, wrong: str) -> Fraction:
    price = Fraction(text) if _PRICE.fullmatch(text) else Fraction(0)
    if not price:
        raise SettingsError(f"{wrong}: price: {text[:40]!r} is no number above 0, such as 12.5")
    return price


def check_prices(shapes: Sequence[Shape]) -> None:
    """Raise SettingsError if some shapes have a price and others none."""
    without = [shape.name for shape in shapes if shape.price is None]
    if 0 < len(without) < len(shapes):
        raise SettingsError(f"--shape: {without[0]!r} has no price=, and others have one")
