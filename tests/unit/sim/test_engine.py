"""A simulated cluster decides as the extender does."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from gpushare.core.decide import place
from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.mutable_cluster import Placement, fits
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.ledger import Ledger
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.trace.nodes_and_pods import MIB, TraceNode, TracePod, request_of
from tests.unit.core.clusters import best_node

NODES = [
    *(TraceNode(f"n{index:02}", 16_000, 65_536, 4, 1000, "T4") for index in range(4)),
    *(TraceNode(f"n{index:02}", 64_000, 131_072, 8, 1000, "G2") for index in range(4, 7)),
    TraceNode("n07", 8_000, 16_384, 1, 1000, "V100"),
    TraceNode("n08", 32_000, 65_536, 2, 500, "P4"),
]


def _pod(cpu: int, devices: int, units: int, *models: str, memory: int = 4096) -> TracePod:
    return TracePod(
        f"{cpu}-{devices}-{units}", cpu, memory, devices, units, models, None, None, None
    )


PODS = [
    *[_pod(2000, 1, 460)] * 5,
    *[_pod(4000, 1, 250, memory=16_384)] * 3,
    *[_pod(8000, 1, 1000)] * 5,
    *[_pod(12_000, 1, 1000, "G2", "T4")] * 2,
    _pod(9000, 2, 1000),
    _pod(6000, 2, 500),
    _pod(48_000, 8, 1000, "G2"),
    *[_pod(5000, 0, 0)] * 3,
    _pod(500, 1, 80, "P4"),
]
WORKLOAD = workload_of_trace(NODES, PODS, turnover=0.5)


def _steps(seed: int, number: int = 150) -> Iterator[Request | int]:
    """Requests of pods that come, and between them which of those there goes."""
    chance = Random(seed)
    for _ in range(number):
        yield request_of(chance.choice(PODS))
        if chance.random() < 0.45:
            yield chance.randrange(1000)


class _LedgerExtender:
    """The real books and decisions, with the parts of kube-scheduler and the kubelet by hand."""

    def __init__(self, policy: str) -> None:
        self.ledger = Ledger(Pairing.OFF)
        self.ranking = Ranking(load_policy(policy, WORKLOAD))
        self.number = 0
        for node in NODES:
            count = node.devices
            self.ledger.node_changed(
                NodeSpec(
                    node.name,
                    (node.capacity,) * count,
                    (True,) * count,
                    (node.model,) * count,
                    ("",) * count,
                    cpu=node.cpu,
                    memory=node.memory * MIB,
                )
            )

    def place(self, request: Request, plain_on: str | None) -> tuple[str, tuple[int, ...]] | None:
        """plain_on: where kube-scheduler puts a pod that never comes to an extender."""
        view = self.ledger.snapshot()
        fitting = [
            node.name
            for node in NODES
            if view.cpu_free[view.row[node.name]] >= request.cpu
            and view.memory_free[view.row[node.name]] >= request.memory
            and (not request.models or node.model in request.models)
        ]
        if not request.devices:
            return None if plain_on is None else self._bound(plain_on, (), request)
        name = best_node(view, fitting, request, self.ranking)
        if name is None:
            return None
        return self._bound(name, place(view, name, request, self.ranking).devices, request)

    def _bound(
        self, name: str, devices: tuple[int, ...], request: Request
    ) -> tuple[str, tuple[int, ...]]:
        self.number += 1
        ref = PodRef("default", f"p{self.number}", f"p{self.number}")
        shares = tuple((device, request.units) for device in devices)
        self.ledger.pod_changed(ObservedPod(ref, request, name, shares or None))
        return name, devices


@pytest.mark.parametrize("policy", policy_names())
def test_a_run_makes_the_same_placements_as_ledger_and_decide(policy: str) -> None:
    cluster = Cluster(NODES, Ranking(load_policy(policy, WORKLOAD), 99, fits))
    extender = _LedgerExtender(policy)
    placements: list[tuple[Placement, str]] = []
    refusals = 0
    for step in _steps(1):
        if isinstance(step, int):
            if placements:
                placement, uid = placements.pop(step % len(placements))
                cluster.release(placement)
                extender.ledger.pod_gone(uid)
            continue
        chosen = cluster.place(step)
        simulated = None if chosen is None else (NODES[chosen.row].name, chosen.devices)
        assert extender.place(step, simulated[0] if simulated else None) == simulated
        refusals += chosen is None
        if chosen is not None:
            placements.append((chosen, f"p{extender.number}"))
    assert refusals
    assert len(placements) > 20
    extender.ledger.check()


def test_what_is_released_is_free_again() -> None:
    cluster = Cluster(NODES, Ranking(load_policy("device-bestfit"), 99, fits))
    before = {name: getattr(cluster.view, name).copy() for name in ("free", "cpu_free", "gpu_pods")}
    placements = [cluster.place(request_of(pod)) for pod in PODS]
    assert cluster.allocated > 0
    for placement in placements:
        if placement is not None:
            cluster.release(placement)
    assert all(np.array_equal(getattr(cluster.view, name), was) for name, was in before.items())
    assert cluster.allocated == 0
