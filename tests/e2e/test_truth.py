"""Predictions about pods, and the decisions of a real kube-scheduler, on clusters in odd states.

Nodes by chance: cordoned, not ready, tainted, with less allocatable than capacity, full of pods;
pods by chance: selectors, tolerations, other resources, gates, priorities. `whatif` predicts each
pod before its creation. The outcome must equal the prediction, and `explain`, from lists and from
the extender's books, the page and `doctor` must agree.
"""

import json
import os
import subprocess
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpushare_localcluster.http_client import HttpClient
from tests.e2e.binaries import needed
from tests.e2e.conftest import MakeWorld
from tests.e2e.extender import GPUSHARE
from tests.e2e.objects import COUNT, MEM, NODES, PODS, fresh
from tests.e2e.processes import until
from tests.e2e.world import World
from tests.integration.process import free_port

Json = dict[str, Any]

_OTHER = "example.com/thing"
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
_DEDICATED = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
_STATES = ("plain", "plain", "cordoned", "not ready", "tainted", "less", "nothing", "few", "small")


def make_node(world: World, state: str, zone: str) -> None:
    """A node of two devices of 16 GiB in that state."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", MEM: "32", COUNT: "2", _OTHER: "2"}
    updated: dict[str, dict[str, str]] = {
        "less": {MEM: "20"},
        "nothing": {MEM: "0"},
        "few": {"pods": "2"},
        "small": {"cpu": "1"},
    }
    ready = "False" if state == "not ready" else "True"
    taints = {"not ready": [_NOT_READY], "tainted": [_DEDICATED]}.get(state, [])
    world.api.create(
        NODES,
        {
            "metadata": {"name": fresh(state.replace(" ", "-")), "labels": {"zone": zone}},
            "spec": {"unschedulable": state == "cordoned", "taints": taints},
            "status": {
                "capacity": capacity,
                "allocatable": capacity | updated.get(state, {}),
                "conditions": [{"type": "Ready", "status": ready, "reason": "x"}],
            },
        },
    )


def make_pod(chance: Random, name: str) -> Json:
    """A pod that asks for much or little, and may use few nodes or many."""
    limits = {MEM: str(chance.choice((2, 4, 8, 8, 16)))}
    if chance.random() < 0.4:
        limits["cpu"] = chance.choice(("500m", "2", "9"))
    if chance.random() < 0.2:
        limits[_OTHER] = "1"
    spec: Json = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        "tolerations": chance.choice(([], [], [{"operator": "Exists"}], [_DEDICATED])),
    }
    if chance.random() < 0.4:
        spec["nodeSelector"] = {"zone": chance.choice("abc")}
    if chance.random() < 0.2:
        term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
        required = {"nodeSelectorTerms": [term]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": affinity}
    if chance.random() < 0.15:
        spec["schedulingGates"] = [{"name": "example.com/quota"}]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec}


class Sayings:
    """The statements of the commands and the page about the world."""

    def __init__(self, world: World, page: int, folder: Path) -> None:
        self._world = world
        self._page = f"http://127.0.0.1:{page}"
        self._folder = folder
        self._config = world.plane.kubeconfig("admin")

    def _run(self, *words: str) -> Json:
        finished = subprocess.run(
            [*GPUSHARE, *words, "--kubeconfig", str(self._config), "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"KUBECTL": str(needed("kubectl"))},
        )
        assert finished.stdout, finished.stderr
        result: Json = json.loads(finished.stdout)
        return result

    def whatif(self, pod: Json) -> Json:
        file = self._folder / "pod.json"
        file.write_text(json.dumps(pod))
        return self._run("whatif", "--pods", str(file))

    def explain(self, name: str, *more: str) -> Json:
        return self._run("explain", name, "-n", "default", *more)

    def doctor(self) -> Json:
        return self._run("doctor")

    def page(self) -> dict[str, Json]:
        """The pods that wait by name, once each is explained."""
        result: dict[str, Json] = {}

        def told() -> bool:
            with closing(HttpClient(self._page)) as page:
                answer = page.call("GET", "/ui/books.json", timeout=10.0)
            (part,) = json.loads(answer.body)["resources"]
            result.clear()
            result.update({pod["name"]: pod for pod in part["pending"]})
            return all(pod["why"] for pod in result.values())

        until(told, lambda: f"explained pods: {result}")
        return result


def outcome(world: World, pod: Json) -> str:
    """The node of the pod; "" once kube-scheduler has rejected or gated the pod."""

    def condition() -> str:
        conditions = world.objects.get(pod).get("status", {}).get("conditions", ())
        result = [item for item in conditions if item["type"] == "PodScheduled"]
        return str(result[0].get("reason", "bound")) if result else ""

    until(
        lambda: (
            bool(world.objects.node_of(pod))
            or condition()
            in {
                "Unschedulable",
                "SchedulingGated",
            }
        ),
        lambda: f"{condition()}; {world.told()}",
    )
    return world.objects.node_of(pod)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_is_what_kube_scheduler_does(
    make_world: MakeWorld, tmp_path: Path, seed: int
) -> None:
    chance, page = Random(seed), free_port()
    listen = ("--leadership", "off", "--ui-listen", f"127.0.0.1:{page}")
    world = make_world(flags=listen)
    world.start()
    for _ in range(5):
        make_node(world, chance.choice(_STATES), chance.choice("ab"))
    sayings = Sayings(world, page, tmp_path)
    pending_pod: dict[str, bool] = {}
    time.sleep(1)
    for _ in range(12):
        pod = make_pod(chance, fresh("pod"))
        name, gated = pod["metadata"]["name"], "schedulingGates" in pod["spec"]
        promised = sayings.whatif(pod)["pods"][0]
        created = world.api.create(PODS, pod).body
        node = outcome(world, created)
        if gated:
            assert not node
        else:
            assert (promised["fit"] == 1) == bool(node), (promised, pod, world.told())
        if not node:
            pending_pod[name] = gated
    world.agrees()
    health = world.extender.health_url
    shown_text = sayings.page()
    assert shown_text.keys() == pending_pod.keys()
    for name, gated in pending_pod.items():
        for output in (sayings.explain(name), sayings.explain(name, "--extender", health)):
            assert output["state"] == "pending", output
            assert gated or not output["explanation"]["fit"], output
            assert gated == output["scheduler"]["gated"]
        text = shown_text[name]
        assert gated or not text["why"].startswith("it fits now"), text
        if gated:
            assert text["scheduler"] == "its scheduling gates hold it back"
        else:
            assert text["asked"] == (text["scheduler"] is None), text
            assert text["scheduler"] in {None, "kube-scheduler's own filters leave it no node"}
    findings = [item for item in sayings.doctor()["findings"] if item["check"] == "pending-pods"]
    assert {item["level"] for item in findings} <= {"ok", "warn"}, findings
    assert not [item for item in findings if "without a word" in item["what"]], findings
