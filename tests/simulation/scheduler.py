"""kube-scheduler's side: filter, prioritize and bind as it calls them, and as it calls them again.

It knows pods by a cache of its own that may be old, gives up after a while and tries again, binds
several pods at once, and through a Service reaches any of our processes that says it is ready.
Where pods have priorities it evicts others for one that fits nowhere.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import MessageError, NotReady
from gpushare_localcluster.api.records import Record
from gpushare_localcluster.api.resources import NODES, PODS
from gpushare_localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.replica import Replica
from tests.simulation.server import Server
from tests.simulation.truth import RESOURCE, Json, PodTruth

MOST_BINDS = 6
_NAMES = b'["n0","n1","n2"]'


@dataclass(eq=False, slots=True)
class Placed:
    """A pod for which the scheduler has chosen a node; asked: by whose filter."""

    pod: PodTruth
    node: str
    asked: Replica


@dataclass(repr=False)
class Scheduler:
    """The calls to our processes. placed: pods to be bound next. binding: binds under way.

    evict: deletes a pod, with so much grace (None: its own); None: nobody is evicted.
    """

    server: Server
    oracle: Oracle
    replicas: list[Replica]
    best_only: bool
    evict: Callable[[PodTruth, int | None], None] | None = None
    placed: list[Placed] = field(default_factory=list)
    binding: list[Placed] = field(default_factory=list)
    before: list[Placed] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    _cache: dict[str, Record] = field(default_factory=dict)
    _nominated: dict[str, str] = field(default_factory=dict)

    def reach(self, chance: Chance) -> Replica | None:
        """The process a call gets to: one that is ready, mostly."""
        awake = [replica for replica in self.replicas if not (replica.frozen or replica.ending)]
        ready = [replica for replica in awake if replica.ready()]
        among = awake if chance.once_in(8) else ready
        return chance.pick(among) if among else None

    def schedule(self, chance: Chance, pods: list[PodTruth]) -> str:
        """Filter and prioritize a pod, and choose a node that passed."""
        replica = self.reach(chance)
        if replica is None or not pods:
            return ""
        pod = chance.pick(pods)
        record = self._seen(chance, pod)
        if record is None:
            return ""
        replica.call(
            f"filter {pod.uid}", lambda: self._cycle(replica, pod, record, chance.below(64))
        )
        return f"{pod.uid} by {replica.identity}"

    def bind(self, chance: Chance) -> str:
        """Have a pod bound that has been placed, mostly by whom filter was asked."""
        if not self.placed or len(self.binding) >= MOST_BINDS:
            return ""
        placements = self.placed.pop(chance.below(len(self.placed)))
        return self._bind(placements, self._by(chance, placements.asked))

    def bind_again(self, chance: Chance) -> str:
        """Ask once more for a bind, after a time-out or for another node."""
        if not self.before or len(self.binding) >= MOST_BINDS:
            return ""
        placements = self.before[-1 - chance.below(min(4, len(self.before)))]
        if chance.once_in(3):
            nodes = sorted(self.oracle.known[self.replicas[0].identity].nodes)
            if nodes:
                placements = Placed(placements.pod, chance.pick(nodes), placements.asked)
        return self._bind(placements, self._by(chance, placements.asked))

    def strange(self, chance: Chance) -> str:
        """A bind of a pod for a node that nobody has filtered, or with another pod's uid."""
        pods = [pod for pod in self.oracle.pods.values() if not pod.gone] or [
            *self.oracle.pods.values()
        ]
        replica = self.reach(chance)
        if replica is None or not pods:
            return ""
        pod, pick_result = chance.pick(pods), chance.pick(pods)
        node = chance.pick(("n0", "n1", "n9"))
        uid = pick_result.uid if chance.below(2) else pod.uid
        odd = PodTruth(uid, pod.name, pod.asked, namespace=pod.namespace)
        return self._bind(Placed(odd, node, replica), replica)

    def _by(self, chance: Chance, replica: Replica) -> Replica | None:
        present = replica in self.replicas and not (replica.frozen or replica.ending)
        same = present and not chance.once_in(6)
        return replica if same else self.reach(chance)

    def _seen(self, chance: Chance, pod: PodTruth) -> Record | None:
        """The pod as the scheduler's cache has it: as it is, or as it was when first seen."""
        try:
            now = self.server.registry.get(PODS, pod.namespace, pod.name)
        except StatusError:
            return None
        if now.body["metadata"]["uid"] != pod.uid:
            return None
        first = self._cache.setdefault(pod.uid, now)
        return first if chance.once_in(4) else now

    def _cycle(self, replica: Replica, pod: PodTruth, record: Record, choice: int) -> None:
        body = b'{"Pod":%s,"NodeNames":%s}' % (record.encoded(), _NAMES)
        answer = _answer(replica.service.filter(body))
        fit = answer["NodeNames"]
        if answer["Error"]:
            return
        check_partition(answer, json.loads(_NAMES), best_only=self.best_only)
        if not fit:
            if self.evict is not None:
                self._make_room(replica, pod, record, answer["FailedNodes"], bool(choice % 2))
            return
        try:
            scores = json.loads(replica.service.prioritize(body))
        except (NotReady, MessageError):
            return
        score_of = {score["Host"]: score["Score"] for score in scores}
        best = max(fit, key=lambda name: score_of.get(name, 0))
        node = best if choice % 2 else fit[choice % len(fit)]
        self.placed.append(Placed(pod, node, replica))

    def _make_room(
        self, replica: Replica, pod: PodTruth, record: Record, failed: Iterable[str], empty: bool
    ) -> None:
        """Evict others for a pod that was refused on these nodes."""
        asked_at = self.oracle.tasks.now
        preempt_result = self.preempt(replica, pod, record, failed, empty=empty)
        if self.oracle.tasks.now == asked_at:
            self.oracle.judge_victims(replica, pod, preempt_result)
        self.evict_for(pod, preempt_result)

    def preempt(
        self,
        replica: Replica,
        pod: PodTruth,
        record: Record,
        failed: Iterable[str],
        *,
        empty: bool,
    ) -> dict[str, list[str]]:
        """Ask who is to go for a pod that was refused on these nodes; return the victims by node.

        empty: nodes are sent that by their sums need no victim, as since 1.38.
        """
        proposed = self._proposed(pod, failed, empty)
        meta = {
            node: {"Pods": [{"UID": victim.uid} for victim in victims], "NumPDBViolations": 0}
            for node, victims in proposed.items()
        }
        if not meta:
            return {}
        encode_result = json.dumps(meta).encode()
        body = b'{"Pod":%s,"NodeNameToMetaVictims":%s}' % (record.encoded(), encode_result)
        try:
            answer = _answer(replica.service.preempt(body))["NodeNameToMetaVictims"]
        except (NotReady, MessageError):
            return {}
        return {node: [pod["UID"] for pod in of["Pods"]] for node, of in answer.items()}

    def _proposed(
        self, pod: PodTruth, failed: Iterable[str], empty: bool
    ) -> dict[str, list[PodTruth]]:
        """The victims by node, by the sums of the nodes: it knows nothing of devices."""
        self.oracle.follow()
        proposed = {}
        for name in failed:
            try:
                node = self.server.registry.get(NODES, "", name).body
            except StatusError:
                continue
            present = [
                pod for pod in self.oracle.pods.values() if pod.node == name and not pod.ended
            ]
            lower = [
                item for item in present if item.priority < pod.priority and item.asked.devices
            ]
            remaining = int(node["status"]["allocatable"][RESOURCE]) - pod.asked.total
            remaining -= sum(item.asked.total for item in present if item not in lower)
            victims = []
            for item in sorted(lower, key=lambda each: -each.priority):
                if item.asked.total > remaining:
                    victims.append(item)
                else:
                    remaining -= item.asked.total
            if remaining >= 0 and (victims or empty):
                proposed[name] = victims
        return proposed

    def evict_for(self, pod: PodTruth, result: Mapping[str, Sequence[str]]) -> None:
        """Delete the victims on the node where they are the least loss, and nominate it.

        Where there is none the pod waits like any other.
        """
        assert self.evict is not None
        pods = self.oracle.pods
        loss = {
            node: (max((pods[uid].priority for uid in uids), default=-1), len(uids), node)
            for node, uids in result.items()
        }
        node = min(loss, key=loss.__getitem__, default="")
        for uid in result.get(node, ()):
            if not pods[uid].terminating:
                self.evict(pods[uid], None)
        for item in pods.values() if node else ():
            if item.priority < pod.priority and self._nominated.get(item.uid) == node:
                self.nominate(item, "")
        self.nominate(pod, node)

    def nominate(self, pod: PodTruth, node: str) -> None:
        """Write which node the pod is to have; "": none."""
        self.oracle.follow()
        if pod.gone or pod.node or self._nominated.get(pod.uid, "") == node:
            return
        self._nominated[pod.uid] = node

        def change(body: Json) -> Json:
            return {**body, "status": {**body["status"], "nominatedNodeName": node or None}}

        self.server.registry.revise(PODS, pod.namespace, pod.name, change, part="status")

    def _bind(self, placed: Placed, replica: Replica | None) -> str:
        if replica is None:
            return ""
        self.before = [*self.before[-7:], placed]
        self.binding.append(placed)
        pod = placed.pod
        replica.call(f"bind {pod.uid}", lambda: self._run(placed, replica))
        return f"{pod.uid} to {placed.node} by {replica.identity}"

    def _run(self, placed: Placed, replica: Replica) -> None:
        pod = placed.pod
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid}
        try:
            answer = replica.service.bind(json.dumps({**body, "Node": placed.node}).encode())
        finally:
            self.binding.remove(placed)
        error = _answer(answer)["Error"]
        self.answers[error and "refused"] = self.answers.get(error and "refused", 0) + 1
        self.oracle.follow()
        truth = self.oracle.pods[pod.uid]
        if not error and truth.node != placed.node:
            raise Violation(f"X1 bind of {pod.uid} to {placed.node} is said done: {truth}")


def check_partition(answer: Any, names: list[str], *, best_only: bool) -> None:
    """Raise Violation unless filter answers each name that it was asked about exactly once.

    best_only: of the nodes that fit it names one alone, as it is told to.
    """
    result = [
        *answer["NodeNames"],
        *answer["FailedNodes"],
        *answer["FailedAndUnresolvableNodes"],
    ]
    silent = best_only and len(answer["NodeNames"]) == 1
    once = len(set(result)) == len(result) and set(result) <= set(names)
    if not once or (len(result) != len(names) and not silent):
        raise Violation(f"X4 filter answers {answer} for {names}")


def _answer(body: bytes) -> Any:
    return json.loads(body)
