"""A story of compute: the annotation with the number of devices changes while a bind is under way.

Found by seeds of stories as a violation of L1: two devices were charged all compute of the pod.
"""

from typing import Any

from gpushare_localcluster.api.objects import with_metadata
from tests.simulation.chance import Chance
from tests.simulation.rest import come_to_rest
from tests.simulation.truth import COUNT, Asked, PodTruth
from tests.simulation.world import World

_UNITS, _PERCENT = 1, 20
_CALM_WORLD = 4089
"""The number of a world with one replica, where pods ask for compute and nodes have inventories."""


def test_a_count_edited_during_a_bind_leaves_each_device_its_part_of_the_compute() -> None:
    world = World(_CALM_WORLD)
    try:
        assert world.setting.cores
        asked = Asked(_UNITS, 2, (2 * _UNITS,), cores=_PERCENT)
        world.users.add(PodTruth("", "p0", asked), "")
        (pod,) = world.users.waiting()
        world.settle()
        world.scheduler.schedule(Chance(0), [pod])
        world.settle()
        assert world.scheduler.bind(Chance(0))
        _answer_all_but_the_binding(world)
        assert world.kubelets.revise(pod, _with_unreadable_count)
        pod.forged = True
        world.settle()
        for _ in range(3):
            world.end_step()
            world.settle()
        assert pod.node
        (replica,) = world.replicas
        (node,) = replica.ledger.dump(pod.node)
        charged = [percent for percent in node.cores_used if percent]
        assert charged == [_PERCENT, _PERCENT]
        come_to_rest(world)
    finally:
        world.close()


def _answer_all_but_the_binding(world: World) -> None:
    """Let the bind go on until the Binding is on its way to the API server."""
    for _ in range(100):
        requests = world.answerable()
        if any(request.binding is not None for request in requests):
            return
        assert requests
        world.answer(requests[0])
        world.run_timers()
    raise AssertionError("no Binding is sent")


def _with_unreadable_count(body: dict[str, Any]) -> dict[str, Any]:
    notes = body["metadata"].get("annotations", {})
    return with_metadata(body, annotations={**notes, COUNT: "x"})
