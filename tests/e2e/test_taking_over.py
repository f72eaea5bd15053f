"""Taking over a cluster of the original on real servers: pods keep their devices.

The state was recorded from a real API server (tests/data/golden/aliyun).
"""

import json
from pathlib import Path

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.conftest import MakeWorld
from tests.e2e.objects import NODES, PODS, Objects

_RECORDED = Path(__file__).parents[1] / "data" / "golden" / "aliyun"
_MIB = "no-address-mib"
"""The cluster counts in MiB, by a setting of the extender."""
CASES = sorted(folder.name for folder in _RECORDED.iterdir())
_KEPT = ("name", "labels", "annotations")


def load(objects: Objects, case: str) -> None:
    """Create the recorded nodes and pods; those that have a node run there.

    No kubelet had a hand in the recorded ones, so all were Pending.
    """
    recorded = json.loads((_RECORDED / case / "cluster.json").read_text())
    for node in recorded["nodes"]["items"]:
        objects.api.create(NODES, {**node, "metadata": kept(node)})
    for pod in recorded["pods"]["items"]:
        spec = {**pod["spec"], "terminationGracePeriodSeconds": 0}
        created = objects.api.create(PODS, {"metadata": kept(pod), "spec": spec}).body
        path = f"{PODS}/{created['metadata']['name']}/status"
        phase = pod["status"]["phase"]
        if pod["spec"].get("nodeName"):
            phase = phase.replace("Pending", "Running")
        objects.patch(path, {"status": {"phase": phase}})


def kept(body: Json) -> Json:
    return {key: value for key, value in body["metadata"].items() if key in _KEPT}


@pytest.mark.parametrize("case", CASES)
def test_its_pods_keep_their_devices_and_new_ones_fit_beside_them(
    make_world: MakeWorld, case: str
) -> None:
    unit = "MiB" if case == _MIB else "GiB"
    world = make_world(flags=("--leadership", "off", "--unit", unit))
    objects = world.objects
    load(objects, case)
    before = {pod["metadata"]["uid"]: pod["metadata"] for pod in objects.pods()}
    world.start()
    world.agrees()
    own_value = objects.many([1, 2, 3])
    for pod in own_value if objects.nodes() else ():
        objects.lands(pod, world.told)
    world.agrees()
    now = {pod["metadata"]["uid"]: pod["metadata"] for pod in objects.pods()}
    names = ("annotations", "labels")
    bound_pod = [uid for uid, meta in before.items() if meta.get("annotations")]
    assert all(now[uid].get(key) == before[uid].get(key) for uid in bound_pod for key in names)
