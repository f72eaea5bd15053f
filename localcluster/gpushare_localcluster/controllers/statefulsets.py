"""StatefulSets: numbered pods, created and replaced in order.

Facts: k8s.io/kubernetes pkg/controller/statefulset. There are no volume claims, no history of
templates and no partitions.
"""

from dataclasses import dataclass

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    active,
    counted,
    deleting,
    hashed,
    name,
    phase,
    wait_until_available,
)

_REVISION = "controller-revision-hash"
"""Label of a pod: the name of the template of the pod."""
_INDEX = "apps.kubernetes.io/pod-index"
_POD_NAME = "statefulset.kubernetes.io/pod-name"


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Bring a StatefulSet one step further; return the seconds until the next step."""
    spec = owner["spec"]
    update = f"{name(owner)}-{hashed(spec['template'])}"
    current = (owner.get("status") or {}).get("currentRevision") or update
    owned_pods = cluster.claimed(owner, "Pod", lambda pod: _number(owner, pod) >= 0)
    pods = {_number(owner, pod): pod for pod in owned_pods}
    numbers = _Numbers(cluster, owner, pods, update)
    later = numbers.step()
    alive = [pod for number, pod in pods.items() if number in numbers.wanted and active(pod)]
    is_ready, available, wait = counted(alive, owner)
    updated_count = sum(_revision(pod) == update for pod in alive)
    if updated_count == is_ready == len(alive) == spec["replicas"]:
        current = update
    cluster.set_status(
        owner,
        {
            "replicas": len(alive),
            "readyReplicas": is_ready,
            "availableReplicas": available,
            "currentReplicas": sum(_revision(pod) == current for pod in alive),
            "updatedReplicas": updated_count,
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        },
    )
    return later or wait


@dataclass(frozen=True)
class _Numbers:
    """The pods of one StatefulSet by number, and the next step."""

    cluster: Cluster
    owner: Json
    pods: dict[int, Json]
    update: str
    """The name of the template as it is now."""

    @property
    def wanted(self) -> range:
        """The numbers of the replicas."""
        first = (self.owner["spec"].get("ordinals") or {}).get("start", 0)
        return range(first, first + self.owner["spec"]["replicas"])

    @property
    def _ordered(self) -> bool:
        return bool(self.owner["spec"]["podManagementPolicy"] == "OrderedReady")

    def step(self) -> float | None:
        """Create missing pods; once they are available, delete surplus and outdated pods."""
        for number in self.wanted:
            pod = self.pods.get(number)
            if pod is None and not self._create(number):
                return RETRY
            if pod is not None and phase(pod) in ("Succeeded", "Failed"):
                self.cluster.delete_pod(self.owner, pod)
            waits = pod is None or wait_until_available(pod, self.owner) > 0 or deleting(pod)
            if self._ordered and waits:
                return None
        if not self._remove_surplus():
            self._replace_outdated()
        return None

    def _create(self, number: int) -> bool:
        title = f"{name(self.owner)}-{number}"
        labels = {_REVISION: self.update, _POD_NAME: title, _INDEX: str(number)}
        template: Json = self.owner["spec"]["template"]
        service = self.owner["spec"].get("serviceName")
        spec = {
            **template["spec"],
            "hostname": title,
            **({"subdomain": service} if service else {}),
        }
        pod_template = {**template, "spec": spec}
        return self.cluster.create_pod(self.owner, pod_template, name=title, labels=labels)

    def _remove_surplus(self) -> bool:
        """Delete pods beyond the replicas, the highest first; return whether surplus pods exist."""
        surplus = sorted((n for n in self.pods if n not in self.wanted), reverse=True)
        for number in surplus[:1] if self._ordered else surplus:
            if not deleting(self.pods[number]):
                self.cluster.delete_pod(self.owner, self.pods[number])
        return bool(surplus)

    def _replace_outdated(self) -> None:
        """Delete the highest outdated pod, once all higher pods are available."""
        if self.owner["spec"]["updateStrategy"]["type"] != "RollingUpdate":
            return
        for number in reversed(self.wanted):
            pod = self.pods.get(number)
            if pod is None or deleting(pod):
                return
            if _revision(pod) != self.update:
                self.cluster.delete_pod(self.owner, pod)
                return
            if wait_until_available(pod, self.owner) > 0:
                return


def _revision(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(_REVISION, ""))


def _number(owner: Json, pod: Json) -> int:
    """Return the number in the pod's name, -1 for another form of name."""
    head, _, end = name(pod).rpartition("-")
    return int(end) if head == name(owner) and end.isdecimal() else -1
