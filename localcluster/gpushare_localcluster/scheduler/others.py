"""Objects for plug-ins besides nodes and pods: budgets, labels of namespaces, and selectors of
pods.

Informers write, plug-ins read, from any thread: each change replaces a whole entry.
"""

from collections.abc import Mapping

from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.client import Json
from gpushare_localcluster.scheduler.objects import PodView

SELECTING = {
    "Service": "/api/v1/services",
    "ReplicationController": "/api/v1/replicationcontrollers",
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "StatefulSet": "/apis/apps/v1/statefulsets",
}
"""The kinds with pods that are spread by default, and the paths of their lists."""
_CONTROLLERS = {
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
}
"""apiVersion and kind: another kind called StatefulSet does not count."""


class OtherObjects:
    """Current PodDisruptionBudgets, namespaces and the selectors of `SELECTING`."""

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._selectors: dict[tuple[str, str, str], Json] = {}

    def on_budget(self, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted budget."""
        meta = _meta(before, after)
        if after is None:
            self._budgets.pop(str(meta.get("uid")), None)
        else:
            self._budgets[str(meta.get("uid"))] = read_budget(
                str(meta.get("namespace")), after.get("spec"), after.get("status")
            )

    def on_namespace(self, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted namespace."""
        meta = _meta(before, after)
        self._namespaces[str(meta.get("name"))] = (meta.get("labels") or {}) if after else {}

    def on_selecting(self, kind: str, before: Json | None, after: Json | None) -> None:
        """Handle an added, changed or deleted Service or controller of pods."""
        meta = _meta(before, after)
        selector = ((after or {}).get("spec") or {}).get("selector")
        key = (kind, str(meta.get("namespace")), str(meta.get("name")))
        if selector:
            self._selectors[key] = selector
        else:
            self._selectors.pop(key, None)

    def budgets(self) -> tuple[DisruptionBudget, ...]:
        """Return all budgets."""
        return tuple(self._budgets.copy().values())

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace, {} for an unknown one."""
        return self._namespaces.get(namespace, {})

    def default_selector(self, pod: PodView) -> Json | None:
        """Return the selector of the pod's Services and controller, None for none
        (helper.DefaultSelector).
        """
        labels: dict[str, str] = {}
        for (kind, namespace, _), selector in self._selectors.copy().items():
            if kind == "Service" and namespace == pod.namespace:
                labels |= selector if selects({"matchLabels": selector}, pod.labels) else {}
        expressions: list[Json] = []
        for owner in (pod.raw.get("metadata") or {}).get("ownerReferences") or ():
            kind, name = str(owner.get("kind")), str(owner.get("name"))
            if not owner.get("controller") or (owner.get("apiVersion"), kind) not in _CONTROLLERS:
                continue
            # In one read: an informer may remove the entry at any time.
            selector = self._selectors.get((kind, pod.namespace, name), {})
            if kind == "ReplicationController":
                labels |= selector
                continue
            # With a Service that requires another value of the same label no pod is selected.
            for key, value in (selector.get("matchLabels") or {}).items():
                expressions.append({"key": key, "operator": "In", "values": [value]})
            expressions += selector.get("matchExpressions") or ()
        if not labels and not expressions:
            return None
        return {"matchLabels": labels, "matchExpressions": expressions}


def _meta(before: Json | None, after: Json | None) -> Json:
    return (after or before or {}).get("metadata") or {}
