"""Pods placed on a copy of the books by the extender's decisions."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.decide import filter_nodes, place, room_for
from gpushare.core.explain import PodVerdict
from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters
from gpushare.core.pairing import Pairing
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Ranking
from gpushare.core.selectors import Demands, Taint
from gpushare.errors import SettingsError
from gpushare.explain.placer import HOST, MOST, PodBatch
from gpushare.explain.whatif import what_if
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node, state_of

POLICY = DeviceBestFit()
MEM = "aliyun.com/gpu-mem"
ASKS_4 = Request(4, 1, resources=((MEM, 4),))
NOTHING = {"cpu": 1000, "pods": 110, MEM: 0}


def books(*nodes: NodeSpec) -> Ledger:
    changes = Ledger(Pairing.OFF)
    for spec in nodes:
        changes.node_changed(spec)
    return changes


def bind(ledger: Ledger, name: str, request: Request, node_name: str) -> None:
    """Charge a pod as the extender does."""
    allocation = place(ledger.snapshot(), node_name, request, Ranking(POLICY))
    ledger.assume(PodRef("default", name, f"uid-{name}"), request, allocation, 0.0)


def test_as_many_fit_as_there_is_room_for() -> None:
    answer = what_if(books(node("a", 16, 16)), [PodBatch("6GiB", Request(6, 1), None)], POLICY)
    (result,) = answer.requested_results
    assert (result.fit, result.on, result.all_fit) == (4, {"a": 4}, True)
    assert (answer.before.free, answer.after.free) == (32, 8)


def test_the_second_kind_finds_what_the_first_has_left() -> None:
    batches = [PodBatch("first", Request(10, 1), 2), PodBatch("second", Request(6, 2), 2)]
    first, second = what_if(books(node("a", 16, 16)), batches, POLICY).requested_results
    assert (first.fit, second.fit) == (2, 1)
    assert second.reasons == {"Insufficient GPU Memory in enough devices": 1}


def test_a_pod_without_a_place_has_the_verdict_of_a_pod_that_waits() -> None:
    ledger = books(node("a", 16), node("b", 24))
    bind(ledger, "large", Request(12, 1), "a")
    bind(ledger, "larger", Request(20, 1), "b")
    batches = [PodBatch(f"{units}GiB", Request(units, 1)) for units in (16, 25)]
    would, never = what_if(ledger, batches, POLICY).requested_results
    assert would.verdict is PodVerdict.WOULD_FIT
    assert would.explanation is not None
    (remedy,) = would.explanation.remedies
    assert [entry.ref.name for entry in remedy.ends] == ["large"]
    assert never.verdict is PodVerdict.NEVER_FITS


@pytest.mark.parametrize("change", [{"added": [node("n", 8)]}, {"without": ["b"]}])
def test_no_end_of_pods_is_named_where_pods_were_placed_before(change: dict[str, Any]) -> None:
    ledger = books(node("a", 16), node("b", 16))
    bind(ledger, "half", Request(8, 1), "a")
    bind(ledger, "other", Request(8, 1), "b")
    batches = [PodBatch(f"{units}GiB", Request(units, 1)) for units in (16, 17)]
    late, never = what_if(ledger, batches, POLICY, **change).requested_results
    assert (late.fit, late.verdict) == (0, None)
    assert never.verdict is PodVerdict.NEVER_FITS


def test_what_kube_scheduler_alone_lacks_and_many_kinds_have_no_verdict() -> None:
    ledger = books(node("a", 16, cpu=1000, memory=1000))
    answer = what_if(ledger, [PodBatch("p", Request(4, 1, cpu=2000))], POLICY)
    assert [(result.fit, result.verdict) for result in answer.requested_results] == [(0, None)]
    kinds = [PodBatch(str(units), Request(units, 1)) for units in range(17, 24)]
    verdicts = [result.verdict for result in what_if(ledger, kinds, POLICY).requested_results]
    assert verdicts == [PodVerdict.NEVER_FITS] * 5 + [None] * 2


def test_pods_of_a_node_that_goes_are_placed_first() -> None:
    ledger = books(node("a", 16), node("b", 16))
    bind(ledger, "large", Request(12, 1), "a")
    answer = what_if(ledger, [PodBatch("8GiB", Request(8, 1))], POLICY, without=["a"])
    assert [(result.batch.name, result.fit) for result in answer.moved_results] == [
        ("default/large", 1)
    ]
    assert [result.fit for result in answer.requested_results] == [0]
    assert (answer.before.nodes, answer.after.nodes) == (2, 1)


def test_nodes_that_come_take_pods() -> None:
    answer = what_if(
        books(), [PodBatch("8GiB", Request(8, 1), 3)], POLICY, added=[node("n", 16, 8)]
    )
    assert [(result.fit, result.on) for result in answer.requested_results] == [(3, {"n": 3})]


def test_the_host_counts_where_it_is_known() -> None:
    ledger = books(node("a", 16, cpu=1000, memory=1000))
    answer = what_if(ledger, [PodBatch("p", Request(4, 1, cpu=600), 2)], POLICY)
    (result,) = answer.requested_results
    assert (result.fit, result.reasons) == (1, {HOST: 1})


def test_no_more_are_placed_than_anybody_counts() -> None:
    large = node("a", *[100_000] * 2)
    answer = what_if(books(large), [PodBatch("1", Request(1, 1), None)], POLICY)
    (result,) = answer.requested_results
    assert result.fit == MOST


def test_a_node_that_is_not_there_and_one_that_is_are_refused() -> None:
    with pytest.raises(SettingsError, match="no node 'b' that could go"):
        what_if(books(node("a", 16)), [], POLICY, without=["b"])
    with pytest.raises(SettingsError, match="a node 'a' already"):
        what_if(books(node("a", 16)), [], POLICY, added=[node("a", 8)])


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    three, two = (PodBatch(f"10 x {n}", Request(10, 1), n) for n in (3, 2))
    answer = what_if(books(node("a", 16, 16)), [], POLICY, gangs=[[three], [two]])
    torn, whole = answer.gangs
    assert (torn.fits, torn.results[0].fit) == (False, 2)
    assert torn.results[0].reasons == {"Insufficient GPU Memory in one device": 1}
    assert (whole.fits, whole.results[0].on) == (True, {"a": 2})
    assert answer.after.free == 12


def test_a_gang_of_which_one_kind_does_not_fit_leaves_the_devices_to_others() -> None:
    kinds = [PodBatch("small", Request(6, 1), 2), PodBatch("large", Request(12, 1), 2)]
    remaining = [PodBatch("large", Request(12, 1), 2)]
    answer = what_if(books(node("a", 16, 16)), [], POLICY, gangs=[kinds, remaining])
    assert [result.fit for result in answer.gangs[0].results] == [2, 1]
    assert [gang.fits for gang in answer.gangs] == [False, True]


@pytest.mark.parametrize(
    "neighbour",
    [
        NodeState("b", cordoned=True),
        NodeState("b", {"pool": "train"}, (Taint("team", "other", "NoSchedule"),)),
        NodeState("b", {"pool": "other"}),
        NodeState("b", {"pool": "train"}, allocatable={"cpu": 9, "pods": 110}),
    ],
    ids=["cordoned", "tainted", "not selected", "full"],
)
def test_a_gang_counts_the_nodes_alone_that_kube_scheduler_would_offer(
    neighbour: NodeState,
) -> None:
    own_filters = OwnFilters(
        NodeStates([NodeState("a", {"pool": "train"}), neighbour]), lambda _: {}
    )
    gang = [PodBatch("22 x 5", Request(22, 1, cpu=10), 5, Demands((("pool", "train"),)))]
    ledger = books(node("a", *[24] * 4), node("b", *[24] * 4))
    (answer,) = what_if(ledger, [], POLICY, gangs=[gang], filters=own_filters).gangs
    assert (answer.fits, answer.results[0].fit) == (False, 4)


@given(
    cards=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=4),
    units=st.integers(1, 20),
    needed=st.integers(2, 12),
)
def test_as_many_of_a_gang_fit_as_filter_counts(
    cards: list[list[int]], units: int, needed: int
) -> None:
    ledger = books(*(node(f"n{number}", *card) for number, card in enumerate(cards)))
    request = Request(units, 1)
    count = room_for(ledger.snapshot(), request, needed)
    (gang,) = what_if(ledger, [], POLICY, gangs=[[PodBatch("p", request, needed)]]).gangs
    assert gang.results[0].fit == count


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(4, 24), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 2),
)
def test_what_it_says_is_what_the_extender_does(
    shapes: list[list[int]], units: int, devices: int
) -> None:
    """As many pods as it says can be bound one after the other, and not one more."""
    nodes = [node(f"n{number}", *shape) for number, shape in enumerate(shapes)]
    request = Request(units, devices)
    answer = what_if(books(*nodes), [PodBatch("p", request, None)], POLICY)
    (result,) = answer.requested_results
    ledger, ranking, bound_pod = books(*nodes), Ranking(POLICY), 0
    while True:
        view = ledger.snapshot()
        fit = filter_nodes(view, [spec.name for spec in nodes], request).fit
        if not fit:
            break
        scores = ranking.scores(view, request).values
        best = min(fit, key=lambda name: (-scores[view.row[name]], view.order[view.row[name]]))
        bind(ledger, f"p{bound_pod}", request, best)
        bound_pod += 1
    assert result.fit == bound_pod


def test_no_pod_is_promised_a_node_that_kube_scheduler_leaves_out() -> None:
    cordoned, empty = node("gpu-1", 16, 16), node("gpu-2", 16, 16)
    states = NodeStates([state_of(cordoned, cordoned=True), state_of(empty, allocatable=NOTHING)])
    ledger = books(cordoned, empty)
    batches = [PodBatch("4GiB", ASKS_4, None)]
    answer = what_if(ledger, batches, POLICY, filters=OwnFilters(states, ledger.taken))
    (result,) = answer.requested_results
    lacks = f"no {MEM} allocatable"
    assert (result.fit, result.reasons) == (0, {"cordoned": 1, lacks: 1})


def test_what_is_placed_counts_against_what_is_allocatable() -> None:
    spec = node("a", 16, 16)
    states = NodeStates([state_of(spec, allocatable={"pods": 110, MEM: 20})])
    ledger = books(spec)
    batches = [PodBatch("4GiB", ASKS_4, None)]
    answer = what_if(ledger, batches, POLICY, filters=OwnFilters(states, ledger.taken))
    (result,) = answer.requested_results
    assert (result.fit, result.reasons) == (5, {f"too little {MEM}": 1})


def waits(name: str, **more: Any) -> ObservedPod:
    return ObservedPod(PodRef("default", name, f"uid-{name}"), ASKS_4, created=1.0, **more)


def test_pods_that_wait_already_take_their_places_first() -> None:
    ledger = books(node("a", 16))
    for number in range(4):
        ledger.pod_changed(waits(f"p{number}"))
    ledger.pod_changed(waits("gated", demands=Demands(gated=True)))
    answer = what_if(ledger, [PodBatch("4GiB", ASKS_4, None)], POLICY)
    assert [result.fit for result in answer.pending_results] == [1] * 4
    assert (answer.gated, [result.fit for result in answer.requested_results]) == (1, [0])


def test_the_higher_priority_is_placed_first() -> None:
    ledger = books(node("a", 16))
    ledger.pod_changed(waits("high", priority=10))
    ledger.pod_changed(waits("low"))
    batches = [PodBatch("first", ASKS_4, 9, priority=5), PodBatch("last", ASKS_4, 1)]
    answer = what_if(ledger, batches, POLICY)
    assert [(result.batch.name, result.fit) for result in answer.pending_results] == [
        ("default/high", 1),
        ("default/low", 0),
    ]
    assert [result.fit for result in answer.requested_results] == [3, 0]


def test_no_node_is_left() -> None:
    answer = what_if(
        books(node("a", 16)), [PodBatch("8GiB", Request(8, 1), 3)], POLICY, without=["a"]
    )
    assert [(result.fit, result.reasons) for result in answer.requested_results] == [(0, {})]
