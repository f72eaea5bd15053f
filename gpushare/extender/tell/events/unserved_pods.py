"""How long pods have been bound without being served by a device plug-in.

Reads the ledger when it is called. Such a pod waits for a plug-in or a kubelet that is away, or its
container was started with no device, or a wrong one: if the original's plug-in finds no pod, it
answers the kubelet with an unusable environment (allocate.go). What the pod holds is not freed.
"""

from gpushare.core.model import NodeSpec
from gpushare.core.states.entry import Entry, Phase
from gpushare.extender.managed_resources import ManagedResources


class UnservedPods:
    """The time at which each such pod was first seen. For one thread at a time."""

    def __init__(self, resources: ManagedResources) -> None:
        self._resources = resources
        self._since: dict[tuple[str, str], float] = {}

    def longest_seconds(self, now: float) -> float:
        """Return the seconds since the pod that waits longest was first seen unserved; 0 if none.

        now: by any clock, the same one at each call.
        """
        since: dict[tuple[str, str], float] = {}
        for managed in self._resources:
            entries, specs = managed.ledger.entries_and_specs()
            for uid, entry in entries.items():
                if _is_unserved(entry, specs.get(entry.node)):
                    key = managed.names.resource, uid
                    since[key] = self._since.get(key, now)
        self._since = since
        return now - min(since.values(), default=now)


def _is_unserved(entry: Entry, node: NodeSpec | None) -> bool:
    waits = entry.phase is Phase.BOUND and not entry.assigned and not entry.terminating
    return waits and entry.cover.written is not None and node is not None and node.marks_served
