"""The API server and the extender are killed and come back, while a real kube-scheduler goes on."""

import random

from tests.e2e.processes import until
from tests.e2e.world import World

_LANDED = 90.0
"""Seconds until all have landed: Leases time out first, and kube-scheduler backs off up to 10 s."""


def all_land(world: World, pods: list[dict[str, object]]) -> None:
    """Return once all pods are bound, no device over-committed at any look."""
    objects = world.objects
    waited_for = {str(pod["metadata"]["name"]) for pod in pods}  # type: ignore[index]  # JSON

    def landed() -> bool:
        objects.sound()
        result = {pod["metadata"]["name"] for pod in objects.pods() if pod["spec"].get("nodeName")}
        return waited_for <= result

    until(landed, world.told, _LANDED)


def test_a_killed_extender_comes_back_under_load_and_gives_nothing_out_twice(world: World) -> None:
    objects = world.objects
    for _ in range(4):
        objects.node(devices=4, units=16)
    dice = random.Random(3)
    sizes = [dice.randint(1, 4) for _ in range(60)]
    pods = objects.many(sizes)
    until(lambda: any(pod["spec"].get("nodeName") for pod in objects.pods()), world.told)
    world.extender.kill()
    more = objects.many([dice.randint(1, 4) for _ in range(15)])
    world.extender.start()
    all_land(world, [*pods, *more])


def test_a_killed_api_server_comes_back_and_scheduling_goes_on(harsh_world: World) -> None:
    world, objects = harsh_world, harsh_world.objects
    for _ in range(2):
        objects.node(devices=4, units=16)
    before = objects.many([2] * 20)
    world.plane.kill_apiserver()
    world.plane.start_apiserver()
    after = objects.many([3] * 10)
    all_land(world, [*before, *after])
