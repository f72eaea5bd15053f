"""Pods that wait between filter and bind, and groups of pods, on a real kube-scheduler.

Groups need PodGroups (1.37, feature gate GenericWorkload); volumes that are made late are there in
every release.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.binaries import OLD_SCHEDULER, RELEASE
from tests.e2e.conftest import MakePlane, MakeWorld
from tests.e2e.objects import Objects, fresh
from tests.e2e.processes import until
from tests.e2e.world import World

_GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_SELECTED = "volume.kubernetes.io/selected-node"
_FIRST_WITH_GROUPS = 37
_GATE = "--feature-gates=GenericWorkload=true"


@pytest.fixture(scope="module")
def gang_world(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A kube-scheduler that knows PodGroups, and our extender."""
    if int(RELEASE.split(".")[1]) < _FIRST_WITH_GROUPS:
        pytest.skip(f"Kubernetes {RELEASE} has no PodGroups of its own")
    plane = make_plane(_GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true")
    folder: Path = tmp_path_factory.mktemp("gangs")
    world = World(
        plane,
        folder,
        flags=("--leadership", "off", "--policy", "binpack"),
        scheduler_flags=(_GATE,),
    )
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.fixture
def gangs(gang_world: World) -> Iterator[World]:
    """The same; the books must agree after the test, and the cluster is emptied."""
    yield gang_world
    try:
        gang_world.agrees()
        gang_world.objects.sound()
    finally:
        gang_world.objects.clear()
        for group in gang_world.api.get(_GROUPS).body["items"]:
            gang_world.api.delete(f"{_GROUPS}/{group['metadata']['name']}")
        gang_world.agrees()


def _gang(objects: Objects, size: int, units: int) -> list[Json]:
    """A PodGroup, bound as a whole, and its pods."""
    name = fresh("gang")
    policy = {"gang": {"minCount": size}}
    body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}}
    objects.api.create(_GROUPS, body)
    return [objects.pod(units, schedulingGroup={"podGroupName": name}) for _ in range(size)]


def _bound(objects: Objects, pods: list[Json]) -> list[str]:
    return [node for node in map(objects.node_of, pods) if node]


def _asked(world: World, pod: Json) -> bool:
    """Whether filter was called for the pod."""
    return f"pod=default/{pod['metadata']['name']} units=" in world.extender.log


def test_no_pod_of_a_group_is_bound_where_only_some_of_them_fit(gangs: World) -> None:
    objects = gangs.objects
    objects.node(devices=2, units=16)
    pods = _gang(objects, 3, 10)
    until(lambda: any(_asked(gangs, pod) for pod in pods), gangs.told)
    group = f"{_GROUPS}/{pods[0]['spec']['schedulingGroup']['podGroupName']}"
    until(
        lambda: any(
            item["status"] == "False"
            for item in gangs.api.get(group).body.get("status", {}).get("conditions", ())
        ),
        gangs.told,
    )
    assert _bound(objects, pods) == []


def test_no_pod_of_a_group_is_asked_about_before_enough_are_there(gangs: World) -> None:
    """So nothing has to be read of the PodGroup itself."""
    objects = gangs.objects
    objects.node(devices=2, units=16)
    name = fresh("gang")
    body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    objects.api.create(_GROUPS, body)
    group: Json = {"schedulingGroup": {"podGroupName": name}}
    first = objects.pod(10, **group)
    # kube-scheduler has had the time: it has bound a later pod.
    objects.lands(objects.pod(5), gangs.told)
    assert not _asked(gangs, first)
    second = objects.pod(10, **group)
    for pod in (first, second):
        objects.lands(pod, gangs.told)


def test_a_group_that_fits_is_bound_whole_each_pod_on_its_own_device(gangs: World) -> None:
    objects = gangs.objects
    objects.node(devices=2, units=16)
    pods = _gang(objects, 2, 10)
    landed = [objects.lands(pod, gangs.told)[1] for pod in pods]
    assert sorted(map(str, landed)) == ["{0: 10}", "{1: 10}"]
    assert _refused_binds(gangs, pods) == []


def test_a_group_over_two_nodes_is_bound_in_one_round_without_a_refused_bind(gangs: World) -> None:
    objects = gangs.objects
    for _ in range(2):
        objects.node(devices=2, units=16)
    pods = _gang(objects, 4, 10)
    for pod in pods:
        objects.lands(pod, gangs.told)
    assert _refused_binds(gangs, pods) == []


def test_of_two_groups_for_one_node_one_is_bound_whole_and_then_the_other(gangs: World) -> None:
    objects = gangs.objects
    objects.node(devices=2, units=16)
    both = [_gang(objects, 2, 10) for _ in range(2)]
    until(lambda: any(len(_bound(objects, pods)) == 2 for pods in both), gangs.told)
    first, second = sorted(both, key=lambda pods: -len(_bound(objects, pods)))
    until(lambda: any(_asked(gangs, pod) for pod in second), gangs.told)
    assert _bound(objects, second) == []
    objects.delete(*first)
    for pod in second:
        objects.lands(pod, gangs.told)


def test_a_group_that_cannot_be_bound_does_not_starve_a_plain_pod(gangs: World) -> None:
    objects = gangs.objects
    objects.node(devices=2, units=16)
    name = fresh("gang")
    body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    objects.api.create(_GROUPS, body)
    group: Json = {"schedulingGroup": {"podGroupName": name}}
    large = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1000"}}}
    pods = [objects.pod(10, **group) for _ in range(2)]
    pods.append(objects.pod(0, **group, containers=[large]))
    until(lambda: all(_asked(gangs, pod) for pod in pods[:2]), gangs.told)
    begin = time.monotonic()
    plain = objects.pod(10)
    objects.lands(plain, gangs.told)
    print(f"the plain pod was bound after {time.monotonic() - begin:.1f} s")
    assert _bound(objects, pods) == []


@pytest.mark.parametrize("version", [RELEASE, OLD_SCHEDULER])
def test_a_pod_that_waits_for_its_volume_keeps_its_place(
    make_world: MakeWorld, version: str
) -> None:
    world = make_world(version=version, flags=("--leadership", "off", "--policy", "binpack"))
    world.start()
    objects = world.objects
    nodes = {objects.node(devices=2, units=16) for _ in range(2)}
    claim = _late_claim(objects)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    slow = objects.pod(10, volumes=volumes)
    until(lambda: bool(_selected(objects, claim)), world.told)
    place = _selected(objects, claim)
    # Four devices have room for one such pod each; the slow pod uses one of them.
    rest_items = [objects.pod(10) for _ in range(3)]
    landed = [objects.lands(pod, world.told)[0] for pod in rest_items]
    expected = [2 - (node == place) for node in sorted(nodes)]
    assert [landed.count(node) for node in sorted(nodes)] == expected, world.told()
    _provide(objects, claim, place)
    assert objects.lands(slow, world.told)[0] == place
    world.agrees()
    objects.sound()


def _refused_binds(world: World, pods: list[Json]) -> list[str]:
    """The lines of the log about binds of these pods that failed."""
    names = {f"pod=default/{pod['metadata']['name']}" for pod in pods}
    return [
        line
        for line in world.extender.log.splitlines()
        if " bind " in line and " error=" in line and names & set(line.split())
    ]


def _late_claim(objects: Objects) -> str:
    """The name of a new claim with a volume on the node of the first pod."""
    kind, claim = fresh("late"), fresh("claim")
    body: Json = {
        "metadata": {"name": kind},
        "provisioner": "example.com/by-hand",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    objects.api.create("/apis/storage.k8s.io/v1/storageclasses", body)
    size = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
    objects.api.create(
        _CLAIMS, {"metadata": {"name": claim}, "spec": {"storageClassName": kind, **size}}
    )
    return claim


def _selected(objects: Objects, claim: str) -> str:
    """The node for the volume; "" before kube-scheduler has chosen."""
    result = objects.api.get(f"{_CLAIMS}/{claim}").body
    return str(result["metadata"].get("annotations", {}).get(_SELECTED, ""))


def _provide(objects: Objects, claim: str, node: str) -> None:
    """Create the volume and bind the claim, as provisioner and controller do."""
    result = objects.api.get(f"{_CLAIMS}/{claim}").body
    name = f"volume-of-{claim}"
    terms = [
        {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
            ]
        }
    ]
    objects.patch(
        f"/api/v1/nodes/{node}", {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
    )
    volume: Json = {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": result["spec"]["storageClassName"],
            "hostPath": {"path": "/data"},
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": claim,
                "uid": result["metadata"]["uid"],
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }
    objects.api.create("/api/v1/persistentvolumes", volume)
    finished = {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
    }
    objects.patch(
        f"{_CLAIMS}/{claim}", {"metadata": {"annotations": finished}, "spec": {"volumeName": name}}
    )
    objects.patch(f"{_CLAIMS}/{claim}/status", {"status": {"phase": "Bound"}})
    objects.patch(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Bound"}})
