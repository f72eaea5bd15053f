"""The answers to Kueue's admission checks on an API server that keeps Workloads, for their tests.

What Kueue does between two rounds, a test does by `evict` and `reserve`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.extender.follow.admission_checks import AdmissionChecks, KueueObjects
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.kueue import (
    ADMISSION_CHECKS,
    CONTROLLER,
    RESOURCE_FLAVORS,
    WORKLOADS,
    read_check,
    read_flavor,
    read_workload,
)
from tests.unit.extender.kit import managed_resources, node_json, pod_json, read_node, read_pod

CHECK = "gpus"
RESERVED = {"type": "QuotaReserved", "status": "True"}


class World:
    """Nodes with a device of 16 each, an AdmissionCheck, and the API server."""

    def __init__(self, nodes: Sequence[str] = ("a", "b")) -> None:
        self.now = 1000.0
        self.why_not = ""
        self.synced = True
        self.version = 0
        self.workloads: dict[str, dict[str, Any]] = {}
        self.check: dict[str, Any] = {
            "metadata": {"name": CHECK, "resourceVersion": "1"},
            "spec": {"controllerName": CONTROLLER},
        }
        self.flavor: dict[str, Any] = {
            "metadata": {"name": "a10"},
            "spec": {"nodeLabels": {"gpu": "a10"}},
        }
        self.calls: list[str] = []
        self.faults: list[tuple[bool, ApiError]] = []
        """Whether the next patch lands, and its error."""
        self.rest_seconds = 0.0
        self.rests: list[float] = []
        self.cpu_seconds = 0.0
        """CPU time between two looks at the clock of the thread."""
        self.cpu_now = 0.0
        self.loses_lead_after = 0
        """Patches until another process leads; 0 or less: none does."""
        self.resources = managed_resources()
        self.start()
        for node in nodes:
            self.node(node)
        self.shown()

    def start(self) -> None:
        """Another process, which knows nothing yet."""
        self.objects = KueueObjects()
        self.handler = PodEventHandler(self.resources, admitted=self.objects.pods)
        self.under_test = AdmissionChecks(
            self,  # type: ignore[arg-type]  # patches alone
            self.resources,
            self.objects,
            "GiB",
            not_ready=lambda: self.why_not,
            is_synced=lambda: self.synced,
            clock=lambda: self.now,
            wall=lambda: self.now,
            cpu_clock=self._cpu_clock,
            rest=self._rest,
        )

    def _rest(self, seconds: float) -> None:
        assert seconds <= 5.0
        self.rests.append(seconds)
        self.now += self.rest_seconds

    def _cpu_clock(self) -> float:
        self.cpu_now += self.cpu_seconds
        return self.cpu_now

    def node(self, name: str, **labels: str) -> None:
        document = node_json(name, 16)
        document["status"]["allocatable"]["pods"] = "110"
        document["metadata"]["labels"] = {"kubernetes.io/hostname": name, "gpu": "a10"} | labels
        NodeEventHandler(self.resources, "GiB").apply(
            WatchEvent("ADDED", object=read_node(document))
        )

    def runs(self, name: str, units: int, node: str = "", workload: str = "", **spec: Any) -> None:
        """A pod of the workload is on the node, or waits for one."""
        notes = {ALIYUN.idx: "0", ALIYUN.pod: str(units)} if node else {}
        notes |= {"kueue.x-k8s.io/workload": workload} if workload else {}
        pod = pod_json(name, units, node=node, annotations=notes)
        pod["metadata"]["labels"] = {"kueue.x-k8s.io/podset": "main"}
        pod["spec"] |= {"nodeSelector": {"gpu": "a10"}} | spec
        self.handler.apply(WatchEvent("MODIFIED", object=read_pod(pod)))

    def ends(self, name: str) -> None:
        self.handler.apply(WatchEvent("DELETED", object=read_pod(pod_json(name))))

    def comes(self, name: str, units: int, count: int = 1, **fields: Any) -> None:
        """Kueue has reserved quota for a job of so many pods. fields: of the workload's status, but
        `namespace` and `priority`.
        """
        self.version += 1
        namespace, priority = fields.pop("namespace", "team"), fields.pop("priority", 0)
        template = pod_json("", units)
        assignment = {"name": "main", "flavors": {ALIYUN.resource: "a10"}, "count": count}
        assignment |= fields.pop("assignment", {})
        self.workloads[name] = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "resourceVersion": str(self.version),
                "creationTimestamp": f"2027-01-15T08:00:{self.version:02}Z",
            },
            "spec": {
                "priority": priority,
                "podSets": [{"name": "main", "count": count, "template": template}],
            },
            "status": {
                "conditions": [RESERVED],
                "admission": {"podSetAssignments": [assignment]},
                "admissionChecks": [{"name": CHECK, "state": "Pending", "message": ""}],
                **fields,
            },
        }
        self.shown()

    def evict(self, name: str) -> None:
        """Kueue takes the quota back after a Retry, and lets the workload wait."""
        status = self.workloads[name]["status"]
        (check,) = status["admissionChecks"]
        retries = check.get("retryCount", 0) + (check["state"] == "Retry")
        status["admissionChecks"] = [{"name": CHECK, "state": "Pending", "retryCount": retries}]
        status["conditions"] = [RESERVED | {"status": "False"}]
        status["requeueState"] = {"requeueAt": "2027-01-15T08:05:00Z"}
        self._change(name)

    def keep(self, name: str) -> None:
        """Kueue lets a workload wait after a Retry, and leaves it its quota."""
        self.workloads[name]["status"]["requeueState"] = {"requeueAt": "2027-01-15T08:05:00Z"}
        self._change(name)

    def reserve(self, name: str) -> None:
        """Kueue reserves quota again."""
        self.workloads[name]["status"] |= {"conditions": [RESERVED], "requeueState": {}}
        self._change(name)

    def _change(self, name: str) -> None:
        self.version += 1
        self.workloads[name]["metadata"]["resourceVersion"] = str(self.version)
        self.shown()

    def shown(self) -> None:
        """The watch shows all objects."""
        managed_names = [resource.names for resource in self.resources]
        check = read_check(ADMISSION_CHECKS.decode(json.dumps(self.check).encode()))
        self.objects.checks.replace({} if check is None else {CHECK: check}, ())
        flavor = read_flavor(RESOURCE_FLAVORS.decode(json.dumps(self.flavor).encode()))
        self.objects.flavors.replace({self.flavor["metadata"]["name"]: flavor}, ())
        records = {
            name: read_workload(WORKLOADS.decode(json.dumps(document).encode()), managed_names)
            for name, document in self.workloads.items()
        }
        self.objects.workloads.replace(
            {name: record for name, record in records.items() if record is not None}, ()
        )

    def round(self) -> None:
        self.under_test.round()
        self.shown()

    def judged(self, name: str, units: int, count: int = 1, **fields: Any) -> str:
        """A job comes; the state of its check after a round. The arguments are those of `comes`."""
        self.comes(name, units, count, **fields)
        return self.states(name)[0]

    def states(self, *names: str) -> tuple[str, ...]:
        """The states of the checks of these workloads after a round."""
        self.round()
        return tuple(map(self.state, names))

    def calls_in(self, rounds: int = 1) -> list[str]:
        """The calls in so many rounds."""
        self.calls.clear()
        for _ in range(rounds):
            self.round()
        return self.calls

    def state(self, name: str) -> str:
        (check,) = self.workloads[name]["status"]["admissionChecks"]
        return str(check["state"])

    def message(self, name: str) -> str:
        (check,) = self.workloads[name]["status"]["admissionChecks"]
        return str(check["message"])

    def request(self, method: str, path: str, *, body: bytes, **_: Any) -> bytes:
        assert method == "PATCH"
        assert path.endswith("/status")
        name = path.split("/")[-2]
        self.calls.append(name)
        self.loses_lead_after -= 1
        if not self.loses_lead_after:
            self.why_not = "another process leads"
        lands, failure = self.faults.pop(0) if self.faults else (True, None)
        if lands:
            self._patch(name, json.loads(body))
        if failure is not None:
            raise failure
        return b"{}"

    def _patch(self, name: str, patch: Mapping[str, Any]) -> None:
        document = self.check if name == CHECK else self.workloads.get(name)
        if document is None:
            raise ApiNotFound("gone", 404)
        if document["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise ApiConflict("changed", 409)
        self.version += 1
        document["metadata"]["resourceVersion"] = f"9{self.version}"
        document["status"] = {**document.get("status", {}), **patch["status"]}


def refused(*names: str) -> World:
    """A node with 10 of 16 taken, and jobs of 12 that were refused and wait."""
    world = World(["a"])
    world.runs("ten", 10, "a")
    for name in names:
        world.comes(name, 12)
    world.round()
    for name in names:
        world.evict(name)
    return world
