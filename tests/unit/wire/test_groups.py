"""The group and the workload that a pod names, and whether the pod may wait between filter and
bind.
"""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.core.model import Apart, Request
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import APART
from gpushare.wire.groups import GROUP_SIZE, NO_GROUP, Group, group_of
from gpushare.wire.objects import Pod
from gpushare.wire.pods import claimant, request_of
from tests.unit.extender.kit import pod_json, read_pod

MIN = "pod-group.scheduling.sigs.k8s.io/min-available"
COSCHEDULED = Group("coscheduling team/g", sized_by="coscheduling team/g")


def made(labels: dict[str, str], annotations: dict[str, str], **spec: Any) -> Pod:
    body = pod_json("a", 4)
    body["metadata"] |= {"labels": labels, "annotations": annotations}
    body["spec"] |= spec
    return read_pod(body)


@pytest.mark.parametrize(
    ("labels", "annotations", "group"),
    [
        ({}, {}, NO_GROUP),
        ({"app": "x"}, {}, NO_GROUP),
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, COSCHEDULED),
        (
            {"scheduling.x-k8s.io/pod-group": "g", MIN: "3"},
            {},
            replace(COSCHEDULED, size=3, whole=True),
        ),
        ({"scheduling.x-k8s.io/pod-group": "g", MIN: "x"}, {}, COSCHEDULED),
        (
            {"pod-group.scheduling.sigs.k8s.io/name": "g", MIN: "2"},
            {},
            replace(COSCHEDULED, size=2, whole=True),
        ),
        (
            {},
            {"scheduling.k8s.io/group-name": "g"},
            Group("volcano team/g", sized_by="volcano team/g"),
        ),
        (
            {
                "leaderworkerset.sigs.k8s.io/group-key": "k",
                "leaderworkerset.sigs.k8s.io/name": "serve",
            },
            # The size does not say whether the workers exist before the leader runs.
            {"leaderworkerset.sigs.k8s.io/size": "4"},
            Group("lws team/k", sized_by="lws team/serve"),
        ),
        (
            {"kueue.x-k8s.io/pod-group-name": "g"},
            {"kueue.x-k8s.io/pod-group-total-count": "2"},
            Group("kueue team/g", 2),
        ),
        (
            {"jobset.sigs.k8s.io/jobset-name": "j"},
            {},
            Group("jobset team/j", sized_by="jobset team/j"),
        ),
    ],
)
def test_a_group_is_known_by_what_its_controller_writes(
    labels: dict[str, str], annotations: dict[str, str], group: Group
) -> None:
    assert group_of(made(labels, annotations)) == group


def test_a_pod_group_of_kubernetes_itself_comes_first() -> None:
    pod = made({"scheduling.x-k8s.io/pod-group": "g"}, {}, schedulingGroup={"podGroupName": "own"})
    assert group_of(pod) == Group("podgroup team/own", sized_by="podgroup team/own")


JOB = {"kind": "Job", "name": "train", "uid": "u-1", "controller": True}


@pytest.mark.parametrize(
    ("size", "owners", "group"),
    [
        ("4", [JOB], Group("job team/train u-1", 4)),
        ("0", [JOB], Group("job team/train u-1", 1)),
        ("x", [JOB], NO_GROUP),
        ("10001", [JOB], NO_GROUP),
        ("4", [], NO_GROUP),
        ("4", [JOB | {"controller": False}], NO_GROUP),
        ("4", [JOB | {"uid": None}], NO_GROUP),
    ],
)
def test_the_pods_of_one_controller_are_a_group_if_they_say_its_size(
    size: str, owners: list[dict[str, Any]], group: Group
) -> None:
    body = pod_json("a", 4)
    body["metadata"] |= {"annotations": {GROUP_SIZE: size}, "ownerReferences": owners}
    assert group_of(read_pod(body)) == group


GANG = "scheduling.x-k8s.io/pod-group"


@pytest.mark.parametrize(
    ("metadata", "workload"),
    [
        ({"ownerReferences": [JOB]}, "job team/train u-1"),
        ({"ownerReferences": [JOB], "labels": {GANG: "g"}}, "coscheduling team/g"),
        ({"ownerReferences": [JOB | {"controller": False}], "labels": {"app": "x"}}, None),
    ],
)
def test_a_pod_stays_apart_from_the_pods_of_its_group_or_controller(
    metadata: dict[str, Any], workload: str | None
) -> None:
    for value, is_required in (("required", True), ("preferred", False)):
        body = pod_json("a", 4, annotations={APART: value})
        body["metadata"] |= metadata
        expected = workload and Apart(workload, is_required)
        assert request_of(read_pod(body), ALIYUN).apart == expected
    body["metadata"] |= {"annotations": {}}
    assert request_of(read_pod(body), ALIYUN).apart is None


@pytest.mark.parametrize(("annotations", "size"), [("3", 3), ("1", 1), ("0", 1)])
def test_the_size_that_a_pod_is_given_for_us_comes_before_all_others(
    annotations: str, size: int
) -> None:
    pod = made({"jobset.sigs.k8s.io/jobset-name": "j"}, {GROUP_SIZE: annotations})
    assert group_of(pod) == Group("jobset team/j", size)
    own_size = made({"scheduling.x-k8s.io/pod-group": "g", MIN: "9"}, {GROUP_SIZE: annotations})
    assert group_of(own_size) == Group("coscheduling team/g", size, whole=size > 1)
    kubernetes = made({}, {GROUP_SIZE: annotations}, schedulingGroup={"podGroupName": "own"})
    assert group_of(kubernetes) == Group("podgroup team/own", size)


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        ({}, False),
        ({"volumes": [{"name": "a", "emptyDir": {}}]}, False),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]}, True),
        ({"volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": {}}}]}, True),
        ({"resourceClaims": [{"name": "a", "resourceClaimName": "c"}]}, True),
        ({"resourceClaims": []}, False),
    ],
)
def test_volumes_and_claims_that_may_have_to_be_made_let_a_pod_wait(
    spec: dict[str, Any], waits: bool
) -> None:
    assert claimant(made({}, {}, **spec), Request()).waits is waits
