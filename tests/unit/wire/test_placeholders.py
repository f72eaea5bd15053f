"""Placeholders have the request of a pending pod, on other nodes."""

import json
from typing import Any

import pytest

from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from gpushare.wire.placeholders import (
    FOR,
    SCHEDULER,
    name_for,
    placeholder,
    placeholder_of,
    status_patch,
)
from gpushare.wire.pods import observe_pod, request_of

REF = PodRef("team", "web", "uid-web")
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(**spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "500m", "memory": "1Gi", ALIYUN.resource: "8"}
    return {
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "team", "uid": "uid-web"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": amounts}}], **spec},
        "status": {"phase": "Pending", "conditions": [REFUSED]},
    }


def made(document: dict[str, Any], *nodes: str) -> dict[str, Any] | None:
    request = request_of(PODS.decode(json.dumps(pod()).encode()), ALIYUN)
    body = placeholder(json.dumps(document).encode(), REF, request, nodes, "asks")
    return None if body is None else json.loads(body)


def terms(document: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = document["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    result: list[dict[str, Any]] = affinity["nodeSelectorTerms"]
    return result


def test_it_asks_for_the_same_on_other_nodes_and_is_served_by_nobody() -> None:
    selector, tolerations = {"zone": "a"}, [{"operator": "Exists"}]
    request = pod(nodeSelector=selector, tolerations=tolerations, priorityClassName="high")
    document = made(request, "n2", "n1")
    assert document is not None
    spec = document["spec"]
    assert document["metadata"] == {
        "name": "for-uid-web",
        "namespace": "asks",
        "labels": {FOR: "uid-web"},
        "annotations": {FOR: "team/web"},
    }
    assert (spec["schedulerName"], spec["priorityClassName"]) == (SCHEDULER, "high")
    assert (spec["nodeSelector"], spec["tolerations"]) == (selector, tolerations)
    (container,) = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "500m", "memory": str(2**30), ALIYUN.resource: "8"},
        "limits": {ALIYUN.resource: "8"},
    }
    out = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert terms(document) == [{"matchExpressions": [out]}]


def test_what_the_pod_requires_of_nodes_stays_in_each_alternative() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["n7"]}
    own_name = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [field]}, {}]}
    document = made(pod(affinity={"nodeAffinity": {REQUIRED: own_name}}), "n1")
    assert document is not None
    out = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
    assert terms(document) == [
        {"matchExpressions": [zone, out]},
        {"matchFields": [field], "matchExpressions": [out]},
    ]


def test_it_says_of_which_group_its_pod_is() -> None:
    request = request_of(PODS.decode(json.dumps(pod()).encode()), ALIYUN)
    for group in ("", "podgroup team/g"):
        body = placeholder(json.dumps(pod()).encode(), REF, request, [], "asks", group=group)
        document = placeholder_of(PODS.decode(body or b""))
        assert document is not None
        assert document.group == group


def test_a_class_of_the_system_is_left_out() -> None:
    document = made(pod(priorityClassName="system-node-critical"), "n1")
    assert document is not None
    assert "priorityClassName" not in document["spec"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "web", "namespace": "team", "uid": "another"}},
        {"metadata": {"uid": "uid-web", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"nodeName": "n1", "containers": []}},
        {"spec": {"schedulingGates": [{"name": "x"}], "containers": []}},
        {"status": {"conditions": [REFUSED], "nominatedNodeName": "n1"}},
        {"status": {"conditions": [{**REFUSED, "reason": "SchedulerError"}]}},
        {"status": {}},
    ],
)
def test_a_pod_that_no_autoscaler_counts_has_none(change: dict[str, Any]) -> None:
    assert made(pod() | change, "n1") is None


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"metadata":7}', b"{}", b"[" * 9999])
def test_what_is_no_pod_is_said(body: bytes) -> None:
    request = request_of(PODS.decode(json.dumps(pod()).encode()), ALIYUN)
    with pytest.raises(MessageError, match="pod team/web"):
        placeholder(body, REF, request, [], "asks")


@pytest.mark.parametrize(
    ("uid", "name"),
    [
        ("9ff7a19a-0a59-4f29-bad3-92d273e2f61c", "for-9ff7a19a-0a59-4f29-bad3-92d273e2f61c"),
        ("../x", ""),
        ("A", ""),
        ("a" * 60, ""),
        ("", ""),
    ],
)
def test_its_name_is_its_pods_uid(uid: str, name: str) -> None:
    assert name_for(uid) == name


def test_it_is_read_as_it_was_written_and_asks_nobody_here_for_anything() -> None:
    document = made(pod(), "n1", "n2")
    assert document is not None
    view = PODS.decode(json.dumps(document | {"status": {"phase": "Pending"}}).encode())
    placeholder_of_result = placeholder_of(view)
    assert placeholder_of_result is not None
    assert (
        placeholder_of_result.name,
        placeholder_of_result.uid,
        placeholder_of_result.unschedulable,
    ) == ("for-uid-web", "uid-web", False)
    assert placeholder_of_result.nodes == {"n1", "n2"}
    patch = document | json.loads(status_patch("2026-01-01T00:00:00Z"))
    after = placeholder_of(PODS.decode(json.dumps(patch).encode()))
    assert after is not None
    assert after.unschedulable
    view.metadata.uid = "own"  # type: ignore[union-attr]
    assert not observe_pod(view, ALIYUN).request.devices
    assert placeholder_of(PODS.decode(json.dumps(pod()).encode())) is None
