"""How far groups have come, as people are told: of one pod's group, and of all that wait at bind.

Tested in `tests/unit/extender/tell/test_explainer.py` and
`tests/unit/extender/tell/page/test_document.py`.
"""

import time

from gpushare.explain.pod import GroupProgress
from gpushare.extender.verbs.bind.gate import Gate, GroupState
from gpushare.wire.groups import Group


def progress_of(gate: Gate, group: Group) -> GroupProgress | None:
    """Return how far the group has come; None for a pod without a group."""
    return _progress(group.key, gate.state_of(group)) if group.key else None


def waiting_groups(gate: Gate) -> list[GroupProgress]:
    """Return the groups with pods at the gate, sorted by name."""
    return [_progress(key, state) for key, state in sorted(gate.waiting_groups().items())]


def _progress(key: str, state: GroupState) -> GroupProgress:
    since_epoch = time.time() - time.monotonic()
    return GroupProgress(
        name=key,
        size=state.size,
        existing=state.existing,
        bound_pods=state.bound,
        waiting_pods=state.waiting,
        until=None if state.until is None else since_epoch + state.until,
    )
