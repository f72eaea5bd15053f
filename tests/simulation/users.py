"""Those who make, change and delete pods: users, and other schedulers.

Some users attack: they name nodes and devices in their pods, and edit annotations of
others. The actions go straight to the API server; nobody forces consistency.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import PODS, PRIORITY_CLASSES
from gpushare_localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.kubelets import Kubelets
from tests.simulation.machines import NODE_NAMES
from tests.simulation.oracle import Oracle
from tests.simulation.server import Server
from tests.simulation.truth import (
    AGES,
    ALLOCATION,
    APART,
    ASSIGNED,
    ASSUMED,
    CORES,
    COUNT,
    HONEST,
    IDX,
    POD,
    RESOURCE,
    SHARE,
    UUIDS,
    Asked,
    Json,
    PodTruth,
)

URGENT = "urgent"
PRIORITIES = {"": 0, URGENT: 1000, "system-cluster-critical": 2_000_000_000}
"""By priority class; the last one every cluster has."""

_LASTING = 0.25
"""One in so many ranked pods does not end when told to."""

_WEB = {"apiVersion": "v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
"""The owner of the pods that stay apart."""

_FORGED = ("0", "1", "0,1", "7", "-1", "2147483648", " 0", "x", "")


@dataclass(repr=False)
class Users:
    """Everybody who writes to the API server besides us and the kubelets.

    small: pods ask for little. names: those that pods may have, each one at a time. ranked: some
    are more urgent than others, and some continue when told to end. cores: pods may ask for
    compute too. shares: pods may ask for a percentage of memory.
    """

    server: Server
    oracle: Oracle
    kubelets: Kubelets
    small: bool
    names: tuple[str, ...]
    ranked: bool
    cores: bool
    shares: bool

    def rank(self) -> None:
        """Make the priority class of urgent pods."""
        body = {"metadata": {"name": URGENT}, "value": PRIORITIES[URGENT]}
        self.server.registry.create(PRIORITY_CLASSES, "", body)

    # -- pods -----------------------------------------------------------------------------------

    def alive(self) -> list[PodTruth]:
        """The pods with objects."""
        return [pod for pod in self.oracle.pods.values() if not pod.gone]

    def waiting(self) -> list[PodTruth]:
        """The pods that a scheduler asks us about."""
        return [
            pod
            for pod in self.oracle.pods.values()
            if not (pod.node or pod.ended or pod.terminating or pod.unseen)
        ]

    def create(self, chance: Chance, forge: bool = False) -> str:
        """Create a pod under a name that is free; recreation is nothing else."""
        names = {pod.name for pod in self.alive()}
        free = [name for name in self.names if name not in names]
        if not free:
            return ""
        request = Asked(0, 0, ()) if chance.once_in(12) else self._asked(chance)
        if self.cores:
            request = _with_cores(request, chance.apart())
        if self.shares:
            request = _with_share(request, chance.apart())
        annotations: dict[str, str] = {}
        node = ""
        if forge:
            annotations |= self._forgery(chance, request)
            if request.devices and chance.once_in(3):
                # Without a number of devices the pod is invalid, and holds the request on some
                # device.
                request = replace(
                    request,
                    units=request.total,
                    devices=1,
                    cores=request.all_cores,
                    share=min(request.share * request.devices, 100),
                )
                annotations[COUNT] = "x"
            node = chance.pick(("", *NODE_NAMES))
            self.kubelets.forged.add(node)
        name, cpu = chance.pick(free), chance.pick((0, 0, 100, 2000))
        rank, lasts = self._rank(chance.apart())
        pod = PodTruth("", name, request, cpu=cpu, lasts=lasts)
        if request.devices and chance.apart().getrandbits(64) % 8 == 0:
            annotations[APART] = "required"
            pod.stays_apart = True
        return self.add(pod, rank, annotations, node)

    def add(
        self,
        pod: PodTruth,
        rank: str,
        annotations: Mapping[str, str] = MappingProxyType({}),
        node: str = "",
    ) -> str:
        """Create this pod, which has no uid yet; rank: the priority class. cpu: of a container."""
        count = {COUNT: str(pod.asked.devices)} if pod.asked.devices > 1 else {}
        annotations = {**count, **annotations}
        body = pod_body(pod.name, pod.asked, annotations, pod.cpu)
        if APART in annotations:
            body["metadata"]["ownerReferences"] = [_WEB]
        body["spec"] |= {"nodeName": node} if node else {}
        body["spec"] |= {"priorityClassName": rank} if rank else {}
        body["spec"] |= {"terminationGracePeriodSeconds": AGES} if pod.lasts else {}
        record = self.server.registry.create(PODS, HONEST, body)
        pod.uid = record.body["metadata"]["uid"]
        pod.forged = IDX in annotations
        pod.cpu *= len(body["spec"]["containers"])
        pod.priority = PRIORITIES[rank]
        self.oracle.pods[pod.uid] = pod
        description = f"{pod.name} ({pod.uid}) {pod.asked} {annotations or ''} {node}"
        return (
            f"{description} {rank} {'lasts' if pod.lasts else 'ends'}"
            if self.ranked
            else description
        )

    def _rank(self, chances: Random) -> tuple[str, bool]:
        """A priority class, and whether the containers continue when told to end."""
        if not self.ranked:
            return "", False
        return chances.choice(("", "", *PRIORITIES)), chances.random() < _LASTING

    def bind(self, chance: Chance) -> str:
        """Another scheduler binds a pod, and knows nothing of devices."""
        pods = self.waiting()
        nodes = sorted(self.kubelets.cards)
        if not (pods and nodes):
            return ""
        pod, node = chance.pick(pods), chance.pick(nodes)
        body = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": {"name": node}}
        try:
            self.server.registry.bind(pod.namespace, pod.name, body)
        except StatusError:
            return ""
        return f"{pod.name} ({pod.uid}) to {node}"

    def delete(self, chance: Chance, grace: int | None) -> str:
        """Delete a pod; without grace the pod is gone at once."""
        pods = self.alive()
        if not pods:
            return ""
        pod = chance.pick(pods)
        grace = None if grace and pod.lasts else grace
        self.kubelets.delete(pod, grace)
        return f"{pod.name} ({pod.uid}) grace {grace}"

    def edit(self, chance: Chance) -> str:
        """Edit the annotations of a pod that runs, or has not been bound yet."""
        pods = [pod for pod in self.alive() if not pod.node or pod.uid in self.kubelets.running]
        if not pods:
            return ""
        pod = chance.pick(pods)
        forged = self._forgery(chance, pod.asked)
        if not pod.node and chance.once_in(3):
            # The pod is invalid from now on, though a bind may be running.
            forged = {COUNT: "x"}

        def change(body: Json) -> Json:
            annotations = body["metadata"].get("annotations", {})
            return with_metadata(body, annotations={**annotations, **forged})

        if not self.kubelets.revise(pod, change):
            return ""
        pod.forged = True
        if pod.node:
            pod.edited = pod.edited or self.server.store.version
            pod.unstamped |= ASSUMED in forged
            self.kubelets.forged.add(pod.node)
        return f"{pod.name} ({pod.uid}) {forged}"

    def resize(self, chance: Chance) -> str:
        """Resize the host request of a running pod, in place."""
        pods = [pod for pod in self.alive() if pod.node and pod.cpu]
        if not pods:
            return ""
        pod, cpu = chance.pick(pods), 100 * (1 + chance.below(30))

        def change(body: Json) -> Json:
            return {**body, "spec": _with_requests(body["spec"], cpu)}

        record = self.server.store.update(PODS.table, pod.namespace, pod.name, change)
        pod.cpu = cpu * len(record.body["spec"]["containers"])
        return f"{pod.name} ({pod.uid}) {cpu}m"

    def collect(self) -> str:
        """The garbage collector removes the pods of nodes that are gone."""
        lost = [pod for pod in self.alive() if pod.node and pod.node not in self.kubelets.cards]
        for pod in lost:
            self.kubelets.delete(pod, 0)
        return ", ".join(pod.uid for pod in lost)

    def _asked(self, chance: Chance) -> Asked:
        units = 1 + chance.below(3 if self.small else 6)
        devices = 2 if chance.once_in(5) else 1
        total = units * devices
        if chance.once_in(12):
            return Asked(units, devices, (), ((total, False),))
        if total == 1 or not chance.once_in(3):
            return Asked(units, devices, (total,))
        first = 1 + chance.below(total - 1)
        second_part = total - first
        return chance.pick(
            (
                Asked(units, devices, (first, second_part)),
                Asked(units, devices, (first, second_part)),
                Asked(units, devices, (total,), ((first, False),)),
                Asked(units, devices, (second_part,), ((total, False),)),
                Asked(units, devices, (second_part,), ((first, True),)),
                Asked(
                    units,
                    devices,
                    (second_part,),
                    ((second_part, False), (first, True), (second_part, False)),
                ),
            )
        )

    def _forgery(self, chance: Chance, request: Asked) -> dict[str, str]:
        forged = {IDX: chance.pick(_FORGED)}
        if chance.once_in(4):
            forged |= self._contradiction(chance, request)
            return forged
        if chance.below(2):
            forged[POD] = str(chance.pick((0, 1, request.total, 99)))
        if chance.below(2):
            forged[ASSIGNED] = chance.pick(("true", "false"))
        if chance.below(2):
            forged[ALLOCATION] = chance.pick(("{}", "[]", '{"0":{"0":1000}}'))
        if chance.below(2):
            forged[ASSUMED] = chance.pick(("1", "99999999999999999999", "soon"))
        return forged

    def _contradiction(self, chance: Chance, request: Asked) -> dict[str, str]:
        """Contradictory annotations: an index, and another device by a map, or a card by uuid."""
        first, second = chance.pick((("0", "1"), ("1", "0"), ("1", "2"), ("2", "0")))
        annotations = {IDX: first}
        if chance.below(2):
            grants = {
                str(number): {second: units} for number, units in enumerate(request.containers)
            }
            annotations[ALLOCATION] = json.dumps(grants)
        if chance.below(2) or ALLOCATION not in annotations:
            annotations[UUIDS] = chance.pick(
                (f"GPU-n0-{second}", f"GPU-n1-{second}", "GPU-nobody", "x,")
            )
        return annotations


def pod_body(name: str, request: Asked, annotations: Mapping[str, str], cpu: int) -> Json:
    """A pod as the owner writes it; cpu: host request of each container, see Users."""

    def container(
        name: str, units: int, sidecar: bool = False, cores: int = 0, share: int = 0
    ) -> Json:
        limits = {RESOURCE: str(units)} if units else {}
        limits |= {CORES: str(cores)} if cores else {}
        limits |= {SHARE: str(share)} if share else {}
        restarts = {"restartPolicy": "Always"} if sidecar else {}
        resources = {"limits": limits} if limits else {}
        return {"name": name, "image": "i", "resources": resources, **restarts}

    regular = enumerate(request.containers or (0,))
    # The first one that has memory asks for all the percents.
    cores, share = ({0: each * request.devices} for each in (request.cores, request.share))
    spec: Json = {
        "containers": [
            container(f"c{index}", units, cores=cores.get(index, 0), share=share.get(index, 0))
            for index, units in regular
        ],
        "initContainers": [
            container(f"i{index}", *init) for index, init in enumerate(request.inits)
        ],
    }
    metadata = {"name": name, "annotations": dict(annotations)}
    return {"metadata": metadata, "spec": _with_requests(spec, cpu)}


def _with_cores(request: Asked, chances: Random) -> Asked:
    """The same with a share of compute, or none.

    Over several devices compute goes with memory, container by container: there only a pod of one
    container asks for some.
    """
    may = (
        request.containers
        and not request.inits
        and (request.devices == 1 or len(request.containers) == 1)
    )
    return replace(request, cores=chances.choice((0, 20, 50, 100))) if may else request


def _with_share(request: Asked, chances: Random) -> Asked:
    """The same with a percentage of memory, mostly of 1 unit, or none; a pod of one container."""
    chances.random()  # the first draw decides the compute
    share = chances.choice((0, 25, 50, 75, 100))
    if len(request.containers) != 1 or request.inits or request.cores or not share:
        return request
    units = chances.choice((1, 1, request.units))
    return replace(request, units=units, containers=(units * request.devices,), share=share)


def _with_requests(spec: Json, cpu: int) -> Json:
    """The pod's spec with so much asked of the host by each container; 0: nothing."""
    requests = {"requests": {"cpu": f"{cpu}m", "memory": f"{cpu}Mi"}} if cpu else {}
    containers = [
        {**container_body, "resources": {**container_body["resources"], **requests}}
        for container_body in spec["containers"]
    ]
    return {**spec, "containers": containers}
