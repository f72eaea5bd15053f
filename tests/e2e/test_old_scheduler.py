"""kube-scheduler 1.22 reads the files that we print for it, on the newest API server."""

import pytest

from tests.e2e.binaries import OLD_SCHEDULER
from tests.e2e.conftest import MakeWorld


@pytest.mark.parametrize(
    ("form", "printed"),
    [("policy", "Policy v1"), ("config", "KubeSchedulerConfiguration v1beta2")],
)
def test_a_file_of_that_time_places_pods_onto_devices(
    make_world: MakeWorld, form: str, printed: str
) -> None:
    world = make_world(version=OLD_SCHEDULER, options=("--form", form))
    objects = world.objects
    assert world.pair.form == printed
    world.start()
    node = objects.node(devices=2, units=16)
    landed = [objects.lands(objects.pod(units), world.told) for units in (10, 12)]
    assert landed == [(node, {0: 10}), (node, {1: 12})]
    objects.refusal(objects.pod(8), "Insufficient GPU Memory in one device")
    assert objects.lands(objects.pod(4), world.told) == (node, {1: 4})
    plain = objects.pod(0)
    assert objects.lands(plain, world.told) == (node, {})
    world.agrees()
    objects.sound()
