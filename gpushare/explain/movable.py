"""Which pods may be moved: only those whose owner says so, and that come back by themselves.

Knows what pods, namespaces and PodDisruptionBudgets say; not whether there is another place. In
doubt a pod stays where it is. No I/O.

Tested in `tests/unit/cli/test_defrag.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from gpushare.core.states.entry import Entry
from gpushare.wire.annotations import strict_number
from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.demands import demands_of
from gpushare.wire.objects import Metadata, OwnedPod, OwnedPodSpec, Owner, PodsAffinity
from gpushare.wire.pods import NO_GROUP, group_of, may_wait

LABEL = "gpushare.io/movable"
"""The label of a pod, or of its namespace, by which it may be moved; the pod's own wins."""

CHECKPOINT = "gpushare.io/checkpoint-seconds"
"""The annotation that says how often a pod saves its work: no more than that is lost."""

LEAST_AGE = 600.0
"""Seconds that a pod has to have run."""

_MOST_SECONDS = 10**9
_OWNERS = ("ReplicaSet", "StatefulSet")
"""Kinds of apps/v1 that make a pod anew for which no failure counts."""


class Rule(Enum):
    """Why a pod is not moved. The value says it in a sentence about the pod."""

    CONSENT = f'no label {LABEL}: "true" on it or its namespace'
    OWNER = "no ReplicaSet or StatefulSet makes it anew"
    GROUP = "it is of a group"
    PRIORITY = "its priority is above the waiting pod's"
    ENDING = "it is being deleted"
    AGE = "it has not run for 10 minutes"
    CONSTRAINTS = "volumes, claims, host ports, spread or affinity to pods may bind it"
    NO_BUDGET = "no PodDisruptionBudget covers it"
    BUDGETS = "several PodDisruptionBudgets cover it, so it cannot be evicted"
    SPENT = "its PodDisruptionBudget allows no disruption now"
    DEVICES = "its devices are not known, or closed"
    NO_PLACE = "it fits on no other node"


class MoveRules(ABC):
    """What is known of the pods of a cluster: here, nothing."""

    @abstractmethod
    def why_not(self, entry: Entry) -> Rule | None:
        """Return why the pod may not be moved, whatever it is moved for; None if it may."""

    def lost(self, _entry: Entry) -> float | None:
        """Return the seconds of work that are lost if it is moved; None if that is not known."""
        return None

    def owner(self, _entry: Entry) -> str:
        """Return KIND/NAME of what makes it anew; "" if that is not known."""
        return ""

    def allowed(self, _entry: Entry) -> int | None:
        """Return how many disruptions its budget allows; None if that is not known."""
        return None


@dataclass(frozen=True)
class ListedRules(MoveRules):
    """The rules of a cluster that was listed."""

    pods: Mapping[str, OwnedPod]
    """By uid."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Their labels, as far as they may be read."""
    budgets: Sequence[DisruptionBudget]
    now: float
    """Seconds since the epoch."""

    def why_not(self, entry: Entry) -> Rule | None:
        """Return the first rule against it."""
        pod = self.pods.get(entry.ref.uid)
        if pod is None or not self._consents(entry.ref.namespace, pod):
            return Rule.CONSENT
        if self._owner(pod) is None:
            return Rule.OWNER
        if group_of(pod) != NO_GROUP:
            return Rule.GROUP
        if entry.terminating:
            return Rule.ENDING
        if not entry.running or not 0 < entry.started <= self.now - LEAST_AGE:
            return Rule.AGE
        if _is_bound_by_more(pod):
            return Rule.CONSTRAINTS
        match self._budgets(entry, pod):
            case []:
                return Rule.NO_BUDGET
            case [budget]:
                return None if budget.allowed > 0 else Rule.SPENT
        return Rule.BUDGETS

    def lost(self, entry: Entry) -> float:
        """Return the seconds since it started, or since its last checkpoint at worst."""
        since = max(self.now - entry.started, 0.0)
        pod = self.pods.get(entry.ref.uid)
        annotations = (pod and pod.metadata and pod.metadata.annotations) or {}
        interval = strict_number(annotations.get(CHECKPOINT, ""), _MOST_SECONDS)
        return since if interval is None else min(since, float(interval))

    def owner(self, entry: Entry) -> str:
        """Return its controller."""
        pod = self.pods.get(entry.ref.uid)
        owner = pod and self._owner(pod)
        return f"{owner.kind}/{owner.name}" if owner else ""

    def allowed(self, entry: Entry) -> int | None:
        """Return what its one budget allows."""
        pod = self.pods.get(entry.ref.uid)
        budgets = self._budgets(entry, pod) if pod else []
        return budgets[0].allowed if len(budgets) == 1 else None

    def _consents(self, namespace: str, pod: OwnedPod) -> bool:
        labels = (pod.metadata and pod.metadata.labels) or {}
        consent = labels.get(LABEL, self.namespaces.get(namespace, {}).get(LABEL))
        return consent == "true"

    def _owner(self, pod: OwnedPod) -> Owner | None:
        metadata = pod.metadata or Metadata()
        for owner in metadata.owner_references or ():
            if owner.controller and owner.kind in _OWNERS and owner.api_version == "apps/v1":
                return owner
        return None

    def _budgets(self, entry: Entry, pod: OwnedPod) -> list[DisruptionBudget]:
        labels, ref = (pod.metadata and pod.metadata.labels) or {}, entry.ref
        return [each for each in self.budgets if each.covers(ref.namespace, ref.name, labels)]


def _is_bound_by_more(pod: OwnedPod) -> bool:
    """Return whether it says more of where it may be than nodes show."""
    spec = pod.spec or OwnedPodSpec()
    affinity = spec.affinity or PodsAffinity()
    return bool(
        affinity.pod_affinity
        or affinity.pod_anti_affinity
        or spec.topology_spread_constraints
        or spec.host_network
        or any(
            port.host_port for container in spec.containers or () for port in container.ports or ()
        )
        or any(volume.host_path for volume in spec.volumes or ())
        or may_wait(pod)
        or not demands_of(pod).known
    )


@dataclass(frozen=True)
class NamedPods(MoveRules):
    """The rules where only the names of pods are known: whoever asks says which may move."""

    patterns: Sequence[str]
    """Of NAMESPACE/NAME, with `*` and `?`."""

    def why_not(self, entry: Entry) -> Rule | None:
        """Return that it consents to nothing if no pattern names it."""
        named = any(fnmatchcase(str(entry.ref), pattern) for pattern in self.patterns)
        return None if named else Rule.CONSENT
