"""A large pod among small ones that keep coming, on a real control plane."""

import pytest

from tests.e2e.conftest import MakeWorld
from tests.e2e.objects import COUNT
from tests.e2e.processes import until


@pytest.mark.parametrize("reserves", [True, False])
def test_a_large_pod_among_small_ones_is_bound_with_a_reservation(
    make_world: MakeWorld, reserves: bool
) -> None:
    flags = ("--leadership", "off", *(("--reserve-after", "1") if reserves else ()))
    world = make_world(flags=flags)
    world.start()
    objects = world.objects
    node = objects.node(devices=2, units=16)
    running = objects.many([16, 16])
    for pod in running:
        objects.lands(pod, world.told)
    large = objects.pod(32, annotations={COUNT: "2"})
    objects.refusal(large, "Insufficient")
    if reserves:
        line = f"reservation pod=default/{large['metadata']['name']} "
        until(lambda: line in world.extender.log, world.told)
    small = objects.many([16, 16])
    for pod in small:
        objects.refusal(pod, "Insufficient")
    objects.delete(running[0])
    if reserves:
        until(lambda: " promised=1" in world.extender.log, world.told)
        assert not any(map(objects.node_of, small)), world.told()
    else:
        until(lambda: any(map(objects.node_of, small)), world.told)
    objects.delete(running[1])
    if reserves:
        assert objects.lands(large, world.told) == (node, {0: 16, 1: 16})
        until(lambda: "gpushare_reservations 0.0" in world.extender.metrics(), world.told)
    else:
        for pod in small:
            objects.lands(pod, world.told)
        assert not objects.node_of(large)
    world.agrees()
    objects.sound()
