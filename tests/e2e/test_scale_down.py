"""The guard against scale-down under a real API server: its annotations, and their removal."""

import json

from tests.e2e.conftest import MakeWorld
from tests.e2e.processes import until
from tests.e2e.world import World

_OFF = ("--leadership", "off")
_KEYS = {
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
    "gpushare.io/scale-down-guard",
}
_ROUND = 75.0
"""Seconds: a whole round of the guard, and some to spare."""


def _notes(world: World, node: str) -> dict[str, str]:
    """The annotations of the node about scale-down."""
    notes = world.api.get(f"/api/v1/nodes/{node}").body["metadata"].get("annotations") or {}
    return {key: text for key, text in notes.items() if key in _KEYS}


def test_a_node_is_kept_and_a_process_without_the_guard_lets_it_go(make_world: MakeWorld) -> None:
    world = make_world(flags=(*_OFF, "--scale-down-guard"))
    node = world.objects.node(devices=1, units=16)
    world.start()
    pod = world.objects.pod(10)
    world.objects.lands(pod, world.told)
    until(lambda: _notes(world, node).keys() == _KEYS, world.told, _ROUND)
    output = json.loads(_notes(world, node)["gpushare.io/scale-down-guard"])
    assert pod["metadata"]["name"] in output["why"]
    until(
        lambda: "gpushare_scale_down_kept_nodes 1.0" in world.extender.metrics(), world.told, 20.0
    )

    def told() -> bool:
        (shown_text,) = world.extender.inspect(node)["nodes"]
        return bool(shown_text.get("keptFromScaleDown") == output["why"])

    until(told, world.told, 20.0)
    world.stop()
    after = make_world()
    after.start()
    until(lambda: not _notes(after, node), after.told, _ROUND)
    assert "gpushare_scale_down" not in after.extender.metrics()
