"""What holds cost: filter over 5,000 nodes with 500 holds beside none, in turn, in one process.

Run as `python -m tests.bench.holds`; a few seconds. Only the ratio is worth anything.
"""

import json
import statistics
import time

from gpushare.core.model import NodeSpec, PodRef, Request
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.verbs.bind.slots import BindSlots
from gpushare.extender.verbs.claimant import Claimant
from gpushare.extender.verbs.filter import FilterVerb
from gpushare.extender.verbs.tickets import Tickets
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.name_lists import NameLists

_NODES, _HOLDS, _ROUNDS = 5000, 500, 400


def _verb(policy: str, answer: str) -> tuple[FilterVerb, ManagedResource]:
    ledger = Ledger()
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
    container = {"name": "x", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}
    pod = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [container]},
    }
    names = [f"node-{n:04}" for n in range(_NODES)]
    return json.dumps({"Pod": pod, "NodeNames": names}).encode()


def main() -> None:
    """Print a line for each policy and answer."""
    bodies = [_body(f"pod-{n}") for n in range(4)]
    print(f"filter, {_NODES} nodes of 8 devices; {_HOLDS} holds on as many nodes; medians of CPU")
    for policy in ("binpack", "spread", "packing", "shadow-price"):
        for answer in ("best", "all"):
            plain, held = _verb(policy, answer), _verb(policy, answer)
            now = time.monotonic()
            for n in range(_HOLDS):
                ref = PodRef("default", f"held-{n}", f"held-{n}")
                pod = Claimant(ref, Request(10, 1, 1000, 1 << 30))
                held[1].holds.shown(pod, f"node-{n * (_NODES // _HOLDS):04}", now)
            taken: dict[str, list[float]] = {"none": [], "held": []}
            for n in range(_ROUNDS):
                for name, (verb, managed) in (("none", plain), ("held", held)):
                    begin = time.thread_time()
                    verb.answer(bodies[n % len(bodies)])
                    taken[name].append(time.thread_time() - begin)
                    # What its bind would do: the hold of a plain pod lasts for a moment.
                    managed.holds.bind(f"pod-{n % len(bodies)}")
            none, some = (1e3 * statistics.median(values) for values in taken.values())
            ratio = some / none
            print(f"{policy:>12} {answer:>4}  none {none:.3f} ms  held {some:.3f} ms  {ratio:.2f}")


if __name__ == "__main__":
    main()
