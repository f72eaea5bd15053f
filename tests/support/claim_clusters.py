"""Random clusters with devices and claims as stored by the API server, and our answer to each.

The tool `firstfit` (tests/e2e/tools) gives the answer of kube-scheduler's allocator.
"""

import random
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import THOUSANDTHS, Fit, NoFit, PodClaims, Slice, Use
from gpushare.core.claims.pools import gather_pools
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gpushare.wire.dra.requests import claim_request, class_record, holdings
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.quantity import parse_quantity

Cluster = dict[str, Any]
"""nodes, slices, classes, rules, claims (to allocate) and allocated (claims that hold devices)."""

Results = list[list[dict[str, Any]]]
"""Results of each claim: request, driver, pool, device, adminAccess, and amounts by capacity."""

GPU, NIC = "gpu.example.com", "nic.example.com"
_MODELS = ("A100", "H100", "L4")
_TAINTS = (
    {"key": "a", "effect": "NoSchedule"},
    {"key": "a", "value": "x", "effect": "NoExecute"},
    {"key": "b", "value": "y", "effect": "NoSchedule"},
    {"key": "c", "effect": "None"},
)
_TOLERATIONS = (
    {"operator": "Exists"},
    {"key": "a", "operator": "Exists"},
    {"key": "a", "operator": "Equal", "value": "x"},
    {"key": "b", "value": "y", "effect": "NoSchedule"},
    {"key": "a", "operator": "Exists", "effect": "NoExecute"},
)
_SELECTORS = (
    f'device.driver == "{GPU}"',
    f'device.attributes["{GPU}"].model == "A100"',
    f'has(device.attributes["{GPU}"].model) && device.attributes["{GPU}"].model != "L4"',
    f'device.attributes["{GPU}"].model in ["A100", "H100"]',
    f'device.attributes["{GPU}"].model.startsWith("A") || device.allowMultipleAllocations',
    f'device.attributes["{GPU}"].model.matches("^[AH]1")',
    f'device.capacity["{GPU}"].memory.compareTo(quantity("24Gi")) > 0',
    f'device.capacity["{GPU}"].memory.isLessThan(quantity("60Gi"))',
    f'device.attributes["{GPU}"].driverVersion.compareTo(semver("1.10.0")) >= 0',
    f'device.attributes["{GPU}"].index < 3',
    f'device.attributes["{GPU}"].index % 2 == 0',
    f'cel.bind(gpu, device.attributes["{GPU}"], gpu.healthy && gpu.index > 0)',
    f'"model" in device.attributes["{GPU}"]',
    f'device.attributes["{GPU}"].model.lowerAscii() == "h100"',
    '!has(device.attributes["other.example.com"].x)',
    f'device.attributes["{GPU}"].exists(name, name == "model")',
)
"""Selectors that are true of some devices; each can be evaluated for each device of GPU."""

_UNSAFE = 'device.attributes["gpu.example.com"].absent == 1'
"""kube-scheduler ends the attempt with an error after evaluating this selector."""


class _Draw:
    """One random cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.zones = ("a", "b")
        self.names = [f"n{i}" for i in range(self.random.choice((1, 2, 3)))]
        self.nodes = [
            {"metadata": {"name": name, "labels": {"zone": self.random.choice(self.zones)}}}
            for name in self.names
        ]
        self.slices: list[dict[str, Any]] = []

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def cluster(self) -> Cluster:
        for node in self.names:
            if self.chance(90):
                self.pool(GPU, self.random.choice((node, f"{node}-gpus")), node)
            if self.chance(25):
                self.pool(GPU, f"a-{node}", node)
            if self.chance(70):
                self.pool(NIC, node, node)
        if self.chance(25):
            self.pool(GPU, "everywhere", None)
        self.random.shuffle(self.slices)
        return {
            "nodes": self.nodes,
            "slices": self.slices,
            "classes": self.classes(),
            "rules": [self.rule() for _ in range(self.random.choice((0, 0, 0, 1, 2)))],
            "claims": [self.claim(i) for i in range(self.random.choice((1, 1, 1, 2, 3)))],
            "allocated": self.allocated(),
        }

    def pool(self, driver: str, name: str, node: str | None) -> None:
        r = self.random
        count = r.choice((1, 1, 1, 2, 3))
        counts = self.chance(25) and driver == GPU
        shared = r.choice((0, 0, 60, 100)) if driver == GPU else 0
        total = count + counts
        generation = r.choice((1, 1, 2))
        numbers = r.sample(range(10), total)
        parts: list[dict[str, Any]] = []
        for position in range(count):
            devices = [
                self.device(f"d{position}-{i}", driver, i, shared=shared, counts=counts)
                for i in range(r.choice((0, 1, 2, 4, 6, 8)))
            ]
            if self.chance(1) and devices:
                devices.append(devices[0])
            parts.append({"devices": devices})
        if counts:
            sets = [
                {
                    "name": f"set{i}",
                    "counters": {
                        "slices": {"value": str(r.choice((4, 7, 14)))},
                        "bytes": {"value": r.choice(("40Gi", "80Gi"))},
                    },
                }
                for i in range(2)
            ]
            parts.append({"sharedCounters": sets})
        if self.chance(4):
            total += 1  # a slice is missing
        for number, part in zip(numbers, parts, strict=True):
            spec = {
                "driver": driver,
                "pool": {"name": name, "generation": generation, "resourceSliceCount": total},
                **self.place(node, part.get("devices", ())),
                **part,
            }
            slice_name = f"{name}-{driver[:3]}-{number}"
            self.slices.append({"metadata": {"name": slice_name}, "spec": spec})
        if self.chance(3):  # a slice of another generation
            spec = {**self.slices[-1]["spec"]}
            spec["pool"] = {**spec["pool"], "generation": r.choice((0, generation + 1))}
            self.slices.append({"metadata": {"name": f"{name}-{driver[:3]}-x"}, "spec": spec})

    def place(self, node: str | None, devices: Iterable[dict[str, Any]]) -> dict[str, Any]:
        r = self.random
        if node is not None and self.chance(92):
            return {"nodeName": node}
        choices: list[dict[str, Any]] = [
            {"allNodes": True},
            {"nodeSelector": self.node_selector()},
            {"nodeName": r.choice(self.names)},
        ]
        kind = r.randrange(4)
        if kind < 3:
            return choices[kind]
        for device in devices:
            device.update(r.choice(choices))
        return {"perDeviceNodeSelection": True}

    def node_selector(self) -> dict[str, Any]:
        values = {"key": "zone", "operator": "In", "values": [self.random.choice(self.zones)]}
        return {"nodeSelectorTerms": [{"matchExpressions": [values]}]}

    def device(
        self, name: str, driver: str, index: int, *, shared: int, counts: bool
    ) -> dict[str, Any]:
        r = self.random
        gpu = "" if self.chance(80) else f"{driver}/"
        device: dict[str, Any] = {"name": name}
        if driver == GPU:
            device["attributes"] = {
                f"{gpu}model": {"string": r.choice(_MODELS)},
                "index": {"int": index},
                "healthy": {"bool": self.chance(80)},
                "driverVersion": {"version": r.choice(("1.2.3", "1.10.0", "2.0.0-rc.1"))},
            }
        else:
            device["attributes"] = {"speed": {"int": r.choice((10, 25))}}
        if self.chance(70):
            root = {"string": f"pci{r.randrange(2)}"}
            device["attributes"]["resource.kubernetes.io/pcieRoot"] = root
        if self.chance(15):
            device["attributes"]["group"] = r.choice(
                ({"string": "1"}, {"int": 1}, {"bool": True}, {"version": "1.0.0"}, {"int": 2})
            )
        if driver == GPU:
            device["capacity"] = {"memory": {"value": r.choice(("24Gi", "40Gi", "80Gi"))}}
            if self.chance(30):
                device["capacity"]["compute"] = {"value": r.choice(("100", "7", "2500m"))}
        if self.chance(shared):
            device["allowMultipleAllocations"] = True
            for capacity in device.get("capacity", {}).values():
                self.add_policy(capacity)
            if self.chance(10):
                device.pop("capacity", None)
        if self.chance(8):
            device["taints"] = [r.choice(_TAINTS) for _ in range(r.choice((1, 2)))]
        if counts and self.chance(90):
            device["consumesCounters"] = self.counters()
        if self.chance(4):
            device["bindingConditions"] = ["example.com/ready"]
            device["bindingFailureConditions"] = ["example.com/failed"]
        return device

    def counters(self) -> list[dict[str, Any]]:
        r = self.random
        consumed: list[dict[str, Any]] = []
        for i in r.choice(((0,), (0,), (1,), (0, 1))):
            amounts: dict[str, Any] = {"slices": {"value": str(r.choice((1, 2, 3)))}}
            if self.chance(70):
                amounts["bytes"] = {"value": r.choice(("10Gi", "20Gi"))}
            name = "absent" if r.random() < 0.001 else f"set{i}"
            consumed.append({"counterSet": name, "counters": amounts})
        if r.random() < 0.002:
            consumed[0]["compatibilityGroups"] = ["g"]
        return consumed

    def add_policy(self, capacity: dict[str, Any]) -> None:
        r = self.random
        value = parse_quantity(capacity["value"])
        policy: dict[str, Any]
        kind = r.randrange(5)
        if kind == 0:
            return
        if value > 10**6:
            if kind == 1:
                policy = {"default": "8Gi", "validValues": ["2Gi", "8Gi", "20Gi"]}
            elif kind == 2:
                policy = {"default": "4Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}
            elif kind == 3:
                policy = {
                    "default": "2Gi",
                    "validRange": {"min": "1Gi", "max": "16Gi", "step": "512Mi"},
                }
            else:
                policy = {"default": "1Gi", "validRange": {"min": "1Mi"}}
        elif kind == 1:
            policy = {"default": "1", "validValues": ["1", "2", "2500m"]}
        elif kind == 2:
            policy = {"default": "500m", "validRange": {"min": "250m", "step": "250m"}}
        elif kind == 3:
            policy = {"default": "1", "validRange": {"min": "1", "max": "2", "step": "1"}}
        else:
            policy = {"default": capacity["value"], "validRange": {"min": "100m"}}
        capacity["requestPolicy"] = policy

    def rule(self) -> dict[str, Any]:
        selector: dict[str, Any] = {}
        some = self.random.choice(self.slices)["spec"] if self.slices else None
        if some and self.chance(70):
            selector["driver"] = some["driver"]
        if some and self.chance(60):
            selector["pool"] = some["pool"]["name"]
        if some and some.get("devices") and self.chance(70):
            selector["device"] = self.random.choice(some["devices"])["name"]
        spec = {"deviceSelector": selector, "taint": self.random.choice(_TAINTS)}
        return {"metadata": {"name": "rule"}, "spec": spec}

    def classes(self) -> list[dict[str, Any]]:
        return [
            _class("gpu", _SELECTORS[0]),
            _class("nic", f'device.driver == "{NIC}"'),
            _class("any"),
            _class("good-gpu", _SELECTORS[0], self.random.choice(_SELECTORS)),
        ]

    def claim(self, number: int) -> dict[str, Any]:
        r = self.random
        requests = [self.request(f"r{i}") for i in range(r.choice((1, 1, 1, 2, 3)))]
        constraints: list[dict[str, Any]] = []
        while self.chance(20) and len(constraints) < 2:
            attribute = r.choice(
                ("resource.kubernetes.io/pcieRoot", f"{GPU}/model", f"{GPU}/index", f"{GPU}/group")
            )
            constraint: dict[str, Any] = {
                r.choice(("matchAttribute", "matchAttribute", "distinctAttribute")): attribute
            }
            if self.chance(40):
                names = [request["name"] for request in requests]
                for request in requests:
                    names += [
                        f"{request['name']}/{choice['name']}"
                        for choice in request.get("firstAvailable", ())
                    ]
                constraint["requests"] = r.sample(names, r.randint(1, min(2, len(names))))
            constraints.append(constraint)
        devices = {"requests": requests, "constraints": constraints}
        return {
            "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"uid-{number}"},
            "spec": {"devices": devices},
        }

    def request(self, name: str) -> dict[str, Any]:
        if self.chance(20):
            choices = [
                {"name": f"s{i}", **self.exactly(alternative=True)}
                for i in range(self.random.choice((1, 2, 3)))
            ]
            return {"name": name, "firstAvailable": choices}
        return {"name": name, "exactly": self.exactly(alternative=False)}

    def exactly(self, *, alternative: bool) -> dict[str, Any]:
        r = self.random
        kind = r.choice(("gpu", "gpu", "gpu", "gpu", "good-gpu", "any", "any", "nic"))
        request: dict[str, Any] = {"deviceClassName": kind, "allocationMode": "ExactCount"}
        if self.chance(10):
            request["allocationMode"] = "All"
        else:
            request["count"] = r.choice((1, 1, 1, 1, 1, 2, 3))
            if self.chance(1):
                request["count"] = 33
        if kind in ("gpu", "good-gpu") and self.chance(25):
            texts = [r.choice(_SELECTORS) for _ in range(r.choice((1, 1, 2)))]
            if self.chance(3):
                texts.append(_UNSAFE)
            request["selectors"] = [{"cel": {"expression": text}} for text in texts]
        if self.chance(35) and kind != "nic":
            requested = {"memory": r.choice(("1Gi", "3Gi", "8Gi", "1500Mi", "12Gi", "50Gi"))}
            if self.chance(20):
                requested["compute"] = r.choice(("1", "300m", "2500m", "3"))
            request["capacity"] = {"requests": requested}
        if not alternative and self.chance(5):
            request["adminAccess"] = r.choice((True, True, False))
        if self.chance(20):
            request["tolerations"] = [r.choice(_TOLERATIONS)]
        return request

    def allocated(self) -> list[dict[str, Any]]:
        """Hold some devices, up to their capacity."""
        r = self.random
        claims: list[dict[str, Any]] = []
        fill = r.choice((0, 0, 10, 20, 50))
        collected: set[tuple[str, str, str]] = set()
        for item in self.slices:
            spec = item["spec"]
            for device in spec.get("devices", ()):
                key = (spec["driver"], spec["pool"]["name"], device["name"])
                if key in collected or not self.chance(fill):
                    continue
                collected.add(key)
                result: dict[str, Any] = dict(
                    zip(("driver", "pool", "device"), key, strict=True), request="r"
                )
                if device.get("allowMultipleAllocations") and self.chance(95):
                    result["shareID"] = "7b5f3a6e-0000-4000-8000-000000000000"
                    result["consumedCapacity"] = {
                        name: str(int(parse_quantity(capacity["value"]) * r.choice((1, 2, 3)) // 4))
                        for name, capacity in device.get("capacity", {}).items()
                    }
                    if self.chance(5):
                        del result["consumedCapacity"]
                if self.chance(5):
                    result["adminAccess"] = True
                claims.append(
                    {
                        "metadata": {"name": f"held{len(claims)}", "namespace": "default"},
                        "spec": {"devices": {}},
                        "status": {"allocation": {"devices": {"results": [result]}}},
                    }
                )
        return claims


def _class(name: str, *selectors: str) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": text}} for text in selectors]}
    return {"metadata": {"name": name}, "spec": spec}


def random_cluster(seed: int) -> Cluster:
    """Return a cluster of up to three nodes, with claims to allocate."""
    return _Draw(seed).cluster()


def allocator_answers(
    program: Path, clusters: Iterable[Cluster]
) -> list[dict[str, Results | str | None]]:
    """Return the answers of kube-scheduler's allocator, by node, for each cluster.

    program: the tool `firstfit`. None: the claims do not fit. A text: the attempt ends with this
    error.
    """
    lines = b"\n".join(msgspec.json.encode(cluster) for cluster in clusters)
    finished = subprocess.run([program], input=lines, capture_output=True, check=True)
    return [
        {node: _plain_answer(answer) for node, answer in msgspec.json.decode(line).items()}
        for line in finished.stdout.splitlines()
    ]


def modelled(cluster: Cluster, selectors: Selectors) -> dict[str, Results | NoFit]:
    """Return the answer of our model for each node, decoded and gathered by our code."""
    slices = [read_slice(_as(ResourceSlice, item)) for item in cluster["slices"]]
    by_pool: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for item in slices:
        by_pool[item.driver, item.pool].append(item)
    rules = [read_taint_rule(_as(DeviceTaintRule, item)) for item in cluster["rules"]]
    classes = {}
    for item in cluster["classes"]:
        record = class_record(_as(DeviceClass, item))
        classes[record.name] = record
    requests = []
    for item in cluster["claims"]:
        spec = _as(ResourceClaim, item).spec
        assert spec is not None
        request = claim_request(spec).with_classes(classes)
        assert request is not None
        requests.append(request)
    claims = PodClaims(tuple(requests))
    use = use_of(_as(ResourceClaim, item) for item in cluster["allocated"])
    answers: dict[str, Results | NoFit] = {}
    for node in cluster["nodes"]:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        # Slices of the node come first, as in kube-scheduler.
        mine = [item for item in slices if item.nodes and item.nodes.node == name]
        rest_items = [item for item in slices if not (item.nodes and item.nodes.node)]
        devices = gather_pools(name, labels, [*mine, *rest_items], by_pool, rules)
        fit = first_fit(devices, claims, use, selectors.matches, Steps(100_000))
        answers[name] = _results(fit, len(requests)) if isinstance(fit, Fit) else fit
    return answers


def use_of(claims: Iterable[ResourceClaim]) -> Use:
    """Return the devices that allocated claims hold."""
    exclusive = set()
    shares: dict[Any, dict[str, int]] = {}
    for claim in claims:
        assert claim.allocation is not None
        for key, consumed in holdings(claim.allocation):
            if consumed is None:
                exclusive.add(key)
                continue
            total = shares.setdefault(key, {})
            for name, amount in consumed.items():
                total[name] = total.get(name, 0) + amount
    return Use(exclusive, shares)


def _as(kind: type[Any], item: Mapping[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(item), type=kind)


def _results(fit: Fit, claims: int) -> Results:
    results: Results = [[] for _ in range(claims)]
    for used in fit.taken:
        driver, pool, device = used.device.key
        result: dict[str, Any] = {
            "request": used.request,
            "driver": driver,
            "pool": pool,
            "device": device,
        }
        if used.has_admin_access:
            result["adminAccess"] = True
        if used.consumed:
            result["consumedCapacity"] = dict(used.consumed)
        results[used.claim].append(result)
    return results


def _plain_answer(answer: Mapping[str, Any]) -> Results | str | None:
    """Return an answer of the tool for one node as we write ours."""
    if answer.get("error"):
        return str(answer["error"])
    if answer.get("results") is None:
        return None
    return [[_plain(result) for result in results or ()] for results in answer["results"]]


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    survivors = {key: result[key] for key in ("request", "driver", "pool", "device")}
    if result.get("adminAccess"):
        survivors["adminAccess"] = True
    if result.get("consumedCapacity"):
        survivors["consumedCapacity"] = {
            name: _thousandths(amount) for name, amount in result["consumedCapacity"].items()
        }
    return survivors


def _thousandths(text: str) -> int:
    return int(Fraction(parse_quantity(text)) * THOUSANDTHS)


def comparison(our_value: Results | NoFit, theirs: Results | str | None) -> str:
    """Return how our answer for a node compares with that of kube-scheduler.

    "same devices"; "no devices", for a shortage or an error, as the pod is bound in neither case;
    "selector error", after which kube-scheduler allocates nothing, and we take the selector as
    true; "given up", if one of both has ended the search; or "different".
    """
    if our_value is NoFit.NOT_MODELLED or (
        isinstance(theirs, str) and "deadline exceeded" in theirs
    ):
        return "given up"
    if isinstance(theirs, str) and "CEL runtime error" in theirs:
        return "selector error"
    if isinstance(our_value, NoFit):
        return "different" if isinstance(theirs, list) else "no devices"
    return "same devices" if our_value == theirs else "different"
