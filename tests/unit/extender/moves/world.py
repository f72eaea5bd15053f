"""A small cluster with moves of pods, step by step, and an oracle that looks at each eviction.

Filter, the holds, the books and the plan are the real ones. The API server, the controllers, the
scheduler and the kubelets are played.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiTooLarge
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.moves.mover import Mover
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.verbs.filter import FilterVerb
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.extender import NameLists
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import MoveRecord, record_of
from tests.unit.extender.kit import managed_resources, node_json, pod_json, read_node, read_pod

EPOCH = 1_800_000_000.0
AFTER = 60.0
MOVABLE = "gpushare.io/movable"
SIZE = 16
Json = dict[str, Any]


def stamp(wall: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))


def node_of_two(name: str) -> Json:
    """A node of two devices."""
    node = node_json(name, SIZE * 2, 2)
    node["status"]["allocatable"]["pods"] = "110"
    node["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    return node


class MoverReplica:
    """An extender: its books, which the watch has filled, its filter and its mover.

    why_not: why it does not lead. events: the reasons of its events.
    """

    def __init__(self, world: "World") -> None:
        self.why_not = ""
        self.events: list[str] = []
        self.resources = managed_resources()
        self.watch = PodEventHandler(self.resources, clock=lambda: world.now)
        self.nodes = NodeEventHandler(self.resources, "GiB")
        self.filter = FilterVerb(
            self.resources,
            Tickets(),
            not_ready=str,
            bind_slots=BindSlots(8),
            lists=NameLists(),
            clock=lambda: world.now,
        )
        for name in world.nodes:
            self.nodes.apply(WatchEvent("ADDED", object=read_node(node_of_two(name))))
        for pod in world.pods.values():
            self.watch.apply(WatchEvent("MODIFIED", object=read_pod(pod)))
        self.mover = Mover(
            world,
            self.resources,
            EventMessages(self, self.resources, "GiB"),
            budget=world.budget,
            after=AFTER,
            namespace="kube-system",
            not_ready=lambda: self.why_not,
            clock=lambda: world.now,
            wall=lambda: EPOCH + world.now,
        )

    def record(self, regarding: Any, reason: str, action: str, note: str, **_: Any) -> None:
        """Take an event."""
        del regarding, action, note
        self.events.append(reason)


class World:
    """Two nodes of two devices: movable pods on one, room in pieces on the other.

    replicas: the extenders; the scheduler asks the last leader. faults: the fate of an eviction
    in its place, one a call: (error, whether it is carried out). slow: ticks that a pod takes to
    end. detour: a node where heirs go whatever filter says. makes_anew: whether controllers are at
    work.
    """

    def __init__(self, moves: int = 2, budget: int = 10, allowed: int = 9) -> None:
        self.now = 10_000.0
        self.budget, self.allowed = budget, allowed
        self.pods: dict[str, Json] = {}
        self.maps: dict[str, Json] = {}
        self.faults: list[tuple[ApiError, bool] | None] = []
        self.largest_page = 500
        self.evictions: list[tuple[float, str]] = []
        self.evicted: dict[str, float] = {}
        self.slow, self.detour = 0, ""
        self.makes_anew = True
        self.versions, self.names = 1, 0
        self.nodes = ["a", "b"]
        self.start()
        for device in range(moves):
            self.runs(f"mover-{device}", 6, "a", device, owner=f"set-{device}")
        for device in range(2):
            self.runs(f"stays-{device}", 8, "b", device)
        if moves == 1:
            self.runs("other", 15, "a", 1)
        self.late = self.waits("late", SIZE * moves, devices=moves)

    def start(self) -> None:
        """Another process in the place of those that run."""
        self.replicas: list[MoverReplica] = []
        self.join()

    def join(self) -> None:
        """Another process beside those that run."""
        self.replicas.append(MoverReplica(self))

    @property
    def managed(self) -> ManagedResource:
        (resources,) = self.replicas[-1].resources
        return resources

    @property
    def mover(self) -> Mover:
        return self.replicas[-1].mover

    def heard(self, reason: str) -> int:
        """Count the events of that reason."""
        return sum(event == reason for event in self.replicas[-1].events)

    def shown(self, kind: str, pod: Json) -> None:
        """The watch tells each process of a pod."""
        for replica in self.replicas:
            replica.watch.apply(WatchEvent(kind, object=read_pod(pod)))

    # -- pods -----------------------------------------------------------------------------------

    def put(self, pod: Json) -> Json:
        self.versions += 1
        pod["metadata"]["resourceVersion"] = str(self.versions)
        self.pods[pod["metadata"]["uid"]] = pod
        self.shown("MODIFIED", pod)
        return pod

    def made(self, name: str, units: int, devices: int, owner: str) -> Json:
        self.names += 1
        pod = pod_json(name, units, uid=f"{name}-{self.names}")
        labels = {ALIYUN.count: str(devices)} | ({MOVABLE: "true"} if owner else {})
        pod["metadata"] |= {"labels": labels, "creationTimestamp": stamp(EPOCH + self.now)}
        if owner:
            whose = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner}
            pod["metadata"]["ownerReferences"] = [whose | {"controller": True}]
        return pod

    def runs(self, name: str, units: int, node: str, device: int, *, owner: str = "") -> Json:
        pod = self.made(name, units, 1, owner)
        return self._bind(pod, node, [device], EPOCH + self.now - 7200)

    def waits(self, name: str, units: int, devices: int = 1, owner: str = "") -> Json:
        pod = self.made(name, units, devices, owner)
        # kube-scheduler has found that the pod fits nowhere, and calls no extender for it now.
        result = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [result]
        return self.put(pod)

    def gone(self, uid: str) -> None:
        self.shown("DELETED", self.pods.pop(uid))

    def node_of(self, pod: Json) -> str:
        return str(pod["spec"].get("nodeName") or "")

    def _bind(self, pod: Json, node: str, devices: list[int], started: float) -> Json:
        units = int(pod["spec"]["containers"][0]["resources"]["limits"][ALIYUN.resource])
        item = units // len(devices)
        notes = {ALIYUN.pod: str(units), ALIYUN.idx: ",".join(map(str, devices))}
        if len(devices) > 1:
            notes[ALIYUN.allocation] = json.dumps({str(device): item for device in devices})
        pod["metadata"]["annotations"] = notes
        pod["spec"]["nodeName"] = node
        pod["status"] |= {"phase": "Running", "startTime": stamp(started)}
        return self.put(pod)

    def used(self) -> Counter[tuple[str, int]]:
        """Units by device, as the pods say."""
        counter: Counter[tuple[str, int]] = Counter()
        for pod in self.pods.values():
            if self.node_of(pod):
                units = int(pod["spec"]["containers"][0]["resources"]["limits"][ALIYUN.resource])
                devices = pod["metadata"]["annotations"][ALIYUN.idx].split(",")
                for device in devices:
                    counter[self.node_of(pod), int(device)] += units // len(devices)
        return counter

    # -- the cluster at work ----------------------------------------------------------------------

    def tick(self, seconds: float = 1.0) -> None:
        """Pods end, controllers make others, the scheduler asks filter, and rounds are made."""
        self.now += seconds
        for replica in [*self.replicas]:
            replica.mover.round()
        self._check_record()
        for uid, pod in list(self.pods.items()):
            ends = pod.get("ends")
            if ends is not None and self.now >= ends:
                self.gone(uid)
                if not self.makes_anew:
                    continue
                owner = pod["metadata"]["ownerReferences"][0]["name"]
                limits = pod["spec"]["containers"][0]["resources"]["limits"]
                name = f"{owner}-{self.names}"
                self.waits(name, int(limits[ALIYUN.resource]), 1, owner)
        for pod in self.waiting():
            self._schedule(pod)
        assert all(units <= SIZE for units in self.used().values())

    def _schedule(self, pod: Json) -> None:
        body = json.dumps({"Pod": pod, "NodeNames": self.nodes}).encode()
        leading = [replica for replica in self.replicas if not replica.why_not] or self.replicas
        names = json.loads(leading[-1].filter.answer(body).body)["NodeNames"] or []
        if self.detour and pod["metadata"].get("ownerReferences"):
            names = [name for name in names if name == self.detour] or [self.detour]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        count = int(pod["metadata"]["labels"].get(ALIYUN.count, "1"))
        item = int(limits[ALIYUN.resource]) // count
        for name in names:
            free = {device: SIZE - self.used()[name, device] for device in range(2)}
            fitting = sorted((entry, at) for at, entry in free.items() if entry >= item)
            if len(fitting) >= count:
                devices = [at for _, at in fitting[:count]]
                self._bind(pod, name, devices, EPOCH + self.now)
                self.managed.holds.end_after_bind(pod["metadata"]["uid"])
                return

    def until(self, condition: Callable[[], bool], most: int = 400) -> None:
        """Go on until the condition holds; fail where it does not in time."""
        for _ in range(most):
            if condition():
                return
            self.tick()
        raise AssertionError(f"not after {most} ticks: {self.evictions}, {self.stops()}")

    def until_idle(self, maximum: int = 400) -> None:
        """Go on until no plan is under way and nothing happens any more."""
        for _ in range(maximum):
            self.tick()

    # -- the API server ---------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        **_: object,
    ) -> bytes:
        if path.startswith("/api/v1/namespaces/kube-system/configmaps"):
            return self._map(method, json.loads(body or b"{}"))
        if path.endswith("/eviction"):
            return self._evict(path.split("/")[-2], json.loads(body or b""))
        parts = path.split("/")
        if query and int(query["limit"]) > self.largest_page:
            raise ApiTooLarge("more than are read at once", 200)
        if path == "/api/v1/namespaces":
            return self.listed("Namespace", [{"metadata": {"name": "team"}}])
        if path == "/apis/policy/v1/poddisruptionbudgets":
            status = {"disruptionsAllowed": self.allowed}
            meta = {"name": "b", "namespace": "team"}
            return self.listed(
                "PodDisruptionBudget",
                [{"metadata": meta, "spec": {"selector": {}}, "status": status}],
            )
        if parts[-1] == "pods":
            label = (query or {}).get("labelSelector", "")
            pods = [
                pod
                for pod in self.pods.values()
                if not label or pod["metadata"]["labels"].get(label.partition("=")[0]) == "true"
            ]
            return self.listed("Pod", pods)
        for pod in self.pods.values():
            if pod["metadata"]["name"] == parts[-1]:
                return json.dumps(pod).encode()
        raise ApiNotFound("no such pod", 404)

    def listed(self, kind: str, items: list[Json]) -> bytes:
        document = {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
        return json.dumps(document).encode()

    def _map(self, method: str, document: Json) -> bytes:
        present = self.maps.get(MOVES)
        if method == "GET" and present is None:
            raise ApiNotFound("no such map", 404)
        if method != "GET":
            output = document["metadata"].get("resourceVersion")
            if output != (present and present["metadata"]["resourceVersion"]):
                raise ApiConflict("not as it was read", 409)
            self.versions += 1
            document["metadata"]["resourceVersion"] = str(self.versions)
            self.maps[MOVES] = present = document
        return json.dumps(present).encode()

    def _evict(self, name: str, document: Json) -> bytes:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not fault[1]:
            raise fault[0]
        pod = next((p for p in self.pods.values() if p["metadata"]["name"] == name), None)
        if pod is None:
            raise ApiNotFound("no such pod", 404)
        expected = document["deleteOptions"]["preconditions"]
        if expected != {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}:
            raise ApiConflict("another one", 409)
        self._judge(pod)
        pod["metadata"]["deletionTimestamp"] = stamp(EPOCH + self.now)
        pod["ends"] = self.now + self.slow
        self.put(pod)
        if fault is not None:
            raise fault[0]
        return b"{}"

    def _judge(self, pod: Json) -> None:
        """The rules for each eviction."""
        assert pod["metadata"]["labels"].get(MOVABLE) == "true", pod
        self.evictions.append((self.now, pod["metadata"]["name"]))
        assert pod["metadata"]["uid"] not in self.evicted, "nobody is evicted twice"
        self.evicted[pod["metadata"]["uid"]] = self.now
        last_hour = [at for at, _ in self.evictions if at > self.now - 3600]
        assert len(last_hour) <= self.budget
        under_way = [pod for pod in self.pods.values() if "deletionTimestamp" in pod["metadata"]]
        assert not under_way, "one eviction at a time"

    def _check_record(self) -> None:
        """Each eviction of the hour is written down, were this process to end now."""
        document = self.maps.get(MOVES, {"data": {"moves": "[]"}})
        writes = {move["uid"] for move in json.loads(document["data"]["moves"])}
        of_the_hour = {uid for uid, at in self.evicted.items() if at > self.now - 3600}
        assert of_the_hour <= writes, "an eviction is forgotten"

    # -- said of the end --------------------------------------------------------------------------

    def is_bound(self) -> bool:
        return bool(self.node_of(self.pods[self.late["metadata"]["uid"]]))

    def waiting(self) -> list[Json]:
        return [pod for pod in self.pods.values() if not self.node_of(pod)]

    def heirs(self) -> list[Json]:
        """The pods that controllers have made in the stead of others."""
        return [pod for pod in self.pods.values() if pod["metadata"]["name"].startswith("set-")]

    def under_way(self) -> bool:
        """Return whether an eviction without a known end is written down."""
        document = self.maps.get(MOVES)
        now = EPOCH + self.now
        writes = record_of(document, now) if document else MoveRecord()
        return writes.under_way(now) is not None

    def stops(self) -> list[str]:
        return [entry for entry, count in self.mover.stopped().items() if count]

    def holds(self) -> list[Any]:
        all_items = [resource for replica in self.replicas for resource in replica.resources]
        live = [hold for item in all_items for hold in item.holds.live()]
        return [hold for hold in live if hold.reserved is not None]
