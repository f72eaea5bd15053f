"""How good the place of a bound pod is now, by a policy.

Pure, as core/explain.py. Tested in `tests/unit/core/test_explain.py`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpushare.core import decide
from gpushare.core.explain import Remedy, WhatIfNode
from gpushare.core.model import Shares
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot, has_devices, has_room
from gpushare.core.states.entry import Entry, NodeBooks


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """A device of the node of a bound pod, as if the pod were not there."""

    device: int
    free: int
    value: float | None
    """Of the policy, higher is better, without a unit; None if the request does not fit."""


@dataclass(frozen=True, slots=True)
class BoundPodScore:
    """How a policy scores now the place of a bound pod."""

    node: str
    shares: Shares | None
    policy: str
    score: int
    """Of its node, from 0 to 10: the worst node that fits has 0."""
    best: str
    """The node that scores 10, "" if none fits."""
    fitting: int
    """How many nodes fit."""
    devices: tuple[DeviceScore, ...]
    """Those of its node."""
    chosen: tuple[int, ...]
    """The devices that the policy would take there now."""
    fits: bool = True
    """Whether it would fit there still."""


def score_bound_pod(
    snapshot: Snapshot, books: NodeBooks, entry: Entry, ranks: Ranking, name: str
) -> BoundPodScore:
    """Return how the ranking by the policy called `name` scores the place of a bound pod.

    It scores the cluster without this pod. Raises whatever the policy raises.
    """
    view = _without(snapshot, books, entry)
    request, node = entry.request, entry.node
    # Of its own: the books' ranking remembers true snapshots.
    ranking = Ranking(ranks.policy, kinds=1, neighbours=ranks.neighbours)
    names = [name for name in view.names if name]
    scores = decide.score_nodes(view, names, request, ranking)
    rows = np.array([view.row[node]], dtype=np.intp)
    mask = has_room(view, rows, request, pairing=True)
    fits = bool(has_devices(mask, request, view.free, rows)[0])
    values = ranking.score_devices(view, rows, request)[0].tolist()
    chosen = decide.best_shares(ranking, view, rows, mask, request) if fits else ()
    return BoundPodScore(
        node=node,
        shares=entry.placement,
        policy=name,
        fits=fits,
        score=next((score for score, nodes in scores.items() if node in nodes), 0),
        best=scores[decide.BEST][0] if scores else "",
        fitting=len(decide.filter_nodes(view, names, request).fit),
        devices=tuple(
            DeviceScore(device, free, value if ok and fits else None)
            for device, (free, value, ok) in enumerate(
                zip(view.free[rows[0]].tolist(), values, mask[0].tolist(), strict=True)
            )
            if device < len(books.spec.capacity)
        ),
        chosen=tuple(device for device, _ in chosen),
    )


def _without(snapshot: Snapshot, books: NodeBooks, entry: Entry) -> Snapshot:
    """Return the snapshot without the charge of one pod of the node."""
    row, request = snapshot.row[entry.node], entry.request
    one = WhatIfNode(books, pairs=row in snapshot.pinned).after(Remedy(entry.node, ends=(entry,)))
    names = ("used", "pods", "gpu_pods", "cpu_free", "memory_free")
    arrays: dict[str, Any] = {name: getattr(snapshot, name).copy() for name in names}
    percents_used = tuple(array.copy() for array in snapshot.percents_used)
    by_device: list[Any] = [arrays["used"], arrays["pods"], *percents_used]
    ones: list[Any] = [one.used, one.pods, *one.percents_used]
    for array, of_one in zip(by_device, ones, strict=True):
        array[row, : one.used.shape[1]] = of_one[0]
    arrays["gpu_pods"][row] = one.gpu_pods[0]
    arrays["cpu_free"][row] = max((books.cpu_free or 0) + request.cpu, 0)
    arrays["memory_free"][row] = max((books.memory_free or 0) + request.memory, 0)
    pinned = {at: pins for at, pins in snapshot.pinned.items() if at != row}
    if one.pinned:
        pinned[row] = one.pinned[0]
    workloads = {**snapshot.workloads, row: one.workloads.get(0, {})}
    return replace(
        snapshot, **arrays, percents_used=percents_used, pinned=pinned, workloads=workloads
    )
