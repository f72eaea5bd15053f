"""Reservations for pods that wait: real books, filter and holds; the API server is played."""

import json
import random
from typing import Any

import pytest

from gpushare.core.model import Reason
from gpushare.errors import ApiNotFound
from gpushare.extender.moves.reserver import EVERY, PATIENCE, Reserver
from gpushare.extender.verbs.offers import held_places
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from gpushare.wire.pods import Claimant, claimant, request_of
from tests.unit.core.clusters import node, state_of
from tests.unit.extender.follow.test_watch_handlers import event
from tests.unit.extender.kit import pod_json, read_pod
from tests.unit.extender.moves.world import EPOCH, SIZE, Json, stamp
from tests.unit.extender.verbs.test_offers import COSCHEDULING, FilterWorld

AFTER = 1800.0
PROMISED = Reason.PROMISED.value


class ReserverWorld(FilterWorld):
    """Nodes of cards with SIZE units, filter, and a reserver with rounds by the test."""

    def __init__(self, *nodes: str, cards: int = 2) -> None:
        super().__init__(*nodes, cards=cards, best=False)
        self.cards = cards
        self.now = 100_000.0
        self.why_not = ""
        self.pods: dict[str, Json] = {}
        self.start()

    def start(self) -> None:
        """Another process leads: no hold is left."""
        self.reserver = Reserver(
            self,
            self.resources,
            after=AFTER,
            not_ready=lambda: self.why_not,
            clock=lambda: self.now,
            wall=lambda: EPOCH + self.now,
        )

    def request(self, method: str, path: str, **_: object) -> bytes:
        assert method == "GET"
        name = path.rpartition("/")[2]
        if name not in self.pods:
            raise ApiNotFound("no such pod", 404)
        return json.dumps(self.pods[name]).encode()

    def put(self, pod: Json) -> Json:
        self.pods[pod["metadata"]["name"]] = pod
        self.watch.apply(event(PODS, "MODIFIED", pod))
        return pod

    def made(self, name: str, devices: int = 1, *, age: float, **spec: Any) -> Json:
        units = spec.pop("units", SIZE * devices)
        pod = pod_json(name, units)
        resources = pod["spec"]["containers"][0]["resources"]
        resources["requests"] = resources["limits"] | {"cpu": spec.pop("cpu", "0")}
        pod["metadata"] |= {
            "namespace": spec.pop("namespace", "team"),
            "labels": {ALIYUN.count: str(devices)} | spec.pop("labels", {}),
            "creationTimestamp": stamp(EPOCH + self.now - age),
        }
        pod["spec"] |= spec
        return pod

    def waits(self, name: str, devices: int = 2, *, age: float = 2 * AFTER, **spec: Any) -> Json:
        return self.put(self.made(name, devices, age=age, **spec))

    def runs(self, name: str, place: str, device: int, *, age: float = 7200.0, **spec: Any) -> Json:
        pod = self.made(name, age=age, **spec)
        units = pod["spec"]["containers"][0]["resources"]["limits"][ALIYUN.resource]
        pod["metadata"]["annotations"] = {ALIYUN.idx: str(device), ALIYUN.pod: units}
        pod["spec"]["nodeName"] = place
        pod["status"] = {"phase": "Running", "startTime": stamp(EPOCH + self.now - age)}
        return self.put(pod)

    def ends(self, name: str) -> None:
        self.watch.apply(event(PODS, "DELETED", self.pods.pop(name)))

    def full(self) -> None:
        """A pod on each card; those of the first node are the youngest."""
        for row, place in enumerate(self.nodes):
            for device in range(self.cards):
                self.runs(f"{place}-{device}", place, device, age=3600.0 * (row + 1))

    def round(self, seconds: float = EVERY) -> dict[str, str]:
        """Return the nodes of the reservations by pod, after a round."""
        self.now += seconds
        self.reserver.round()
        return {hold.pod.ref.name: hold.node for hold in self.holds.reservations()}


def full_world(*nodes: str, cards: int = 2) -> ReserverWorld:
    """Nodes with a pod on each card."""
    world = ReserverWorld(*nodes, cards=cards)
    world.full()
    return world


def late_world(*nodes: str, cards: int = 2, **spec: Any) -> ReserverWorld:
    """Full nodes; the first of these is reserved for the pod `late`."""
    world = full_world(*nodes, cards=cards)
    world.waits("late", **spec)
    assert world.round() == {"late": nodes[0]}
    return world


def test_the_node_that_opens_first_is_held_for_a_pod_that_has_waited_for_long() -> None:
    world = full_world("a", "b", "c")
    late = world.waits("late", age=AFTER - 15)
    assert world.round() == {}
    assert world.round() == {"late": "a"}
    world.ends("a-0")
    assert world.filter(world.made("small", age=0.0)) == ([], {"a": PROMISED} | no_room("b", "c"))
    assert world.filter(late)[0] == []
    world.ends("a-1")
    assert world.filter(late)[0] == ["a"]
    (place,) = held_places(world.holds)
    assert place.reserved_since is not None
    assert world.reserver.state()["reservations_total"] == 1


def no_room(*nodes: str) -> dict[str, str]:
    return dict.fromkeys(nodes, Reason.INSUFFICIENT_MEMORY.value)


@pytest.mark.parametrize(
    ("passes", "spec"),
    [
        (False, {}),
        (True, {"age": 3 * AFTER + 60}),
        (False, {"age": 3 * AFTER + 60, "priority": -1}),
        (True, {"priority": 1}),
        (True, {"activeDeadlineSeconds": 600}),
        (False, {"activeDeadlineSeconds": 11_000}),
        (False, {"activeDeadlineSeconds": 600, "terminationGracePeriodSeconds": 11_000}),
    ],
)
def test_a_reservation_lets_older_pods_pass_and_those_that_end_before(
    passes: bool, spec: dict[str, Any]
) -> None:
    world = late_world("a", "b", "c", age=3 * AFTER - 2)
    world.ends("a-0")
    fits = world.filter(world.made("other", **({"age": 0.0} | spec)))[0]
    assert fits == ["a"] * passes


def test_a_pod_that_kube_scheduler_nominates_passes() -> None:
    world = late_world("a", "b", "c")
    world.ends("a-0")
    other = world.made("other", age=0.0)
    other["status"]["nominatedNodeName"] = "a"
    world.put(other)
    assert world.filter(other)[0] == ["a"]


def test_room_beside_the_reserved_devices_is_offered() -> None:
    world = late_world("a", "b", cards=4)
    world.ends("a-0")
    world.ends("a-3")
    small = world.made("small", age=0.0)
    assert world.filter(small)[0] == ["a"]
    world.runs("beside", "a", 3)
    assert world.filter(small)[0] == []


def test_the_reserved_part_is_bounded_and_no_smaller_pod_overtakes() -> None:
    world = full_world(*(f"n{number:02}" for number in range(11)))
    world.waits("first", age=4 * AFTER)
    world.waits("second", age=3 * AFTER)
    world.waits("third", age=2 * AFTER)
    world.waits("small", 1, age=2 * AFTER - 1)
    assert world.round() == {"first": "n00", "second": "n01"}
    world.ends("first")
    assert world.round() == {"second": "n00", "third": "n01"}
    world.waits("urgent", age=AFTER, priority=1)
    assert world.round() == {"urgent": "n00", "second": "n01"}


def test_a_large_pod_that_may_have_no_place_blocks_no_other_pod() -> None:
    world = full_world(*"abcdef")
    world.waits("first", age=4 * AFTER)
    gated = world.waits("gated", age=3 * AFTER)
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    world.waits("small", 1, units=6, age=2 * AFTER)
    assert world.round() == {"first": "a", "small": "b"}


def test_one_pod_has_a_reservation_however_large() -> None:
    world = full_world("a")
    world.waits("late")
    world.waits("later", age=AFTER)
    assert world.round() == {"late": "a"}


def test_priority_comes_first_and_then_namespaces_take_turns() -> None:
    world = full_world("a", "b")
    for number in range(3):
        world.waits(f"many-{number}", age=3 * AFTER, namespace="many")
    world.waits("other", age=2 * AFTER, namespace="other")
    world.waits("urgent", age=AFTER, priority=7, namespace="many")
    order = []
    for _ in range(3):
        (name,) = world.round()
        order.append(name.partition("-")[0])
        world.ends(name)
    assert order == ["urgent", "other", "many"]


@pytest.mark.parametrize("priority", [0, 5])
def test_pods_that_no_node_can_take_keep_no_other_namespace_waiting(priority: int) -> None:
    world = full_world("a", "b")
    for number in range(300):
        age, name = 3 * AFTER, f"hopeless-{number}"
        world.waits(name, 3, age=age, namespace="greedy", priority=priority)
    world.waits("late", namespace="team")
    assert world.round() == {"late": "a"}


def grows(world: ReserverWorld) -> None:
    world.waits("late", priority=3)


def is_bound(world: ReserverWorld) -> None:
    world.ends("a-0")
    world.ends("late")
    world.runs("late", "a", 0)


def loses_its_node(world: ReserverWorld) -> None:
    world.managed.ledger.replace_nodes([node("b", SIZE), node("c", SIZE, SIZE)])


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda world: world.ends("late"), {}),
        (is_bound, {}),
        (grows, {"late": "a"}),
        (loses_its_node, {"late": "c"}),
        (lambda world: setattr(world, "why_not", "it does not lead"), {}),
        (lambda world: world.reserver.stop(), None),
    ],
)
def test_a_reservation_ends_with_its_reason(change: Any, after: dict[str, str] | None) -> None:
    world = late_world("a", "b", "c")
    change(world)
    if after is None:
        assert world.holds.reservations() == ()
        return
    assert world.round() == after
    assert len(world.holds.by_key) == len(after)


def test_a_bind_ends_a_reservation_and_a_refused_one_does_not() -> None:
    world = late_world("a")
    world.holds.end_after_bind("uid-late", is_refused=True)
    assert len(world.holds.reservations()) == 1
    world.holds.end_after_bind("uid-late")
    assert world.holds.reservations() == ()


def test_a_new_leader_reserves_anew_by_the_ages_of_pods() -> None:
    world = late_world("a", "b", "c")
    world.reserver.stop()
    world.start()
    assert world.round() == {"late": "a"}


def test_another_node_is_reserved_when_that_opens_earlier_by_now() -> None:
    world = late_world("a", "b", "c")
    since = world.holds.reservations()[0].since
    world.runs("b-0", "b", 0, age=7200, activeDeadlineSeconds=14_000)
    world.runs("b-1", "b", 1, age=7200)
    assert world.round() == {"late": "b"}
    world.ends("a-0")
    assert world.round() == {"late": "a"}, "both wait for one pod, and this one lacks less memory"
    assert world.holds.reservations()[0].since == since


def test_a_place_with_free_devices_stays_reserved_while_its_node_lacks_cpu() -> None:
    world = ReserverWorld("a", "b", cards=3)
    for place in world.nodes:
        world.resources.node_states.put(state_of(node(place, SIZE, SIZE, SIZE, cpu=4000)))
    for device in range(3):
        world.runs(f"a-{device}", "a", device, cpu="1")
        world.runs(f"b-{device}", "b", device)
    world.waits("late", cpu="4")
    assert world.round() == {"late": "b"}, "a needs three ends for its CPU"
    for device in range(2):
        world.runs(f"a-{device}", "a", device, cpu="1", activeDeadlineSeconds=7300)
    world.runs("a-2", "a", 2, cpu="1", activeDeadlineSeconds=9000)
    assert world.round() == {"late": "a"}
    world.ends("a-0")
    world.ends("a-1")
    for device in range(3):
        world.runs(f"b-{device}", "b", device, activeDeadlineSeconds=7500)
    assert world.round() == {"late": "a"}
    (hold,) = world.holds.reservations()
    assert hold.reserved is not None
    assert hold.reserved.shares == ((0, SIZE), (1, SIZE))


def test_a_free_place_that_kube_scheduler_does_not_use_is_given_up() -> None:
    world = late_world("a", "b", "c")
    world.ends("a-0")
    world.ends("a-1")
    world.round()
    assert world.round(PATIENCE - EVERY) == {"late": "a"}
    assert world.round() == {}
    world.runs("a-0", "a", 0)
    assert world.round(1800) == {}
    assert world.reserver.state()["reservations_given_up_total"] == 1
    assert world.round(1800) != {}


def test_a_second_reservation_of_a_pod_has_all_its_time() -> None:
    world = late_world("a", "b", "c")
    world.ends("a-0")
    world.ends("a-1")
    world.round()
    world.holds.end_after_bind("uid-late")  # and the Binding is refused later
    world.holds.asked(claimant_of(world, "late"))
    world.runs("a-0", "a", 0)
    assert world.round(PATIENCE) == {"late": "a"}
    world.ends("a-0")
    assert world.round() == {"late": "a"}


def claimant_of(world: ReserverWorld, name: str) -> Claimant:
    """The pod as the rules of holds see the pod."""
    shown = read_pod(world.pods[name])
    return claimant(shown, request_of(shown, ALIYUN))


def test_a_pod_that_fits_now_gets_no_reservation() -> None:
    world = ReserverWorld("a", "b")
    world.waits("late")
    assert world.round() == {}


def test_nothing_is_reserved_where_no_pod_ends_by_itself() -> None:
    world = ReserverWorld("a")
    for device in range(2):
        world.runs(f"web-{device}", "a", device, labels={"pod-template-hash": "5d"})
    world.waits("late")
    assert world.round() == {}
    world.runs("web-0", "a", 0, labels={"pod-template-hash": "5d"}, activeDeadlineSeconds=9000)
    assert world.round(100) == {}
    world.ends("web-1")
    assert world.round(100) == {"late": "a"}


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}},
        {"status": {"nominatedNodeName": "b"}},
        {"metadata": {"deletionTimestamp": stamp(EPOCH)}},
        {"metadata": {"labels": {ALIYUN.count: "2"} | COSCHEDULING}},
        {"metadata": {"uid": "another"}},
    ],
)
def test_nothing_is_reserved_for_a_pod_that_waits_for_something_else(change: Json) -> None:
    world = full_world("a")
    late = world.waits("late")
    late = json.loads(json.dumps(late))
    for part, values in change.items():
        late[part] |= values
    world.pods["late"] = late
    assert world.round() == {}
    del world.pods["late"]
    assert world.round(100) == {}


def test_an_overdue_pod_is_expected_to_run_on() -> None:
    world = full_world("a", "b", "c")
    for device in range(2):
        world.runs(f"b-{device}", "b", device, activeDeadlineSeconds=7000)
    world.waits("late")
    assert world.round() == {"late": "a"}


def test_the_time_with_closed_gates_does_not_count() -> None:
    world = full_world("a")
    late = world.waits("late", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    assert world.round() == {}
    del late["spec"]["schedulingGates"]
    world.put(late)
    assert world.round(AFTER - 1) == {}
    assert world.round(1) == {"late": "a"}


def test_a_place_of_a_plan_of_moves_stays_and_a_reservation_outlasts_plans() -> None:
    world = full_world("a", "b")
    world.waits("late")
    holder, holds = claimant_of(world, "late"), world.holds
    holds.reserve(holder, "b", ((0, 16), (1, 16)), until=world.now + 300, now=world.now)
    assert world.round() == {}
    assert world.reserver.state()["reservations_total"] == 0
    world.waits("later", age=AFTER)
    assert world.round() == {"later": "a"}, "the pod with a plan takes no room"
    world.ends("later")
    holds.end_reservation("uid-late")
    assert [hold.node for hold in holds.live()] == ["b"]
    holds.release()
    world.now += 100
    assert world.round() == {"late": "a"}
    holds.release()
    assert len(holds.reservations()) == 1
    holds.expire(1e12)
    assert len(holds.reservations()) == 1


def large_pod_waits(seed: int, reserves: bool) -> tuple[float, list[float]]:
    """Small pods keep coming to four nodes, and a pod needs a whole one.

    Return the seconds that the large pod waits, at most ten days, and the waits of the small ones.
    """
    chance = random.Random(seed)
    world = ReserverWorld("a", "b", "c", "d")
    large: tuple[float, Json] | None = None
    waits: list[float] = []
    ends: list[tuple[float, str]] = []
    queue: list[tuple[float, Json]] = []
    for step in range(24 * 60 if reserves else 12 * 60):
        world.now += 60
        for at, name in list(ends):
            if at <= world.now:
                ends.remove((at, name))
                world.ends(name)
        if step == 60:
            large = (world.now, world.waits("large", age=0.0))
        if chance.random() < 0.3:
            queue.append((world.now, world.waits(f"small-{step}", 1, age=0.0)))
        if reserves:
            world.reserver.round()
        if large is not None and world.filter(large[1])[0]:
            return world.now - large[0], waits
        for item in list(queue):
            came, pod = item
            for place in world.filter(pod)[0][:1]:
                queue.remove(item)
                view = world.managed.ledger.snapshot()
                device = int((view.free[view.row[place]] >= SIZE).argmax())
                name = pod["metadata"]["name"]
                world.holds.end_after_bind(pod["metadata"]["uid"])
                world.ends(name)
                world.runs(name, place, device, age=0.0)
                ends.append((world.now + chance.expovariate(1 / 1500) + 60, name))
                waits.append(world.now - came)
    return world.now, waits


def test_a_large_pod_among_small_ones_that_keep_coming_is_bound() -> None:
    kept = [large_pod_waits(seed, reserves=True) for seed in range(3)]
    without = [large_pod_waits(seed, reserves=False) for seed in range(3)]
    assert max(wait for wait, _ in kept) < AFTER + 4 * 3600
    assert sum(wait for wait, _ in kept) < sum(wait for wait, _ in without) / 2
