"""Random namespaces with labels, and with objects that select pods.

Services, ReplicaSets, StatefulSets and ReplicationControllers: pods that belong to them are spread
by default. PodDisruptionBudgets: pods of theirs are rather not evicted. Plain objects of the API,
the same in each run: kube-scheduler reads them when it starts, so that it knows them before the
first pod comes. No controller runs that would make pods.
"""

from random import Random
from typing import Any

Json = dict[str, Any]

LABELS = {"app": ("a", "b"), "tier": ("x", "y")}
"""The labels of pods, and their values."""
NAMESPACES = tuple(f"team-{number}" for number in range(6))
_KINDS = {
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicationController": "v1",
}
_CONTROLLERS = tuple(_KINDS)
_OTHERS = (("Job", "batch/v1"), ("StatefulSet", "apps.example.com/v1"))
"""Controllers that do not count for the default spread of kube-scheduler."""


def owner(random: Random) -> Json:
    """The controller of a pod: one that is there, one that has gone, or one of another kind."""
    kind = random.choice(_CONTROLLERS)
    api_version = _KINDS[kind]
    if random.random() < 0.2:
        kind, api_version = random.choice(_OTHERS)
    name = random.choice(["first", "second", "gone"])
    meta = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"{kind}-{name}"}
    return meta | {"controller": random.random() < 0.9}


def namespaces() -> list[Json]:
    """All of NAMESPACES, with labels for the selectors of affinity."""
    return [
        {"metadata": {"name": name, "labels": {"floor": str(number % 2)}}}
        for number, name in enumerate(NAMESPACES)
    ]


def selecting() -> list[tuple[str, str, Json]]:
    """Objects that select pods: the kind, the path for the creation, and the object."""
    random = Random(1)
    return [
        _made(random, kind, namespace, name)
        for namespace in NAMESPACES
        for name in ("first", "second")
        for kind in ("Service", *_CONTROLLERS)
        if random.random() < 0.5
    ]


def budgets() -> list[tuple[str, Json]]:
    """Budgets: the path for the creation, and the object."""
    random = Random(2)
    return [
        (
            f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": f"{namespace}-{value}", "namespace": namespace},
                "spec": {"selector": {"matchLabels": {"app": value}}},
                "status": {"disruptionsAllowed": random.randint(0, 1)},
            },
        )
        for namespace in NAMESPACES
        for value in LABELS["app"]
        if random.random() < 0.7
    ]


def _made(random: Random, kind: str, namespace: str, name: str) -> tuple[str, str, Json]:
    version = _KINDS.get(kind, "v1")
    labels = {
        key: random.choice(values) for key, values in LABELS.items() if random.random() < 0.6
    } or {"app": "a"}
    meta = {"name": name, "namespace": namespace}
    body: Json = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": {}}
    if kind == "Service":
        body["spec"] = {"ports": [{"port": 80}]}
        if random.random() < 0.8:  # the others select nobody
            body["spec"]["selector"] = labels
    else:
        body["spec"]["template"] = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        body["spec"]["selector"] = labels if version == "v1" else _selector(random, labels)
    if kind == "StatefulSet":
        body["spec"]["serviceName"] = name
    group = f"apis/{version}" if "/" in version else f"api/{version}"
    return kind, f"/{group}/namespaces/{namespace}/{kind.lower()}s", body


def _selector(random: Random, labels: Json) -> Json:
    """A label selector, half of the time by expressions."""
    if random.random() < 0.5:
        return {"matchLabels": labels}
    expressions = [{"key": k, "operator": "In", "values": [v, "z"]} for k, v in labels.items()]
    return {"matchExpressions": expressions}
