"""The cost of holds: filter over 5,000 nodes with 500 holds and without, in turn, in one process;
and with 5,000 holds of many priorities; and for the pods of a group beside as many plain ones.

Run as `python -m tests.bench.holds`; two minutes. Only the ratios are worth anything. Between two
calls a pod is bound, or given up (a retry that binds nothing): a bind charges the node of the
answer, and some pods later that one ends, so the cluster stays as full as it is. A pod is bound
before the next one is filtered, or, like in kube-scheduler, during the next filter: then the
offer for the bound pod is held in that call, whatever else is held.
"""

import json
import random
import statistics
import time
from collections import deque

from gpushare.core.decide import place
from gpushare.core.model import NodeSpec, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.filter import FilterOptions, FilterVerb
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.extender import NameLists
from gpushare.wire.pods import Claimant

_GROUP, _SIZE = "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-min-member"
_NODES, _HOLDS, _CALLS, _ROUNDS = 5000, 500, 100, 5
_KEPT = 50
"""Pods that are bound at once."""


def _verb(policy: str, answer: str, nodes: int = _NODES) -> tuple[FilterVerb, ManagedResource]:
    ledger = Ledger(Pairing.OFF)
    ledger.replace_nodes(
        [
            NodeSpec(f"node-{n:04}", (16,) * 8, (True,) * 8, ("A",) * 8, (), 64_000, 1 << 38)
            for n in range(nodes)
        ]
    )
    resource = ManagedResource(ALIYUN, ledger, {policy: Ranking(load_policy(policy))}, policy)
    verb = FilterVerb(
        ManagedResources((resource,)),
        Tickets(),
        FilterOptions(best_only=answer == "best"),
        not_ready=str,
        bind_slots=BindSlots(8),
        lists=NameLists(),
    )
    return verb, resource


def _body(
    name: str, nodes: int = _NODES, *, units: int = 3, priority: int = 0, group: int = 0
) -> bytes:
    """Return kube-scheduler's request body: without blanks, the nodes in another order each time.

    group: the size of the pod's group; 0: no group.
    """
    container = {"name": "x", "resources": {"limits": {"aliyun.com/gpu-mem": str(units)}}}
    notes = {_GROUP: "train", _SIZE: str(group)} if group else {}
    pod = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": notes},
        "spec": {"containers": [container], "priority": priority},
    }
    names = [f"node-{n:04}" for n in range(nodes)]
    random.Random(name).shuffle(names)
    return json.dumps({"Pod": pod, "NodeNames": names}, separators=(",", ":")).encode()


class HoldsSide:
    """A filter, and the pods bound between the calls."""

    def __init__(self, policy: str, answer: str, holds: int) -> None:
        self.verb, self.managed = _verb(policy, answer)
        now = time.monotonic()
        for n in range(holds):
            ref = PodRef("default", f"held-{n}", f"held-{n}")
            pod = Claimant(ref, Request(10, 1, 1000, 1 << 30))
            self.managed.holds.shown(pod, f"node-{n * (_NODES // holds):04}", now)
        self._bound: deque[str] = deque()
        self._answered: list[tuple[str, str]] = []

    def call(self, name: str, body: bytes, *, binds: bool, late: bool) -> float:
        """Have filter answer for a pod that is then bound or given up; the seconds of CPU.

        late: only once filter has answered for the next one.
        """
        begin = time.thread_time()
        answer = self.verb.answer(body)
        seconds = time.thread_time() - begin
        self._answered.append((name, json.loads(answer.body)["NodeNames"][0]))
        while len(self._answered) > late:
            name, node = self._answered.pop(0)
            if binds:
                self._bind(PodRef("default", name, name), node)
            self.managed.holds.end_after_bind(name)
        return seconds

    def _bind(self, ref: PodRef, node: str) -> None:
        ledger, request = self.managed.ledger, Request(3, 1)
        scorer = self.managed.scorer(request)
        ledger.assume(ref, request, place(ledger.snapshot(), node, request, scorer), 0.0)
        self._bound.append(ref.uid)
        if len(self._bound) > _KEPT:
            ledger.pod_gone(self._bound.popleft())


def _bind(resource: ManagedResource, name: str, node: str) -> None:
    """Charge a pod, like a bind."""
    ledger, request = resource.ledger, Request(3, 1)
    allocation = place(ledger.snapshot(), node, request, resource.scorer(request))
    ledger.assume(PodRef("default", name, name), request, allocation, 0.0)
    resource.holds.end_after_bind(name)


def many_priorities(nodes: int, holds: int, priorities: int, units: int) -> None:
    """Print the time of filter with so many holds of so many priorities; each pod is bound."""
    sides = {}
    for count in (0, holds):
        sides[count] = _verb("binpack", "best", nodes)
        for n in range(count):
            ref = PodRef("default", f"h{n}", f"h{n}")
            pod = Claimant(ref, Request(3, 1, 1000, 1 << 30), n % priorities)
            sides[count][1].holds.shown(pod, f"node-{n % nodes:04}", time.monotonic())
    times: dict[int, list[float]] = {count: [] for count in sides}
    chance = random.Random(1)
    for n in range(_CALLS):
        name, priority = f"pod-{n}", chance.randrange(priorities)
        body = _body(name, nodes, units=units, priority=priority)
        for count, (verb, resource) in sides.items():
            begin = time.thread_time()
            answer = verb.answer(body)
            times[count].append(time.thread_time() - begin)
            named_nodes = json.loads(answer.body)["NodeNames"]
            if named_nodes:
                _bind(resource, name, named_nodes[0])
    none, some = (1e3 * statistics.median(values[5:]) for values in times.values())
    fits = "refused" if units > 10 else "bound"
    print(
        f"{nodes} nodes, {holds} holds of {priorities} priorities, {fits}:"
        f" none {none:.2f} ms  held {some:.2f} ms  {some / none:.2f}",
        flush=True,
    )


def groups(size: int, nodes: int = 1000) -> None:
    """Print the time of filter for all pods of a group beside as many plain pods."""
    sums = {}
    for group in (0, size):
        verb, resource = _verb("binpack", "best", nodes)
        sums[group] = 0.0
        for n in range(size):
            body = _body(f"pod-{n}", nodes, group=group)
            begin = time.thread_time()
            answer = verb.answer(body)
            sums[group] += time.thread_time() - begin
            _bind(resource, f"pod-{n}", json.loads(answer.body)["NodeNames"][0])
    plain, member = sums.values()
    print(f"a group of {size}, {nodes} nodes: {member / plain:.2f} of as many plain pods")


def main() -> None:
    """Print a line for each policy, answer and fate of the pods."""
    print(f"filter, {_NODES} nodes of 8 devices; {_HOLDS} holds on as many nodes; medians of CPU")
    for policy in ("binpack", "spread", "shadow-price"):
        for answer in ("best", "all"):
            for case, binds, late in (
                ("bound", True, False),
                ("bound meanwhile", True, True),
                ("given up", False, False),
            ):
                sides = {
                    "none": HoldsSide(policy, answer, 0),
                    "held": HoldsSide(policy, answer, _HOLDS),
                }
                ratios, summary = [], ""
                for turn in range(_ROUNDS):
                    times: dict[str, list[float]] = {name: [] for name in sides}
                    for n in range(_CALLS):
                        pod = f"pod-{turn * _CALLS + n}"
                        body = _body(pod)
                        # Who comes second finds the body in the CPU's caches.
                        for name in sorted(sides, reverse=bool(n % 2)):
                            side = sides[name]
                            times[name].append(side.call(pod, body, binds=binds, late=late))
                    none, some = (1e3 * statistics.median(values) for values in times.values())
                    ratios.append(some / none)
                    summary = f"none {none:.3f} ms  held {some:.3f} ms"
                low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
                figures = f"{middle:.2f} ({low:.2f} to {high:.2f})"
                print(f"{policy:>12} {answer:>4} {case:>15}  {summary}  {figures}", flush=True)
    for nodes in (1000, 5000):
        for priorities in (1, 20, 200):
            many_priorities(nodes, 5000, priorities, 3)
    many_priorities(1000, 8000, 200, 15)
    for size in (10, 100, 400, 1000):
        groups(size)


if __name__ == "__main__":
    main()
