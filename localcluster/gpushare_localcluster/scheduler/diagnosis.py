"""The message of a pending pod: reasons counted over nodes, sorted as in kube-scheduler.

The text must be stable: a new text in the condition changes the pod, so that the pod would be tried
again each time.
"""

from collections import Counter
from collections.abc import Mapping

from gpushare_localcluster.scheduler.framework import Status

NO_NODES = "no nodes available to schedule pods"


def unschedulable_message(total: int, statuses: Mapping[str, Status], post_filter: str = "") -> str:
    """Return the message of a pod that fits nowhere: `0/3 nodes are available: 1 Insufficient cpu,
    2 node(s) were unschedulable.

    preemption: ...`.

    Sorted by the whole counted text, the number included (kube-scheduler FitError.Error).
    """
    counts = Counter(reason for status in statuses.values() for reason in status.reasons)
    text = f"0/{total} nodes are available:"
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    if reasons:
        text += f" {', '.join(reasons)}."
    return f"{text} {post_filter}" if post_filter else text
