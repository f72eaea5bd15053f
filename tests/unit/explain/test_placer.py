"""Filters over many nodes agree with the filters over one node."""

from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import Request
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters, amounts_of
from gpushare.core.selectors import Demands, Taint, Toleration
from gpushare.explain.placer import HostFilters, HostRoom

MEM, OTHER = "aliyun.com/gpu-mem", "example.com/thing"
TAINT = Taint("dedicated", "ml", "NoSchedule")
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", MEM, OTHER]), st.integers(0, 9))
states = st.builds(
    NodeState,
    name=st.sampled_from("abcd"),
    labels=st.sampled_from([None, {}, {"zone": "a"}]),
    taints=st.sampled_from([(), (TAINT,)]),
    cordoned=st.booleans(),
    ready=st.booleans(),
    allocatable=st.none() | amounts,
)
pods = st.tuples(
    st.builds(
        Request,
        units=st.just(1),
        devices=st.just(1),
        cpu=st.integers(0, 5),
        memory=st.integers(0, 5),
        resources=st.dictionaries(st.sampled_from([MEM, OTHER]), st.integers(0, 5)).map(
            lambda found: tuple(found.items())
        ),
    ),
    st.builds(
        Demands,
        node_selector=st.sampled_from([(), (("zone", "a"),)]),
        tolerations=st.sampled_from([(), (Toleration(operator="Exists"),)]),
        is_complete=st.booleans(),
    ),
)


@given(
    st.lists(states, max_size=5),
    st.dictionaries(st.sampled_from("abcd"), amounts),
    st.lists(st.tuples(pods, st.integers(0, 4), st.sampled_from([1, 1, -1])), max_size=8),
    st.frozensets(st.sampled_from(["cpu", MEM])),
)
def test_it_says_what_is_said_of_each_node(
    node_states: list[NodeState],
    used: dict[str, dict[str, int]],
    steps: list[tuple[tuple[Request, Demands], int, int]],
    ignored: frozenset[str],
) -> None:
    own_filters = OwnFilters(NodeStates(node_states), lambda node: used.get(node, {}), ignored)
    names = ("d", "", "b", "a", "c", "e")
    rows = np.array([3, 2, 4, 0, 5])
    room = HostRoom(HostFilters(own_filters, names), rows)
    more: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (taker, _), row, sign in steps:
        room.take(row, taker, sign)
        for resource, amount in amounts_of(taker).items():
            more[names[rows[row]]][resource] += sign * amount
        for (request, demands), *_ in steps:
            passes = [
                not own_filters.obstacles(
                    names[row_index], request, demands, more[names[row_index]]
                )
                for row_index in rows.tolist()
            ]
            assert room.among(request, demands).tolist() == passes


def test_what_is_given_back_is_there_again() -> None:
    state = NodeState("a", allocatable={"cpu": 4, "pods": 2})
    room = HostRoom(HostFilters(OwnFilters(NodeStates([state])), ("a",)), np.array([0]))
    request = Request(1, 1, cpu=3)
    room.take(0, request)
    assert not room.among(request).any()
    room.take(0, request, -1)
    assert room.among(request).all()
