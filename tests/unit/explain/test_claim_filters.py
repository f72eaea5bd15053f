"""Which nodes take claims: those of the driver alone, where kube-scheduler lets the pod."""

import numpy as np
import pytest

from gpushare.core.model import Request
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters
from gpushare.core.selectors import NO_DEMANDS
from gpushare.explain.claims import BY_ANNOTATION, UNKNOWN_NODE, ClaimFilters
from gpushare.explain.placer import HostFilters, HostRoom

STATES = [
    NodeState("free", allocatable={"cpu": 4000, "pods": 10}),
    NodeState("full", allocatable={"cpu": 4000, "pods": 10}),
    NodeState("both", allocatable={"cpu": 4000, "pods": 10}),
    NodeState("cordoned", cordoned=True),
]
NAMES = ("free", "full", "both", "cordoned", "unknown")
ASKS = Request(8, 1, cpu=2000)


@pytest.fixture
def filters() -> ClaimFilters:
    taken = {"full": {"cpu": 3000}}
    own = OwnFilters(NodeStates(STATES), lambda node: taken.get(node, {}))
    return ClaimFilters(own, "both".__eq__)


def test_what_keeps_a_pod_with_claims_from_a_node(filters: ClaimFilters) -> None:
    texts = {name: [each.text for each in filters.obstacles(name, ASKS)] for name in NAMES}
    assert texts == {
        "free": [],
        "full": ["too little cpu"],
        "both": [BY_ANNOTATION.text],
        "cordoned": ["cordoned"],
        "unknown": [UNKNOWN_NODE.text],
    }


def test_of_many_nodes_at_once_the_same_are_left(filters: ClaimFilters) -> None:
    room = HostRoom(HostFilters(filters, NAMES), np.arange(len(NAMES)))
    one_by_one = [not filters.obstacles(name, ASKS) for name in NAMES]
    assert room.among(ASKS, NO_DEMANDS).tolist() == one_by_one


def test_the_end_of_claims_brings_no_cpu_back(filters: ClaimFilters) -> None:
    (short,) = filters.shortages("full", ASKS, less=[Request(8, 1, cpu=3000)])
    assert short.resource == "cpu"
