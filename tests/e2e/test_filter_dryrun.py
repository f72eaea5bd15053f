"""`filter-dryrun` asked as an autoscaler would, with objects of a real API server.

What it says of a node that does not exist holds when the node comes, and asking leaves no trace.
"""

import json
import re
from copy import deepcopy
from typing import Any

from tests.e2e.objects import MEM, NODES
from tests.e2e.processes import until
from tests.e2e.world import World

Json = dict[str, Any]
_OURS = "gpushare.io/shape"
_MOVES_BY_ITSELF = re.compile(r'gpushare_(\w+_seconds |audit|request.*verb="filter_dryrun")')
"""Metrics of time, and of the calls that are made here."""


def _template(node: Json, name: str, shape: str = "") -> Json:
    """A node that an autoscaler makes up from one that is there.

    shape: it is known by this label alone, as of a group without nodes; "": by what it advertises.
    """
    made = deepcopy(node)
    made["metadata"] |= {"name": name, "uid": "", "labels": {"kubernetes.io/hostname": name}}
    if shape:
        made["metadata"]["labels"][_OURS] = shape
        for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
            for resource in [each for each in amounts if "/" in each]:
                del amounts[resource]
    return made


def _ask(world: World, pod: Json, nodes: list[Json]) -> Json:
    body = {"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": None}
    reply = world.extender.post("filter-dryrun", json.dumps(body).encode())
    assert reply.status == 200
    return dict(reply.json())


def _stored(world: World, pod: Json) -> list[tuple[str, str]]:
    """Name and version of each object that could have been written; events about the pod alone."""
    about = f"regarding.uid={pod['metadata']['uid']}"
    lists = [world.api.get(path) for path in (NODES, "/api/v1/pods", "/api/v1/configmaps")]
    lists.append(world.api.get("/apis/events.k8s.io/v1/events", fieldSelector=about))
    return [
        (each["metadata"]["name"], each["metadata"]["resourceVersion"])
        for found in lists
        for each in found.body["items"]
    ]


def _counted(world: World, calls: int) -> list[str]:
    """The metrics that only acts change, once they have so many calls: a scrape may be stale."""
    found: list[str] = []
    mark = f'gpushare_requests_total{{outcome="fit",verb="filter_dryrun"}} {calls:.1f}'

    def fresh() -> bool:
        found[:] = world.extender.metrics().splitlines()
        return mark in found

    until(fresh, lambda: f"{mark}: {found}")
    ours = [line for line in found if line.startswith("gpushare_")]
    return [line for line in ours if not _MOVES_BY_ITSELF.match(line)]


def test_what_it_says_of_a_node_holds_when_the_node_comes(world: World) -> None:
    full = world.objects.node()
    for pod in world.objects.many([10, 10]):
        world.objects.lands(pod, world.told)
    # Nobody schedules it, so that nothing but this test asks.
    pod = world.objects.pod(8, schedulerName="nobody")
    world.agrees()
    there = world.api.get(f"{NODES}/{full}").body
    copy, small = _template(there, "copy"), _template(there, "small", "4x6GiB")
    labelled, bare = _template(there, "labelled", "2x16GiB"), _template(there, "bare", "x")
    del bare["metadata"]["labels"][_OURS]
    nodes = [there, copy, labelled, small, bare]
    books, stored = world.extender.inspect(), _stored(world, pod)
    answer = _ask(world, pod, nodes)
    counted = _counted(world, 1)

    assert answer["Error"] == ""
    fit = [each["metadata"]["name"] for each in answer["Nodes"]["items"]]
    assert fit == ["copy", "labelled"]
    assert answer["FailedNodes"].keys() == {full}
    assert answer["FailedAndUnresolvableNodes"].keys() == {"small", "bare"}
    for _ in range(20):
        assert _ask(world, pod, nodes) == answer
    assert world.extender.inspect() == books
    assert _stored(world, pod) == stored
    assert _counted(world, 21) == counted

    again = world.objects.pod(8)
    world.objects.refusal(again, "Insufficient GPU Memory in one device")
    came = world.objects.node()
    assert there["status"]["capacity"][MEM] == "32"
    assert world.objects.lands(again, world.told)[0] == came
