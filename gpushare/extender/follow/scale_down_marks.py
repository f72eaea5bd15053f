"""What Nodes say of scale-down, as the watch shows it, and what pods that run demand of nodes.

One thread changes each of both, any may read: what is kept is replaced whole, or by item.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpushare.core.selectors import Demands
from gpushare.wire.annotations import SCALE_DOWN_GUARD
from gpushare.wire.objects import Metadata, Node

KEYS = frozenset(
    {"cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"}
)
"""Annotations of a Node by which autoscalers leave it alone if they are "true"."""

OURS = SCALE_DOWN_GUARD
"""Our annotation of a Node: why it must stay, and which of KEYS we wrote."""

TRUE = "true"


class Mark(NamedTuple):
    """What a node says of scale-down."""

    version: str
    """The resourceVersion of the Node."""
    present: frozenset[str]
    """Those of KEYS that are there."""
    kept: bool
    """Somebody else has one of KEYS say that the node stays."""
    ours: frozenset[str]
    """Those of KEYS that we wrote, and nobody has changed since."""
    why: str | None
    """Our word of why it must stay; None if there is none of ours, "" if it cannot be read."""


def mark_of(node: Node) -> Mark:
    """Return what the node says."""
    metadata = node.metadata or Metadata()
    notes = metadata.annotations or {}
    said = {key: notes[key] for key in KEYS if key in notes}
    why, wrote = _read(notes[OURS]) if OURS in notes else (None, frozenset())
    ours = frozenset(key for key in wrote if said.get(key) == TRUE)
    kept = any(value == TRUE for key, value in said.items() if key not in ours)
    return Mark(metadata.resource_version or "", frozenset(said), kept, ours, why)


def written(why: str, keys: Collection[str]) -> str:
    """Return the value of our annotation."""
    return json.dumps({"why": why, "wrote": sorted(keys)}, separators=(",", ":"))


def _read(text: str) -> tuple[str, frozenset[str]]:
    """Return why the node must stay and which keys we wrote; nothing of what somebody garbled."""
    try:
        document = json.loads(text)
        why, wrote = document["why"], document["wrote"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", frozenset()
    if not isinstance(why, str) or not isinstance(wrote, list):
        return "", frozenset()
    return why, KEYS.intersection(key for key in wrote if isinstance(key, str))


class ScaleDownMarks:
    """The marks of all nodes, by name."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def replace(self, marks: Iterable[tuple[str, Mark]], keep: Collection[str]) -> None:
        """Take over those of all nodes; nodes to keep stay as they were."""
        kept = {name: mark for name, mark in self._marks.items() if name in keep}
        self._marks = kept | dict(marks)

    def put(self, name: str, mark: Mark) -> None:
        """Take over that of one node."""
        self._marks[name] = mark

    def remove(self, name: str) -> None:
        """Forget a node."""
        self._marks.pop(name, None)

    def all(self) -> Mapping[str, Mark]:
        """Return those of all nodes at this moment."""
        return dict(self._marks)


class RunningDemands:
    """What pods on nodes demand of nodes, by uid: the books know it of those that wait alone."""

    def __init__(self) -> None:
        self._demands: dict[str, Demands] = {}

    def replace(self, demands: Mapping[str, Demands], keep: Collection[str]) -> None:
        """Take over those of all pods; pods to keep stay as they were."""
        kept = {uid: found for uid, found in self._demands.items() if uid in keep}
        self._demands = kept | dict(demands)

    def put(self, uid: str, demands: Demands) -> None:
        """Take over those of one pod."""
        self._demands[uid] = demands

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._demands.pop(uid, None)

    def all(self) -> Mapping[str, Demands]:
        """Return those of all pods at this moment."""
        return dict(self._demands)
