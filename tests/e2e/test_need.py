"""`whatif --need` on a real control plane: the nodes that it names come, and the pods are bound.

The extender ranks by the policy that the command places by. While the nodes of the second test come
no scheduler runs, since the command counts all new nodes at once; the pending pods are recreated
one by one in the order of the answer, since another order may leave a pod over.
"""

import json
import os
import subprocess
from random import Random
from typing import Any

import pytest

from tests.e2e.binaries import needed
from tests.e2e.conftest import MakeWorld
from tests.e2e.extender import GPUSHARE
from tests.e2e.objects import fresh
from tests.e2e.processes import until
from tests.e2e.world import World
from tests.support.odd_clusters import outcome

Json = dict[str, Any]
FLAGS = ("--leadership", "off", "--policy", "device-bestfit")


def need(world: World, *words: str) -> Json:
    finished = subprocess.run(
        [*GPUSHARE, "whatif", "--need", *words, "-o", "json"]
        + ["--kubeconfig", str(world.plane.kubeconfig("admin"))],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"KUBECTL": str(needed("kubectl"))},
    )
    assert finished.stdout, finished.stderr
    result: Json = json.loads(finished.stdout)
    return result


def bound(world: World, pods: list[Json]) -> list[Json]:
    return [pod for pod in pods if world.objects.node_of(pod)]


def assert_bound(world: World, pods: list[Json], number: int) -> None:
    until(lambda: len(bound(world, pods)) == number, world.told)


def test_the_nodes_come_one_by_one_and_the_last_one_is_needed(make_world: MakeWorld) -> None:
    world = make_world(flags=FLAGS)
    world.start()
    like = world.objects.node()
    pods = [world.objects.pod(12) for _ in range(9)]
    pending_pods = [pod for pod in pods if not outcome(world.objects, pod)]
    assert len(pending_pods) == 7
    result = need(world, "--shape", like)
    assert result["needed"] == 4
    assert [item["fit"] for item in result["waiting"]] == [1] * 7
    for number in range(1, 5):
        world.objects.node()
        assert_bound(world, pods, min(2 + 2 * number, 9))
    assert need(world, "--shape", like)["needed"] == 0
    world.agrees()


@pytest.mark.parametrize("seed", range(3))
def test_all_pods_are_bound_that_are_not_left_out(make_world: MakeWorld, seed: int) -> None:
    chance = Random(seed)
    world = make_world(flags=FLAGS)
    world.start()
    small, large = world.objects.node(), world.objects.node(devices=4, units=24)
    pods = []
    for number in range(24):
        count = {"aliyun.com/gpu-count": "2"} if chance.random() < 0.25 else {}
        units = chance.choice((3, 5, 8, 10, 16, 20, 40)) * (1 + bool(count))
        selector = {"nodeSelector": {"zone": "none"}} if chance.random() < 0.1 else {}
        name = fresh(f"pod-{number:02}")
        pods.append(world.objects.pod(units, name=name, annotations=count, **selector))
    pending_pods = {pod["metadata"]["name"]: pod for pod in pods if not outcome(world.objects, pod)}
    result = need(world, "--shape", small, "--shape", large)
    out = {item["name"].partition("/")[2] for item in result["podsLeftOut"]}
    assert result["needed"] > 0, result
    world.kill()
    for shape, devices, units in zip(result["shapes"], (2, 4), (16, 24), strict=True):
        for _ in range(shape["nodes"]):
            world.objects.node(devices=devices, units=units)
    world.objects.delete(*pending_pods.values())
    world.start()
    order = [item["name"].partition("/")[2] for item in result["waiting"]]
    assert set(order) == set(pending_pods)
    remaining = {
        name
        for name in order
        if not outcome(world.objects, world.objects.again(pending_pods[name]))
    }
    assert remaining == out, (result, world.told())
    again = need(world, "--shape", small)
    assert again["needed"] == 0
    assert len(again["podsLeftOut"]) == len(out)
    world.agrees()
