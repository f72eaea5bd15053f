"""What plug-ins ask of the cluster besides nodes and pods: budgets, and the labels of namespaces.

Two informers write, plug-ins read, from any thread: each change puts a whole entry in place.
"""

from collections.abc import Mapping

from gpushare.localcluster.client import Json
from gpushare.wire.budgets import DisruptionBudget, read_budget


class OtherObjects:
    """PodDisruptionBudgets and namespaces, as they are now."""

    def __init__(self) -> None:
        self._budgets: dict[str, DisruptionBudget] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}

    def on_budget(self, before: Json | None, after: Json | None) -> None:
        """Take in a budget that appeared, changed or vanished."""
        meta: Json = (after or before or {}).get("metadata") or {}
        if after is None:
            self._budgets.pop(str(meta.get("uid")), None)
        else:
            self._budgets[str(meta.get("uid"))] = read_budget(
                str(meta.get("namespace")), after.get("spec"), after.get("status")
            )

    def on_namespace(self, before: Json | None, after: Json | None) -> None:
        """Take in a namespace that appeared, changed or vanished."""
        meta: Json = (after or before or {}).get("metadata") or {}
        self._namespaces[str(meta.get("name"))] = (meta.get("labels") or {}) if after else {}

    def budgets(self) -> tuple[DisruptionBudget, ...]:
        """Return all budgets."""
        return tuple(self._budgets.copy().values())

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; none where it is unknown."""
        return self._namespaces.get(namespace, {})
