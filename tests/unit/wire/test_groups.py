"""What a pod says of its group, and whether it may wait between filter and bind."""

from typing import Any

import pytest

from gpushare.wire.objects import Pod
from gpushare.wire.pods import NO_GROUP, Group, group_of, may_wait
from tests.unit.extender.kit import pod_json, read_pod

MIN = "pod-group.scheduling.sigs.k8s.io/min-available"


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
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, Group("coscheduling team/g")),
        (
            {"scheduling.x-k8s.io/pod-group": "g", MIN: "3"},
            {},
            Group("coscheduling team/g", 3, True),
        ),
        ({"scheduling.x-k8s.io/pod-group": "g", MIN: "x"}, {}, Group("coscheduling team/g")),
        (
            {"pod-group.scheduling.sigs.k8s.io/name": "g", MIN: "2"},
            {},
            Group("coscheduling team/g", 2, True),
        ),
        ({}, {"scheduling.k8s.io/group-name": "g"}, Group("volcano team/g")),
        (
            {"leaderworkerset.sigs.k8s.io/group-key": "k"},
            {"leaderworkerset.sigs.k8s.io/size": "4"},
            Group("lws team/k", 4),
        ),
        (
            {"kueue.x-k8s.io/pod-group-name": "g"},
            {"kueue.x-k8s.io/pod-group-total-count": "2"},
            Group("kueue team/g", 2),
        ),
        ({"jobset.sigs.k8s.io/jobset-name": "j"}, {}, Group("jobset team/j")),
    ],
)
def test_a_group_is_known_by_what_its_controller_writes(
    labels: dict[str, str], annotations: dict[str, str], group: Group
) -> None:
    assert group_of(made(labels, annotations)) == group


def test_a_pod_group_of_kubernetes_itself_comes_first() -> None:
    pod = made({"scheduling.x-k8s.io/pod-group": "g"}, {}, schedulingGroup={"podGroupName": "own"})
    assert group_of(pod) == Group("podgroup team/own")


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
    assert may_wait(made({}, {}, **spec)) is waits
