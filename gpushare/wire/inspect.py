"""The inspect document: the ledger's nodes, in the original's JSON.

Knows the document only, standard library only. Keys and their order are the original's, for the
consumers of the original:

    {"nodes":[{"name":…,"totalGPU":…,"usedGPU":…,
               "devs":[{"id":…,"totalGPU":…,"usedGPU":…,"pods":[{"name":…,"namespace":…,"usedGPU":…}]}]}]}

Different on purpose: nodes and pods are sorted (the original's order is random); and a pod whose
annotations name no usable device of the node is shown. The original drops the pod (and gives the
memory out again); here the pod counts once in the node's usedGPU and stands in one more key,
`unplaced`, after `devs`, which only nodes with such a pod have. A pod on a card that has left the
node stands there too, with a usedGPU of 0. A pod that may be on one of several devices stands on
each. The usedGPU of a device is the sum of the pods of the device.

A node that autoscalers leave alone has the reason in one more key, `keptFromScaleDown`.

On a node where a pod has a part of an amount that is counted in percent, each device and each pod
has one more key for the amount, in percent of one device: for compute `usedCores`.

In books of claims, `pods` are claims, and `users` of a claim names the pods that the claim is
reserved for.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gpushare.core.amounts import PERCENT_AMOUNTS, Percents
from gpushare.core.states.entry import Entry, NodeBooks

Users = Mapping[str, Sequence[str]]
"""The pods that each claim is reserved for, by uid of the claim."""


def encode_inspect(
    nodes: Iterable[NodeBooks],
    users: Users | None = None,
    kept_nodes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the inspect document of these nodes, sorted by name; compact, without a newline.

    users: of books of claims, None for books of pods. kept_nodes: the reasons why autoscalers leave
    nodes alone, by node.
    """
    return inspect_of(
        encode_node(users, books, kept_nodes.get(books.spec.name, ""))
        for books in sorted(nodes, key=lambda b: b.spec.name)
    )


def inspect_of(texts: Iterable[str]) -> str:
    """Return the inspect document of the texts of its nodes."""
    return f'{{"nodes":[{",".join(texts)}]}}'


def encode_node(users: Users | None, books: NodeBooks, why_kept: str) -> str:
    """Return the text of one node in the document. why_kept: as in `kept_nodes`, or "".

    Node by node: no other thread runs while one call of json works, be it over 5,000 nodes.
    """
    return _ENCODE(_node(books, users, why_kept))


_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _node(books: NodeBooks, users: Users | None, why_kept: str) -> dict[str, Any]:
    capacity = books.spec.capacity
    pods: list[list[dict[str, Any]]] = [[] for _ in capacity]
    unplaced: list[dict[str, Any]] = []
    keys = _percent_keys(books)
    for entry in sorted(books.entries, key=lambda e: (e.ref.namespace, e.ref.name, e.ref.uid)):
        shares = entry.placement
        if shares is None or any(device >= len(capacity) for device, _ in shares):
            request = entry.request
            if request.total:
                units = max(request.charges_anywhere(capacity), default=request.total)
                unplaced.append(_pod(entry, units, request.all_percents, keys))
            continue
        if not shares and entry.request.total:
            unplaced.append(_pod(entry, 0, (), keys))
        for (index, units), percents in zip(entry.charges(capacity), entry.percents, strict=True):
            pods[index].append(_pod(entry, units, percents, keys))
            if users is not None:
                pods[index][-1]["users"] = users.get(entry.ref.uid.partition("/")[0], ())
    devices: list[dict[str, Any]] = []
    for index, total in enumerate(capacity):
        on_it = pods[index]
        sums = {key: sum(pod[key] for pod in on_it) for _, key in keys}
        used = {"usedGPU": _used(on_it), **sums}
        devices.append({"id": index, "totalGPU": total, **used, "pods": on_it})
    node: dict[str, Any] = {
        "name": books.spec.name,
        "totalGPU": sum(capacity),
        "usedGPU": _used(devices) + _used(unplaced),
        "devs": devices,
    }
    if unplaced:
        node["unplaced"] = unplaced
    if why_kept:
        node["keptFromScaleDown"] = why_kept
    return node


def _percent_keys(books: NodeBooks) -> list[tuple[int, str]]:
    """Return (index in PERCENT_AMOUNTS, key) of each amount that a pod of the node has some of."""
    return [
        (index, f"used{PERCENT_AMOUNTS[index].title}")
        for index, used in enumerate(books.percents_used)
        if any(used)
    ]


def _pod(
    entry: Entry, units: int, percents: Percents, keys: Iterable[tuple[int, str]]
) -> dict[str, Any]:
    """Return the pod on a device. percents: of the device; () for none."""
    pod = {"name": entry.ref.name, "namespace": entry.ref.namespace, "usedGPU": units}
    return pod | {key: percents[index] if percents else 0 for index, key in keys}


def _used(items: list[dict[str, Any]]) -> int:
    return sum(item["usedGPU"] for item in items)
