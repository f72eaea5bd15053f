"""Topology spread constraints: from pods and plug-in arguments, and the pods that count."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.core.selectors import untolerated
from gpushare.errors import SettingsError
from gpushare.wire.fields import fields_of, number, text
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.objects import Json, PodView
from gpushare_localcluster.scheduler.plugins.node_affinity import required_affinity

HOSTNAME = "kubernetes.io/hostname"
SYSTEM_DEFAULTS = (
    {"topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 3},
    {
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "maxSkew": 5,
    },
)
"""The constraints of kube-scheduler for pods without constraints."""


@dataclass(frozen=True)
class Constraint:
    """One constraint of a pod. selector: a LabelSelector, with matchLabelKeys included."""

    max_skew: int
    key: str
    selector: Json | None
    min_domains: int
    honor_affinity: bool
    honor_taints: bool

    def counts(self, pod: PodView, node: NodeInfo) -> bool:
        """Return whether the node's pods count; by default on nodes that the pod selects."""
        if self.honor_affinity and not required_affinity(pod, node.node):
            return False
        return not (self.honor_taints and untolerated(node.node.taints, pod.tolerations))

    def matching(self, pod: PodView, node: NodeInfo) -> int:
        """Return how many pods on the node match the selector."""
        if not self.selector:  # an empty selector counts no pod
            return 0
        return sum(
            node_pod.namespace == pod.namespace
            and not node_pod.deleting
            and selects(self.selector, node_pod.labels)
            for node_pod in node.pods.values()
        )


def check_defaults(constraints: Sequence[object]) -> list[Json]:
    """Return valid default constraints. Raises SettingsError."""
    checked: list[Json] = []
    for index, item in enumerate(constraints):
        path = f"defaultConstraints[{index}]"
        entry = fields_of(item, path)
        if number(entry, "maxSkew", path) <= 0 or not text(entry, "topologyKey", path):
            raise SettingsError(f"{path}: needs a maxSkew above 0, and a topologyKey")
        if entry.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
            raise SettingsError(f"{path}.whenUnsatisfiable: DoNotSchedule or ScheduleAnyway")
        if entry.get("labelSelector") is not None:
            raise SettingsError(f"{path}.labelSelector: must not be; it is found for each pod")
        checked.append(dict(entry))
    return checked


def constraints_of(
    pod: PodView, constraints: Sequence[Json], action: str
) -> tuple[Constraint, ...]:
    """Return the constraints of one whenUnsatisfiable."""
    return tuple(
        Constraint(
            max_skew=int(item.get("maxSkew") or 1),
            key=str(item.get("topologyKey") or ""),
            selector=_selector(pod, item),
            min_domains=int(item.get("minDomains") or 1),
            honor_affinity=item.get("nodeAffinityPolicy", "Honor") == "Honor",
            honor_taints=item.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )
        for item in constraints
        if item.get("whenUnsatisfiable") == action
    )


def _selector(pod: PodView, item: Json) -> Json | None:
    """Return the label selector with the pod's own values of the keys in matchLabelKeys."""
    selector: Json | None = item.get("labelSelector")
    keys = [key for key in item.get("matchLabelKeys") or () if key in pod.labels]
    if selector is None or not keys:
        return selector
    more = [{"key": key, "operator": "In", "values": [pod.labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *more]}
