"""One node's cards decide nothing for the others: not which sizes count, and not their order."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare.core.card_sizes import FARTHEST, MOST_SIZES, common_sizes
from gpushare.core.decide import BEST, score_nodes
from gpushare.core.model import MAX_UNITS, NodeSpec, Request
from gpushare.core.policies.shadow_price import cpu_stranding, policy
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Ints
from gpushare.core.workload import PodClass, workload_of
from tests.unit.core.clusters import Cluster, node

COUNTS = {
    PodClass(cpu=500, units=4, devices=1): 50,
    PodClass(cpu=2000, units=10, devices=1): 20,
    PodClass(cpu=4000, units=16, devices=1): 30,
    PodClass(cpu=8000, units=16, devices=2): 9,
    PodClass(cpu=1000): 20,
}
HONEST = (16, 16, 16, 24)
LIES = st.one_of(
    st.just((MAX_UNITS,)),
    st.just(tuple(range(1, 65))),
    st.lists(st.integers(25, MAX_UNITS), min_size=1, max_size=64).map(tuple),
)


def host(name: str, *capacity: int) -> NodeSpec:
    """A node with 16 cores."""
    return node(name, *capacity, cpu=16_000, memory=2**36)


def array(*nodes: tuple[int, ...]) -> Ints:
    """The capacities of these nodes, int64 (N, D)."""
    width = max(map(len, nodes))
    return np.array([(*units, *[0] * (width - len(units))) for units in nodes], dtype=np.int64)


def test_sizes_of_several_nodes_count_and_one_nodes_own_do_not() -> None:
    liar = tuple(range(100, 164))
    assert common_sizes(array((16, 16), (16,), (80,), (80, 80), liar)) == {16: 3, 80: 3}
    assert common_sizes(array((16,), (16,), (MAX_UNITS,))) == {16: 2}
    assert common_sizes(np.zeros((3, 2), dtype=np.int64)) == {}


def test_cards_of_a_node_count_each_and_the_node_once_in_any_order() -> None:
    capacity = np.array([[16, 24, 16, 0], [24, 16, 16, 16], [0, 24, 0, 24], [24, 0, 0, 0]])
    assert [*common_sizes(capacity).items()] == [(24, 5), (16, 5)]


def test_in_a_small_cluster_each_node_may_have_a_size_of_its_own() -> None:
    assert common_sizes(array((16,))) == {16: 1}
    assert common_sizes(array((24,), (80,))) == {24: 1, 80: 1}
    assert common_sizes(array((24,), (FARTHEST * 24,))) == {24: 1, FARTHEST * 24: 1}
    assert common_sizes(array((24,), (FARTHEST * 24 + 1,))) == {24: 1}
    assert common_sizes(array((16,), (24,), (MAX_UNITS,))) == {16: 1, 24: 1}


def test_few_sizes_count_those_of_most_nodes() -> None:
    nodes = [(size,) for size in range(1, 21) for _ in range(2 + (size > 15))]
    result = common_sizes(array(*nodes))
    assert len(result) == MOST_SIZES
    assert set(result) >= {16, 17, 18, 19, 20}


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=30)
@example(shares=[0] * 8, lie=(25, 244_123), request=Request(10, 1, 2000))  # an overflow of fgd
@given(
    shares=st.lists(st.integers(0, 16), min_size=8, max_size=8),
    lie=LIES,
    request=st.sampled_from(list(COUNTS)).map(
        lambda cls: Request(cls.units, cls.devices, cls.cpu, cls.memory)
    ),
)
def test_the_cards_of_one_node_do_not_change_the_order_of_the_others(
    name: str, shares: list[int], lie: tuple[int, ...], request: Request
) -> None:
    honest = tuple(host(f"n{at}", units, units) for at, units in enumerate(HONEST * 2))
    used = {spec.name: (shares[at], 0) for at, spec in enumerate(honest)}
    liar = host("liar", *lie)
    sizes = common_sizes(array(*[(units, units) for units in HONEST * 2]))
    loaded = load_policy(name, workload_of(COUNTS, sizes))

    def values(*nodes: NodeSpec) -> list[float]:
        view = Cluster(nodes, used).snapshot()
        return list(Ranking(loaded).scores(view, request).values[: len(honest)])

    assert values(*honest, liar) == values(*honest)


def test_a_size_that_the_policy_was_not_made_for_ranks_by_what_else_would_do() -> None:
    shadow = ShadowPrice(workload_of(COUNTS, {16: 8, 80: 8}))
    nodes = (node("a", 16, cpu=16_000), node("b", 80, cpu=16_000), node("odd", 40, cpu=16_000))
    view = Cluster(nodes).snapshot()

    def best(units: int) -> str:
        values = Ranking(shadow).scores(view, Request(units, 1, cpu=500)).values
        return view.names[int(values.argmax())]

    assert best(10) != "odd", "a smaller card is large enough"
    assert best(20) == "odd", "only larger ones are, beside it"
    assert best(80) == "b"


def test_what_a_node_writes_again_and_again_is_kept_by_nothing() -> None:
    shadow = ShadowPrice(workload_of(COUNTS, {16: 8}))
    ranking = Ranking(shadow)

    def look(first: int) -> None:
        liar = node("liar", *range(first, first + 64), cpu=16_000)
        view = Cluster((node("a", 16, 16, cpu=16_000), liar)).snapshot()
        ranking.scores(view, Request(4, 1, cpu=500))

    look(100)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for first in range(200, 200 + 50 * 64, 64):
        look(first)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1_000_000


def test_nothing_is_made_in_a_request_for_the_sizes_that_a_node_brings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranking = Ranking(ShadowPrice(workload_of(COUNTS, {16: 8})))
    created: list[object] = []
    for home, name in ((policy, "worth"), (cpu_stranding, "stranded")):
        monkeypatch.setattr(home, name, lambda *of: created.append(of))
    nodes = (node("a", 16, 16, cpu=16_000), node("liar", *range(100, 164), cpu=16_000))
    ranking.scores(Cluster(nodes).snapshot(), Request(4, 1, cpu=500))
    assert not created


def test_a_node_that_stands_apart_leaves_the_others_their_differences() -> None:
    shadow = ShadowPrice(workload_of(COUNTS, {16: 8}))
    nodes = (host("empty", 16, 16), host("full", 16, 16), host("half", 16, 16))
    used = {"full": (12, 16), "half": (6, 0)}
    request, names = Request(4, 1, cpu=500), ["empty", "full", "half"]

    def scores(*more: NodeSpec) -> dict[str, int]:
        view = Cluster((*nodes, *more), used).snapshot()
        all_items = [*names, *(spec.name for spec in more)]
        result = score_nodes(view, all_items, request, Ranking(shadow))
        return {name: score for score, alike in result.items() for name in alike}

    assert scores() == {name: scores(host("odd", 99))[name] for name in scores()}
    assert "odd" not in scores(host("odd", 99)), "the last one scores 0"
    assert scores(host("odd", 9))["odd"] == BEST, "a small card of its own comes first"
