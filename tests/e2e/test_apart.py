"""Pods of a Deployment and workers of a group on different cards, on a real kube-scheduler."""

from collections.abc import Iterator

import pytest

from gpushare.core.model import Reason
from tests.contract.apiserver.client import Json
from tests.e2e.binaries import needed
from tests.e2e.conftest import MakePlane
from tests.e2e.groups import job_owner, member
from tests.e2e.objects import MEM, fresh
from tests.e2e.processes import until
from tests.e2e.world import World

_DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
_APART = {"gpushare.io/apart": "required"}
_CARDS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def apart_world(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A plain kube-scheduler, our extender, the controllers of Deployments, and four cards."""
    plane = make_plane()
    world = World(plane, tmp_path_factory.mktemp("apart"), flags=("--leadership", "off"))
    world.objects.node(devices=4, units=16)
    controllers = plane.start_controllers(
        needed("kube-controller-manager"), "deployment-controller", "replicaset-controller"
    )
    try:
        world.start()
        yield world
    finally:
        controllers.kill()
        world.stop()


def _cards(world: World, pods: list[Json]) -> list[int]:
    """The devices of those pods that are bound."""
    bound_pods = [pod for pod in pods if world.objects.node_of(pod)]
    return sorted(device for pod in bound_pods for device in world.objects.devices_of(pod))


def test_the_pods_of_a_deployment_have_a_card_each_and_the_fifth_waits(apart_world: World) -> None:
    world, name = apart_world, fresh("web")
    container = {"name": "main", "image": "x", "resources": {"limits": {MEM: "2"}}}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": _APART},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": 5, "selector": {"matchLabels": {"app": name}}, "template": template}
    world.api.create(_DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})
    until(lambda: _cards(world, world.objects.pods()) == _CARDS, world.told)
    bound_pods = [pod for pod in world.objects.pods() if pod["spec"].get("nodeName")]
    (late,) = (pod for pod in world.objects.pods() if not pod["spec"].get("nodeName"))
    world.objects.refusal(late, Reason.APART.value)
    # The books are the same after a restart of the extender.
    world.extender.kill()
    world.extender.start()
    other_pod = world.objects.pod(2)
    world.objects.lands(other_pod, world.told)
    assert not world.objects.node_of(late)
    world.objects.delete(bound_pods[0], other_pod)
    until(lambda: _cards(world, world.objects.pods()) == _CARDS, world.told)
    world.agrees()
    assert world.api.delete(f"{_DEPLOYMENTS}/{name}", {"propagationPolicy": "Orphan"}).status == 200
    world.objects.delete(*world.objects.pods())


def test_the_workers_of_a_group_have_a_card_each_or_wait_whole(apart_world: World) -> None:
    world, owner = apart_world, job_owner()
    too_many = [member(world.objects, 2, "five", 5, owner, annotations=_APART) for _ in range(5)]
    world.objects.refusal(too_many[0], Reason.GROUP_TOO_LARGE.value)
    assert _cards(world, too_many) == []
    world.objects.delete(*too_many)
    owner = job_owner()
    workers = [member(world.objects, 2, "four", 4, owner, annotations=_APART) for _ in range(4)]
    until(lambda: _cards(world, workers) == _CARDS, world.told)
    world.agrees()
