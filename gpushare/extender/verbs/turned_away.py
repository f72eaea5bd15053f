"""The pods that filter has refused while places were held for others, and the holds that ended.

When a hold ends by time alone nothing happens in the cluster, so kube-scheduler does not ask about
such a pod again for minutes. Here is what wake.py needs to have it asked about again.

Tested in `tests/unit/extender/verbs/test_turned_away.py`.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpushare.extender.verbs.claimant import Claimant

_MOST_PODS = 20_000
"""Pods that are kept, the latest ones; more than that wait for kube-scheduler's own time."""


class Ended(NamedTuple):
    """What has come of holds since it was last asked for.

    pods: those turned away, by uid. groups: by node, the keys of the groups whose holds ended
    there; "" is a pod of no group.
    """

    pods: Mapping[str, Claimant]
    groups: Mapping[str, Collection[str]]

    def nodes(self, pod: Claimant) -> list[str]:
        """Return the nodes where a hold has ended that is not of the pod's own group.

        What ends within its group is the group's own next try, and nobody has to be told of it.
        """
        own = {pod.group.key} - {""}
        return [node for node, keys in self.groups.items() if set(keys) - own]


class TurnedAway:
    """The pods turned away, and since then the nodes where holds ended. For one thread at a time.

    While there is no such pod nothing is kept.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Claimant] = {}
        self._groups: dict[str, set[str]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def put(self, pod: Claimant) -> None:
        """Take in a pod that filter refuses."""
        self._pods.pop(pod.ref.uid, None)
        self._pods[pod.ref.uid] = pod
        if len(self._pods) > _MOST_PODS:
            del self._pods[next(iter(self._pods))]

    def remove(self, uid: str) -> None:
        """Forget a pod: it is asked about again, has been told, or waits no longer."""
        self._pods.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid in uids}

    def ended(self, node: str, group: str = "") -> None:
        """Note that a hold on the node has ended, or counts no more against others."""
        if self._pods:
            self._groups.setdefault(node, set()).add(group)

    def take(self) -> Ended:
        """Return what has come, and begin anew; the pods stay."""
        groups, self._groups = self._groups, {}
        return Ended(dict(self._pods) if groups else {}, groups)
