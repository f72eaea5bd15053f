"""What the allocator has answered so far.

Pure. Tested in `tests/unit/device_plugin/test_allocator.py`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gpushare.device_plugin.checkpoint import CheckpointEntry
from gpushare.device_plugin.identity import Candidate, Decided

Container = tuple[str, str]
"""A pod's uid and a container's name."""

_MOST_UNSHOWN = 512
"""More than the containers of a node."""


@dataclass(slots=True)
class AllocationState:
    """The answers so far.

    pending: preferred ids for which Allocate has not come. served: the ids of containers.
    doubtful: containers that count as served although an unknown pod may have been meant.
    refused: uids of pods. unshown: the latest ids whose pod was not certain; they stay until they
    are given to a pod that is.
    """

    pending: dict[frozenset[str], Decided] = field(default_factory=dict)
    served: dict[Container, frozenset[str]] = field(default_factory=dict)
    doubtful: set[Container] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unshown: dict[frozenset[str], None] = field(default_factory=dict)

    def note(self, ids: frozenset[str], decided: Decided) -> None:
        """Remember which container was served with these ids, if it is only one."""
        self.unshown.pop(ids, None)
        if not decided.shown:
            self.unshown[ids] = None
            if len(self.unshown) > _MOST_UNSHOWN:
                del self.unshown[next(iter(self.unshown))]
        for owner in decided.owners if len(decided.owners) == 1 else ():
            container = (owner.pod.ref.uid, owner.container.name)
            self.served[container] = ids
            (self.doubtful.discard if decided.shown else self.doubtful.add)(container)

    def learn(self, entries: Iterable[CheckpointEntry]) -> None:
        """Add the kubelet's record: it shows who got answers whose owner was not certain."""
        for entry in entries:
            container = (entry.uid, entry.container)
            if self.served.setdefault(container, entry.ids) == entry.ids:
                self.doubtful.discard(container)

    def settle(self, doubtful: Collection[Container], entries: Iterable[CheckpointEntry]) -> None:
        """Replace what is known of these containers by the kubelet's record.

        The kubelet writes its record before it asks again, so all answers until then are in it.
        """
        for container in doubtful:
            self.served.pop(container, None)
            self.doubtful.discard(container)
        self.learn(entries)

    def in_use(self, owners: Sequence[Candidate]) -> set[str]:
        """Return the ids that other pods have, or are about to have."""
        own = {owner.pod.ref.uid for owner in owners}
        held = [ids for (uid, _), ids in self.served.items() if uid not in own]
        for ids, decided in self.pending.items():
            if not any(owner.pod.ref.uid in own for owner in decided.owners):
                held.append(ids)
        return set().union(*held)

    def forget(self, alive: Collection[str]) -> None:
        """Drop what is known of pods that are not among these uids."""
        self.served = {key: ids for key, ids in self.served.items() if key[0] in alive}
        self.doubtful &= self.served.keys()
        self.refused &= set(alive)
