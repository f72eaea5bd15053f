"""Small clusters by chance: nodes and pods that try all that a scheduler looks at.

Plain objects of the API, equal for equal seeds. Values are few, so that pods meet: labels, ports,
taints and zones that two pods share are the rule.
"""

from random import Random
from typing import Any

from tests.e2e.random_namespaces import LABELS, NAMESPACES, owner

Json = dict[str, Any]

PRIORITIES = {"low": 10, "high": 1000}
"""The priority classes that pods name."""
PROFILES = ("default-scheduler", "packing", "ratio")
"""The schedulers that pods name."""
OWN_SPREAD = PROFILES[2]
"""The profile with spread constraints in the file, hard ones included."""
THING = "example.com/thing"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SPREAD = "topologySpreadConstraints"
_HOSTNAME, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_MIB = 1024 * 1024
_NEWER = ("minDomains", "nodeTaintsPolicy", "nodeAffinityPolicy", "matchLabelKeys")


def without_sidecars(pod: Json) -> Json:
    """The pod without sidecars."""
    return _without(pod, {"initContainers": ("restartPolicy",)})


def as_of_1_22(pod: Json) -> Json:
    """The pod without the fields of its spec that kube-scheduler 1.22 does not know.

    One that may be spread excludes no node: 1.22 counts pods on excluded nodes, too, where another
    node of the same zone is not excluded.
    """
    result = _without(without_sidecars(pod), {_SPREAD: _NEWER})
    spec = result["spec"]
    if spec.get(_SPREAD) or spec["schedulerName"] == OWN_SPREAD:
        spec.pop("nodeSelector", None)
        affinity = dict(spec["affinity"].get("nodeAffinity", {}))
        affinity.pop(_REQUIRED, None)
        spec["affinity"] = {**spec["affinity"], "nodeAffinity": affinity}
    return result


def _without(pod: Json, fields: dict[str, tuple[str, ...]]) -> Json:
    """The pod without these fields of the items of these lists of its spec."""
    spec = dict(pod["spec"])
    for kind in fields.keys() & spec.keys():
        spec[kind] = [
            {key: value for key, value in item.items() if key not in fields[kind]}
            for item in spec[kind]
        ]
    return {**pod, "spec": spec}


class RandomCluster:
    """Nodes, and pods one after another."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._seed = seed
        # An image has one size wherever it is.
        self._sizes = {f"app:{tag}": self._random.randint(1, 900) * _MIB for tag in (1, 2)}

    def nodes(self) -> list[Json]:
        """Three to six nodes."""
        return [self._node(f"c{self._seed}-n{i}") for i in range(self._random.randint(3, 6))]

    def pods(self, count: int) -> list[Json]:
        """The pods in the order of their coming."""
        return [self._pod(f"c{self._seed}-p{index}") for index in range(count)]

    def _namespace(self) -> str:
        """One of two, so that pods meet."""
        return NAMESPACES[(self._seed + (0 if self._one(0.8) else 1)) % len(NAMESPACES)]

    def _one(self, chance: float) -> bool:
        return self._random.random() < chance

    def _node(self, name: str) -> Json:
        choice = self._random.choice
        labels = {_HOSTNAME: name, "disk": choice(["ssd", "hdd"]), "size": choice(["1", "2", "5"])}
        if self._one(0.9):
            labels[_ZONE] = choice(["a", "b"])
        amounts = {
            "cpu": choice(["1", "2", "4"]),
            "memory": choice(["1Gi", "2Gi", "3000Mi"]),
            "pods": choice(["3", "6", "110"]),
            "ephemeral-storage": "10Gi",
        }
        if self._one(0.5):
            amounts[THING] = choice(["1", "3"])
        spec: Json = {"unschedulable": True} if self._one(0.08) else {}
        if self._one(0.4):
            effect = choice(["NoSchedule", "PreferNoSchedule", "PreferNoSchedule", "NoExecute"])
            spec["taints"] = [{"key": choice(["team", "gpu"]), "value": "x", "effect": effect}]
        images = [
            {"names": [name], "sizeBytes": size}
            for name, size in self._sizes.items()
            if self._one(0.4)
        ]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"capacity": amounts, "allocatable": amounts, "images": images},
        }

    def _pod(self, name: str) -> Json:
        choice = self._random.choice
        labels = {key: choice(values) for key, values in LABELS.items()}
        spec: Json = {
            "terminationGracePeriodSeconds": 0,
            "schedulerName": choice(PROFILES),
            "containers": [self._container("main")],
        }
        if self._one(0.2):
            spec["initContainers"] = [self._container("first")]
            if self._one(0.5):
                spec["initContainers"][0]["restartPolicy"] = "Always"
        if self._one(0.35):
            spec["tolerations"] = [self._toleration()]
        if self._one(0.15):
            spec["nodeSelector"] = {"disk": choice(["ssd", "hdd"])}
        if self._one(0.3):
            spec["priorityClassName"] = choice(list(PRIORITIES))
        if self._one(0.3):
            spec[_SPREAD] = [self._spread(key) for key in (_ZONE, _HOSTNAME) if self._one(0.7)]
        spec["affinity"] = {
            kind: result
            for kind, result in (
                ("nodeAffinity", self._node_affinity()),
                ("podAffinity", self._pod_affinity(0.15)),
                ("podAntiAffinity", self._pod_affinity(0.2)),
            )
            if result
        }
        owners = [owner(self._random)] if self._one(0.5) else []
        meta: Json = {"name": name, "namespace": self._namespace(), "labels": labels}
        meta["ownerReferences"] = owners
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str) -> Json:
        choice = self._random.choice
        requests = {}
        if self._one(0.7):
            requests["cpu"] = choice(["100m", "300m", "700m", "1500m"])
        if self._one(0.7):
            requests["memory"] = choice(["64Mi", "300Mi", "900Mi", "1500Mi"])
        if self._one(0.1):
            requests["ephemeral-storage"] = choice(["1Gi", "6Gi"])
        limits = {THING: "1"} if self._one(0.15) else {}
        container: Json = {
            "name": name,
            "image": f"app:{choice(['1', '2', '3'])}",
            "resources": {"requests": {**requests, **limits}, "limits": limits},
        }
        if name == "main" and self._one(0.2):
            port: Json = {"containerPort": 80, "hostPort": choice([8080, 8081])}
            if self._one(0.4):
                port["hostIP"] = choice(["127.0.0.1", "10.0.0.1"])
            container["ports"] = [port]
        return container

    def _toleration(self) -> Json:
        choice = self._random.choice
        if self._one(0.3):
            return {"operator": "Exists"}
        result: Json = {"key": choice(["team", "gpu"]), "operator": "Equal", "value": "x"}
        if self._one(0.5):
            result["effect"] = choice(["NoSchedule", "PreferNoSchedule"])
        return result

    def _expression(self) -> Json:
        return self._random.choice(
            [
                {"key": "disk", "operator": "In", "values": ["ssd"]},
                {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
                {"key": _ZONE, "operator": "Exists"},
                {"key": _ZONE, "operator": "DoesNotExist"},
                {"key": "size", "operator": "Gt", "values": ["1"]},
                {"key": "size", "operator": "Lt", "values": ["5"]},
            ]
        )

    def _node_affinity(self) -> Json:
        result: Json = {}
        if self._one(0.12):
            terms = [{"matchExpressions": [self._expression()]} for _ in range(2)]
            result[_REQUIRED] = {"nodeSelectorTerms": terms}
        elif self._one(0.08):
            names = [f"c{self._seed}-n{self._random.randint(0, 7)}" for _ in range(2)]
            field = {"key": "metadata.name", "operator": "In", "values": names[:1]}
            terms = [{"matchFields": [field]}]
            result[_REQUIRED] = {"nodeSelectorTerms": terms}
        if self._one(0.25):
            result[_PREFERRED] = [
                {
                    "weight": self._random.choice([1, 20, 100]),
                    "preference": {"matchExpressions": [self._expression()]},
                }
                for _ in range(self._random.randint(1, 2))
            ]
        return result

    def _pod_affinity(self, chance: float) -> Json:
        result: Json = {}
        if self._one(chance):
            result[_REQUIRED] = [self._pod_term()]
        if self._one(chance):
            result[_PREFERRED] = [
                {"weight": self._random.choice([5, 50]), "podAffinityTerm": self._pod_term()}
            ]
        return result

    def _pod_term(self) -> Json:
        result = {"topologyKey": self._random.choice([_ZONE, _HOSTNAME]), **self._selector()}
        if self._one(0.15):
            result["namespaces"] = [self._namespace()]
        if self._one(0.15):
            floor = {"matchLabels": {"floor": self._random.choice(["0", "1"])}}
            result["namespaceSelector"] = self._random.choice([{}, floor])
        return result

    def _selector(self) -> Json:
        label = self._random.choice(list(LABELS))
        expected = self._random.choice(LABELS[label])
        if self._one(0.3):
            expression = {"key": label, "operator": "NotIn", "values": [expected]}
            return {"labelSelector": {"matchExpressions": [expression]}}
        return {"labelSelector": {"matchLabels": {label: expected}}}

    def _spread(self, key: str) -> Json:
        choice = self._random.choice
        hard = self._one(0.5)
        result: Json = {
            "maxSkew": choice([1, 2]),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            **self._selector(),
        }
        if hard and self._one(0.2):
            result["minDomains"] = choice([2, 3])
        if self._one(0.3):
            result["nodeTaintsPolicy"] = choice(["Honor", "Ignore"])
        if self._one(0.3):
            result["nodeAffinityPolicy"] = choice(["Honor", "Ignore"])
        if self._one(0.2):
            result["matchLabelKeys"] = (
                ["tier"] if "tier" not in str(result["labelSelector"]) else []
            )
        return result
