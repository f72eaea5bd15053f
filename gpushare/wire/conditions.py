"""The condition PodScheduled of a pending pod: kube-scheduler's reasons.

Knows the text of kube-scheduler's FitError, from 1.22 to 1.37 (k8s.io/kubernetes pkg/scheduler/
framework/types.go): "0/5 nodes are available: 2 Insufficient cpu, 3 REASON. preemption: ...".
Everything after the first sentence is left out. Decides nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.model import Reason
from gpushare.wire.objects import Pod, gate_names
from gpushare.wire.pods import scheduler_of

_COUNTED = re.compile(r"0/(\d+) nodes are available: (.*?)(?:\.(?: .*)?)?", re.DOTALL)
_OURS = frozenset(reason.value for reason in Reason)
_NOT_FOUND = re.compile(r'node "[^"]*" not found')
_MOST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """How a scheduler stands to a pod without a node."""

    name: str
    """The schedulerName."""
    gates: tuple[str, ...] = ()
    """Names of the scheduling gates that hold the pod back, cut."""
    message: str | None = None
    """Of the condition PodScheduled while that is False, cut; None without such a condition."""
    nodes: int = 0
    """The number of nodes in the message, 0 if the message counts none."""
    by_scheduler: Mapping[str, int] = field(default_factory=dict)
    """By reason, the nodes that kube-scheduler's own filters removed."""
    by_extender: Mapping[str, int] = field(default_factory=dict)
    """By reason, the nodes that this extender refused."""

    @property
    def left_none(self) -> bool:
        """Whether kube-scheduler's own filters removed all nodes."""
        return bool(self.by_scheduler) and sum(self.by_scheduler.values()) >= self.nodes


def scheduler_view(pod: Pod) -> SchedulerView:
    """Return the pod's scheduler, and that scheduler's last message about the pod."""
    gates = gate_names(pod.spec) if pod.spec else ()
    name = scheduler_of(pod)
    for condition in (pod.status and pod.status.conditions) or ():
        if (condition.type, condition.status) == ("PodScheduled", "False"):
            message = " ".join((condition.message or condition.reason or "").split())
            nodes, by_scheduler, by_extender = counted(message)
            return SchedulerView(name, gates, _cut(message), nodes, by_scheduler, by_extender)
    return SchedulerView(name, gates)


def _cut(message: str) -> str:
    """Return the message, or its first words and dots if it is too long."""
    if len(message) <= _MOST_TEXT:
        return message
    words = message[: _MOST_TEXT + 1].rpartition(" ")[0]
    return f"{words or message[:_MOST_TEXT]} ..."


def counted(message: str) -> tuple[int, dict[str, int], dict[str, int]]:
    """Return (nodes in kube-scheduler's message, nodes by reason of kube-scheduler's own filters,
    nodes by reason of this extender). 0 and empty if the message counts no nodes.
    """
    match = _COUNTED.fullmatch(message)
    if match is None:
        return 0, {}, {}
    counts: dict[str, int] = {}
    # Reasons contain commas, but no number after a comma.
    for part in re.split(r", (?=\d+ )", match[2]):
        count, _, text = part.partition(" ")
        if count.isascii() and count.isdigit() and text:
            counts[text] = counts.get(text, 0) + int(count[:9])
    by_extender = {
        text: count for text, count in counts.items() if text in _OURS or _NOT_FOUND.fullmatch(text)
    }
    by_scheduler = {text: n for text, n in counts.items() if text not in by_extender}
    return int(match[1][:9]), by_scheduler, by_extender
