"""Plans as Kubernetes objects: nodes as the device plug-in leaves them, pods as users write them.

Pure: a plan in, a document out. A node has the resources of the aliyun device plug-in (sum of
device memory, count of devices) and compute; a node of unequal devices also has our inventory. A
DRA driver is only its slices here, one per node, without a program; its cards are counted from the
objects of the API server, as in `inspect`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gpushare.core.model import ALL_CORES
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import APART, MEMORY_LIMIT, SPLIT
from gpushare.wire.inventory import Inventory, InventoryDevice, encode_inventory
from gpushare.wire.quantity import to_bytes
from gpushare_localcluster.demo.plan import NodePlan, PodPlan, Protect
from gpushare_localcluster.kubelet import RUN_SECONDS

Json = dict[str, Any]

API = "/apis/resource.k8s.io/v1"
DRIVER, CLASS = "gpu.example.com", "gpushare.io"
"""The driver of the cards that the extender ranks, and the class of the claims for these cards."""
NIC_DRIVER = "nic.example.com"
"""The driver of the network cards, and the name of their device class."""
WITH_GPUSHARE = "gpushare-scheduler"
"""The scheduler that calls the extender for pods with claims."""

_GIB = 2**30
_DEVICE = "gpu-"


def claims_scheduler_config(port: int) -> dict[str, object]:
    """Return the file of WITH_GPUSHARE. port: of the extender, on loopback."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}/gpushare-scheduler",
        "filterVerb": "rank",
        "nodeCacheCapable": True,
        # Without the extender kube-scheduler chooses the node by itself.
        "ignorable": True,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": WITH_GPUSHARE}],
        "extenders": [extender],
    }


def slice_documents(plan: NodePlan) -> list[Json]:
    """Return the slices of a node: the cards in order, shared by memory, and the network card."""
    devices = [
        {
            "name": f"{_DEVICE}{index}",
            "attributes": {
                "uuid": {"string": f"GPU-{plan.name}-{index}"},
                "productName": {"string": f"{units} GiB"},
            },
            "capacity": {"memory": {"value": f"{units}Gi"}},
            "allowMultipleAllocations": True,
        }
        for index, units in enumerate(plan.devices)
    ]
    slices = [_slice(plan, plan.driver, devices)]
    if plan.nic:
        slices.append(_slice(plan, NIC_DRIVER, [{"name": "nic-0"}]))
    return slices


def _slice(plan: NodePlan, driver: str, devices: list[Json]) -> Json:
    return {
        "metadata": {"name": f"{plan.name}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": plan.name,
            "pool": {"name": plan.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def class_document(name: str) -> Json:
    """Return a device class: CLASS for the driver DRIVER, or one named like its driver."""
    driver = DRIVER if name == CLASS else name
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
    }


def template_document(plan: PodPlan, namespace: str) -> Json:
    """Return the template of the pod's claim, named like the pod."""
    amount = f"{sum(plan.units) // plan.gpu_count}Gi"
    exactly = {
        "deviceClassName": plan.claim,
        "count": plan.gpu_count,
        "capacity": {"requests": {"memory": amount}},
    }
    requests: list[Json] = [{"name": "gpu", "exactly": exactly}]
    if plan.nic:
        requests.append({"name": "nic", "exactly": {"deviceClassName": NIC_DRIVER}})
    spec = {"devices": {"requests": requests}}
    return {"metadata": {"name": plan.name, "namespace": namespace}, "spec": {"spec": spec}}


def claim_books(slices: Iterable[Json], claims: Iterable[Json]) -> list[Json]:
    """Return the nodes of the slices with cards, in the form of the inspect document."""
    pods: dict[tuple[str, str, str], list[Json]] = defaultdict(list)
    for claim in claims:
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        names = ", ".join(item["name"] for item in reserved)
        for result in _gpus(claim):
            key = (result["driver"], result["pool"], result["device"])
            pods[key].append({"name": names, "usedGPU": _gib(result.get("consumedCapacity"))})
    nodes = []
    for spec in (item["spec"] for item in slices if item["spec"]["driver"] != NIC_DRIVER):
        devices = []
        for index, device in enumerate(spec["devices"]):
            device_pods = pods[spec["driver"], spec["pool"]["name"], device["name"]]
            total = _gib({"memory": device["capacity"]["memory"]["value"]})
            used = sum(pod["usedGPU"] for pod in device_pods)
            devices.append({"id": index, "totalGPU": total, "usedGPU": used, "pods": device_pods})
        total = sum(device["totalGPU"] for device in devices)
        nodes.append({"name": spec["nodeName"], "totalGPU": total, "devs": devices})
    return nodes


def held_by_claims(books: Iterable[Json]) -> dict[str, tuple[int, ...]]:
    """Return the indices of the cards that each pod has by claims."""
    devices: dict[str, tuple[int, ...]] = {}
    for device in (device for node in books for device in node["devs"]):
        for name in (name for pod in device["pods"] for name in pod["name"].split(", ")):
            devices[name] = (*devices.get(name, ()), device["id"])
    return devices


def given(claim: Json) -> dict[int, int]:
    """Return the GiB of a claim by index of the card on the node."""
    return {
        int(result["device"].removeprefix(_DEVICE)): _gib(result.get("consumedCapacity"))
        for result in _gpus(claim)
    }


def _gpus(claim: Json) -> list[Json]:
    """Return the GPUs in the results of the claim's allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: list[Json] = (allocation.get("devices") or {}).get("results") or []
    return [result for result in results if result["driver"] != NIC_DRIVER]


def _gib(amounts: Mapping[str, object] | None) -> int:
    return to_bytes(str((amounts or {}).get("memory", "0"))) // _GIB


NAMESPACE = "default"
_IMAGE = "registry.k8s.io/pause:3.10"
_UNIT = "GiB"
_CLAIM = "gpu"
"""The name of the claim in a pod."""


def node_document(plan: NodePlan, number: int) -> Json:
    """Return the Node object; `number` gives it an address."""
    amounts = {"cpu": str(plan.cpu), "memory": str(plan.memory), "pods": "110"}
    labels, annotations = {"kubernetes.io/hostname": plan.name, **plan.labels}, {}
    if plan.devices and not plan.driver:
        amounts[ALIYUN.resource] = str(sum(plan.devices))
        amounts[ALIYUN.count] = str(len(plan.devices))
        amounts[ALIYUN.cores] = str(ALL_CORES * len(plan.devices))
        labels["gpushare"] = "true"
    if plan.mixed and not plan.driver:
        inventory = Inventory(_UNIT, tuple(InventoryDevice(units) for units in plan.devices))
        annotations[ALIYUN.inventory] = encode_inventory(inventory)
    taints = [taint.document() for taint in plan.taints]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    address = f"10.0.{number // 250}.{number % 250 + 1}"
    information = {
        "kubeletVersion": "v1.37.0",
        "operatingSystem": "linux",
        "architecture": "amd64",
        "containerRuntimeVersion": "none://0",
        "osImage": "gpushare local cluster",
        **dict.fromkeys(("kernelVersion", "kubeProxyVersion"), ""),
        **dict.fromkeys(("machineID", "systemUUID", "bootID"), ""),
    }
    return {
        "metadata": _filled(name=plan.name, labels=labels, annotations=annotations),
        "spec": _filled(unschedulable=plan.cordoned, taints=taints),
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": plan.name},
            ],
            "nodeInfo": information,
        },
    }


def pod_document(plan: PodPlan) -> Json:
    """Return the Pod object. The first container requests cpu and memory."""
    annotations = {
        ALIYUN.count: plan.gpu_count if plan.gpu_count > 1 and not plan.claim else "",
        SPLIT: plan.gpu_split,
        RUN_SECONDS: plan.run_seconds,
        ALIYUN.policy: plan.policy,
        MEMORY_LIMIT: plan.gpu_limit,
        APART: plan.apart,
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": plan.spread_over,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(plan.labels)},
    }
    claim = {"name": _CLAIM, "resourceClaimTemplateName": plan.name}
    return {
        "metadata": _filled(
            name=plan.name,
            namespace=NAMESPACE,
            annotations={key: str(value) for key, value in annotations.items() if value},
            labels=dict(plan.labels),
        ),
        "spec": _filled(
            containers=[_container(plan, index) for index in range(len(plan.units))],
            resourceClaims=[claim] if plan.claim else (),
            priorityClassName=_class_name(plan.priority) if plan.priority else "",
            schedulerName=plan.scheduler_name,
            tolerations=[item.document() for item in plan.tolerations],
            topologySpreadConstraints=[spread] if plan.spread_over else (),
            nodeSelector=dict(plan.node_selector),
        ),
    }


def priority_class_document(priority: int) -> Json:
    """Return the PriorityClass of this priority, since pods cannot have a number alone."""
    return {"metadata": {"name": _class_name(priority)}, "value": priority}


def budget_document(plan: Protect) -> Json:
    """Return the PodDisruptionBudget, with the status that a controller would write."""
    selector = {"matchLabels": dict(plan.labels)}
    return {
        "metadata": {"name": plan.name, "namespace": NAMESPACE},
        "spec": {"maxUnavailable": plan.allowed, "selector": selector},
        "status": {"disruptionsAllowed": plan.allowed},
    }


def free_lease_document() -> Json:
    """Return the extender's Lease as released by a leader (client-go: release).

    An extender takes it at once. Without a Lease an extender waits 20 s, since the Lease of a
    leader may have been deleted.
    """
    return {
        "metadata": {"name": "gpushare-extender", "namespace": "kube-system"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    }


def metrics_endpoints_document(url: str) -> Json:
    """Return the Endpoints of the extender at this URL, for a Prometheus that looks for metrics."""
    parts = urlsplit(url)
    ports = [{"name": "health", "port": parts.port}]
    return {
        "metadata": {"name": "gpushare-extender", "namespace": "kube-system"},
        "subsets": [{"addresses": [{"ip": parts.hostname}], "ports": ports}],
    }


def _filled(**fields: object) -> Json:
    """Return an object without its empty fields."""
    return {field: value for field, value in fields.items() if value}


def _class_name(priority: int) -> str:
    return f"priority-{priority}" if priority >= 0 else f"priority-minus-{-priority}"


def _container(plan: PodPlan, index: int) -> Json:
    resources: Json = {}
    if plan.claim:
        resources["claims"] = [{"name": _CLAIM}]
    elif plan.units[index]:
        resources["limits"] = {ALIYUN.resource: str(plan.units[index])}
    if index == 0:
        if plan.gpu_cores:
            resources["limits"][ALIYUN.cores] = str(plan.gpu_cores)
        if plan.gpu_percent:
            resources["limits"][ALIYUN.share] = str(plan.gpu_percent)
        resources["requests"] = {"cpu": str(plan.cpu), "memory": str(plan.memory)}
    name = "main" if len(plan.units) == 1 else f"main-{index}"
    return {"name": name, "image": _IMAGE, "resources": resources}


def scheduler_config(port: int) -> dict[str, object]:
    """Return the file for scheduler and extender, as for a real kube-scheduler."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}/gpushare-scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                # Above the sum of all in-tree scores: the extender's order decides.
                "weight": 150,
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                # A bind may wait for the other pods of its group.
                "httpTimeout": "30s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": name == ALIYUN.share}
                    for name in (ALIYUN.resource, ALIYUN.cores, ALIYUN.share)
                ],
            }
        ],
    }
