"""What holds cost: filter over 5,000 nodes with 500 holds beside none, in turn, in one process.

Run as `python -m tests.bench.holds`; a minute. Only the ratios are worth anything. Between two
calls a pod is bound, or given up (a retry that binds nothing): a bind charges the node of the
answer, and some pods later that one ends, so the cluster stays as full as it is. A pod is bound
before the next one is asked about, or, as kube-scheduler does it, while the next one is: then what
was offered to it is held in that call, whatever else is held.
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
from gpushare.extender.verbs.filter import FilterVerb
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.extender import NameLists
from gpushare.wire.groups import Claimant

_NODES, _HOLDS, _CALLS, _ROUNDS = 5000, 500, 100, 5
_KEPT = 50
"""Pods that are bound at once."""


def _verb(policy: str, answer: str) -> tuple[FilterVerb, ManagedResource]:
    ledger = Ledger(Pairing.OFF)
    ledger.replace_nodes(
        [
            NodeSpec(f"node-{n:04}", (16,) * 8, (True,) * 8, ("A",) * 8, (), 64_000, 1 << 38)
            for n in range(_NODES)
        ]
    )
    managed = ManagedResource(ALIYUN, ledger, {policy: Ranking(load_policy(policy))}, policy)
    verb = FilterVerb(
        ManagedResources((managed,)),
        Tickets(),
        not_ready=str,
        best_only=answer == "best",
        bind_slots=BindSlots(8),
        lists=NameLists(),
    )
    return verb, managed


def _body(name: str) -> bytes:
    """Return what kube-scheduler sends: without blanks, the nodes in another order each time."""
    container = {"name": "x", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}
    pod = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [container]},
    }
    names = [f"node-{n:04}" for n in range(_NODES)]
    random.Random(name).shuffle(names)
    return json.dumps({"Pod": pod, "NodeNames": names}, separators=(",", ":")).encode()


class Side:
    """A filter, and what is bound between its calls."""

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
        taken = time.thread_time() - begin
        self._answered.append((name, json.loads(answer.body)["NodeNames"][0]))
        while len(self._answered) > late:
            name, node = self._answered.pop(0)
            if binds:
                self._bind(PodRef("default", name, name), node)
            self.managed.holds.bind(name)
        return taken

    def _bind(self, ref: PodRef, node: str) -> None:
        ledger, request = self.managed.ledger, Request(3, 1)
        scorer = self.managed.scorer(request)
        ledger.assume(ref, request, place(ledger.snapshot(), node, request, scorer), 0.0)
        self._bound.append(ref.uid)
        if len(self._bound) > _KEPT:
            ledger.pod_gone(self._bound.popleft())


def main() -> None:
    """Print a line for each policy, answer and what becomes of the pods."""
    print(f"filter, {_NODES} nodes of 8 devices; {_HOLDS} holds on as many nodes; medians of CPU")
    for policy in ("binpack", "spread", "packing", "shadow-price"):
        for answer in ("best", "all"):
            for what, binds, late in (
                ("bound", True, False),
                ("bound meanwhile", True, True),
                ("given up", False, False),
            ):
                sides = {"none": Side(policy, answer, 0), "held": Side(policy, answer, _HOLDS)}
                ratios, shown = [], ""
                for turn in range(_ROUNDS):
                    taken: dict[str, list[float]] = {name: [] for name in sides}
                    for n in range(_CALLS):
                        pod = f"pod-{turn * _CALLS + n}"
                        body = _body(pod)
                        # Who comes second finds the body in the CPU's caches.
                        for name in sorted(sides, reverse=bool(n % 2)):
                            side = sides[name]
                            taken[name].append(side.call(pod, body, binds=binds, late=late))
                    none, some = (1e3 * statistics.median(values) for values in taken.values())
                    ratios.append(some / none)
                    shown = f"none {none:.3f} ms  held {some:.3f} ms"
                low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
                figures = f"{middle:.2f} ({low:.2f} to {high:.2f})"
                print(f"{policy:>12} {answer:>4} {what:>15}  {shown}  {figures}", flush=True)


if __name__ == "__main__":
    main()
