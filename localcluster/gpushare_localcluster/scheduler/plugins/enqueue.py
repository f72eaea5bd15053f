"""SchedulingGates and PrioritySort: admission to the queue, and its order."""

from gpushare_localcluster.scheduler.cluster_events import Action, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Queued, Status
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.queue import by_priority


class SchedulingGates(PlainPlugin):
    """Keeps pods with scheduling gates outside the queue."""

    name = "SchedulingGates"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the event: the removal of the pod's own gates."""
        gates_removed = Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        return (EventWithHint(Resource.TARGET_POD, gates_removed),)

    def pre_enqueue(self, pod: PodView) -> Status:
        """Return Success, or the closed gates."""
        gates = [str(gate.get("name")) for gate in pod.spec.get("schedulingGates") or ()]
        if not gates:
            return SUCCESS
        return Status(Code.UNRESOLVABLE, (f"waiting for scheduling gates: [{' '.join(gates)}]",))


class PrioritySort(PlainPlugin):
    """Sorts by priority, the highest first, and then by waiting time."""

    name = "PrioritySort"

    def less(self, one: Queued, other: Queued) -> bool:
        """Return whether `one` comes before `other`."""
        return by_priority(one, other)
