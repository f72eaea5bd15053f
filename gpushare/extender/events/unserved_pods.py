"""How long pods have been on their devices that no device plug-in has served.

Reads the books when it is asked. Such a pod waits for a plug-in or a kubelet that is away, or its
container was started with no device, or a wrong one: the original's plug-in answers the kubelet
with an unusable environment where it finds no pod (allocate.go). What it holds is not freed.
"""

from gpushare.core.model import Entry, NodeSpec, State
from gpushare.extender.managed_resources import ManagedResources


class UnservedPods:
    """Remembers since when each such pod has been seen. For one thread at a time."""

    def __init__(self, resources: ManagedResources) -> None:
        self._resources = resources
        self._since: dict[tuple[str, str], float] = {}

    def longest_seconds(self, now: float) -> float:
        """Return for how many seconds calls have found the pod that has waited longest; 0 where
        there is none.

        now: any clock's, the same at each call.
        """
        since: dict[tuple[str, str], float] = {}
        for managed in self._resources:
            entries, specs = managed.ledger.held()
            for uid, entry in entries.items():
                if _is_unserved(entry, specs.get(entry.node)):
                    key = managed.names.resource, uid
                    since[key] = self._since.get(key, now)
        self._since = since
        return now - min(since.values(), default=now)


def _is_unserved(entry: Entry, node: NodeSpec | None) -> bool:
    waits = entry.state is State.BOUND and not entry.assigned and not entry.terminating
    return waits and entry.cover.written is not None and node is not None and node.marks_served
