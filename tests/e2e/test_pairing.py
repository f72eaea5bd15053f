"""Pairing with a real kube-scheduler: an equal pod waits for the first, and lands once that runs.

There is no kubelet: the test writes the status that one would write.
"""

from tests.contract.apiserver.client import MERGE
from tests.e2e.conftest import MakeWorld
from tests.e2e.processes import until

WAITS = "1 GPU Memory waits until an equal pod has been given its device"


def test_an_equal_pod_waits_for_the_very_first_of_a_node(make_world: MakeWorld) -> None:
    world = make_world(flags=("--leadership", "off", "--pairing", "auto"))
    world.start()
    objects = world.objects
    node = objects.node(devices=2, units=16)
    pods = [objects.pod(10), objects.pod(10)]
    until(lambda: any(objects.node_of(pod) for pod in pods), world.told)
    (pending,) = (pod for pod in pods if not objects.node_of(pod))
    (first,) = (pod for pod in pods if pod is not pending)
    objects.refusal(pending, WAITS)
    second = objects.pod(9)  # of another size nobody waits for
    assert objects.lands(second, world.told)[0] == node
    objects.delete(second)
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    assert world.api.patch(f"{objects.path(first)}/status", {"status": status}, MERGE).status == 200
    assert objects.lands(pending, world.told)[0] == node
    assert {*objects.devices_of(first), *objects.devices_of(pending)} == {0, 1}
    objects.sound()
