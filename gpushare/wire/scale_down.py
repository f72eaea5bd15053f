"""Annotations of a Node about scale-down: those of other writers, and gpushare's.

Standard library only.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py` and
`tests/unit/wire/test_scale_down.py`.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from gpushare.wire.annotations import SCALE_DOWN_GUARD

KEYS = frozenset(
    {"cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"}
)
"""Annotations of a Node that keep autoscalers away from the Node if the value is "true"."""

OURS = SCALE_DOWN_GUARD
"""Our annotation of a Node: why the Node must stay, and the KEYS that we wrote."""

TRUE = "true"


class Mark(NamedTuple):
    """The scale-down annotations of a node."""

    version: str
    """The resourceVersion of the Node."""
    present: frozenset[str]
    """The KEYS that the Node has."""
    by_others: frozenset[str]
    """The KEYS that another writer has set to "true"."""
    by_extender: frozenset[str]
    """The KEYS that we wrote, and nobody has changed since."""
    reason: str | None
    """Our reason why the node must stay; None without our annotation, "" if that is unreadable."""

    @property
    def kept(self) -> str:
        """Why autoscalers leave the node alone, for users; "" if they may remove the node."""
        if self.by_others:
            return f"annotated by others: {', '.join(sorted(self.by_others))}"
        return self.reason or "" if self.by_extender else ""


def kept_nodes(marks: Mapping[str, Mark]) -> dict[str, str]:
    """Return why autoscalers leave nodes alone, by node; other nodes are left out."""
    return {name: mark.kept for name, mark in marks.items() if mark.kept}


def mark_of(annotations: Mapping[str, str], version: str = "") -> Mark:
    """Return the scale-down annotations of a node."""
    values = {key: annotations[key] for key in KEYS if key in annotations}
    text = annotations.get(OURS)
    reason, written_keys = None if text is None else "", frozenset[str]()
    with suppress(ValueError, KeyError, TypeError, RecursionError):  # a garbled annotation
        document = json.loads(text or "")
        text_of_reason, keys = document["why"], document["wrote"]
        if isinstance(text_of_reason, str) and isinstance(keys, list):
            reason, written_keys = (
                text_of_reason,
                KEYS.intersection(key for key in keys if isinstance(key, str)),
            )
    true_keys = frozenset(key for key, value in values.items() if value == TRUE)
    return Mark(
        version, frozenset(values), true_keys - written_keys, true_keys & written_keys, reason
    )


def written(reason: str, keys: Collection[str]) -> str:
    """Return the value of our annotation."""
    return json.dumps({"why": reason, "wrote": sorted(keys)}, separators=(",", ":"))
