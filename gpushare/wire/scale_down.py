"""What a Node's annotations say of scale-down: what others wrote there, and what we did.

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
    by_others: frozenset[str]
    """Those of KEYS by which somebody else says that the node stays."""
    by_extender: frozenset[str]
    """Those of KEYS that we wrote, and nobody has changed since."""
    reason: str | None
    """Our word of why it must stay; None if there is none of ours, "" if it cannot be read."""

    @property
    def kept(self) -> str:
        """Why autoscalers leave the node alone, for users; "" if they may take it away."""
        if self.by_others:
            return f"annotated by others: {', '.join(sorted(self.by_others))}"
        return self.reason or "" if self.by_extender else ""


def kept_nodes(marks: Mapping[str, Mark]) -> dict[str, str]:
    """Return why autoscalers leave nodes alone, by name: of those nodes that they do."""
    return {name: mark.kept for name, mark in marks.items() if mark.kept}


def mark_of(annotations: Mapping[str, str], version: str = "") -> Mark:
    """Return what the annotations of a node say."""
    values = {key: annotations[key] for key in KEYS if key in annotations}
    text = annotations.get(OURS)
    reason, written_keys = None if text is None else "", frozenset[str]()
    with suppress(ValueError, KeyError, TypeError, RecursionError):  # somebody has garbled it
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
