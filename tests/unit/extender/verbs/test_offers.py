"""The offers of filter while pods hold places: bytes of the verbs, real books and policies."""

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.decide import fits_somewhere, place
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import PodRef, Reason, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking, Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.errors import GpuShareError, InsufficientMemory
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.managed_resources import ExtenderScope, ManagedResources
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.verbs import holds as holds_module
from gpushare.extender.verbs import offers
from gpushare.extender.verbs.filter import FilterOptions, FilterVerb
from gpushare.extender.verbs.holds import Holds
from gpushare.extender.verbs.offers import Offers, offers_of
from gpushare.extender.verbs.prioritize import PrioritizeVerb
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.extender.verbs.wait_budget import WaitBudget
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.extender import NameLists
from gpushare.wire.objects import PODS
from gpushare.wire.pods import Claimant, claimant
from tests.support.scripted_api import BOUND
from tests.unit.core.clusters import node
from tests.unit.extender.follow.test_watch_handlers import event, page
from tests.unit.extender.kit import managed_resources, pod_json, read_pod
from tests.unit.extender.scripted_extender import ScriptedExtender

COSCHEDULING = {
    "scheduling.x-k8s.io/pod-group": "train",
    "pod-group.scheduling.sigs.k8s.io/min-available": "3",
}


class FilterWorld:
    """Filter over books of some nodes, at a time that the test sets."""

    def __init__(self, *nodes: str, cards: int = 2, best: bool = True) -> None:
        self.now = 1000.0
        self.resources: ManagedResources = managed_resources()
        (self.managed,) = self.resources
        self.managed.ledger.replace_nodes([node(name, *[16] * cards) for name in nodes])
        self.holds = self.managed.holds
        self.nodes = nodes
        self.waited = 0
        tickets = Tickets()
        self.verb = FilterVerb(
            self.resources,
            tickets,
            FilterOptions(
                best_only=best,
                hold_wait=WaitBudget(0.3, clock=lambda: self.now, sleep=self._sleep),
            ),
            not_ready=str,
            bind_slots=BindSlots(8),
            lists=NameLists(),
            clock=lambda: self.now,
        )
        self.prioritize_verb = PrioritizeVerb(
            self.resources, tickets, not_ready=str, lists=NameLists(), clock=lambda: self.now
        )
        self.watch = PodEventHandler(self.resources, clock=lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waited += 1

    def filter(self, pod: dict[str, Any], *names: str) -> tuple[list[str], dict[str, str]]:
        """The nodes that are offered, and why the others are not."""
        body = json.dumps({"Pod": pod, "NodeNames": names or self.nodes}).encode()
        answer = json.loads(self.verb.answer(body).body)
        assert not answer["Error"]
        return answer["NodeNames"], answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]

    def prioritize(self, pod: dict[str, Any], names: list[str]) -> str:
        """The node with the highest score."""
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        scores = json.loads(self.prioritize_verb.answer(body).body)
        return str(max(scores, key=lambda each: each["Score"])["Host"])


def pod(
    name: str,
    units: int = 10,
    *,
    nominated: str = "",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    document = pod_json(name, units)
    document["metadata"]["labels"] = labels or {}
    document["spec"] |= spec
    if nominated:
        document["status"]["nominatedNodeName"] = nominated
    return document


def test_two_pods_are_offered_two_devices_and_the_third_is_told_of_the_promise() -> None:
    world = FilterWorld("n")
    assert world.filter(pod("a")) == (["n"], {})
    assert world.filter(pod("b")) == (["n"], {})
    assert world.filter(pod("c")) == ([], {"n": Reason.PROMISED.value})
    assert world.filter(pod("small", 6)) == (["n"], {})


def test_a_promise_is_no_reason_to_evict_anybody() -> None:
    assert not Reason.PROMISED.resolvable
    assert not Reason.GROUP_TOO_LARGE.resolvable


def test_a_pod_is_not_kept_out_by_its_own_hold() -> None:
    world = FilterWorld("n", cards=1)
    for _ in range(3):
        assert world.filter(pod("a")) == (["n"], {})


def test_bind_decides_by_the_books_alone() -> None:
    world = ScriptedExtender()
    mine = pod_json("mine", 10)
    assert world.filter(mine, ["big"])["NodeNames"] == ["big"]
    # Whatever is held there for others, the books have room for this one.
    for number in range(5):
        holder = claimant(read_pod(pod_json(f"held-{number}", 10)), Request(10, 1))
        world.resources.resources[0].holds.shown(holder, "big", 0.0)
    answer = world.filter(pod_json("other", 10), ["big"])
    assert answer["FailedAndUnresolvableNodes"] == {"big": Reason.PROMISED.value}
    assert world.bind(mine, "big") == ""


def test_a_pod_that_is_being_bound_takes_its_place_once() -> None:
    world = ScriptedExtender(best_only=True)
    mine, second = pod_json("mine", 10), pod_json("other", 10)
    world.filter(mine, ["big"])
    nodes: list[str] = []

    def binding(_: object) -> bytes:
        # The books charge the pod, and the pod still has its hold: one device is free.
        nodes.extend(world.filter(second, ["big"])["NodeNames"])
        assert world.filter(pod_json("third", 10), ["big"])["NodeNames"] == []
        return BOUND

    world.api.answers = [binding]
    assert world.bind(mine, "big") == ""
    assert nodes == ["big"]
    assert [hold.pod.ref.name for hold in world.resources.resources[0].holds.live()] == ["other"]


def test_a_refused_bind_gives_the_place_to_others() -> None:
    world = ScriptedExtender(best_only=True)
    mine = pod_json("mine", 10)
    world.filter(mine, ["big"])
    holds = world.resources.resources[0].holds
    assert [hold.node for hold in holds.live()] == ["big"]
    world.api.answers = [json.dumps(mine).encode()]
    assert world.bind(mine, "nowhere")
    assert holds.live() == ()


def test_filter_waits_a_moment_for_a_promise_to_be_bound_or_to_lapse() -> None:
    world = FilterWorld("n", cards=1)
    world.holds.nominates = True
    world.filter(pod("m"))
    world.now += 1.8
    assert world.filter(pod("a")) == (["n"], {})
    assert world.waited > 0
    assert world.now < 1002.2


@pytest.mark.parametrize(("nominates", "seconds"), [(True, 2.0), (False, 5.0)])
@pytest.mark.parametrize("claim", [{}, {"labels": COSCHEDULING}], ids=["plain", "group"])
def test_pods_that_nobody_binds_keep_another_out_no_longer_than_a_hold_lasts(
    nominates: bool, seconds: float, claim: dict[str, Any]
) -> None:
    world = FilterWorld("n", cards=3)
    world.holds.nominates = nominates
    began = world.now
    while True:
        # One that is asked about again and again, and one that is always new.
        for name in ("a", "b", "c", f"d-{world.now}"):
            world.filter(pod(name))
        if world.filter(pod("waits", **claim))[0]:
            break
        assert world.now < began + seconds + 1.0
        world.now += 0.2
    assert world.now >= began + seconds


def test_a_pod_that_did_not_fit_meanwhile_is_kept_out_by_holds_as_long_as_another() -> None:
    world = FilterWorld("n", cards=1)
    large, big = pod("large"), pod("big", nodeName="n")
    big["metadata"]["annotations"] = {ALIYUN.idx: "0", ALIYUN.pod: "10"}
    world.filter(pod("a"))
    assert world.filter(large)[1] == {"n": Reason.PROMISED.value}
    world.watch.apply(event(PODS, "ADDED", big))
    world.now += 6.0
    assert world.filter(large)[1] == {"n": Reason.INSUFFICIENT_MEMORY.value}
    world.watch.apply(event(PODS, "DELETED", big))
    world.filter(pod("a"))
    assert world.filter(large)[1] == {"n": Reason.PROMISED.value}


def test_a_group_of_known_size_that_does_not_fit_whole_is_offered_nothing() -> None:
    world = FilterWorld("n")
    for name in "abc":
        reasons = {"n": Reason.GROUP_TOO_LARGE.value}
        assert world.filter(pod(name, labels=COSCHEDULING)) == ([], reasons)
    assert world.filter(pod("x"))[0] == ["n"]


def test_the_event_of_a_member_says_how_many_fit_as_explain_does_and_names_nobody() -> None:
    world = ScriptedExtender()
    (resource, _) = world.resources
    slow = claimant(read_pod(pod("slow")), Request(10, 1))
    resource.holds.shown(slow, "big", 0.0)
    claim = pod("a", labels=COSCHEDULING)
    assert world.filter(claim, ["big"])["NodeNames"] == []
    (_, reason, note) = world.heard.events[-1]
    assert reason == "GPUShareNoFit"
    assert note == (
        "0 of 1 nodes take the pod: 1 GPU Memory is not enough for all pods of the group at once;"
        " its group needs 3 x 10 GiB at once: 1 fit now"
    )
    world.api.answers = [json.dumps(claim).encode()]
    explainer = Explainer(
        world.api, world.resources, "GiB", not_ready=str, called=world.service.called
    )
    document = json.loads(explainer.answer("team", "a")[1])
    assert (document["group"]["needed"], document["group"]["fitting"]) == (3, 1)


def test_a_launcher_that_needs_no_device_does_not_keep_its_workers_out() -> None:
    world = FilterWorld("n")
    launcher = pod("launcher", 0, labels=COSCHEDULING)
    world.watch.apply(event(PODS, "ADDED", launcher))
    assert [world.filter(pod(name, labels=COSCHEDULING))[0] for name in "ab"] == [["n"], ["n"]]


def test_a_group_of_which_some_are_bound_goes_on_after_a_restart() -> None:
    world = FilterWorld("n")
    bound_pod = pod("a", labels=COSCHEDULING)
    bound_pod["spec"]["nodeName"] = "n"
    bound_pod["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    second = pod("launcher", 0, labels=COSCHEDULING)
    world.watch.replace([page(PODS, bound_pod, second)], world.now)
    assert world.filter(pod("b", labels=COSCHEDULING))[0] == ["n"]


def test_a_group_of_known_size_that_fits_is_offered_places_one_by_one() -> None:
    world = FilterWorld("n", "other")
    nodes = [world.filter(pod(name, labels=COSCHEDULING))[0] for name in "abc"]
    assert sorted(nodes) == [["n"], ["n"], ["other"]]


def test_of_two_groups_the_second_is_refused_whole_before_it_holds_anything() -> None:
    world = FilterWorld("n")
    two = COSCHEDULING | {"pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    second = two | {"scheduling.x-k8s.io/pod-group": "other"}
    assert world.filter(pod("a1", labels=two))[0] == ["n"]
    assert world.filter(pod("b1", labels=second))[0] == []
    assert world.filter(pod("a2", labels=two))[0] == ["n"]
    assert world.filter(pod("b2", labels=second))[0] == []


def test_a_group_that_kube_scheduler_gives_up_at_permit_leaves_its_cards_to_the_next() -> None:
    world = FilterWorld("n")
    world.holds.nominates = True
    two = COSCHEDULING | {"pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    first, second = (two | {"scheduling.x-k8s.io/pod-group": name} for name in ("one", "other"))
    for name in ("a1", "a2"):
        assert world.filter(pod(name, labels=first))[0] == ["n"]
        world.watch.apply(event(PODS, "MODIFIED", pod(name, labels=first, nominated="n")))
    world.now += 60
    assert world.filter(pod("b1", labels=second))[0] == []
    # The time-out at Permit: all members of the group lose their nominations.
    for name in ("a1", "a2"):
        world.watch.apply(event(PODS, "MODIFIED", pod(name, labels=first)))
    assert len(world.holds.by_key) == 0
    assert [world.filter(pod(name, labels=second))[0] for name in ("b1", "b2")] == [["n"], ["n"]]


def test_a_group_that_is_tried_on_two_placements_does_not_block_itself() -> None:
    """kube-scheduler asks for all members on the nodes of one placement, then of the next."""
    world = FilterWorld("n", "other")
    world.holds.nominates = True
    group: dict[str, Any] = {"schedulingGroup": {"podGroupName": "g"}}
    for placement in ("n", "other", "n"):
        assert [world.filter(pod(name, **group), placement)[0] for name in "ab"] == [
            [placement]
        ] * 2
    # Taken is not the one that was asked about last.
    for name in "ab":
        world.watch.apply(event(PODS, "MODIFIED", pod(name, nominated="other", **group)))
    assert world.filter(pod("x"))[0] == ["n"]
    assert {hold.node for hold in world.holds.live() if hold.nominated} == {"other"}


def test_of_1000_plain_pods_no_bind_is_refused_for_what_is_held() -> None:
    """Filter is called for each pod before the bind of the previous pod, as kube-scheduler does."""
    world = ScriptedExtender(best_only=True)
    names = [f"n{number}" for number in range(125)]
    for name in names:
        world.ledger.node_changed(node(name, *[16] * 8))
    chosen: list[tuple[dict[str, Any], str]] = []
    for number in range(1001):
        if number < 1000:
            asks = pod(f"p{number}")
            chosen.append((asks, *world.filter(asks, names)["NodeNames"]))
        if number:
            assert world.bind(*chosen[number - 1]) == ""
    assert world.filter(pod("late"), names)["NodeNames"] == []


class Old(ScriptedExtender):
    """Before 1.35: nothing says that a pod waits. Nodes of two cards, the first with the most used
    memory being the best.
    """

    def __init__(self, *nodes: str) -> None:
        super().__init__(best_only=True)
        self.nodes = nodes
        for name in nodes:
            self.ledger.node_changed(node(name, 16, 16))

    def asks(self, document: dict[str, Any]) -> list[str]:
        self.api.now += 0.1
        return list(self.filter(document, self.nodes)["NodeNames"] or ())


def test_before_1_35_a_pod_keeps_its_place_for_a_minute_while_its_volume_is_made() -> None:
    old = Old("n", "other")
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    slow = pod("slow", volumes=claim)
    (first_node,) = old.asks(slow)
    landed = []
    for name in "xyz":
        plain = pod(name)
        (node_name,) = old.asks(plain)
        assert old.bind(plain, node_name) == ""
        landed.append(node_name)
    assert landed.count(first_node) == 1
    old.api.now += 50
    assert old.asks(pod("late")) == []
    assert old.bind(slow, first_node) == ""


def test_before_1_35_a_place_that_nobody_takes_is_free_after_a_minute() -> None:
    old = Old("n")
    claim = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    for name in "ab":
        old.asks(pod(name, volumes=claim))
    old.api.now += 59
    assert old.asks(pod("x")) == []
    old.api.now += 1
    assert old.asks(pod("x")) == ["n"]


def test_the_watch_moves_a_hold_to_the_node_that_kube_scheduler_took() -> None:
    world = FilterWorld("n", "other", cards=1, best=False)
    claim: dict[str, Any] = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    }
    world.filter(pod("slow", **claim))
    slow = pod("slow", nominated="other", **claim)
    world.watch.apply(event(PODS, "MODIFIED", slow))
    world.now += 3600
    assert world.filter(pod("a"))[0] == ["n"]
    world.watch.apply(event(PODS, "DELETED", slow))
    assert world.filter(pod("a"))[0] == ["n", "other"]


def test_plain_pods_hold_too_while_something_is_held_whatever_filter_answers() -> None:
    world = FilterWorld("n", "other", best=False)
    world.prioritize(pod("a"), world.filter(pod("a"))[0])
    assert len(world.holds.by_key) == 0
    world.watch.apply(event(PODS, "ADDED", pod("slow", nominated="n")))
    nodes = []
    for name in "bcde":
        nodes.append(world.filter(pod(name))[0])
        if len(nodes[-1]) > 1:  # kube-scheduler does not call prioritize for one node
            assert world.prioritize(pod(name), nodes[-1]) == "n"
    assert nodes == [["n", "other"], ["other"], ["other"], []]
    assert [hold.pod.ref.name for hold in world.holds.live()] == ["slow", "b", "c", "d"]


def test_a_member_holds_the_node_that_prioritize_prefers() -> None:
    world = FilterWorld("n", "other", best=False)
    member = pod("m", labels=COSCHEDULING)
    assert world.filter(member)[0] == ["n", "other"]
    (nodes,) = world.holds.live()
    best = world.prioritize(member, ["other"])
    assert best == "other" != nodes.node
    assert [hold.node for hold in world.holds.live()] == ["other"]


def test_prioritize_holds_nothing_for_a_pod_that_is_charged_or_not_sent_here() -> None:
    world = FilterWorld("n", "other", best=False)
    world.watch.apply(event(PODS, "ADDED", pod("slow", nominated="n")))
    bound_pod, foreign = pod("bound"), pod("foreign", schedulerName="another")
    request, ref = Request(10, 1), claimant(read_pod(bound_pod), Request(10, 1)).ref
    ledger, policy = world.managed.ledger, world.managed.scorer(request)
    ledger.assume(ref, request, place(ledger.snapshot(), "n", request, policy), world.now)
    scope = ExtenderScope(schedulers=frozenset({"default-scheduler"}))
    world.prioritize_verb = PrioritizeVerb(
        replace(world.resources, scope=scope), Tickets(), not_ready=str, lists=NameLists()
    )
    world.prioritize(bound_pod, ["other"])
    world.prioritize(foreign, ["other"])
    assert [hold.pod.ref.name for hold in world.holds.live()] == ["slow"]
    world.prioritize(pod("sent"), ["other"])
    assert [hold.pod.ref.name for hold in world.holds.live()] == ["slow", "sent"]


def test_a_list_at_the_start_brings_the_nominations_back() -> None:
    world = FilterWorld("n", "other", cards=1)
    world.watch.replace([page(PODS, pod("slow", nominated="n"))], world.now)
    assert world.filter(pod("a"))[0] == ["other"]
    world.watch.replace([page(PODS)], world.now)
    assert len(world.holds.by_key) == 0 or world.holds.live()[0].pod.ref.name == "a"


@pytest.mark.parametrize("change", ["bound", "terminating"])
def test_a_pod_that_is_bound_or_goes_holds_nothing(change: str) -> None:
    world = FilterWorld("n", cards=1)
    pending_pod = pod("slow", nominated="n")
    world.watch.apply(event(PODS, "ADDED", pending_pod))
    assert len(world.holds.by_key) == 1
    if change == "bound":
        pending_pod["spec"]["nodeName"] = "n"
    else:
        pending_pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.watch.apply(event(PODS, "MODIFIED", pending_pod))
    assert len(world.holds.by_key) == 0


def test_a_nominee_takes_nothing_while_its_victims_are_there() -> None:
    world = FilterWorld("n")
    resource = world.managed
    for name, device in (("v1", 0), ("v2", 1)):
        victim = pod_json(name, 10, node="n")
        victim["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": str(device)}
        world.watch.apply(event(PODS, "ADDED", victim))
    world.watch.apply(event(PODS, "ADDED", pod("nominee", nominated="n", priority=9)))
    assert world.filter(pod("small", 6))[0] == ["n"]
    world.holds.gone("uid-small")
    resource.ledger.pod_gone("uid-v1")
    assert world.filter(pod("low"))[0] == []
    assert world.filter(pod("high", priority=10))[0] == ["n"]


def test_what_is_held_counts_as_used() -> None:
    world = FilterWorld("n")
    world.filter(pod("first"))
    resource = world.managed.ledger.snapshot()
    claim = claimant(read_pod(pod("asks")), Request(10, 1))
    offer = offers_of(world.managed).to(claim, resource, world.now)
    assert (resource.used.tolist(), sorted(offer.used.tolist()[0])) == ([[0, 0]], [0, 10])


def test_compute_is_held_too() -> None:
    world = FilterWorld("n", cards=1)

    def with_cores(name: str, percent: int) -> dict[str, Any]:
        document = pod(name, 4)
        limits = document["spec"]["containers"][0]["resources"]["limits"]
        limits["aliyun.com/gpu-core.percentage"] = str(percent)
        return document

    assert world.filter(with_cores("a", 60))[0] == ["n"]
    assert world.filter(with_cores("b", 50)) == ([], {"n": Reason.PROMISED.value})
    assert world.filter(with_cores("alone", 100)) == ([], {"n": Reason.PROMISED.value})
    assert world.filter(with_cores("c", 40))[0] == ["n"]
    # All compute is held: the 8 units that are left are no use.
    assert world.filter(pod("plain", 4)) == ([], {"n": Reason.PROMISED.value})


def test_a_device_on_which_memory_is_held_is_not_empty() -> None:
    books = FilterWorld("n", cards=1).managed.ledger.snapshot()
    builder, alone = HeldSnapshotBuilder(books), Request(2, 1, percents=compute(100))
    assert fits_somewhere(builder.draft(), alone)
    builder.take(0, ((0, 3),), Request(3, 1))
    assert not fits_somewhere(builder.draft(), alone)
    builder.reset(0)
    assert fits_somewhere(builder.draft(), alone)


def test_a_built_snapshot_never_changes() -> None:
    world = FilterWorld("n", cards=1)
    builder = HeldSnapshotBuilder(world.managed.ledger.snapshot())
    builder.take(0, ((0, 3),), Request(3, 1, percents=compute(20)))
    built = builder.build()
    changes: tuple[Callable[[], None], ...] = (
        lambda: builder.take(0, ((0, 1),), Request(1, 1)),
        lambda: builder.give(0, ((0, 3),), Request(3, 1)),
        lambda: builder.hold(0),
        lambda: builder.reset(0),
        lambda: built.free.fill(0),
        lambda: built.cores_used.fill(0),
    )
    for change in changes:
        with pytest.raises(ValueError, match="read-only"):
            change()
    assert built.free.tolist() == [[13]]
    assert built.cores_used.tolist() == [[20]]
    assert built.used.tolist() == [[3]]
    later = HeldSnapshotBuilder(built.base, built)
    later.take(0, ((0, 13),), Request(13, 1))
    assert later.build().free.tolist() == [[0]]
    assert built.free.tolist() == [[13]]


def test_a_hold_that_begins_and_ends_between_two_looks_is_not_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FilterWorld("n0", "n1")
    world.filter(pod("first"))
    claim = claimant(read_pod(pod("asks")), Request(10, 1))
    books, cached_offers = world.managed.ledger.snapshot(), offers_of(world.managed)
    offer = cached_offers.to(claim, books, world.now)
    world.filter(pod("second"))
    world.holds.gone("uid-second")
    monkeypatch.setattr(offers, "take_best", None)
    assert cached_offers.to(claim, books, world.now) is offer


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ("offer", "offer", "nominate", "end", "bind", "bind", "pod_gone", "wait", "node")
        ),
        st.integers(0, 5),  # the pod
        st.integers(0, 3),  # the node
        st.integers(0, 2),  # the pod's priority, and the age of the other books
    ),
    max_size=25,
)
_ASKED = Request(3, 1)
_ASKED_CORES = Request(3, 1, percents=compute(50))


def assert_same(mine: Snapshot, anew: Snapshot, ranking: Ranking) -> None:
    arrays = (
        "free",
        "used",
        "cores_used",
        "cores_free",
        "gpu_pods",
        "cpu_free",
        "memory_free",
        "open",
    )
    for array in arrays:
        assert getattr(mine, array).tolist() == getattr(anew, array).tolist(), array
    for request in (_ASKED, _ASKED_CORES):
        fresh = Ranking(ranking.policy).scores(anew, request).values.tolist()
        assert ranking.scores(mine, request).values.tolist() == fresh


@given(
    changes=_CHANGES,
    policy=st.sampled_from(("binpack", "device-bestfit", "shadow-price")),
    max_changed=st.sampled_from((1, 2, 20_000)),
)
def test_what_is_kept_of_offers_is_what_is_made_anew(
    changes: list[tuple[str, int, int, int]], policy: str, max_changed: int
) -> None:
    """Whatever changes in the books or among the holds, and whichever books are looked at; of so
    many nodes the versions of changes are kept.
    """
    with mock.patch.object(holds_module, "_MAX_CHANGED", max_changed):
        check_offers(changes, policy)


def check_offers(changes: list[tuple[str, int, int, int]], policy: str) -> None:
    ledger, holds = Ledger(Pairing.OFF), Holds(nominates=True)
    ledger.replace_nodes([node(f"n{number}", 16, 16, 16) for number in range(4)])
    ranking, now = Ranking(load_policy(policy)), 1000.0

    def offers_made() -> Offers:
        return Offers(holds, lambda _: ranking, lambda uid: ledger.entry(uid) is not None)

    cached_offers, offer = offers_made(), [ledger.snapshot()]
    kept: dict[tuple[int, int], tuple[Snapshot, list[list[int]]]] = {}
    for change, pod_number, node_number, number in changes:
        ref = PodRef("default", f"p{pod_number}", f"u{pod_number}")
        name = f"n{node_number}"
        cores = (0, 0, 40, 100)[pod_number % 4]
        request = Request(4 + 3 * pod_number % 11, 1 + number % 2, percents=compute(cores))
        claim = Claimant(ref, request, priority=number)
        if change == "offer":
            holds.asked(claim)
            holds.offered(claim, name, now)
        elif change == "nominate":
            holds.shown(claim, name, now)
        elif change == "end":
            holds.refused(claim)
        elif change == "bind":
            with contextlib.suppress(GpuShareError):
                allocation = place(ledger.snapshot(), name, request, ranking)
                ledger.assume(ref, request, allocation, now)
            holds.end_after_bind(ref.uid)
        elif change == "pod_gone":
            ledger.pod_gone(ref.uid)
            holds.gone(ref.uid)
        elif change == "wait":
            now += 0.7
        elif number:
            ledger.set_unhealthy(name, frozenset(range(number)))
        else:
            ledger.node_changed(node(f"n{node_number + 2}", 16, 16))
        offer.append(ledger.snapshot())
        # A thread may look at books that another one has already left behind.
        for resource in (offer[-1 - number % len(offer)], offer[-1]):
            for priority in (0, 1, 2, 3):
                asker = Claimant(PodRef("default", "asks", "asks"), _ASKED, priority)
                mine, anew = (
                    holder_uid.to(asker, resource, now)
                    for holder_uid in (cached_offers, offers_made())
                )
                assert_same(mine, anew, ranking)
                kept[pod_number, priority] = mine, mine.free.tolist()
        ranking.scores(offer[-1], _ASKED)  # so that the memo of the books is up to date too
    assert [mine.free.tolist() for mine, _ in kept.values()] == [free for _, free in kept.values()]


def test_the_line_of_a_split_pod_says_all_of_its_parts() -> None:
    world = FilterWorld("n0")
    split = pod_json("uneven", 14, annotations={"gpushare.io/split": "10+4"})
    line = world.verb.answer(json.dumps({"Pod": split, "NodeNames": ["n0"]}).encode()).line
    assert (line["units"], line["devices"], line["split"]) == (10, 2, "10+4")
    line = world.verb.answer(json.dumps({"Pod": pod("even"), "NodeNames": ["n0"]}).encode()).line
    assert "split" not in line


def test_a_policy_that_fails_while_places_are_taken_loses_no_hold() -> None:
    world = FilterWorld("n0", "n1")
    world.filter(pod("first"))
    world.filter(pod("second"))
    claim = claimant(read_pod(pod("asks")), Request(10, 1))
    books, fails = world.managed.ledger.snapshot(), [True]

    def scorer_of(holder: Claimant) -> Scorer:
        if fails:
            raise ValueError(fails.pop())
        return world.managed.scorer(holder.request)

    cached_offers = Offers(world.holds, scorer_of, lambda _: False)
    with pytest.raises(ValueError, match="True"):
        cached_offers.to(claim, books, world.now)
    anew = offers_of(world.managed).to(claim, books, world.now)
    assert cached_offers.to(claim, books, world.now).free.tolist() == anew.free.tolist()
    assert anew.free.sum() == books.free.sum() - 20


def test_the_books_stay_as_they_are_when_places_are_taken_from_a_copy() -> None:
    world = FilterWorld("n")
    books = world.managed.ledger.snapshot()
    builder = HeldSnapshotBuilder(books)
    builder.take(0, ((0, 10),), Request(10, 1, cpu=1))
    builder.hold(0)
    snapshot = builder.build()
    assert books.free.tolist() == [[16, 16]]
    assert snapshot.free.tolist() == [[6, 16]]
    with pytest.raises(InsufficientMemory):
        place(snapshot, "n", Request(10, 2), world.managed.scorer(Request(10, 2)))


def test_a_place_in_a_copy_is_chosen_by_the_copy_and_not_by_what_is_kept_of_the_books() -> None:
    world = FilterWorld("n")
    books, request = world.managed.ledger.snapshot(), Request(3, 1)
    # A ranking of its own: a shared ranking has cached the requests of the last test.
    scorer = Ranking(load_policy("device-bestfit"))
    scorer.scores(books, request)
    builder = HeldSnapshotBuilder(books)
    builder.take(0, ((1, 4),), Request(4, 1))
    builder.hold(0)
    assert place(books, "n", request, scorer).devices == (0,)
    assert place(builder.build(), "n", request, scorer).devices == (1,)


def test_who_looks_while_another_thread_makes_an_offer_waits_for_nobody() -> None:
    world = FilterWorld("n0", "n1")
    world.filter(pod("first"))
    claim = claimant(read_pod(pod("asks")), Request(10, 1))
    books = world.managed.ledger.snapshot()
    looks: list[Snapshot] = []

    def scorer_of(holder: Claimant) -> Scorer:
        if not looks:
            looks.append(books)
            looks[0] = seen_by_another_thread(lambda: cached_offers.to(claim, books, world.now))
        return world.managed.scorer(holder.request)

    cached_offers = Offers(world.holds, scorer_of, lambda _: False)
    anew = offers_of(world.managed).to(claim, books, world.now)
    assert cached_offers.to(claim, books, world.now).free.tolist() == anew.free.tolist()
    assert looks[0].free.tolist() == anew.free.tolist()


def seen_by_another_thread(look: Callable[[], Snapshot]) -> Snapshot:
    """The result of another thread, which must not wait for this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result(timeout=10)


APART_FROM_FELLOWS = {"gpushare.io/apart": "required"}


def fellow(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod of the workload web that stays apart."""
    document = pod(name, 4, labels=labels)
    document["metadata"] |= {
        "annotations": APART_FROM_FELLOWS,
        "ownerReferences": [
            {"kind": "ReplicaSet", "name": "web", "uid": "u-1", "controller": True}
        ],
    }
    return document


def test_pods_of_a_workload_are_offered_a_device_each_and_others_share_it() -> None:
    world = FilterWorld("n", "other")
    nodes = [world.filter(fellow(name))[0] for name in "abcd"]
    assert sorted(nodes) == [["n"], ["n"], ["other"], ["other"]]
    reasons = dict.fromkeys(("n", "other"), Reason.PROMISED.value)
    assert world.filter(fellow("e")) == ([], reasons)
    assert world.filter(pod("x", 4))[0] == ["n"]
    bound_pods = [fellow(name) for name in "abcd"]
    for number, document in enumerate(bound_pods):
        document["spec"]["nodeName"] = ("n", "other")[number // 2]
        document["metadata"]["annotations"] = APART_FROM_FELLOWS | {
            ALIYUN.idx: str(number % 2),
            ALIYUN.pod: "4",
        }
        world.watch.apply(event(PODS, "MODIFIED", document))
    reasons = dict.fromkeys(("n", "other"), Reason.APART.value)
    assert world.filter(fellow("e")) == ([], reasons)
    world.watch.apply(event(PODS, "DELETED", bound_pods[2]))
    assert world.filter(fellow("e"))[0] == ["other"]


def test_a_group_that_stays_apart_fits_if_each_pod_has_a_device() -> None:
    world = FilterWorld("n")
    reasons = {"n": Reason.GROUP_TOO_LARGE.value}
    assert world.filter(fellow("a", COSCHEDULING)) == ([], reasons)
    two = {
        "scheduling.x-k8s.io/pod-group": "two",
        "pod-group.scheduling.sigs.k8s.io/min-available": "2",
    }
    assert [world.filter(fellow(name, two))[0] for name in "bc"] == [["n"], ["n"]]
