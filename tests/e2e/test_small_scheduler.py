"""The small scheduler decides as kube-scheduler does, pod by pod, on clusters made by chance.

kube-scheduler decides each pod on our API server. The small one is then asked about the same pod
and the same objects: where kube-scheduler bound it must be among what the small one takes for the
best nodes (mostly there is one), and who waits must be told the same words. Both read one file.
tests/e2e/scheduler_releases.py says which releases are asked.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from gpushare.errors import ApiNotFound
from gpushare.localcluster.api.apiserver import ApiServer
from gpushare.localcluster.api.store import Store
from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare.localcluster.scheduler.candidates import Candidate
from gpushare.localcluster.scheduler.cycle import Decision, FitError, SchedulingCycle
from gpushare.localcluster.scheduler.handle import Handle
from gpushare.localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare.localcluster.scheduler.profiles import build_frameworks
from gpushare.wire.scheduler.config import decode_scheduler_config
from tests.e2e.binaries import needed
from tests.e2e.processes import Process, until
from tests.e2e.random_clusters import PRIORITIES, RandomCluster
from tests.e2e.scheduler_releases import RELEASES, Release

Json = dict[str, Any]

CLUSTERS, PODS_EACH = 30, 14
_NAP = 5.0
"""Seconds that kube-scheduler gets to bind a pod whose victims have gone."""
_PODS = "/api/v1/namespaces/default/pods"


@dataclass
class Judge:
    """The small scheduler, asked what it would do with a pod among these objects."""

    file: Json
    evicted: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        # As up to 1.37, where a pod without victims is no candidate.
        self.handle = Handle(evict=self._evict, empty_candidates=False)
        build_frameworks(decode_scheduler_config(self.file).profiles, self.handle)

    def decide(self, pod: PodView, snapshot: Snapshot) -> Decision | str:
        """What it decides, or the words with which the pod waits."""
        self.evicted.clear()
        try:
            return SchedulingCycle(self.handle, Random(1)).decide(pod, snapshot)
        except FitError as error:
            return str(error)

    def _evict(self, _pod: PodView, candidate: Candidate) -> None:
        self.evicted.append(candidate)


class Real:
    """A kube-scheduler on our API server."""

    def __init__(self, folder: Path, release: Release) -> None:
        self.release = release
        program = needed("kube-scheduler", release.version)
        self._server = ApiServer(Store())
        self._server.start()
        self._started = datetime(2026, 1, 1, tzinfo=UTC)
        self.api = ApiClient(self._server.url, user_agent="test")
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(self._server.kubeconfig())
        access = {
            "kubeconfig": str(kubeconfig),
            "contentType": "application/json",
            "qps": 1000,
            "burst": 2000,
        }
        file = folder / "scheduler.yaml"
        more = {} if release.file["kind"] == "Policy" else {"clientConnection": access}
        file.write_text(yaml.safe_dump(release.file | more))
        for name, value in PRIORITIES.items():
            head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            body = head | {"metadata": {"name": name}, "value": value}
            self.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        command = (program, *release.flags(file, kubeconfig))
        self._process = Process("kube-scheduler", command, folder)

    def stop(self) -> None:
        self._process.kill()
        self.api.close()
        self._server.stop()

    def nodes_are(self, nodes: list[Json]) -> None:
        """Put these nodes in the place of all others; return when kube-scheduler knows them."""
        for path in ("/api/v1/pods", "/api/v1/nodes"):
            for item in self.api.get(path)["items"]:
                meta = item["metadata"]
                place = _PODS if "pods" in path else path
                self.api.delete(f"{place}/{meta['name']}")
        for node in nodes:
            self.api.create("/api/v1/nodes", node)
        for node in nodes:
            # kube-scheduler counts the nodes that have an image when a node changes; now all come.
            change = {"metadata": {"labels": {"complete": nodes[0]["metadata"]["name"]}}}
            self.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", change)
        # A pod that is too large is told on how many nodes, of how many in all.
        resources = {"requests": {"cpu": "1000"}}
        spec = {
            "nodeSelector": {"complete": nodes[0]["metadata"]["name"]},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        }
        for attempt in range(100):
            name = f"probe-{nodes[0]['metadata']['name']}-{attempt}"
            meta = {"name": name, "namespace": "default"}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            self.api.create(_PODS, body)
            told = waits(self.settled(name))
            self.api.delete(f"{_PODS}/{name}")
            if told.startswith(f"0/{len(nodes)} ") and f" {len(nodes)} Insufficient" in told:
                return
            time.sleep(0.02)
        pytest.fail(f"kube-scheduler does not see the nodes: {told}")

    def snapshot(self) -> Snapshot:
        """All nodes with the pods that are bound to them."""
        infos = {
            item["metadata"]["name"]: NodeInfo(read_node(item))
            for item in self.api.get("/api/v1/nodes")["items"]
        }
        for item in self.api.get("/api/v1/pods")["items"]:
            if home := item["spec"].get("nodeName"):
                infos[home] = infos[home].with_pod(read_pod(item))
        return Snapshot(tuple(infos.values()))

    def settled(self, name: str) -> Json:
        """The pod, once it is bound or told why it waits."""
        return self._once(lambda pod: bool(pod["spec"].get("nodeName") or waits(pod)), name)

    def placed(self, name: str) -> Json:
        """The pod for which room was made, once it is bound; deleted where that takes long.

        kube-scheduler 1.37 has been seen not to wake such a pod when its victims had gone.
        """
        deadline = time.monotonic() + _NAP
        late = self._once(
            lambda pod: bool(pod["spec"].get("nodeName")) or time.monotonic() > deadline, name
        )
        if not late["spec"].get("nodeName"):
            self.api.delete(f"{_PODS}/{name}")
        return late

    def _once(self, true: Callable[[Json], bool], name: str) -> Json:
        found: Json = {}

        def check() -> bool:
            found.update(self.api.get(f"{_PODS}/{name}"))
            self._process.running()
            return true(found)

        until(check, lambda: f"{name} is neither bound nor told why: {found}")
        return found

    def starts(self, name: str) -> None:
        """Have a bound pod start, each a second later than the one before, as a kubelet would."""
        self._started += timedelta(seconds=1)
        moment = self._started.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.api.patch(f"{_PODS}/{name}/status", {"status": {"startTime": moment}})

    def exists(self, name: str) -> bool:
        try:
            self.api.get(f"{_PODS}/{name}")
        except ApiNotFound:
            return False
        return True


def waits(pod: Json) -> str:
    """Why a pod waits, without what plug-ins say that we have not built."""
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            message = str(condition.get("message", ""))
            return re.sub(r"no new claims to deallocate, ", "", message)
    return ""


@pytest.fixture(params=RELEASES)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Real]:
    made = Real(tmp_path, RELEASES[request.param])
    yield made
    made.stop()


@pytest.mark.timeout(600)
def test_every_pod_of_random_clusters_goes_where_kube_scheduler_puts_it(real: Real) -> None:
    release = real.release
    judge = Judge(release.judged)
    alone = tied = told = preempted = 0
    for seed in range(CLUSTERS):
        cluster = RandomCluster(seed)
        real.nodes_are(cluster.nodes())
        for body in map(release.pods, cluster.pods(PODS_EACH)):
            name = body["metadata"]["name"]
            before = real.snapshot()
            created = real.api.create(_PODS, body)
            mine = judge.decide(read_pod(created), before)
            if isinstance(mine, Decision):
                best = _best(mine)
                theirs = real.settled(name)
                node = theirs["spec"].get("nodeName")
                assert node in best, _told(seed, name, theirs, mine)
                real.starts(name)
                alone, tied = alone + (len(best) == 1), tied + (len(best) > 1)
            elif judge.evicted:
                _compare_victims(real, judge.evicted[0], before, name)
                preempted += 1
                if real.exists(name):
                    real.starts(name)
            else:
                theirs = real.settled(name)
                same = release.said(mine) in (None, release.said(waits(theirs)))
                assert same, _told(seed, name, theirs, mine)
                real.api.delete(f"{_PODS}/{name}")
                told += 1
    print(f"one best node {alone}, several {tied}, waiting {told}, preempting {preempted}")
    # The clusters are hard enough to find something.
    assert alone > CLUSTERS * 2
    assert told > CLUSTERS
    assert preempted > CLUSTERS // 10


def _best(decision: Decision) -> set[str]:
    top = max(decision.scores.values(), default=0)
    return {name for name, score in decision.scores.items() if score == top} or {decision.node}


def _told(seed: int, name: str, theirs: Json, mine: Decision | str) -> str:
    shown: object = mine
    if isinstance(mine, Decision):
        said = {node: status.message for node, status in mine.statuses.items()}
        shown = f"{_best(mine)} of {dict(mine.scores)} by {dict(mine.details)}; not {said}"
    return (
        f"seed {seed}, pod {name}: kube-scheduler: {theirs['spec'].get('nodeName')}"
        f" {waits(theirs)!r}; the small one: {shown}; the pod: {theirs['spec']}"
    )


def _compare_victims(real: Real, mine: Candidate, before: Snapshot, name: str) -> None:
    """Check that the pods go that the small one evicts, and no others, from the same node."""
    others = {pod.name for node in before.nodes for pod in node.pods.values()}
    expected = {pod.name for pod in mine.pods}

    def gone() -> set[str]:
        return {other for other in others if not real.exists(other)}

    until(lambda: gone() >= expected, lambda: f"{name}: {gone()} are gone, not {expected}")
    theirs = real.placed(name)
    node = theirs["spec"].get("nodeName") or theirs["status"].get("nominatedNodeName")
    assert (node, gone()) == (mine.node, expected), name
