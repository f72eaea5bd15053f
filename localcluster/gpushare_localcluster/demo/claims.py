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
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DRIVER, CLASS = "gpu.example.com", "gpushare.io"
"""The driver whose cards the extender gives out, and the class of claims that it gives them to."""

_GIB = 2**30
_DEVICE = "gpu-"


def slice_document(plan: NodePlan) -> Json:
    """Return the slice of a node's driver: its cards in order, each to be shared by memory."""
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
    return {
        "metadata": {"name": f"{plan.name}-{plan.driver}"},
        "spec": {
            "driver": plan.driver,
            "nodeName": plan.name,
            "pool": {"name": plan.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def class_document(name: str) -> Json:
    """Return a device class: of all devices of the driver of that name, or the extender's own.

    No device is of that one, so kube-scheduler allocates none: see config/extender/claims.
    """
    expression = "false" if name == CLASS else f"device.driver == '{name}'"
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def fence_documents() -> Mapping[str, Json]:
    """Return the policy that keeps others from the extender's driver, and its binding, by plural.

    The local API server stores them and evaluates nothing; the extender gives out nothing without.
    In full: config/extender/claims/fence.yaml.
    """
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "resources": ["resourceclaims/status"],
        "operations": ["UPDATE"],
    }
    others = f"!object.status.allocation.devices.results.exists(r, r.driver == '{DRIVER}')"
    name = "gpushare-claims"
    return {
        "validatingadmissionpolicies": {
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": others}],
            },
        },
        "validatingadmissionpolicybindings": {
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    }


def template_document(plan: PodPlan, namespace: str) -> Json:
    """Return the template of the pod's claim, which has the pod's name."""
    amount = f"{sum(plan.containers) // plan.gpu_count}Gi"
    exactly = {
        "deviceClassName": plan.claim_class,
        "count": plan.gpu_count,
        "capacity": {"requests": {"memory": amount}},
    }
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {"metadata": {"name": plan.name, "namespace": namespace}, "spec": {"spec": spec}}


def claim_books(slices: Iterable[Json], claims: Iterable[Json]) -> list[Json]:
    """Return the nodes of the slices with their cards, in the form of the inspect document."""
    pods: dict[tuple[str, str, str], list[Json]] = defaultdict(list)
    for claim in claims:
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        names = ", ".join(each["name"] for each in reserved)
        for result in _results(claim):
            key = (result["driver"], result["pool"], result["device"])
            pods[key].append({"name": names, "usedGPU": _gib(result.get("consumedCapacity"))})
    nodes = []
    for spec in (each["spec"] for each in slices):
        devices = []
        for index, device in enumerate(spec["devices"]):
            held = pods[spec["driver"], spec["pool"]["name"], device["name"]]
            total = _gib({"memory": device["capacity"]["memory"]["value"]})
            used = sum(pod["usedGPU"] for pod in held)
            devices.append({"id": index, "totalGPU": total, "usedGPU": used, "pods": held})
        total = sum(device["totalGPU"] for device in devices)
        nodes.append({"name": spec["nodeName"], "totalGPU": total, "devs": devices})
    return nodes


def held_by_claims(books: Iterable[Json]) -> dict[str, tuple[int, ...]]:
    """Return the cards that each pod has by its claims, by index."""
    found: dict[str, tuple[int, ...]] = {}
    for device in (device for node in books for device in node["devs"]):
        for name in (name for pod in device["pods"] for name in pod["name"].split(", ")):
            found[name] = (*found.get(name, ()), device["id"])
    return found


def given(claim: Json) -> dict[int, int]:
    """Return the GiB that a claim has, by the index of the card on its node."""
    return {
        int(result["device"].removeprefix(_DEVICE)): _gib(result.get("consumedCapacity"))
        for result in _results(claim)
    }


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found: list[Json] = (allocation.get("devices") or {}).get("results") or []
    return found


def _gib(amounts: Mapping[str, object] | None) -> int:
    return to_bytes(str((amounts or {}).get("memory", "0"))) // _GIB
