"""Pod templates of objects: built-in kinds, and kinds of other projects by where templates stand.

The shapes of the objects are those of the projects' own examples.
"""

from typing import Any

import pytest

from gpushare.cli.pod_specs import pod_templates
from gpushare.errors import SettingsError

Json = dict[str, Any]

POD: Json = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


def found(item: Json) -> list[tuple[str, int]]:
    """The parts of the object with pods, and the number of pods of each."""
    templates = pod_templates(item)
    assert all(template.pod["spec"]["containers"] for template in templates)  # type: ignore[index]
    return [(template.part, template.count) for template in templates]


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", {"replicas": 3, "template": POD}, 3),
        ("StatefulSet", {"template": POD, "volumeClaimTemplates": [{"spec": {}}]}, 1),
        ("Job", {"parallelism": 4, "completions": 8, "template": POD}, 4),
        ("Job", {"parallelism": 4, "completions": 2, "template": POD}, 2),
        ("CronJob", {"jobTemplate": {"spec": {"parallelism": 2, "template": POD}}}, 2),
        ("DaemonSet", {"selector": {}, "template": POD}, 1),
        ("Notebook", {"template": POD}, 1),
    ],
)
def test_an_object_with_one_template(kind: str, spec: Json, count: int) -> None:
    assert found({"kind": kind, "spec": spec}) == [("", count)]


def test_a_pod_is_itself() -> None:
    pod = {"kind": "Pod", **POD}
    assert [(template.pod, template.count) for template in pod_templates(pod)] == [(pod, 1)]


def test_a_job_set_multiplies_jobs_and_their_pods() -> None:
    jobs = [
        {"name": "driver", "template": {"spec": {"template": POD}}},
        {
            "name": "workers",
            "replicas": 2,
            "template": {"spec": {"parallelism": 4, "template": POD}},
        },
    ]
    assert found({"kind": "JobSet", "spec": {"replicatedJobs": jobs}}) == [
        ("driver", 1),
        ("workers", 8),
    ]


def test_the_leader_is_one_of_the_size_of_a_leader_worker_set() -> None:
    template = {"size": 4, "leaderTemplate": POD, "workerTemplate": POD}
    spec = {"replicas": 2, "leaderWorkerTemplate": template}
    assert found({"kind": "LeaderWorkerSet", "spec": spec}) == [
        ("leaderTemplate", 2),
        ("workerTemplate", 6),
    ]
    del template["leaderTemplate"]
    assert found({"kind": "LeaderWorkerSet", "spec": spec}) == [("workerTemplate", 8)]


def test_a_ray_cluster_has_a_head_and_groups_of_workers_of_several_hosts() -> None:
    groups = [
        {"groupName": "small", "replicas": 3, "minReplicas": 0, "template": POD},
        {"groupName": "tpu", "replicas": 2, "numOfHosts": 4, "template": POD},
    ]
    cluster = {"headGroupSpec": {"template": POD}, "workerGroupSpecs": groups}
    parts = [("headGroupSpec", 1), ("small", 3), ("tpu", 8)]
    assert found({"kind": "RayCluster", "spec": cluster}) == parts
    assert found({"kind": "RayJob", "spec": {"rayClusterSpec": cluster}}) == parts


def test_a_training_job_has_replicas_by_role() -> None:
    replicas = {
        "Master": {"replicas": 1, "template": POD},
        "Worker": {"replicas": 7, "template": POD},
    }
    spec = {"elasticPolicy": {"minReplicas": 1}, "pytorchReplicaSpecs": replicas}
    assert found({"kind": "PyTorchJob", "spec": spec}) == [("Master", 1), ("Worker", 7)]


def test_an_inference_service_has_a_container_under_the_name_of_the_model() -> None:
    limits = {"aliyun.com/gpu-mem": "8"}
    model = {"modelFormat": {"name": "x"}, "resources": {"limits": limits}}
    service = {
        "kind": "InferenceService",
        "metadata": {"name": "llm", "annotations": {"gpushare.io/policy": "binpack"}},
        "spec": {"predictor": {"minReplicas": 2, "model": model}, "transformer": POD["spec"]},
    }
    predictor, transformer = pod_templates(service)
    assert (predictor.part, predictor.count, transformer.count) == ("predictor", 2, 1)
    assert predictor.pod["spec"]["containers"] == [model]  # type: ignore[index]
    annotations = predictor.pod["metadata"]["annotations"]  # type: ignore[index]
    assert annotations == {"gpushare.io/policy": "binpack"}


def test_a_pod_spec_without_metadata_is_found() -> None:
    cliques = [{"name": "decode", "spec": {"replicas": 4, "podSpec": POD["spec"]}}]
    item = {"kind": "PodCliqueSet", "spec": {"replicas": 2, "template": {"cliques": cliques}}}
    assert found(item) == [("decode", 8)]


@pytest.mark.parametrize(
    "item",
    [
        {"kind": "Service", "spec": {"ports": [{"port": 80}]}},
        {"kind": "ConfigMap", "data": {"containers": "x"}},
        {"kind": "CustomResourceDefinition", "spec": {"containers": {"type": "array"}}},
        {"kind": "Foreign", "status": {"template": POD}},
        {},
    ],
)
def test_other_objects_make_no_pods(item: Json) -> None:
    assert pod_templates(item) == []


@pytest.mark.parametrize(
    "spec", [{"replicas": "many"}, {"replicas": True}, {"replicas": -1}, {"replicas": 10**6}]
)
def test_a_wrong_number_is_refused(spec: Json) -> None:
    with pytest.raises(SettingsError, match="is no number of pods"):
        pod_templates({"kind": "Deployment", "spec": {**spec, "template": POD}})
