"""Which nodes may go: all that do could go at once, and no other could go besides."""

from collections.abc import Collection, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.selectors import Demands
from gpushare.explain.autoscalers import Books, must_stay
from gpushare.explain.whatif import what_if
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node, state_of
from tests.unit.explain.test_whatif import POLICY, bind, books

ONE = Request(cpu=100)
"""The amounts of a pod on the node besides devices."""


def ref(name: str) -> PodRef:
    return PodRef("default", name, f"uid-{name}")


def staying(
    ledger: Ledger,
    demands: Mapping[str, Demands] | None = None,
    *,
    own_filters: OwnFilters | None = None,
    protected: Collection[str] = (),
    last: Collection[str] = (),
) -> dict[str, str]:
    pods = {
        uid: ObservedPod(ref(uid), ONE, demands=demand) for uid, demand in (demands or {}).items()
    }
    view = Books.of_pods(ledger.view(), own_filters or OwnFilters(), pods)
    before = ledger.version()
    answer = must_stay([view], POLICY, staying=protected, last=last)
    assert ledger.version() == before
    return answer


def cluster(**pods: tuple[int, ...]) -> Ledger:
    """Nodes of two devices of 16, by name, with pods of these sizes."""
    ledger = books(*(node(name, 16, 16) for name in pods))
    for name, sizes in pods.items():
        for number, units in enumerate(sizes):
            bind(ledger, f"{name}{number}", Request(units, 1), name)
    return ledger


def test_where_the_sum_has_room_and_no_device_does_both_stay() -> None:
    """Sum of b: 24 for 10 + 10; its devices: 8 and 16."""
    assert staying(cluster(a=(10, 10), b=(8,))) == {
        "a": "default/a1 would have no device on another node",
        "b": "default/b0 would have no device on another node",
    }


def test_of_two_that_could_be_emptied_into_each_other_one_may_go() -> None:
    assert [*staying(cluster(a=(4,), b=(4,)))] == ["b"]
    assert [*staying(cluster(a=(4,), b=(4,)), last=["a"])] == ["a"]


def test_of_a_split_pod_each_part_needs_a_device_elsewhere() -> None:
    for in_use, stays in (((4, 12), []), ((5, 11), ["a"])):
        ledger = books(node("a", 16, 16), node("b", 16, 16))
        bind(ledger, "a0", Request().of_parts([12, 4]), "a")
        bind(ledger, "b0", Request().of_parts(in_use), "b")
        assert [*staying(ledger, protected=["b"])] == stays


def test_an_empty_node_may_go_so_its_room_counts_for_nobody() -> None:
    ledger = cluster(a=(10,), empty=())
    assert [*staying(ledger)] == ["a"]
    assert [*staying(ledger, protected=["empty"])] == []


def test_a_node_that_a_person_keeps_takes_pods_and_is_not_judged() -> None:
    assert [*staying(cluster(a=(16, 16), kept=(16, 16)), protected=["kept"])] == ["a"]
    assert [*staying(cluster(a=(4,), kept=(16,)), protected=["kept"])] == []


def test_nobody_goes_where_its_pods_are_not_let_in() -> None:
    ledger = cluster(a=(4,), b=(16,))
    labels = {"a": "one", "b": "two"}
    specs = ledger.entries_and_specs()[1]
    states = NodeStates(state_of(specs[name], labels={"zone": labels[name]}) for name in labels)
    own_filters = OwnFilters(states, ledger.taken)
    assert [*staying(ledger, own_filters=own_filters)] == ["b"]
    wants = {"uid-a0": Demands(node_selector=(("zone", "one"),))}
    assert [*staying(ledger, wants, own_filters=own_filters)] == ["a"]  # b, since a stays


def test_a_pod_of_another_resource_keeps_a_node_too() -> None:
    shared, second = cluster(a=(4,), b=(4,)), cluster(a=(16,), b=(16, 16))
    both = [Books.of_pods(item.view(), OwnFilters(), {}) for item in (shared, second)]
    answer = must_stay(both, POLICY)
    assert answer["a"] == "default/a0 would have no device on another node"
    # Pods in the first books were taken back: b has room there, and none here.
    assert [*answer] == ["a", "b"]


def packed(pods: Sequence[int], room: Sequence[int]) -> bool:
    """Whether the pods fit on the devices, by trying everything."""
    if not pods:
        return True
    first, *remaining = sorted(pods, reverse=True)
    return any(
        packed(remaining, [free - first * (at == place) for at, free in enumerate(room)])
        for place, size in enumerate(room)
        if size >= first and size not in room[:place]
    )


@given(
    st.lists(st.lists(st.integers(1, 16), max_size=4), min_size=1, max_size=4),
    st.sets(st.sampled_from("abcd")),
)
def test_all_that_may_go_can_go_at_once_and_whatif_agrees(
    sizes: list[list[int]], last: set[str]
) -> None:
    names = "abcd"[: len(sizes)]

    def made() -> Ledger:
        ledger = books(*(node(name, 16, 16) for name in names))
        for name, pods in zip(names, sizes, strict=True):
            for number, units in enumerate(pods):
                if units in filter_free(ledger, name):
                    bind(ledger, f"{name}{number}", Request(units, 1), name)
        return ledger

    ledger = made()
    kept_nodes = staying(ledger, last=last)
    is_gone = {*names} - kept_nodes.keys()
    entries = ledger.view().entries.values()
    pods = [entry.request.total for entry in entries if entry.node in is_gone]
    view = ledger.snapshot()
    assert packed(pods, [int(free) for name in kept_nodes for free in view.free[view.row[name]]])
    used = {name: sum(e.request.total for e in entries if e.node == name) for name in names}
    first = min(names, key=lambda name: (used[name] > 0, name in last, used[name], name))
    for name in names if not is_gone else first:
        moves = what_if(made(), [], POLICY, without=[name]).moved_results
        assert (name in is_gone) == all(move.all_fit for move in moves)


def filter_free(ledger: Ledger, name: str) -> range:
    """The sizes of a pod that fits on the node."""
    view = ledger.snapshot()
    return range(1, int(view.free[view.row[name]].max()) + 1)


def test_a_node_without_devices_is_not_judged() -> None:
    ledger = cluster(a=(4,), b=(4,))
    ledger.node_changed(NodeSpec("cpu"))
    assert "cpu" not in staying(ledger)
