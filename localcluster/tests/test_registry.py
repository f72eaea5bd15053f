"""The registry under odd objects: stored or refused, never a traceback, never half done."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.patch import json_patch, merge_patch, strategic_merge
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.resources import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    Resource,
    find,
)
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.api.tables import table
from gpushare_localcluster.api.writing import scale_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)

POD: Object = {
    "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e"]},
    "spec": {
        "priorityClassName": "",
        "activeDeadlineSeconds": 5,
        "terminationGracePeriodSeconds": 3,
        "schedulingGates": [{"name": "g"}],
        "tolerations": [{"key": "k", "effect": "NoSchedule"}],
        "initContainers": [{"name": "i", "image": "y"}],
        "containers": [
            {
                "name": "c",
                "image": "x:1",
                "ports": [{"containerPort": 1}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            }
        ],
    },
}
STATUS: Object = {
    "capacity": {"cpu": "1"},
    "phase": "Running",
    "reason": "r",
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP", "address": "1"}],
    "nodeInfo": {"kubeletVersion": "v"},
    "containerStatuses": [
        {"ready": True, "restartCount": 1, "state": {"waiting": {"reason": "w"}}}
    ],
}
NODE: Object = {"metadata": {"name": "x"}, "spec": {"unschedulable": True}, "status": STATUS}
EVENT: Object = {
    "metadata": {"name": "x"},
    "involvedObject": {"kind": "Pod", "name": "p"},
    "source": {"component": "s", "host": "h"},
    "series": {"count": 1, "lastObservedTime": "t"},
    "count": 1,
    "message": "m",
}
LEASE: Object = {"metadata": {"name": "x"}, "spec": {"holderIdentity": "h"}}
CLASS: Object = {"metadata": {"name": "x"}, "value": 1, "globalDefault": True}
TEMPLATE: Object = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"x/y": 1}}}]},
}
SELECTOR: Object = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
}
DEPLOYMENT: Object = {
    "metadata": {"name": "x"},
    "spec": {
        "replicas": 1,
        "selector": SELECTOR,
        "template": TEMPLATE,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
    },
}
NUMBERED: Object = {
    "metadata": {"name": "x"},
    "spec": {
        "serviceName": "s",
        "selector": SELECTOR,
        "template": TEMPLATE,
        "ordinals": {"start": 1},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
    },
}
JOB: Object = {
    "metadata": {"name": "x"},
    "spec": {
        "completions": 1,
        "template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}},
    },
}
SERVICE: Object = {
    "metadata": {"name": "x"},
    "spec": {
        "type": "ClusterIP",
        "selector": {"a": "b"},
        "ports": [{"port": 1, "protocol": "TCP"}],
    },
}


def row(group: str, plural: str) -> Resource:
    result = find(group, "v1", plural)
    assert result is not None
    return result


SAMPLES = [
    (PODS, POD),
    (NODES, NODE),
    (EVENTS, EVENT),
    (LEASES, LEASE),
    (PRIORITY_CLASSES, CLASS),
    (row("apps", "deployments"), DEPLOYMENT),
    (row("apps", "statefulsets"), NUMBERED),
    (row("apps", "daemonsets"), {**NUMBERED, "status": {"numberReady": 1}}),
    (row("apps", "replicasets"), DEPLOYMENT),
    (row("batch", "jobs"), JOB),
    (row("", "services"), SERVICE),
]
KINDS = st.sampled_from(SAMPLES)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 1)
    | st.sampled_from(["", "x", "1", "a/b", "\ufffd"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=3,
)


def places(body: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    result = [path] if path else []
    items = (
        body.items()
        if isinstance(body, dict)
        else enumerate(body if isinstance(body, list) else [])
    )
    for key, value in items:
        result += places(value, (*path, key))
    return result


def with_odd(body: Object, path: tuple[str | int, ...], odd: object) -> Object:
    updated: Object = json.loads(json.dumps(body))
    inner: object = updated
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index]  # the path comes from `places` of this body
    inner[path[-1]] = odd  # type: ignore[index]  # the path comes from `places` of this body
    return updated


def use(registry: Registry, resource: Resource, body: Object) -> None:
    """Do with an object whatever can be done."""
    namespace = "default" if resource.namespaced else ""
    created = registry.create(resource, namespace, body)
    created.encoded()
    for part in ("status" if resource.status else "", ""):
        registry.revise(
            resource,
            namespace,
            "x",
            lambda old: {**old, "status": body.get("status", STATUS)},
            part=part,
        )
    records, version = registry.records(resource, None)
    json.dumps(table(resource, records, version, NOW))
    if resource.scale:
        json.dumps(scale_of(records[0].body))
    if resource is PODS:
        with suppress(StatusError):
            registry.bind(namespace, "x", {"target": {"name": "n"}})
    registry.delete(resource, namespace, "x", DeleteOptions())


@settings(max_examples=300)
@given(st.data(), KINDS, ODD)
def test_an_odd_object_is_stored_or_refused(
    data: st.DataObject, kind: tuple[Resource, Object], odd: object
) -> None:
    resource, body = kind
    path = data.draw(st.sampled_from(places(body)))
    registry = Registry(Store())
    with suppress(StatusError):
        use(registry, resource, with_odd(body, path, odd))
    # Whatever has been stored must not harm the next one.
    registry.create(PODS, "kube-system", {**POD, "metadata": {"name": "next"}})


@settings(max_examples=300)
@given(st.data(), KINDS, ODD)
def test_an_odd_patch_is_applied_or_refused(
    data: st.DataObject, kind: tuple[Resource, Object], odd: object
) -> None:
    resource, body = kind
    path = data.draw(st.sampled_from(places(body)))
    registry = Registry(Store())
    namespace = "default" if resource.namespaced else ""
    registry.create(resource, namespace, body)
    patch = with_odd(body, path, odd)

    def merged(old: Object) -> Object:
        result = merge_patch(old, patch)
        assert isinstance(result, dict)
        return result

    def edited(old: Object) -> Object:
        pointer = "".join(f"/{step}" for step in path)
        result = json_patch(old, [{"op": "add", "path": pointer, "value": odd}])
        assert isinstance(result, dict)
        return result

    for change in (merged, edited, lambda old: strategic_merge(old, patch)):
        for part in ("status", ""):
            with suppress(StatusError):
                registry.revise(resource, namespace, "x", change, part=part)
    records, version = registry.records(resource, None)
    json.dumps(table(resource, records, version, NOW))


def test_a_shorter_grace_counts_from_the_first_delete_and_is_never_over_before_it_is_named() -> (
    None
):
    """BeforeDelete of k8s.io/apiserver moves the deletionTimestamp back by the difference."""
    now = NOW
    registry = Registry(Store(clock=lambda: now))
    spec = {"containers": POD["spec"]["containers"], "nodeName": "n"}
    pod = {"metadata": {"name": "x"}, "spec": spec}
    registry.create(PODS, "default", pod)

    def delete(grace: int, after: int) -> tuple[str, int]:
        nonlocal now
        now = NOW + timedelta(seconds=after)
        meta = registry.delete(PODS, "default", "x", DeleteOptions(grace))[0].body["metadata"]
        return meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]

    assert delete(300, after=0) == ("2026-01-01T00:05:00Z", 300)
    assert delete(200, after=60) == ("2026-01-01T00:03:20Z", 200)
    assert delete(30, after=60) == ("2026-01-01T00:01:00Z", 1)


def test_a_pod_without_a_class_is_of_the_one_default_class() -> None:
    registry = Registry(Store(clock=lambda: NOW))

    def made(name: str, **fields: object) -> Object:
        body = {"metadata": {"name": name}, "value": len(name), **fields}
        return registry.create(PRIORITY_CLASSES, "", body).body

    made("usual", globalDefault=True, preemptionPolicy="Never")
    assert made("urgent")["preemptionPolicy"] == "PreemptLowerPriority"
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = registry.create(PODS, "default", pod).body["spec"]
    text = ("priorityClassName", "priority", "preemptionPolicy")
    assert [spec[field] for field in text] == ["usual", 5, "Never"]
