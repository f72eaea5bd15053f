"""Plans as objects of resource.k8s.io, and the books of cards that claims have.

Pure: plans and documents in, documents out. A DRA driver is its slices here, one for each node: no
program of it runs. The cards are counted from what the API server shows, as `inspect` would.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.wire.quantity import to_bytes
from gpushare_localcluster.demo.plan import NodePlan, PodPlan

Json = dict[str, Any]

API = "/apis/resource.k8s.io/v1"
DRIVER, CLASS = "gpu.example.com", "gpushare.io"
"""The driver whose cards the extender ranks, and the class of the claims for its cards."""
NIC_DRIVER = "nic.example.com"
"""The driver of the network cards; its device class has the same name."""
WITH_GPUSHARE = "gpushare-scheduler"
"""The scheduler that asks the extender about pods with claims."""

_GIB = 2**30
_DEVICE = "gpu-"


def claims_scheduler_config(port: int) -> dict[str, object]:
    """Return the file of WITH_GPUSHARE. port: where the extender listens on loopback."""
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
    """Return the slices of a node: its cards in order, shared by memory, and its network card."""
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
    """Return a device class: of the driver of that name, or CLASS, which is of DRIVER."""
    driver = DRIVER if name == CLASS else name
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
    }


def template_document(plan: PodPlan, namespace: str) -> Json:
    """Return the template of the pod's claim, which has the pod's name."""
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
    """Return the nodes of the slices with their cards, in the form of the inspect document."""
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
    """Return the cards that each pod has by its claims, by index."""
    devices: dict[str, tuple[int, ...]] = {}
    for device in (device for node in books for device in node["devs"]):
        for name in (name for pod in device["pods"] for name in pod["name"].split(", ")):
            devices[name] = (*devices.get(name, ()), device["id"])
    return devices


def given(claim: Json) -> dict[int, int]:
    """Return the GiB that a claim has, by the index of the card on its node."""
    return {
        int(result["device"].removeprefix(_DEVICE)): _gib(result.get("consumedCapacity"))
        for result in _gpus(claim)
    }


def _gpus(claim: Json) -> list[Json]:
    """Return the results of the claim's allocation that are GPUs."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: list[Json] = (allocation.get("devices") or {}).get("results") or []
    return [result for result in results if result["driver"] != NIC_DRIVER]


def _gib(amounts: Mapping[str, object] | None) -> int:
    return to_bytes(str((amounts or {}).get("memory", "0"))) // _GIB
