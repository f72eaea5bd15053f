"""The sentence a pending pod shows: reasons counted over nodes, sorted as kube-scheduler sorts.

Knows statuses only. The text must be stable: it is written into the pod's condition, and a text
that changed each time would make the pod change, and be tried again, each time.
"""

from collections import Counter
from collections.abc import Mapping

from gpushare_localcluster.scheduler.framework import Status

NO_NODES = "no nodes available to schedule pods"


def unschedulable_message(total: int, statuses: Mapping[str, Status], post_filter: str = "") -> str:
    """Return the message of a pod that fits nowhere, as `0/3 nodes are available: 1 Insufficient
    cpu, 2 node(s) were unschedulable. preemption: ...`.

    Sorted by the whole counted text, the number included (kube-scheduler FitError.Error).
    """
    counts = Counter(reason for status in statuses.values() for reason in status.reasons)
    text = f"0/{total} nodes are available:"
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    if reasons:
        text += f" {', '.join(reasons)}."
    return f"{text} {post_filter}" if post_filter else text
