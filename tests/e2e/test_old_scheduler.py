"""kube-scheduler 1.22 reads the Policy file that we print for it, on the newest API server."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.binaries import OLD_SCHEDULER, needed
from tests.e2e.conftest import MakePlane, agrees
from tests.e2e.world import World


@pytest.fixture(scope="module")
def world(make_plane: MakePlane) -> Iterator[World]:
    needed("kube-scheduler", OLD_SCHEDULER)
    old = World(make_plane(), version=OLD_SCHEDULER, flags=("--leadership", "off"))
    try:
        old.start()
        yield old
    finally:
        old.stop()


def test_a_policy_file_places_pods_onto_devices(world: World) -> None:
    objects = world.objects
    assert json.loads(world.file.read_text())["kind"] == "Policy"
    node = objects.node(devices=2, units=16)
    landed = [objects.lands(objects.pod(units), world.told) for units in (10, 12)]
    assert landed == [(node, {0: 10}), (node, {1: 12})]
    objects.refusal(objects.pod(8), "Insufficient GPU Memory in one device")
    assert objects.lands(objects.pod(4), world.told) == (node, {1: 4})
    plain = objects.pod(0)
    assert objects.lands(plain, world.told) == (node, {})
    agrees(world)
    objects.sound()
