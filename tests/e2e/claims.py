"""A control plane with a kube-scheduler that allocates claims: alone, or with our choice of the
node.

There is no driver and no kubelet: the test writes slices as a driver would, and a bound pod stays
Pending.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.objects import PODS as POD_LIST
from gpushare.wire.objects import Pod
from gpushare.wire.quantity import to_bytes
from tests.contract.apiserver.client import MERGE, Json
from tests.e2e.binaries import RELEASE, needed, tool
from tests.e2e.extender import RealExtender
from tests.e2e.objects import NODES, PODS, fresh
from tests.e2e.pair import printed
from tests.e2e.plane import ADMIN, SCHEDULER, Plane
from tests.e2e.processes import PATIENCE, Process, is_listening, until
from tests.e2e.world import account_token, apply
from tests.integration.process import free_port

API = "/apis/resource.k8s.io/v1"
CLAIMS, TEMPLATES = (
    f"{API}/namespaces/default/{kind}" for kind in ("resourceclaims", "resourceclaimtemplates")
)
SLICES, CLASSES, TAINT_RULES = (
    f"{API}/{kind}" for kind in ("resourceslices", "deviceclasses", "devicetaintrules")
)
CLASS, DRIVER = "gpushare.io", "gpu.nvidia.com"
"""The names in config/extender/claims."""
FIRST_MINOR = 36
"""The first minor release of Kubernetes with shared capacity switched on."""
HAS_CLAIMS = int(RELEASE.split(".")[1]) >= FIRST_MINOR

ALONE, WITH_US = "kube-scheduler alone", "with gpushare"
WITH_LIMIT = "with least extender"
"""With an extender that answers at once with the first node name (tools/limit)."""
_UNLIMITED = 10_000
_AT_ONCE = 16


class Part(NamedTuple):
    """A capacity of a device; capacity "" is the device itself."""

    driver: str
    pool: str
    device: str
    capacity: str


def shared_gpu(number: int, gib: int, node: str, **capacity: str) -> Json:
    """Return a device as NVIDIA's driver offers it with shares by memory.

    capacity: further shared capacities, whole by default.
    """
    memory = {
        "value": f"{gib}Gi",
        "requestPolicy": {"default": f"{gib}Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
    }
    more = {name: {"value": value} for name, value in capacity.items()}
    return {
        "name": f"gpu-{number}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-{node}-{number}"},
            "productName": {"string": f"Test {gib}GB"},
            "index": {"int": number},
        },
        "capacity": {"memory": memory, **more},
        "allowMultipleAllocations": True,
    }


def memory_request(gib: int, of: str = CLASS, name: str = "gpu", **exactly: object) -> Json:
    """Return a request of a claim for so much memory on each device."""
    amount = {"requests": {"memory": f"{gib}Gi"}}
    return {"name": name, "exactly": {"deviceClassName": of, "capacity": amount, **exactly}}


def claims_entry(url: str) -> Json:
    """Return the entry that we ship for kube-scheduler files, with this URL of the extender."""
    file = Path(__file__).parents[2] / "config/extender/claims/extender-entry.yaml"
    (entry,) = yaml.safe_load(file.read_text())["extenders"]
    return {**entry, "urlPrefix": url}


class ClaimWorld:
    """kube-scheduler, the controllers of claims and our extender on a plane."""

    def __init__(self, plane: Plane, folder: Path, *, percentage: int = 0) -> None:
        """Start all but kube-scheduler, which `schedule` starts.

        percentage: percentageOfNodesToScore, 0 for kube-scheduler's default.
        """
        folder.mkdir(exist_ok=True)
        for item in ("extender/base", "extender/claims"):
            apply(plane, item)
        self.plane, self._folder, self._percentage = plane, folder, percentage
        self.api, self.objects = plane.api(), plane.objects()
        self.scheduler: Process | None = None
        self.limit: Process | None = None
        self.by = ""
        """Who chooses the node: ALONE, WITH_US, WITH_LIMIT, or "" while nothing schedules."""
        self.controllers = plane.start_controllers(
            needed("kube-controller-manager"),
            "resourceclaim-controller",
            "device-taint-eviction-controller",
        )
        port = free_port()
        # The extender always has its own managed resources.
        file = folder / "managed-resources.yaml"
        file.write_text(printed(RELEASE, "--url", f"http://127.0.0.1:{port}/gpushare-scheduler"))
        self.extender = RealExtender(
            folder,
            port,
            plane.kubeconfig("extender", account_token(self.api)),
            *("--scheduler-config", str(file), "--claims", DRIVER, "--leadership", "off"),
        )
        self.placed = PlacedPods(plane)

    def stop(self) -> None:
        self.placed.stop()
        self.extender.stop()
        for process in (self.scheduler, self.limit, self.controllers):
            if process:
                process.kill()

    def schedule(self, by: str) -> None:
        """Have kube-scheduler run as this says, and our extender if it takes part."""
        if self.by == by:
            return
        for process in (self.scheduler, self.limit):
            if process:
                process.kill()
        self.extender.kill()
        url = ""
        if by == WITH_US:
            self.extender.start()
            url = self.extender.url
        elif by == WITH_LIMIT:
            port = free_port()
            self.limit = Process("limit", [tool("limit"), str(port)], self._folder)
            self.limit.wait(lambda: is_listening(port), "does not answer")
            url = f"http://127.0.0.1:{port}"
        file = self._folder / f"{by.replace(' ', '-')}.yaml"
        file.write_text(yaml.safe_dump(self._configuration(url)))
        command: list[str | Path] = [needed("kube-scheduler"), "--config", file]
        self.scheduler = Process("kube-scheduler", [*command, "--secure-port", "0"], self._folder)
        self.by = by

    def _configuration(self, extender_url: str) -> Json:
        client = {"kubeconfig": str(self.plane.kubeconfig(SCHEDULER))}
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {**client, "qps": _UNLIMITED, "burst": _UNLIMITED},
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": self._percentage,
            "extenders": [claims_entry(extender_url)] if extender_url else [],
        }

    # -- made -----------------------------------------------------------------------------------

    def node(self, *gibs: int, labels: Mapping[str, str] | None = None, cpu: str = "96") -> str:
        """Return the name of a new node with shared GPUs of DRIVER, of so many GiB each."""
        name = fresh("node")
        amounts = {"cpu": cpu, "memory": "768Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        self._create(NODES, {"metadata": meta, "spec": {}, "status": status})
        if gibs:
            devices = [shared_gpu(number, gib, name) for number, gib in enumerate(gibs)]
            self.slice(name, DRIVER, devices=devices)
        return name

    def slice(self, node: str, driver: str, *, of: int = 1, **spec: object) -> None:
        """Write a slice of the driver's pool on the node; of: how many slices the pool has."""
        pool = {"name": node, "generation": 1, "resourceSliceCount": of}
        body = {"driver": driver, "nodeName": node, "pool": pool, **spec}
        self._create(SLICES, {"metadata": {"name": fresh("slice")}, "spec": body})

    def device_class(self, expression: str, **spec: object) -> str:
        """Return the name of a new class with a CEL selector."""
        name = fresh("class")
        selectors = [{"cel": {"expression": expression}}]
        self._create(
            CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}
        )
        return name

    def ordinary_class(self, name: str, driver: str) -> None:
        """Have a class of this name for all devices of a driver."""
        selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
        body = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
        assert self.api.call("POST", CLASSES, body).status in {201, 409}

    def claim(self, *requests: Json, **devices: object) -> str:
        """Return the name of a new claim with these requests."""
        name = fresh("claim")
        spec = {"devices": {"requests": [*requests], **devices}}
        self._create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        return name

    def template(self, *requests: Json, **devices: object) -> str:
        """Return the name of a new template of claims with these requests."""
        name = fresh("template")
        spec = {"spec": {"devices": {"requests": [*requests], **devices}}}
        self._create(TEMPLATES, {"metadata": {"name": name}, "spec": spec})
        return name

    def pod(
        self,
        *claims: str,
        templates: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        container_count: int = 1,
        **spec: object,
    ) -> Json:
        """Return a new pod with these claims, and claims by these templates, in all containers.

        spec: further fields of the pod's spec; `containers` are in place of those.
        """
        all_items = [{"name": item, "resourceClaimName": item} for item in claims]
        all_items += [{"name": item, "resourceClaimTemplateName": item} for item in templates]
        resources = {"claims": [{"name": item["name"]} for item in all_items]}
        created = [
            {"name": f"main-{number}", "image": "x", "resources": resources}
            for number in range(container_count)
        ]
        body = {
            "metadata": {"name": fresh("pod"), "labels": dict(labels or {})},
            "spec": {
                "containers": created,
                "resourceClaims": all_items,
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }
        return self._create(PODS, body)

    def _create(self, path: str, body: Json) -> Json:
        reply = self.api.call("POST", path, body)
        assert reply.status == 201, reply.body
        return reply.body

    # -- read -----------------------------------------------------------------------------------

    def results(self, claim: str) -> list[Json]:
        """Return the devices that the claim has; none while it is not allocated."""
        return _results(self.api.get(f"{CLAIMS}/{claim}").body)

    def sizes(self) -> dict[Part, int]:
        """Return the amount of each shared capacity, and 1 for each device that is not shared."""
        result: dict[Part, int] = {}
        for spec in (item["spec"] for item in self.api.get(SLICES).body["items"]):
            for device in spec.get("devices") or ():
                amounts = {"": "1"}
                if device.get("allowMultipleAllocations"):
                    amounts = {name: entry["value"] for name, entry in device["capacity"].items()}
                for name, amount in amounts.items():
                    key = Part(spec["driver"], spec["pool"]["name"], device["name"], name)
                    result[key] = to_bytes(amount)
        return result

    def used(self) -> Counter[Part]:
        """Return the amounts that claims have, as `sizes` does."""
        outcome: Counter[Part] = Counter()
        for claim in self.api.get(CLAIMS).body["items"]:
            for result in _results(claim):
                if not result.get("adminAccess"):
                    device = result["driver"], result["pool"], result["device"]
                    for name, amount in (result.get("consumedCapacity") or {"": "1"}).items():
                        outcome[Part(*device, name)] += to_bytes(amount)
        return outcome

    def sound(self) -> None:
        """Fail if claims have more of a device than it has."""
        sizes = self.sizes()
        assert not {key: used for key, used in self.used().items() if used > sizes[key]}

    # -- awaited --------------------------------------------------------------------------------

    def bound(self, *pods: Json, seconds: float = PATIENCE) -> None:
        """Return once all pods are bound."""
        self.placed.wait(pods, self.told, seconds)

    def bound_in_turn(self, *claims: str) -> list[Json]:
        """Return a new bound pod for each claim; a pod is made once the one before is bound.

        For a moment kube-scheduler 1.37 counts a shared capacity twice: as in flight, and as the
        claim shows it (`GatherAllocatedState`). A pod that is judged then and needs the last of the
        capacity waits for five minutes, with us or without.
        """
        pods = []
        for claim in claims:
            pods.append(self.pod(claim))
            self.bound(pods[-1])
        return pods

    def settled(self, pod: Json) -> bool:
        """Wait until the pod is bound or rejected; return whether it is bound."""
        return self.placed.settled(pod, self.told)

    def told(self) -> str:
        """Return the state for the message of a failed wait."""
        lines = self.scheduler.last_lines() if self.scheduler else ""
        log = "\n".join(self.extender.log.splitlines()[-30:])
        messages = [
            (pod["metadata"]["name"], condition.get("message"))
            for pod in self.objects.pods()
            for condition in pod["status"].get("conditions") or ()
            if condition["status"] == "False"
        ]
        return f"{messages}\n{lines}\n{log}"

    def clear(self) -> None:
        """Delete all that tests have made, but classes."""
        self.clear_pods()
        self.objects.clear()
        self._delete_all(TAINT_RULES, SLICES, TEMPLATES)

    def clear_pods(self) -> None:
        """Delete all pods and claims, without waiting for the controller of claims."""
        self.objects.delete(*self.objects.pods())

        def delete(item: Json) -> None:
            path = f"{CLAIMS}/{item['metadata']['name']}"
            self.api.patch(path, {"metadata": {"finalizers": None}}, MERGE)
            self.api.delete(path)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(delete, self.api.get(CLAIMS).body["items"]))
        until(lambda: not self.api.get(CLAIMS).body["items"], "claims are still there")

    def _delete_all(self, *paths: str) -> None:
        for path in paths:
            for item in self.api.get(path).body["items"]:
                self.api.delete(f"{path}/{item['metadata']['name']}")

    def healthy(self) -> None:
        """Fail if the extender has logged an exception or lacks a right."""
        log = self.extender.log
        assert not [word for word in ("Traceback", "orbidden") if word in log], log[-4000:]

    @contextmanager
    def emptied(self) -> Iterator["ClaimWorld"]:
        """Clear the world in the end."""
        try:
            yield self
        finally:
            self.clear()


class PlacedPods:
    """When a watch first showed each pod on a node, and which pods kube-scheduler has refused."""

    def __init__(self, plane: Plane) -> None:
        self.at: dict[str, float] = {}
        """Seconds of the monotonic clock, by uid."""
        self.node: dict[str, str] = {}
        """The node's name, by uid."""
        self.refused: set[str] = set()
        self._changed = threading.Condition()
        client = connect(str(plane.kubeconfig(ADMIN)), None, pool_size=2, user_agent="test")
        self._reflector = Reflector(client, ListWatch("/api/v1/pods", POD_LIST), self)
        self._reflector.start()
        until(lambda: self._reflector.status.synced, "pods are not listed")

    def stop(self) -> None:
        self._reflector.stop()

    def replace(self, pages: Sequence[Decoded[Pod]], started: float) -> None:
        for page in pages:
            for pod in page.items:
                self._see(pod)

    def apply(self, event: WatchEvent[Pod]) -> None:
        if event.object:
            self._see(event.object)

    def wait(
        self, pods: Sequence[Json], text: Callable[[], str] = str, seconds: float = PATIENCE
    ) -> float:
        """Return when the last of these pods was bound, in seconds of the monotonic clock.

        text: returns the message of a failed wait.
        """
        uids = {pod["metadata"]["uid"] for pod in pods}
        with self._changed:
            finished = self._changed.wait_for(lambda: self.at.keys() >= uids, seconds)
        remaining = len(uids - self.at.keys())
        assert finished, f"{remaining} of {len(uids)} pods are not bound in {seconds} s\n{text()}"
        return max(self.at[uid] for uid in uids)

    def settled(self, pod: Json, text: Callable[[], str] = str) -> bool:
        """Wait until the pod is bound or rejected; return whether it is bound."""
        uid = pod["metadata"]["uid"]
        with self._changed:
            finished = self._changed.wait_for(
                lambda: uid in self.at or uid in self.refused, PATIENCE
            )
        assert finished, text()
        return uid in self.at

    def _see(self, pod: Pod) -> None:
        uid = (pod.metadata and pod.metadata.uid) or ""
        node = (pod.spec and pod.spec.node_name) or ""
        conditions = (pod.status and pod.status.conditions) or ()
        error = any(item.type == "PodScheduled" and item.status == "False" for item in conditions)
        with self._changed:
            if node and uid not in self.at:
                self.at[uid], self.node[uid] = time.monotonic(), node
            elif error:
                self.refused.add(uid)
            self._changed.notify_all()


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    result: list[Json] = (allocation.get("devices") or {}).get("results") or []
    return result
