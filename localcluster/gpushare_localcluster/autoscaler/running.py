"""The running autoscaler: checks the cluster at an interval, adds nodes and drains nodes.

One ConfigMap has the groups; without groups nothing happens. Another one gets the decision about
each pending pod and each node, as the status of cluster-autoscaler. A removable node is first
tainted, as by the real one, so that no pod is placed on it; later checks evict its pods, and delete
the empty node. The taint is the only state of a removal, so each check continues from the objects
alone.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, GpuShareError
from gpushare_localcluster.autoscaler.rules import (
    GOING,
    Autoscaler,
    Group,
    ScaleDown,
    is_going,
    to_evict,
)
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json, write_event
from gpushare_localcluster.informer import WorkLoop

MAPS = "/api/v1/namespaces/kube-system/configmaps"
GROUPS = "node-groups"
"""The ConfigMap with the groups: the description of each by name."""
STATUS = "cluster-autoscaler-status"
"""The ConfigMap with the status: JSON of `pods` and `nodes`, or the error in GROUPS."""

_NODES = "/api/v1/nodes"
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_COMPONENT = "cluster-autoscaler"
_TOO_MANY_REQUESTS = 429


class RunningAutoscaler:
    """Works from `start` to `stop`; closes `api` at the end.

    read_groups: from the data of the ConfigMap to groups. interval: seconds between checks.
    unneeded: seconds for which a node must be removable. report: called with a text for each
    action.
    """

    def __init__(
        self,
        api: ApiClient,
        read_groups: Callable[[Mapping[str, str]], Sequence[Group]],
        *,
        interval: float = 0.25,
        unneeded: float = 1.0,
        report: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._api = api
        self._read = read_groups
        self._every = interval
        self._unneeded = unneeded
        self._told = report
        self._since: dict[str, float] = {}
        """The time since when each removable node is removable."""
        self._loop = WorkLoop[str](_COMPONENT, [], self._look)

    def start(self) -> None:
        """Start to check."""
        self._loop.start()
        self._loop.add(_COMPONENT)

    def stop(self) -> None:
        """End the thread; the nodes stay as they are."""
        self._loop.stop()
        self._api.close()

    def _look(self, _key: str) -> float:
        try:
            groups = self._read(self._api.get(f"{MAPS}/{GROUPS}").get("data") or {})
        except ApiNotFound:
            groups = []
        except ApiError:
            raise
        except GpuShareError as error:
            self._tell_status({"error": str(error)})
            return self._every
        if not groups:
            self._since = {}
            return self._every
        nodes, pods, budgets = (
            self._api.get(path)["items"] for path in (_NODES, "/api/v1/pods", _BUDGETS)
        )
        autoscaler = Autoscaler(groups)
        up = autoscaler.scale_up(nodes, pods)
        down = autoscaler.scale_down(nodes, pods, budgets)
        for group in groups:
            grows = [pod for pod in pods if up.outcomes.get(_key_of(pod)) == f"{group.name} grows"]
            self._grow(group, up.new.get(group.name, 0), nodes, grows)
        going = [node for node in nodes if is_going(node)]
        for node in going:
            self._empty(node, pods)
        # One node at a time, and none while nodes are added.
        self._let_go(down, nodes, hold=bool(up.new or going))
        unneeded = {removal.node: "NotUnneededLongEnough" for removal in down.may_go}
        self._tell_status({"pods": up.outcomes, "nodes": {**down.stays, **unneeded}})
        return self._every

    def _grow(self, group: Group, count: int, nodes: Sequence[Json], pods: Sequence[Json]) -> None:
        used_names = {str(node["metadata"]["name"]) for node in nodes}
        candidates = (f"{group.name}-{number}" for number in range(1, len(nodes) + count + 1))
        names = [name for name in candidates if name not in used_names][:count]
        for name in names:
            self._api.create(_NODES, group.node(name))
            self._told(f"node {name} comes, for {', '.join(map(_key_of, pods))}")
        for pod in pods if names else ():
            text = f"group {group.name} grows by {count}"
            self._event(pod, "Pod", "TriggeredScaleUp", text)

    def _let_go(self, down: ScaleDown, nodes: Sequence[Json], *, hold: bool) -> None:
        """Taint a node that was removable for long enough. hold: taint none now."""
        now = time.monotonic()
        self._since = {removal.node: self._since.get(removal.node, now) for removal in down.may_go}
        for removal in () if hold else down.may_go:
            if now - self._since[removal.node] < self._unneeded:
                continue
            (node,) = (item for item in nodes if item["metadata"]["name"] == removal.node)
            taint = {"key": GOING, "value": str(int(time.time())), "effect": "NoSchedule"}
            taints = [*((node.get("spec") or {}).get("taints") or ()), taint]
            self._taint(node, taints)
            moving = ", ".join(removal.evicted) or "nobody"
            self._told(f"node {removal.node} goes, and {moving} has to leave it")
            return

    def _empty(self, node: Json, pods: Sequence[Json]) -> None:
        """Evict the remaining pods of the node, or delete the empty node."""
        name = str(node["metadata"]["name"])
        remaining = list(to_evict(name, pods))
        for pod in remaining:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                continue
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            }
            try:
                self._api.create(path, body)
            except ApiNotFound:
                continue
            except ApiError as error:
                if error.status != _TOO_MANY_REQUESTS:
                    raise
                self._taint(
                    node, [taint for taint in node["spec"]["taints"] if taint["key"] != GOING]
                )
                self._told(f"node {name} stays after all: {error}")
                return
        if not remaining:
            with suppress(ApiNotFound):
                self._api.delete(f"{_NODES}/{name}", uid=node["metadata"]["uid"])
            self._event(node, "Node", "ScaleDown", "it was not needed any more")
            self._told(f"node {name} is gone")

    def _taint(self, node: Json, taints: Sequence[Json]) -> None:
        meta = node["metadata"]
        precondition = {"resourceVersion": meta["resourceVersion"]}
        change = {"metadata": precondition, "spec": {"taints": list(taints) or None}}
        with suppress(ApiConflict, ApiNotFound):  # the next check sees the new state
            self._api.patch(f"{_NODES}/{meta['name']}", change, MERGE_PATCH)

    def _event(self, about: Json, kind: str, reason: str, text: str) -> None:
        about = {**about, "kind": kind, "apiVersion": "v1"}
        write_event(self._api, about, reason, text, kind="Normal", component=_COMPONENT)

    def _tell_status(self, status: Json) -> None:
        """Write the status if it differs."""
        data = {"status": json.dumps(status, indent=1, sort_keys=True)}
        body = {"metadata": {"name": STATUS, "namespace": "kube-system"}, "data": data}
        try:
            if self._api.get(f"{MAPS}/{STATUS}").get("data") != data:
                self._api.patch(f"{MAPS}/{STATUS}", {"data": data}, MERGE_PATCH)
        except ApiNotFound:
            self._api.create(MAPS, body)


def _key_of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
