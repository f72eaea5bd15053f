"""kube-scheduler's side: calls of filter, prioritize and bind, and retries.

This scheduler has its own cache of pods that may be old, gives up after a while and retries, binds
several pods at once, and through a Service reaches any of our processes that is ready.
With priorities it evicts other pods for one that fits nowhere.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import MessageError, NotReady
from gpushare_localcluster.api.objects import Record
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
    """A pod with a chosen node; asked: the process that answered filter."""

    pod: PodTruth
    node: str
    asked: Replica


@dataclass(repr=False)
class Scheduler:
    """The calls to our processes. placed: pods to be bound next. binding: binds under way.

    evict: deletes a pod, with this grace (None: the pod's own); None: no evictions.
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
        awake = [one for one in self.replicas if not (one.frozen or one.ending)]
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
        """Have a placed pod bound, mostly by the process that answered filter."""
        if not self.placed or len(self.binding) >= MOST_BINDS:
            return ""
        placement = self.placed.pop(chance.below(len(self.placed)))
        return self._bind(placement, self._by(chance, placement.asked))

    def bind_again(self, chance: Chance) -> str:
        """Ask once more for a bind, after a time-out or for another node."""
        if not self.before or len(self.binding) >= MOST_BINDS:
            return ""
        placement = self.before[-1 - chance.below(min(4, len(self.before)))]
        if chance.once_in(3):
            nodes = sorted(self.oracle.known[self.replicas[0].identity].nodes)
            if nodes:
                placement = Placed(placement.pod, chance.pick(nodes), placement.asked)
        return self._bind(placement, self._by(chance, placement.asked))

    def strange(self, chance: Chance) -> str:
        """A bind of a pod for a node that nobody has filtered, or with another pod's uid."""
        pods = [pod for pod in self.oracle.pods.values() if not pod.gone] or [
            *self.oracle.pods.values()
        ]
        replica = self.reach(chance)
        if replica is None or not pods:
            return ""
        pod, other_pod = chance.pick(pods), chance.pick(pods)
        node = chance.pick(("n0", "n1", "n9"))
        uid = other_pod.uid if chance.below(2) else pod.uid
        odd = PodTruth(uid, pod.name, pod.asked, namespace=pod.namespace)
        return self._bind(Placed(odd, node, replica), replica)

    def _by(self, chance: Chance, last_replica: Replica) -> Replica | None:
        is_up = last_replica in self.replicas and not (last_replica.frozen or last_replica.ending)
        same = is_up and not chance.once_in(6)
        return last_replica if same else self.reach(chance)

    def _seen(self, chance: Chance, pod: PodTruth) -> Record | None:
        """The pod in the scheduler's cache: current, or as first seen."""
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
        victims = self.preempt(replica, pod, record, failed, empty=empty)
        if self.oracle.tasks.now == asked_at:
            self.oracle.judge_victims(replica, pod, victims)
        self.evict_for(pod, victims)

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

        empty: nodes are sent that by sums need no victim, as since 1.38.
        """
        proposed = self._proposed(pod, failed, empty)
        meta = {
            node: {"Pods": [{"UID": victim.uid} for victim in victims], "NumPDBViolations": 0}
            for node, victims in proposed.items()
        }
        if not meta:
            return {}
        request_body = json.dumps(meta).encode()
        body = b'{"Pod":%s,"NodeNameToMetaVictims":%s}' % (record.encoded(), request_body)
        try:
            answer = _answer(replica.service.preempt(body))["NodeNameToMetaVictims"]
        except (NotReady, MessageError):
            return {}
        return {node: [victim["UID"] for victim in of["Pods"]] for node, of in answer.items()}

    def _proposed(
        self, pod: PodTruth, failed: Iterable[str], empty: bool
    ) -> dict[str, list[PodTruth]]:
        """The victims by node, by the sums of the nodes: the scheduler knows no devices."""
        self.oracle.follow()
        proposed = {}
        for name in failed:
            try:
                node = self.server.registry.get(NODES, "", name).body
            except StatusError:
                continue
            pods_on_node = [
                pod_truth
                for pod_truth in self.oracle.pods.values()
                if pod_truth.node == name and not pod_truth.ended
            ]
            lower = [
                pod_truth
                for pod_truth in pods_on_node
                if pod_truth.priority < pod.priority and pod_truth.asked.devices
            ]
            free_units = int(node["status"]["allocatable"][RESOURCE]) - pod.asked.total
            free_units -= sum(
                pod_truth.asked.total for pod_truth in pods_on_node if pod_truth not in lower
            )
            victims = []
            for pod_truth in sorted(lower, key=lambda each: -each.priority):
                if pod_truth.asked.total > free_units:
                    victims.append(pod_truth)
                else:
                    free_units -= pod_truth.asked.total
            if free_units >= 0 and (victims or empty):
                proposed[name] = victims
        return proposed

    def evict_for(self, pod: PodTruth, victims: Mapping[str, Sequence[str]]) -> None:
        """Delete the victims on the node of the least loss, and nominate that node.

        Where there is none the pod waits like any other.
        """
        assert self.evict is not None
        pods = self.oracle.pods
        loss = {
            node: (max((pods[uid].priority for uid in uids), default=-1), len(uids), node)
            for node, uids in victims.items()
        }
        node = min(loss, key=loss.__getitem__, default="")
        for uid in victims.get(node, ()):
            if not pods[uid].terminating:
                self.evict(pods[uid], None)
        for bound_pod in pods.values() if node else ():
            if bound_pod.priority < pod.priority and self._nominated.get(bound_pod.uid) == node:
                self.nominate(bound_pod, "")
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

    def _bind(self, placement: Placed, replica: Replica | None) -> str:
        if replica is None:
            return ""
        self.before = [*self.before[-7:], placement]
        self.binding.append(placement)
        pod = placement.pod
        replica.call(f"bind {pod.uid}", lambda: self._run(placement, replica))
        return f"{pod.uid} to {placement.node} by {replica.identity}"

    def _run(self, placement: Placed, replica: Replica) -> None:
        pod = placement.pod
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid}
        try:
            answer = replica.service.bind(json.dumps({**body, "Node": placement.node}).encode())
        finally:
            self.binding.remove(placement)
        error = _answer(answer)["Error"]
        self.answers[error and "refused"] = self.answers.get(error and "refused", 0) + 1
        self.oracle.follow()
        truth = self.oracle.pods[pod.uid]
        if not error and truth.node != placement.node:
            raise Violation(f"X1 bind of {pod.uid} to {placement.node} is said done: {truth}")


def check_partition(answer: Any, names: list[str], *, best_only: bool) -> None:
    """Raise Violation unless the answer of filter has each requested name exactly once.

    best_only: filter names only one fitting node, as configured.
    """
    named_nodes = [
        *answer["NodeNames"],
        *answer["FailedNodes"],
        *answer["FailedAndUnresolvableNodes"],
    ]
    silent = best_only and len(answer["NodeNames"]) == 1
    once = len(set(named_nodes)) == len(named_nodes) and set(named_nodes) <= set(names)
    if not once or (len(named_nodes) != len(names) and not silent):
        raise Violation(f"X4 filter answers {answer} for {names}")


def _answer(body: bytes) -> Any:
    return json.loads(body)
