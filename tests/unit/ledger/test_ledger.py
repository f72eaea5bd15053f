"""The books under single steps: scenarios as text, and the few things text says badly."""

import contextlib
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import Allocation, Charge, NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.core.pairing import Pairing
from gpushare.errors import (
    InsufficientMemory,
    InvariantError,
    PodMismatch,
    RequestRefused,
    UnknownNode,
)
from gpushare.ledger import BINDING_LIFETIME, Changes, LearnedPod, Ledger
from tests.support.ledger_script import run
from tests.unit.core.clusters import node

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario_shows_what_it_says(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    displayed = run(text)
    if pytestconfig.getoption("--regenerate-scenarios"):
        path.write_text(displayed)
    else:
        assert displayed == text


def _pod(name: str, request: Request, place: str = "gpu-a", device: int = 0) -> ObservedPod:
    placement = ((device, request.total),) if request.devices else None
    return ObservedPod(PodRef("default", name, name), request, place, placement)


def test_a_view_is_made_once_until_something_changes(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    view = ledger.snapshot()
    ledger.node_changed(node("gpu-a", 16))
    ledger.pod_changed(ObservedPod(PodRef("default", "p", "p"), Request(4, 1)))
    assert ledger.snapshot() is view
    ledger.pod_changed(_pod("p", Request(4, 1)))
    assert ledger.snapshot() is not view
    assert view.free.tolist() == [[16]]
    assert ledger.snapshot().free.tolist() == [[12]]


def test_the_books_are_of_one_moment_and_their_version_tells_of_each_change(
    ledger: Ledger,
) -> None:
    versions = [ledger.version()]
    late = ObservedPod(PodRef("default", "late", "late"), Request(4, 1), created=7.0)
    for change in (
        lambda: ledger.node_changed(node("gpu-a", 16)),
        lambda: ledger.pod_changed(_pod("p", Request(4, 1))),
        lambda: ledger.pod_changed(late),
        lambda: ledger.pod_changed(_pod("p", Request(4, 1))._replace(assigned=True)),
        lambda: ledger.set_unhealthy("gpu-a", frozenset({0})),
    ):
        change()
        versions.append(ledger.version())
    assert len(set(versions)) == len(versions)
    books = ledger.view()
    ledger.pod_gone("p")
    ledger.node_gone("gpu-a")
    assert books.snapshot.used.tolist() == [[4]]
    assert books.nodes["gpu-a"].healthy == (False,)
    assert books.entries["p"].assigned
    assert [(str(pod.ref), pod.created) for pod in books.waiting] == [("default/late", 7.0)]


def test_the_typical_request_is_the_commonest_size_on_a_device_of_all_pods(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    assert ledger.view().typical_units == 0
    ledger.pod_changed(_pod("p", Request(4, 2)))
    for name, parts in (("split", [8, 3, 3]), ("other", [8])):
        late = ObservedPod(PodRef("default", name, name), Request().of_parts(parts))
        ledger.pod_changed(late)
    # 8 twice, 4 and 3 once each, on however many devices of one pod.
    assert ledger.view().typical_units == 8
    ledger.pod_gone("other")
    assert ledger.view().typical_units == 3


def test_cpu_and_memory_of_all_pods_are_counted_and_follow_a_resize(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16, cpu=8000, memory=100))
    ledger.pod_changed(_pod("gpu", Request(4, 1, cpu=1000, memory=10)))
    ledger.pod_changed(_pod("plain", Request(cpu=500, memory=5)))
    view = ledger.snapshot()
    assert (view.cpu_free[0], view.cpu_only[0], view.memory_free[0]) == (6500, 500, 85)
    ledger.pod_changed(_pod("gpu", Request(4, 1, cpu=2000, memory=20)))
    ledger.pod_changed(_pod("plain", Request(cpu=100, memory=1)))
    view = ledger.snapshot()
    assert (view.cpu_free[0], view.cpu_only[0], view.memory_free[0]) == (5900, 100, 79)
    assert view.used.tolist() == [[4]]


def test_what_preemption_asks_of_a_pod_follows_the_pod_and_changes_no_charge(
    ledger: Ledger,
) -> None:
    ledger.node_changed(node("gpu-a", 16))
    pod = _pod("p", Request(4, 1))
    ledger.pod_changed(pod)
    view = ledger.snapshot()
    ledger.pod_changed(pod._replace(priority=5, terminating=True, labels=(("app", "web"),)))
    entry = ledger.entry("p")
    assert entry is not None
    assert (entry.priority, entry.terminating, entry.labels) == (5, True, (("app", "web"),))
    assert ledger.snapshot() is view


def test_a_list_that_breaks_off_drops_nobody(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ledger.pod_changed(_pod("kept", Request(4, 1)))

    def pages() -> Iterator[ObservedPod]:
        yield _pod("first", Request(2, 1))
        raise ConnectionError

    with pytest.raises(ConnectionError):
        ledger.replace_pods(pages())
    assert ledger.entry("kept")


def test_a_long_list_is_taken_over_whole(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 2**20))
    ledger.replace_pods(_pod(f"p{number}", Request(1, 1)) for number in range(2500))
    assert ledger.counts()["bound"] == 2500
    ledger.replace_pods(_pod(f"p{number}", Request(1, 1)) for number in range(0, 2500, 2))
    assert ledger.snapshot().used.tolist() == [[1250]]


def test_counts_say_zero_of_what_there_is_none(ledger: Ledger) -> None:
    assert set(ledger.counts().values()) == {0}
    assert {"nodes", "assumed", "in_doubt", "bound", "unplaced", "plain"} <= set(ledger.counts())
    assert {"waiting", "placement_edited", "bound_by_another"} <= set(ledger.counts())


def test_the_token_to_read_a_pod_under_is_a_new_one_with_every_bind(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ref, tokens = PodRef("default", "p", "p"), [ledger.token("p")]
    for _ in range(3):
        ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((0, 4),)), now=0)
        tokens.append(ledger.token("p"))
        ledger.forget("p")
    assert tokens[0] == -1
    assert len(set(tokens)) == 4


def test_a_pod_that_is_bound_and_asks_for_no_device_is_given_none(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ledger.pod_changed(_pod("p", Request(cpu=500)))
    with pytest.raises(PodMismatch, match="asks for no GPU"):
        ledger.assume(PodRef("default", "p", "p"), Request(4, 1), Allocation("gpu-a", ((0, 4),)), 0)
    ledger.pod_gone("p")
    assert ledger.snapshot().used.tolist() == [[0]]


def test_no_read_frees_what_is_still_being_sent(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ref = PodRef("default", "p", "p")
    ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((0, 4),)), 0)
    ledger.settle("p", ledger.token("p"), ObservedPod(ref, Request(4, 1)), BINDING_LIFETIME)
    assert ledger.snapshot().used.tolist() == [[4]]


@pytest.mark.parametrize(
    ("stamp", "charged"), [("7", [4, 0]), ("8", [4, 0]), ("9", [4, 4]), ("", [4, 4])]
)
def test_a_binding_in_doubt_is_known_by_its_stamp_when_its_devices_were_edited_away(
    ledger: Ledger, stamp: str, charged: list[int]
) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ref = PodRef("default", "p", "p")
    ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((0, 4),)), 0, stamp="7")
    ledger.doubt("p", 1, "7")
    assert ledger.resume("p", "gpu-b", 2, "8") is None
    assert ledger.resume("p", "gpu-a", 2, "8") == (Allocation("gpu-a", ((0, 4),)), 16)
    ledger.doubt("p", 3, "8")
    edited = _pod("p", Request(4, 1), place="gpu-a")._replace(placement=None, stamp=stamp)
    ledger.settle("p", ledger.token("p"), edited, 4)
    assert ledger.snapshot().used.tolist() == [charged]
    ledger.pod_changed(edited)
    assert ledger.snapshot().used.tolist() == [charged]


def test_a_binding_in_doubt_is_not_sent_again_to_devices_that_another_leader_gave_away(
    ledger: Ledger,
) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ledger.assume(PodRef("default", "p", "p"), Request(9, 1), Allocation("gpu-a", ((0, 9),)), 0)
    ledger.doubt("p", 1)
    ledger.pod_changed(_pod("q", Request(8, 1)))
    with pytest.raises(InsufficientMemory, match="given to others"):
        ledger.resume("p", "gpu-a", 2)
    assert ledger.snapshot().used.tolist() == [[17]]
    ledger.pod_gone("q")
    assert ledger.resume("p", "gpu-a", 2) == (Allocation("gpu-a", ((0, 9),)), 16)


@pytest.mark.parametrize(
    ("device", "running", "sent"), [(0, False, True), (1, False, False), (1, True, True)]
)
def test_a_binding_in_doubt_is_not_sent_again_where_its_equal_waits_on_another_device(
    device: int, running: bool, sent: bool
) -> None:
    ledger = Ledger(Pairing.ON)
    ledger.node_changed(node("gpu-a", 16, 16))
    ledger.assume(PodRef("default", "p", "p"), Request(4, 1), Allocation("gpu-a", ((0, 4),)), 0)
    ledger.doubt("p", 1)
    ledger.pod_changed(_pod("q", Request(4, 1), device=device)._replace(running=running))
    with nullcontext() if sent else pytest.raises(InsufficientMemory, match="equal pod waits"):
        assert ledger.resume("p", "gpu-a", 2)


@pytest.mark.parametrize(
    ("ours", "others", "sent"),
    [(60, 40, True), (60, 50, False), (0, 99, True), (0, 100, False), (100, 0, False)],
)
def test_a_binding_in_doubt_is_not_sent_again_where_others_have_its_cores(
    ledger: Ledger, ours: int, others: int, sent: bool
) -> None:
    ledger.node_changed(node("gpu-a", 16))
    request = Request(4, 1, percents=compute(ours))
    ledger.assume(PodRef("default", "p", "p"), request, Allocation("gpu-a", ((0, 4),)), 0)
    ledger.doubt("p", 1)
    assert ledger.can_still_bind("p")
    ledger.pod_changed(_pod("q", Request(5, 1, percents=compute(others)))._replace(running=True))
    assert ledger.can_still_bind("p") is sent
    with nullcontext() if sent else pytest.raises(InsufficientMemory, match="given to others"):
        assert ledger.resume("p", "gpu-a", 2)


def test_a_binding_in_doubt_does_not_stand_in_its_own_way() -> None:
    ledger = Ledger(Pairing.ON)
    ledger.node_changed(node("gpu-a", 4, 4))
    request = Request(4, 2, containers=((0, 5), (1, 3)))
    allocation = Allocation("gpu-a", ((0, 4), (1, 4)))
    ledger.assume(PodRef("default", "p", "p"), request, allocation, 0)
    ledger.doubt("p", 1)
    assert ledger.resume("p", "gpu-a", 2) == (allocation, 4)
    alone = Request(4, 1, percents=compute(100))
    ledger = Ledger(Pairing.ON)
    ledger.node_changed(node("gpu-a", 4))
    ledger.assume(PodRef("default", "p", "p"), alone, Allocation("gpu-a", ((0, 4),)), 0)
    ledger.doubt("p", 1)
    assert ledger.resume("p", "gpu-a", 2)


@pytest.mark.parametrize(
    "changed",
    [node("gpu-a"), node("gpu-a", 8), node("gpu-a", 16, closed=Reason.OTHER_UNIT), None],
)
def test_a_binding_in_doubt_is_not_sent_again_where_its_device_cannot_be_used_any_more(
    ledger: Ledger, changed: NodeSpec | None
) -> None:
    ledger.node_changed(node("gpu-a", 16))
    ledger.assume(PodRef("default", "p", "p"), Request(9, 1), Allocation("gpu-a", ((0, 9),)), 0)
    ledger.doubt("p", 1)
    if changed is None:
        ledger.set_unhealthy("gpu-a", frozenset({0}))
    else:
        ledger.node_changed(changed)
    with pytest.raises(InsufficientMemory):
        ledger.resume("p", "gpu-a", 2)
    ledger.node_gone("gpu-a")
    with pytest.raises(UnknownNode):
        ledger.resume("p", "gpu-a", 2)


def test_a_binding_is_charged_as_the_watch_shows_it_though_a_read_showed_it_edited_before(
    ledger: Ledger,
) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ref = PodRef("default", "p", "p")
    ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((1, 4),)), 0, stamp="7")
    ledger.doubt("p", 1, "7")
    bound_pod = _pod("p", Request(4, 1), device=1)._replace(stamp="7")
    ledger.settle("p", ledger.token("p"), bound_pod._replace(placement=None, stamp="soon"), 4)
    assert ledger.snapshot().used.tolist() == [[4, 4]]
    ledger.pod_changed(bound_pod)
    assert ledger.snapshot().used.tolist() == [[0, 4]]


def test_a_binding_by_another_is_charged_as_the_watch_shows_it_though_a_read_showed_it_edited(
    ledger: Ledger,
) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ledger.node_changed(node("gpu-b", 16, 16))
    ref = PodRef("default", "p", "p")
    ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((1, 4),)), 0, stamp="7")
    ledger.doubt("p", 1, "7")
    bound_pod = _pod("p", Request(4, 1), place="gpu-b")._replace(placement=None, stamp="other")
    ledger.settle("p", ledger.token("p"), bound_pod._replace(placement=((1, 4),)), 4)
    assert ledger.snapshot().used.tolist() == [[0, 0], [0, 4]]
    assert ledger.counts()["bound_by_another"] == 1
    ledger.pod_changed(bound_pod)
    assert ledger.snapshot().used.tolist() == [[0, 0], [4, 4]]


def test_a_pod_is_new_when_the_watch_first_shows_it_though_it_is_charged(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16))
    request, ref = Request(4, 1), PodRef("default", "p", "p")
    pod = LearnedPod("default", request)
    ledger.assume(ref, request, Allocation("gpu-a", ((0, 4),)), 0)
    assert ledger.pod_changed(_pod("p", request, place="")) == Changes(new=[(pod, False)])
    assert ledger.pod_changed(_pod("p", request, place="")) == Changes()
    assert ledger.pod_changed(_pod("p", request)) == Changes(came=[pod])
    ledger.replace_pods([_pod("p", request, place="")])
    assert ledger.pod_changed(_pod("p", request, place="")) == Changes(), "it is in doubt, not new"
    assert ledger.pod_changed(_pod("p", request)) == Changes(came=[pod])
    assert ledger.replace_pods([_pod("q", request)]) == Changes([(pod, True)], [pod], [pod])
    assert ledger.pod_gone("q") == Changes(went=[pod])


def test_a_pod_that_cannot_be_read_is_kept_as_it_was_and_waits_for_nobody(ledger: Ledger) -> None:
    ledger.pod_unreadable("p")
    assert set(ledger.counts().values()) == {0}
    pod = LearnedPod("default", Request(4, 1))
    assert ledger.pod_changed(_pod("p", Request(4, 1))) == Changes(came=[pod])
    ledger.pod_unreadable("p")
    assert ledger.entry("p")
    ledger.replace_pods([], keep=["p", "q"])
    assert ledger.entry("p")
    assert ledger.pod_changed(_pod("q", Request(4, 1), place="")) == Changes()
    assert ledger.replace_pods([]) == Changes(went=[pod])


def test_a_bound_pod_that_reads_without_a_node_is_told(ledger: Ledger) -> None:
    """So it is after etcd was set back."""
    ledger.node_changed(node("gpu-a", 16, 16))
    ledger.pod_changed(_pod("p", Request(4, 1)))
    ledger.replace_pods([_pod("p", Request(4, 1), place="")], started=10.0)
    assert ledger.counts()["binding_lost"] == 0  # the list may be wrong: it is read
    ledger.settle("p", ledger.token("p"), _pod("p", Request(4, 1), place=""), 11.0)
    assert ledger.counts()["binding_lost"] == 1
    ledger.settle("p", ledger.token("p"), _pod("p", Request(4, 1), place=""), 12.0)
    assert ledger.counts()["binding_lost"] == 1


def test_a_bind_that_never_landed_and_reads_unbound_is_no_alarm(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ref = PodRef("default", "p", "p")
    ledger.assume(ref, Request(4, 1), Allocation("gpu-a", ((1, 4),)), 0)
    ledger.doubt("p", 1)
    ledger.settle("p", ledger.token("p"), _pod("p", Request(4, 1), place=""), 70.0)
    assert ledger.entry("p") is None
    assert ledger.counts()["binding_lost"] == 0


def test_a_pod_without_gpu_waits_no_more_once_it_is_bound_whatever_is_repeated(
    ledger: Ledger,
) -> None:
    waits = _pod("p", Request(cpu=500), place="")
    for pod, entry in ((waits, 1), (_pod("p", Request(cpu=500)), 0), (waits, 0)):
        ledger.pod_changed(pod)
        assert ledger.counts()["waiting"] == entry


def test_auto_holds_equals_back_from_the_first_pod_on(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ledger.node_changed(replace(node("gpu-b", 16, 16), serves_by_identity=True))
    for place in ("gpu-a", "gpu-b"):
        ledger.pod_changed(_pod(f"on-{place}", Request(4, 1), place=place))
    assert dict(ledger.snapshot().pinned) == {0: ((frozenset([4]), (0,)),)}
    ledger.node_changed(node("gpu-b", 16, 16))
    assert ledger.snapshot().pinned.keys() == {0, 1}


@pytest.mark.parametrize("ledger", [Pairing.ON], indirect=True)
def test_filter_sees_what_waits_for_the_device_plugin(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 16, 16))
    ledger.pod_changed(_pod("p", Request(4, 1, containers=((0, 4),)), device=1))
    ledger.pod_changed(_pod("elsewhere", Request(4, 1), place="gpu-z"))
    ledger.pod_changed(_pod("unplaced", Request(4, 1))._replace(placement=None))
    assert dict(ledger.snapshot().pinned) == {0: ((frozenset([4]), (1,)),)}
    ledger.pod_gone("p")
    assert not ledger.snapshot().pinned


def test_books_out_of_step_with_their_entries_are_found() -> None:
    ledger = Ledger()
    ledger.node_changed(NodeSpec("gpu-a", (16,), (True,)))
    ledger.check()
    # Only a bug of ours can do this, so the test has to reach inside.
    ledger._store.arrays.add(Charge("gpu-a", Request(4, 1), ((0, 4),)))  # noqa: SLF001
    with pytest.raises(InvariantError, match="gpu-a"):
        ledger.check()


def test_nothing_is_kept_of_what_has_come_and_gone(ledger: Ledger) -> None:
    """Nodes and pods have other names each time: whatever stays of one grows for ever."""
    for number in range(20):
        name = f"node-{number}"
        ledger.node_changed(node(name, 16, serves_by_identity=True))
        ledger.set_unhealthy(name, frozenset([0]))
        ledger.set_unhealthy(name, frozenset())
        pod_ref = PodRef("default", f"waits-{number}", f"waits-{number}")
        ledger.pod_changed(ObservedPod(pod_ref, Request(4, 1)))
        late, plain = (
            _pod(f"late-{number}", Request(4, 1), name),
            _pod(f"{number}", Request(), name),
        )
        ledger.pod_changed(plain)
        assumed = PodRef("default", f"bound-{number}", f"bound-{number}")
        ledger.assume(assumed, Request(4, 1), Allocation(name, ((0, 4),)), 0.0)
        ledger.landed(assumed.uid, 0.0)
        ledger.pod_changed(late)
        ledger.node_gone(name)
        ledger.pod_changed(late._replace(assigned=True))
        for uid in (pod_ref.uid, assumed.uid, late.ref.uid, plain.ref.uid):
            ledger.pod_gone(uid)
    store = ledger._store  # noqa: SLF001 -- what is kept is private
    parts = {**vars(ledger), **vars(store), **vars(store.pins)}
    parts |= {phase.value: records for phase, records in parts.pop("by_phase").items()}
    kept_items = {
        name: part for name, part in parts.items() if isinstance(part, dict | set | deque)
    }
    del kept_items["alarm_counts"]
    assert len(kept_items) > 13
    assert not any(kept_items.values()), kept_items
    assert len(ledger.snapshot().names) == 1


def test_a_bind_in_doubt_whose_card_has_gone_keeps_its_pod_to_no_node(ledger: Ledger) -> None:
    two = replace(node("gpu-a", 16, 16), uuids=("a", "b"), serves_by_identity=True)
    ledger.node_changed(two)
    ref, allocation = PodRef("default", "p", "p"), Allocation("gpu-a", ((1, 4),), ("b",))
    ledger.assume(ref, Request(4, 1), allocation, 0.0, stamp="1")
    ledger.doubt("p", 1.0, "1")
    assert ledger.can_still_bind("p")
    ledger.node_changed(replace(node("gpu-a", 16), uuids=("a",), serves_by_identity=True))
    assert not ledger.can_still_bind("p")


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_is_lent_takes_nothing_new_and_keeps_what_it_has(
    ledger: Ledger, first: bool
) -> None:
    if first:
        ledger.lend("gpu-a")
    assert not ledger.serves("gpu-a")
    ledger.node_changed(node("gpu-a", 16))
    ledger.pod_changed(_pod("p", Request(4, 1)))
    ledger.lend("gpu-a")
    request = PodRef("default", "q", "q"), Request(4, 1), Allocation("gpu-a", ((0, 4),))
    with pytest.raises(InsufficientMemory):
        ledger.assume(*request, 0.0)
    ledger.node_changed(node("gpu-a", 32))
    with pytest.raises(InsufficientMemory):
        ledger.assume(*request, 0.0)
    assert ledger.dump("gpu-a")[0].used == (4,)
    ledger.node_changed(NodeSpec("gpu-a"))
    assert ledger.serves("gpu-a")
    ledger.pod_gone("p")
    assert not ledger.serves("gpu-a")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["bind", "served", "gone", "identity", "leave"]), st.integers(0, 5)
        ),
        max_size=40,
    )
)
def test_the_pins_of_a_snapshot_are_those_of_the_books(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(Pairing.AUTO)
    names = ("a", "b", "c")
    for name in names:
        ledger.node_changed(node(name, 64, 64))
    for step, number in steps:
        name, uid = names[number % 3], f"p{number}"
        if step == "bind" and ledger.entry(uid) is None and name in ledger.snapshot().row:
            request = Request(2, 1, containers=((0, 2),))
            allocation = Allocation(name, ((0, 2),), ("",))
            with contextlib.suppress(RequestRefused):
                ledger.assume(PodRef("t", uid, uid), request, allocation, 0.0)
        elif step in ("served", "gone"):
            ledger.pod_gone(uid)
        elif step == "identity":
            ledger.node_changed(node(name, 64, 64, serves_by_identity=number % 2 == 0))
        elif step == "leave":
            ledger.node_gone(name)
        view, pins = ledger.snapshot(), ledger._store.pins.by_node  # noqa: SLF001
        result = {view.names[row]: pins for row, pins in view.pinned.items()}
        assert result == {name: entry for name, entry in pins.items() if name in view.row}
