"""Plans as objects of resource.k8s.io, and the books of the cards that claims use.

Pure: plans and documents in, documents out. A DRA driver is only its slices here, one per node,
without a program. Cards are counted from the objects of the API server, as in `inspect`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.wire.quantity import to_bytes
from gpushare_localcluster.demo.plan import NodePlan, PodPlan

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
    amount = f"{sum(plan.containers) // plan.gpu_count}Gi"
    exactly = {
        "deviceClassName": plan.claim_class,
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
