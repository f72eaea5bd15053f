"""The number of pods that a group needs at once, by PodGroups, LeaderWorkerSets and JobSets."""

import json
from typing import Any

import pytest

from gpushare.wire.codec import Codec
from gpushare.wire.groups import (
    COSCHEDULING,
    JOB_SET,
    LEADER_WORKER_SET,
    MAX_MEMBERS,
    POD_GROUP,
    VOLCANO,
    pods_at_once,
)
from gpushare.wire.objects import JOB_SETS, LEADER_WORKER_SETS, POD_GROUPS

CODECS: dict[str, Codec[Any]] = {JOB_SET: JOB_SETS, LEADER_WORKER_SET: LEADER_WORKER_SETS}


def size(kind: str, spec: Any, status: Any = None, annotations: Any = None) -> int:
    """Return the size that `pods_at_once` reads of an object."""
    metadata = {"namespace": "team", "name": "a", "annotations": annotations}
    body = {"metadata": metadata, "spec": spec, "status": status}
    workload = CODECS.get(kind, POD_GROUPS).decode(json.dumps(body).encode())
    return pods_at_once(workload)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (COSCHEDULING, {"minMember": 3, "scheduleTimeoutSeconds": 10}, 3),
        (COSCHEDULING, {}, 0),
        (COSCHEDULING, None, 0),
        (COSCHEDULING, {"minMember": -1}, 0),
        (COSCHEDULING, {"minMember": MAX_MEMBERS + 1}, 0),
        (VOLCANO, {"minMember": 4, "minResources": {"cpu": "1"}}, 4),
        (POD_GROUP, {"schedulingPolicy": {"gang": {"minCount": 5}}}, 5),
        (POD_GROUP, {"schedulingPolicy": {"gang": {}}}, 0),
        (POD_GROUP, {"schedulingPolicy": {"basic": {}}}, 1),
    ],
)
def test_a_pod_group_says_how_many_pods_it_needs(kind: str, spec: Any, expected: int) -> None:
    assert size(kind, spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"leaderWorkerTemplate": {"size": 4}}, 4),
        ({"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderCreated"}, 4),
        # The API server's default.
        ({"leaderWorkerTemplate": {}}, 1),
        ({}, 0),
        (None, 0),
    ],
)
def test_a_leader_worker_set_says_how_large_each_of_its_groups_is(spec: Any, expected: int) -> None:
    assert size(LEADER_WORKER_SET, spec) == expected


def test_workers_that_are_made_when_their_leader_is_ready_are_not_waited_for() -> None:
    spec = {"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderReady"}
    assert size(LEADER_WORKER_SET, spec) == 1


def job(name: str, replicas: int | None, **spec: Any) -> dict[str, Any]:
    workload: dict[str, Any] = {"name": name, "template": {"spec": spec}}
    return workload if replicas is None else workload | {"replicas": replicas}


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([job("a", 2, parallelism=3)], 6),
        ([job("driver", None), job("workers", 1, parallelism=4, completions=4)], 5),
        # Not all pods run at once.
        ([job("a", 1, parallelism=4, completions=10)], 4),
        ([job("a", 1, parallelism=4, completions=2)], 2),
        ([job("a", 2, parallelism=0)], 0),
        ([{"name": "a", "template": None}], 1),
        ([], 0),
    ],
)
def test_a_job_set_needs_all_pods_of_its_jobs(jobs: list[Any], expected: int) -> None:
    assert size(JOB_SET, {"replicatedJobs": jobs}) == expected


def test_jobs_that_have_succeeded_need_no_place_any_more() -> None:
    spec = {"replicatedJobs": [job("driver", 1), job("workers", 2, parallelism=2)]}
    status = {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}, {"name": "driver"}]}
    assert size(JOB_SET, spec, status) == 3


@pytest.mark.parametrize(
    ("further", "of_job"),
    [
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, {}),
        ({}, {"dependsOn": [{"name": "driver", "status": "Ready"}]}),
    ],
)
def test_jobs_that_start_one_after_the_other_are_not_waited_for(
    further: dict[str, Any], of_job: dict[str, Any]
) -> None:
    jobs = [job("driver", 1), job("workers", 1, parallelism=4) | of_job]
    assert size(JOB_SET, {"replicatedJobs": jobs, **further}) == 1


def test_jobs_that_start_in_any_order_are() -> None:
    policy = {"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}
    assert size(JOB_SET, {"replicatedJobs": [job("a", 3)], **policy}) == 3


LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_LABELS = "alpha.jobset.sigs.k8s.io/node-selector"


def test_pods_that_are_made_when_their_first_one_is_bound_are_not_waited_for() -> None:
    """Exclusive placement: the followers' nodes follow from the first pod's."""
    spec = {"leaderWorkerTemplate": {"size": 4}}
    assert size(LEADER_WORKER_SET, spec, annotations={LWS_EXCLUSIVE: "rack"}) == 1
    jobs = {"replicatedJobs": [job("a", 2, parallelism=2)]}
    assert size(JOB_SET, jobs, annotations={EXCLUSIVE: "rack"}) == 1
    one = job("b", 1, parallelism=2)
    one["template"]["metadata"] = {"annotations": {EXCLUSIVE: "rack"}}
    assert size(JOB_SET, {"replicatedJobs": [job("a", 1), one]}) == 1
    # Here the nodes have labels before the pods come.
    assert size(JOB_SET, jobs, annotations={EXCLUSIVE: "rack", BY_LABELS: "true"}) == 4
