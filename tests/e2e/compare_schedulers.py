"""Compares the small scheduler with kube-scheduler, pod by pod, on clusters made by chance.

python -m tests.e2e.compare_schedulers --seeds 0:300 [--release 1.30]

kube-scheduler decides each pod on our API server. The small one decides the same pod with the same
objects. The score of each plug-in for each node must be equal, the chosen node must have the
highest sum, pending pods must have the same message, and the same pods must be evicted. After a
difference the rest of the cluster is skipped.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare_localcluster.scheduler.cache import Snapshot
from gpushare_localcluster.scheduler.cycle import Decision, FitError, SchedulingCycle
from gpushare_localcluster.scheduler.extender import Candidate
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_pod
from gpushare_localcluster.scheduler.profiles import build_frameworks
from gpushare_localcluster.scheduler.scheduler import OtherObjects
from tests.e2e.binaries import program
from tests.e2e.random_clusters import RandomCluster
from tests.e2e.random_namespaces import budgets, namespaces, selecting
from tests.e2e.real_scheduler import RealScheduler, Scores, waits
from tests.e2e.scheduler_releases import RELEASES, Release

Json = dict[str, Any]

PODS_EACH = 14


class Judge:
    """The small scheduler as a judge: its decision about a pod among these objects."""

    def __init__(self, release: Release) -> None:
        self.evicted: list[Candidate] = []
        rest_items = OtherObjects()
        for body in namespaces():
            rest_items.on_namespace(None, body)
        for kind, _, body in selecting():
            rest_items.on_selecting(kind, None, body)
        for _, body in budgets() if release.of_today else ():
            unique = {**body["metadata"], "uid": body["metadata"]["name"]}
            rest_items.on_budget(None, body | {"metadata": unique})
        self.others = rest_items
        self._handle = Handle(
            evict=lambda _pod, candidate: self.evicted.append(candidate),
            namespace_labels=rest_items.labels_of,
            default_selector=rest_items.default_selector,
            budgets=rest_items.budgets,
            # As up to 1.37, where a pod without victims is no candidate.
            empty_candidates=False,
        )
        build_frameworks(decode_scheduler_config(release.file).profiles, self._handle)

    def decide(self, pod: PodView, snapshot: Snapshot) -> Decision | str:
        """The decision, or the message of the pending pod."""
        self.evicted.clear()
        try:
            return SchedulingCycle(self._handle, Random(1)).decide(pod, snapshot)
        except FitError as error:
            return str(error)


@dataclass
class Tally:
    """Counts of compared pods, and the differences.

    bound, waiting, preempting: pods. scored: bound pods with a choice of nodes. spread: scored pods
    that were spread by default.
    """

    clusters: int = 0
    bound: int = 0
    scored: int = 0
    spread: int = 0
    waiting: int = 0
    preempting: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def pods(self) -> int:
        return self.bound + self.waiting + self.preempting

    def __str__(self) -> str:
        result = asdict(self) | {"differences": len(self.differences), "pods": self.pods}
        return ", ".join(f"{name} {count}" for name, count in result.items())


class Comparison:
    """Both schedulers decide the pods of clusters; `tally` has the results."""

    def __init__(self, real: RealScheduler, release: Release) -> None:
        self._real, self._release = real, release
        self._judge = Judge(release)
        self.tally = Tally()

    def cluster(self, seed: int) -> None:
        """Compare the pods of one cluster, up to the first difference."""
        new_object = RandomCluster(seed)
        self._real.nodes_are(new_object.nodes())
        self.tally.clusters += 1
        for body in map(self._release.pods, new_object.pods(PODS_EACH)):
            before = self._real.snapshot()
            created = self._real.create(body)
            mine = self._judge.decide(read_pod(created), before)
            theirs = self._real.settled(created)
            if different := self._difference(mine, before, theirs):
                self.tally.differences.append(
                    f"seed {seed}, pod {body['metadata']['name']}: {different}; {_shown(mine)};"
                    f" kube-scheduler: {theirs['spec'].get('nodeName')} {waits(theirs)!r};"
                    f" the pod: {theirs['metadata'].get('ownerReferences')} {theirs['spec']}"
                )
                return
            self._count(mine)
            if isinstance(mine, str) and not self._judge.evicted:
                self._real.delete(created)
            else:
                self._real.starts(created)

    def _count(self, mine: Decision | str) -> None:
        if isinstance(mine, Decision):
            self.tally.bound += 1
            self.tally.scored += bool(mine.scores)
            own_value = mine.pod.spec.get("topologySpreadConstraints")
            by_default = not own_value and self._judge.others.default_selector(mine.pod)
            self.tally.spread += bool(by_default and mine.details.get("PodTopologySpread"))
        elif self._judge.evicted:
            self.tally.preempting += 1
        else:
            self.tally.waiting += 1

    def _difference(self, mine: Decision | str, before: Snapshot, theirs: Json) -> str:
        """The difference, or "". before: the nodes and pods for both decisions."""
        node = theirs["spec"].get("nodeName")
        if isinstance(mine, Decision):
            if result := _different_scores(mine, self._real.scores(theirs)):
                return f"scores, ours and theirs: {result}"
            return "" if node in _best(mine) else "the node"
        if node and not self._judge.evicted:
            return "it is bound"
        text = self._release.said(mine)
        if not node and text is not None and text != self._release.said(waits(theirs)):
            return "the words"
        nominated = node or theirs["status"].get("nominatedNodeName", "")
        if not self._judge.evicted:
            return f"pods are evicted from {nominated}" if nominated else ""
        return self._different_victims(before, theirs, nominated)

    def _different_victims(self, before: Snapshot, theirs: Json, node: str) -> str:
        """Check that the pods go that the small one evicts, and no others, from the same node."""
        expected = self._judge.evicted[0]
        if node != expected.node:
            return f"pods are evicted from {node!r}, not from {expected.node}"
        stay = not self._real.has_gone(expected.pods)
        remaining = {
            item["metadata"]["name"] for item in self._real.api.get("/api/v1/pods")["items"]
        }
        is_gone = {
            second.name for entry in before.nodes for second in entry.pods.values()
        } - remaining
        victims = {victim.name for victim in expected.pods}
        if stay or is_gone != victims:
            return f"{is_gone} are evicted, not {victims}"
        home = self._real.bind(theirs, node)
        return "" if home == node else f"it goes to {home}, not to {node}"


def _different_scores(decision: Decision, theirs: Scores) -> dict[tuple[str, str], tuple[int, int]]:
    """The differing scores of both, by plug-in and node."""
    our_value = {
        (plugin, node): score
        for plugin, values in decision.details.items()
        for node, score in values.items()
    }
    pairs = {
        key: (our_value.get(key, 0), theirs.get(key, 0)) for key in our_value.keys() | theirs.keys()
    }
    return {key: (one, second) for key, (one, second) in pairs.items() if one != second}


def _best(decision: Decision) -> set[str]:
    top = max(decision.scores.values(), default=0)
    return {name for name, score in decision.scores.items() if score == top} or {decision.node}


def _shown(mine: Decision | str) -> str:
    if isinstance(mine, str):
        return f"the small one: {mine!r}"
    output = {node: status.message for node, status in mine.statuses.items()}
    return f"the small one: {_best(mine)} of {dict(mine.scores)}; not {output}"


def compare(release: Release, program: Path, folder: Path, seeds: Iterable[int]) -> Tally:
    """Start kube-scheduler, and compare the clusters of these seeds."""
    real = RealScheduler(folder, program, release)
    try:
        comparison = Comparison(real, release)
        for seed in seeds:
            comparison.cluster(seed)
    finally:
        real.stop()
    return comparison.tally


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.compare_schedulers")
    parser.add_argument("--seeds", type=_seeds, default="0:100", metavar="FROM:TO")
    parser.add_argument("--release", choices=RELEASES, help="one alone; otherwise all")
    options = parser.parse_args(arguments)
    differences = 0
    for name in [options.release] if options.release else RELEASES:
        release = RELEASES[name]
        result = program("kube-scheduler", release.version)
        if result is None:
            print(f"{name}: skipped: `make controlplane VERSION={release.version}` builds it")
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = compare(release, result, Path(folder), options.seeds)
        print(f"{name} ({release.version}): {tally}; {time.monotonic() - begun:.0f} s", flush=True)
        for difference in tally.differences:
            print(f"  {difference}")
        differences += len(tally.differences)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
