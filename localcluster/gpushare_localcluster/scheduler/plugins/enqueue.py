"""SchedulingGates and PrioritySort: who may enter the queue, and who comes first in it."""

from gpushare_localcluster.scheduler.cluster_events import Action, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Queued, Status
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.queue import by_priority


class SchedulingGates(PlainPlugin):
    """Keeps pods with scheduling gates outside the queue."""

    name = "SchedulingGates"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that the pod's own gates must go."""
        gates_removed = Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        return (EventWithHint(Resource.TARGET_POD, gates_removed),)

    def pre_enqueue(self, pod: PodView) -> Status:
        """Return Success, or which gates are closed."""
        gates = [str(gate.get("name")) for gate in pod.spec.get("schedulingGates") or ()]
        if not gates:
            return SUCCESS
        return Status(Code.UNRESOLVABLE, (f"waiting for scheduling gates: [{' '.join(gates)}]",))


class PrioritySort(PlainPlugin):
    """Has the pod of the higher priority come first, and of equals who has waited longer."""

    name = "PrioritySort"

    def less(self, one: Queued, other: Queued) -> bool:
        """Return whether `one` comes before `other`."""
        return by_priority(one, other)
