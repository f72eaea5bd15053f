"""Moving from the original with pods running: the extender starts on the cluster state that the
original left, adopts its annotations, changes nothing, and never gives that memory again.

The state is the recorded one (tests/data/golden/aliyun): all its small clusters as one, each node
and pod under its recorded name behind the cluster's.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpushare_localcluster.api.resources import Resource
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Cluster
from tests.integration.oracle import asked, expected_inspect, over_capacity
from tests.integration.process import Extender
from tests.support.waiting import poll

Json = dict[str, Any]

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "aliyun"
CASES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())
MIB = "no-address-mib"
"""Its amounts are as large as MiB, and one is written 2k."""

DIFFERENT: dict[str, tuple[list[int], int, list[str]]] = {
    # used by device, sum, unplaced pods
    "allocation-map": ([8, 4, 0, 4], 16, []),
    "index-beyond": ([0, 1], 5, ["alpha"]),
    "pending-and-done": ([0, 0, 4, 0], 7, ["no-annotation"]),
}
"""Where we show another use than the original did: it believes IDX where a map by containers
contradicts IDX, and we charge both; and it forgets pods whose devices it cannot tell,
which we charge to every device.
"""


def recorded(case: str, kind: str) -> list[Json]:
    return list(json.loads((GOLDEN / case / "cluster.json").read_text())[kind]["items"])


def moved(case: str, body: Json) -> Json:
    """The object under a name that no other recorded cluster has; a pod with a node runs there.

    No kubelet had a hand in the recorded ones, so all were Pending.
    """
    meta, spec, status = body["metadata"], dict(body["spec"]), dict(body["status"])
    if spec.get("nodeName"):
        spec["nodeName"] = f"{case}-{spec['nodeName']}"
        status["phase"] = status["phase"].replace("Pending", "Running")
    meta = {**meta, "name": f"{case}-{meta['name']}"}
    return {**body, "metadata": meta, "spec": spec, "status": status}


def load(cluster: Cluster) -> None:
    """Put all recorded objects into the API server, status and all."""
    for case in CASES:
        for resource, kind in ((NODES, "nodes"), (PODS, "pods")):
            for body in recorded(case, kind):
                store(cluster, resource, moved(case, body))


def store(cluster: Cluster, resource: Resource, body: Json) -> None:
    create_result = cluster.store.create(resource.table, body)
    assert create_result.body["metadata"]["name"] == body["metadata"]["name"]


def versions(cluster: Cluster) -> dict[str, str]:
    """The version of every pod, which any write to the pod changes."""
    return {
        body["metadata"]["name"]: body["metadata"]["resourceVersion"] for body in cluster.all(PODS)
    }


def books(document: Json) -> dict[str, tuple[list[int], int, list[str]]]:
    """By node: units used by device, in sum, and the names of unplaced pods."""
    return {
        node["name"]: (
            [device["usedGPU"] for device in node["devs"]],
            node["usedGPU"],
            [pod["name"] for pod in node.get("unplaced", ())],
        )
        for node in document["nodes"]
    }


def expected_books() -> dict[str, tuple[list[int], int, list[str]]]:
    """The original's report of each recorded cluster, but for the differences above."""
    result = {}
    for case in CASES:
        # inspect/NODE, since the original lists a node only after a question about the node.
        document = json.loads((GOLDEN / case / "inspect-node.json").read_text())
        for name, entry in books(document).items():
            used, total, unplaced = DIFFERENT.get(case, entry)
            result[f"{case}-{name}"] = (used, total, [f"{case}-{pod}" for pod in unplaced])
    return result


def audit(cluster: Cluster) -> None:
    """Fail where a device holds more than its memory, by the API server's objects alone."""
    kept_items = {
        kind: [b for b in cluster.all(kind) if not b["metadata"]["name"].startswith(MIB)]
        for kind in (NODES, PODS)
    }
    assert over_capacity(expected_inspect(kept_items[NODES], kept_items[PODS], MEM)) == []


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Extender]]:
    """The recorded state, and an extender that starts on this state."""
    folder = tmp_path_factory.mktemp("upgrade")
    cluster = Cluster()
    load(cluster)
    extender = Extender(folder, cluster.kubeconfig(folder), "--leadership", "off")
    try:
        extender.wait_ready()
        yield cluster, extender
        assert "Traceback" not in extender.log, extender.log
    finally:
        extender.kill()
        cluster.stop()


Adopted = tuple[Cluster, Extender]


def test_what_the_original_placed_is_adopted_and_nothing_is_written(adopted: Adopted) -> None:
    cluster, extender = adopted
    before = versions(cluster)
    document = extender.inspect()
    assert books(document) == expected_books()
    assert over_capacity(document) == []
    assert versions(cluster) == before
    # Nothing but lists and watches until the first pod is bound.
    assert {method for method, _ in cluster.server.requests} == {"GET"}


def test_every_adopted_pod_keeps_its_device(adopted: Adopted) -> None:
    _, extender = adopted
    for case in set(CASES) - set(DIFFERENT):
        document = json.loads((GOLDEN / case / "inspect-node.json").read_text())
        for node in document["nodes"]:
            displayed = extender.inspect(f"{case}-{node['name']}")["nodes"][0]["devs"]
            result = [[pod["name"] for pod in device["pods"]] for device in displayed]
            expected = [[pod["name"] for pod in device["pods"]] for device in node["devs"]]
            assert result == [[f"{case}-{name}" for name in names] for names in expected], case


class Filler:
    """Places pods one by one, as kube-scheduler and the original's device plug-in would."""

    def __init__(self, cluster: Cluster, extender: Extender) -> None:
        self._cluster = cluster
        self._extender = extender
        names = [body["metadata"]["name"] for body in cluster.all(NODES)]
        # The node that counts in MiB would never be full.
        self._nodes = [name for name in names if not name.startswith(MIB)]
        self.units = dict.fromkeys(self._nodes, 0)

    def place(self, pod: Json) -> bool:
        """Whether the pod fits now, and is bound then."""
        fit = self._extender.fit(pod, self._nodes)
        if not fit:
            return False
        scores = self._extender.prioritize(pod, fit)
        best = max(fit, key=lambda name: scores[name])
        assert self._extender.bind(pod, best) == ""
        # Until this is seen, equal pods may have to wait on that node.
        self._cluster.set_phase(pod, "Running")
        audit(self._cluster)
        self.units[best] += asked(pod, MEM)
        return True


def test_more_pods_are_placed_beside_the_adopted_ones_until_all_is_full(adopted: Adopted) -> None:
    cluster, extender = adopted
    before = versions(cluster)
    free = {
        # Pods with unknown devices keep their 4 and 3 units free on each device of the node.
        "allocation-map-gpu-node-a": 64 - 16,
        "empty-gpu-node-a": 32,
        "index-beyond-gpu-node-a": 32 - 1 - 2 * 4,
        "one-node-gpu-node-a": 32 - 12,
        "pending-and-done-gpu-node-a": 64 - 4 - 4 * 3,
        "plain-node-too-cpu-only": 0,
        "plain-node-too-gpu-node-a": 16,
        "two-containers-gpu-node-a": 32 - 7,
    }
    filler = Filler(cluster, extender)
    for units in (16, 8, 5, 3):
        while filler.place(cluster.pod(units)):
            pass
    while filler.units != free:
        small = cluster.pod(1)
        poll(partial(filler.place, small), lambda: f"room is used:\n{filler.units}")
    assert extender.fit(cluster.pod(1), list(free)) == []
    assert {name: at for name, at in versions(cluster).items() if name in before} == before
    assert over_capacity(extender.inspect()) == []


def test_the_end_of_an_adopted_pod_frees_its_device(adopted: Adopted) -> None:
    cluster, extender = adopted
    node = "plain-node-too-gpu-node-a"
    (pod,) = (b for b in cluster.all(PODS) if b["metadata"]["name"] == "plain-node-too-alpha")
    assert asked(pod, MEM) == 16
    waiting_pods = cluster.pod(16, annotations={COUNT: "1"})
    before = extender.used(node)
    cluster.delete_pod(pod)
    poll(lambda: extender.used(node) == [before[0] - 16, *before[1:]], lambda: str(before))
    assert extender.fit(waiting_pods, [node]) == [node]
