"""A cluster with one real node: kube-scheduler, our extender, a kubelet.

Runs and deletes pods; given.py checks the devices of containers.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpushare.device_plugin.cards import uuid_of
from tests.contract.apiserver.client import Json
from tests.e2e.given import Given, container_of, given, limit, uuids_of, written_for
from tests.e2e.node import Node
from tests.e2e.objects import CORES, MEM, PODS, fresh
from tests.e2e.plugins import Plugin
from tests.e2e.processes import until
from tests.e2e.world import World

_AT_ONCE = 8
_DONE = ("Running", "Succeeded", "Failed")
_SETTLED = 120.0


class Cluster:
    """A world with a node and a device plug-in; `pods` has the last state of every pod."""

    def __init__(self, world: World, node: Node, plugin: Plugin, pairing: str) -> None:
        self.world, self.node, self.plugin = world, node, plugin
        self.pairing = pairing
        self.pods: dict[str, Json] = {}

    def start(self) -> None:
        """Return when pods can come."""
        self._start_node()
        self.world.start()
        self.world.extender.knows(self.node.name)

    def stop(self) -> None:
        """End the processes of the node, not the world."""
        self.plugin.kill()
        self.node.stop()

    def _start_node(self) -> None:
        self.node.start()
        self.plugin.start()

    def burst(self, bodies: Sequence[Json]) -> None:
        """Make the pods, all at once as far as one client can."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            created = list(pool.map(lambda body: self.world.api.create(PODS, body).body, bodies))
        self.pods.update({pod["metadata"]["uid"]: pod for pod in created})

    def burst_unseen(self, bodies: Sequence[Json]) -> None:
        """Create the pods while the kubelet is away; start the kubelet after the last binding."""
        self.node.kill_kubelet()
        self.burst(bodies)
        until(lambda: not self._unbound(), self.told, _SETTLED)
        self.node.start_kubelet()

    def settled(self) -> None:
        """Return once each pod runs, has ended or was refused by the kubelet."""
        until(lambda: not self._waiting(), lambda: f"{self._waiting()}\n{self.told()}", _SETTLED)

    def clear(self) -> None:
        """Delete all pods, as a user does: the kubelet stops the pods first."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(
                pool.map(
                    lambda pod: self.world.api.delete(self.world.objects.path(pod)), self._now()
                )
            )
        until(lambda: not self._now(), lambda: f"pods remain\n{self.told()}", _SETTLED)

    def restart(self, part: str) -> None:
        """Kill a part and start it again with its files; return when the part is ready."""
        world, node = self.world, self.node
        kill, start = {
            "extender": (world.extender.kill, world.extender.start),
            "API server": (world.plane.kill_apiserver, world.plane.start_apiserver),
            "device plug-in": (self.plugin.kill, self.plugin.start),
            "kubelet": (node.kill_kubelet, node.start_kubelet),
            "node": (self.stop, self._start_node),
        }[part]
        kill()
        start()

    def kill(self, uids: Iterable[str]) -> None:
        """Delete pods at once, as `kubectl delete --force` does: nobody waits for the kubelet."""
        self.world.objects.delete(*(self.pods[uid] for uid in uids))

    def name_of(self, uid: str) -> str:
        return str(self.pods[uid]["metadata"]["name"])

    def unmarked(self) -> list[str]:
        """The pods that run and that no device plug-in has marked served."""
        mark = "ALIYUN_COM_GPU_MEM_ASSIGNED"
        running = self.running()
        served = {
            uid for uid in running if self.pods[uid]["metadata"]["annotations"][mark] == "true"
        }
        return [self.name_of(uid) for uid in sorted(running - served)]

    def running(self) -> set[str]:
        """The uids of the pods that run."""
        return {
            pod["metadata"]["uid"] for pod in self._now() if pod["status"].get("phase") == "Running"
        }

    def refused(self) -> list[str]:
        """Which pods the kubelet did not admit, and why."""
        failed = [pod for pod in self.pods.values() if pod["status"].get("phase") == "Failed"]
        return [
            f"{pod['metadata']['name']}: {status.get('reason')}: {status.get('message')}"
            for pod in failed
            for status in [pod["status"]]
        ]

    def given(self) -> Given:
        """The check of the devices of all containers so far."""
        self._now()
        return given(self.pods.values(), self.node.created())

    def misplaced(self) -> list[str]:
        """The containers with wrong or missing units by the kubelet's books.

        For plug-ins with ids that begin with the device's uuid.
        """
        result = []
        for uid, name, ids in self.node.held():
            pod = self.pods[uid]
            indices = {int(uuids_of(pod).get(uuid_of(item), -1)) for item in ids}
            request = limit(container_of(pod, name))
            if indices != set(written_for(pod, name)) or len(ids) != request:
                result.append(f"{self.name_of(uid)}/{name}: {ids}")
        return result

    def told(self) -> str:
        """The state for the message of a failed wait."""
        return "\n".join((self.world.told(), self.node.told(), self.plugin.told()))

    def _now(self) -> list[Json]:
        result = self.world.objects.pods()
        self.pods.update({pod["metadata"]["uid"]: pod for pod in result})
        return result

    def _unbound(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._now() if not pod["spec"].get("nodeName")]

    def _waiting(self) -> list[str]:
        return [
            f"{pod['metadata']['name']} {pod['status'].get('phase')}"
            for pod in self._now()
            if pod["status"].get("phase") not in _DONE
        ]


def pod(
    *units: int,
    name: str = "",
    init: Iterable[int] = (),
    sidecars: Iterable[int] = (),
    devices: int = 1,
    cores: int = 0,
) -> Json:
    """A pod with a container for each number of units; 0 asks for none.

    init: units of init containers, which end at once; sidecars: of those that go on. cores: percent
    of compute of each of the others, 0 for none.
    """
    annotations = {"aliyun.com/gpu-count": str(devices)} if devices > 1 else {}
    before = [
        *(
            {"name": f"init-{n}", **_container(item, command=["true"])}
            for n, item in enumerate(init)
        ),
        *(
            {"name": f"sidecar-{n}", **_container(item, restartPolicy="Always")}
            for n, item in enumerate(sidecars)
        ),
    ]
    return {
        "metadata": {"name": name or fresh("pod"), "annotations": annotations},
        "spec": {
            "initContainers": before,
            "containers": [
                {"name": f"main-{n}", **_container(item, cores)} for n, item in enumerate(units)
            ],
            "terminationGracePeriodSeconds": 1,
        },
    }


def _container(units: int, cores: int = 0, **more: object) -> Json:
    limits = {MEM: str(units)} if units else {}
    limits |= {CORES: str(cores)} if cores else {}
    return {"image": "x", "resources": {"limits": limits}, **more}
