"""What a Node says of scale-down: what others wrote there, and what we did.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

import json
from collections.abc import Collection
from typing import NamedTuple

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
