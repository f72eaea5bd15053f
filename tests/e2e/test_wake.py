"""Room without an event of a Pod or a Node: the extender wakes a real kube-scheduler."""

import json
import time

import pytest

from gpushare.extender.follow.wake import AFTER_START, KEY
from tests.e2e.binaries import OLD_SCHEDULER, RELEASE
from tests.e2e.conftest import MakeWorld
from tests.e2e.objects import MEM, fresh

_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_AT_ONCE = 25.0
"""Seconds: a wake within one, and kube-scheduler's own back-off of at most ten."""


@pytest.mark.parametrize(("version", "kind"), [(RELEASE, "annotations"), (OLD_SCHEDULER, "labels")])
def test_a_device_that_a_config_map_opens_is_used_at_once(
    make_world: MakeWorld, version: str, kind: str
) -> None:
    world = make_world(version=version)
    objects = world.objects
    world.start()
    node = objects.node(devices=1, units=16)
    name = f"unhealthy-gpu-{node}"
    closing = {"metadata": {"name": name}, "data": {"gpus": "0"}}
    world.api.create(_MAPS, closing)
    time.sleep(1)
    pod = objects.pod(8)
    objects.refusal(pod, "no shared GPU")
    time.sleep(20)  # until kube-scheduler has nothing left to try
    begin = time.monotonic()
    world.api.delete(f"{_MAPS}/{name}")
    assert objects.lands(pod, world.told) == (node, {0: 8})
    assert time.monotonic() - begin < _AT_ONCE
    text = world.api.get(f"/api/v1/nodes/{node}").body["metadata"].get(kind) or {}
    assert KEY in text


@pytest.mark.parametrize("version", [RELEASE, OLD_SCHEDULER])
def test_a_pod_refused_for_a_hold_is_bound_once_that_has_lapsed(
    make_world: MakeWorld, version: str
) -> None:
    """The pod it is held for is given up by kube-scheduler without any call or event."""
    world = make_world(version=version)
    objects = world.objects
    world.start()
    node = objects.node(devices=1, units=16)
    time.sleep(AFTER_START + 3)  # until the extender has looked by itself
    begin = time.monotonic()
    container = {"name": "main", "resources": {"limits": {MEM: "10"}}}
    meta = {"name": "given-up", "namespace": "default", "uid": fresh("given-up")}
    request = {"Pod": {"metadata": meta, "spec": {"containers": [container]}}, "NodeNames": [node]}
    assert world.extender.post("filter", json.dumps(request).encode()).json()["NodeNames"] == [node]
    pod = objects.pod(12)
    objects.refusal(pod, "promised to a pod")
    assert objects.lands(pod, world.told) == (node, {0: 12})
    print(f"{version}: bound {time.monotonic() - begin:.1f} s after the hold began")
    assert time.monotonic() - begin < _AT_ONCE
    assert "gpushare_scheduler_wakes_total 1.0" in world.extender.metrics()
