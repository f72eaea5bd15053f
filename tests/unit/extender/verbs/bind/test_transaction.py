"""Every path through one bind: the answer, and the state of the books afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gpushare.core.model import Allocation, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.states.entry import Phase
from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable
from gpushare.extender.managed_resources import ManagedResource, ManagedResources, ResourceRequest
from gpushare.extender.verbs.bind.transaction import (
    BUDGET,
    BindResult,
    BindTransaction,
    ReadPod,
    Step,
    WriteBinding,
)
from gpushare.ledger import BINDING_LIFETIME, LANDED_GRACE, Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.objects import Pod
from gpushare.wire.pods import observe_pod
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import RANKINGS, managed_resource, pod_json, read_pod

REF = PodRef("team", "web", "uid-web")
ASKS = Request(units=4, devices=1, containers=((0, 4),))
FOREVER = float("inf")

OK = None
FORBIDDEN = ApiError("pods/binding is forbidden", 403)
NOT_FOUND = ApiNotFound('pods "web" not found', 404)
GONE = ApiGone("expired", 410)
CONFLICT = ApiConflict("pod web is already assigned", 409)
LOST = ApiUnavailable("no answer", 0)
BAD_GATEWAY = ApiUnavailable("bad gateway", 502)

OURS = encode(Allocation("n", ((0, 4),)), ASKS, 8, "1", ALIYUN)
RIVALS = encode(
    Allocation("n", ((0, 8),)), replace(ASKS, units=8, containers=((0, 8),)), 8, "1", ALIYUN
)
THEIRS = encode(Allocation("m", ((1, 4),)), ASKS, 8, "1", ALIYUN)


def seen(**changes: Any) -> Pod:
    return read_pod(pod_json("web", 4, **changes))


UNBOUND = seen()
BOUND = seen(node="n", annotations=OURS)
ELSEWHERE = seen(node="m", annotations=THEIRS)
RECREATED = seen(uid="uid-other")
SENSELESS_HEIR = seen(uid="uid-other", limits={"cpu": "much"})
ENDED = seen(node="n", phase="Failed")
MALFORMED = seen(limits={"cpu": "much"})
MALFORMED_BOUND = read_pod(pod_json("web", "much", node="n"))
NOBODY = None
READINGS = {
    "unbound": UNBOUND,
    "bound": BOUND,
    "elsewhere": ELSEWHERE,
    "recreated": RECREATED,
    "senseless-heir": SENSELESS_HEIR,
    "ended": ENDED,
    "malformed": MALFORMED,
    "malformed-bound": MALFORMED_BOUND,
    "nobody": NOBODY,
    "unreadable": LOST,
}


@dataclass
class BindWorld:
    """Transactions over one resource on two nodes, and a clock."""

    managed: ManagedResource = field(default_factory=managed_resource)
    now: float = 100.0
    leads_until: float = FOREVER

    def __post_init__(self) -> None:
        for name in ("m", "n"):
            self.ledger.node_changed(make_node(name, 8, 8))

    @property
    def ledger(self) -> Ledger:
        return self.managed.ledger

    def bind(self, node: str = "n", approved: bool = True, **changes: Any) -> BindTransaction:
        request: ResourceRequest | None = changes.pop("asked", (self.managed, ASKS))
        return BindTransaction(
            ManagedResources((self.managed,)),
            REF,
            node,
            approved,
            request,
            stamp=changes.pop("stamp", "7"),
        )

    def start(self, bind: BindTransaction) -> Step:
        return bind.start(self.now, self.leads_until)

    def reply(self, bind: BindTransaction, step: Step, reply: Any) -> Step:
        """The next step: `reply` is an error or None to a write, a reading to a read."""
        self.now += 1
        if isinstance(step, WriteBinding):
            return bind.written(reply, self.now)
        assert step == ReadPod(REF)
        return bind.read(reply, self.now - 0.5, self.now, self.leads_until)

    def run(self, bind: BindTransaction, replies: Sequence[Any]) -> BindResult:
        """The answer after exactly these replies."""
        step = self.start(bind)
        for reply in replies:
            step = self.reply(bind, step, reply)
        assert isinstance(step, BindResult), step
        return step

    def standing(self) -> str:
        """The state of the pod in the books, in one word and the place."""
        entry = self.ledger.entry(REF.uid)
        self.ledger.check()
        if entry is None:
            assert self.ledger.token(REF.uid) == -1
            return "free"
        device = "?" if entry.placement is None else entry.placement[0][0]
        state = "assumed" if entry.assumption else "bound"
        state = "landed" if entry.phase is Phase.LANDED else state
        return f"{'doubt' if entry.in_doubt else state} {entry.node}:{device}"

    def in_doubt(self) -> "BindWorld":
        """A world with a bind of the pod to n in doubt: the Binding may still be under way."""
        assert self.run(self.bind(), [LOST, UNBOUND]).reason == "in_doubt"
        return self

    def overdue(self) -> bool:
        """Whether the charge is on the list of charges to settle."""
        return [charge.ref for charge in self.ledger.overdue(self.now)] == [REF]


@pytest.fixture
def world() -> BindWorld:
    return BindWorld()


def test_a_bind_charges_writes_once_and_is_confirmed(world: BindWorld) -> None:
    bind = world.bind()
    assert world.start(bind) == WriteBinding(REF, "n", {**OURS, ALIYUN.assume_time: "7"})
    assert world.standing() == "assumed n:0"
    assert not world.overdue()
    assert world.reply(bind, WriteBinding(REF, "n", {}), OK) == BindResult("", "bound")
    assert world.standing() == "landed n:0"
    assert not world.overdue()


# A replies column of "write, reading": the answer to the Binding, then the pod that is read.
AFTER_A_WRITE = [
    ([OK], "bound", "landed n:0"),
    ([FORBIDDEN], "refused", "free"),
    ([GONE], "refused", "free"),
    ([NOT_FOUND], "refused", "free"),
    ([CONFLICT, UNBOUND], "refused", "free"),
    ([CONFLICT, NOBODY], "gone", "free"),
    ([CONFLICT, RECREATED], "gone", "free"),
    ([CONFLICT, SENSELESS_HEIR], "gone", "free"),
    ([CONFLICT, ENDED], "gone", "free"),
    ([CONFLICT, BOUND], "bound", "landed n:0"),
    ([CONFLICT, ELSEWHERE], "bound_elsewhere", "landed m:1"),
    ([CONFLICT, LOST], "refused", "doubt n:0"),
    ([CONFLICT, MALFORMED], "refused", "free"),
    ([CONFLICT, MALFORMED_BOUND], "malformed", "doubt n:0"),
    ([LOST, UNBOUND], "in_doubt", "doubt n:0"),
    ([BAD_GATEWAY, UNBOUND], "in_doubt", "doubt n:0"),
    ([LOST, NOBODY], "gone", "free"),
    ([LOST, RECREATED], "gone", "free"),
    ([LOST, SENSELESS_HEIR], "gone", "free"),
    ([LOST, ENDED], "gone", "free"),
    ([LOST, BOUND], "bound", "landed n:0"),
    ([LOST, ELSEWHERE], "bound_elsewhere", "landed m:1"),
    ([LOST, LOST], "in_doubt", "doubt n:0"),
    ([LOST, FORBIDDEN], "in_doubt", "doubt n:0"),
    ([LOST, MALFORMED], "in_doubt", "doubt n:0"),
    ([LOST, MALFORMED_BOUND], "malformed", "doubt n:0"),
]


def _name(value: object) -> str | None:
    if not isinstance(value, list):
        return None
    readings = {id(reading): name for name, reading in READINGS.items() if reading is not None}
    return "-".join(
        readings.get(id(reply)) or str(getattr(reply, "status", "ok-or-nobody")) for reply in value
    )


@pytest.mark.parametrize(("replies", "reason", "standing"), AFTER_A_WRITE, ids=_name)
@pytest.mark.parametrize("approved", [True, False], ids=["remembered", "read-first"])
def test_what_became_of_the_only_binding(
    world: BindWorld, approved: bool, replies: list[Any], reason: str, standing: str
) -> None:
    before = [] if approved else [UNBOUND]
    answer = world.run(world.bind(approved=approved), [*before, *replies])
    assert answer.reason == reason
    assert bool(answer.error) == (reason != "bound")
    assert world.standing() == standing
    assert world.overdue() == standing.startswith("doubt")


# As above for a pod with an earlier Binding that may still land: a read, then another write.
AFTER_DOUBT = [
    ([UNBOUND, OK], "bound", "landed n:0"),
    ([UNBOUND, FORBIDDEN], "refused", "doubt n:0"),
    ([UNBOUND, NOT_FOUND], "refused", "free"),
    ([UNBOUND, CONFLICT, UNBOUND], "refused", "doubt n:0"),
    ([UNBOUND, CONFLICT, BOUND], "bound", "landed n:0"),
    ([UNBOUND, CONFLICT, NOBODY], "gone", "free"),
    ([UNBOUND, CONFLICT, LOST], "refused", "doubt n:0"),
    ([UNBOUND, LOST, UNBOUND], "in_doubt", "doubt n:0"),
    ([UNBOUND, LOST, BOUND], "bound", "landed n:0"),
    ([BOUND], "bound", "landed n:0"),
    ([ELSEWHERE], "bound_elsewhere", "landed m:1"),
    ([NOBODY], "gone", "free"),
    ([RECREATED], "gone", "free"),
    ([SENSELESS_HEIR], "gone", "free"),
    ([LOST], "in_doubt", "doubt n:0"),
    ([MALFORMED, OK], "bound", "landed n:0"),
    ([MALFORMED_BOUND], "malformed", "doubt n:0"),
]


@pytest.mark.parametrize(("replies", "reason", "standing"), AFTER_DOUBT, ids=_name)
def test_no_refusal_of_a_second_binding_says_anything_of_the_first(
    world: BindWorld, replies: list[Any], reason: str, standing: str
) -> None:
    answer = world.in_doubt().run(world.bind(), replies)
    assert (answer.reason, world.standing()) == (reason, standing)
    assert world.overdue() or not standing.startswith("doubt")


@pytest.mark.parametrize("remembered", [True, False])
def test_the_second_binding_carries_the_devices_of_the_first(
    world: BindWorld, remembered: bool
) -> None:
    world.in_doubt()
    # Another device would be tighter now, and the pod may be bound to the first all the same.
    filler = PodRef("team", "filler", "uid-filler")
    world.ledger.assume(filler, replace(ASKS, units=3), Allocation("n", ((1, 3),)), world.now)
    bind = (
        world.bind(stamp="9") if remembered else world.bind(approved=False, asked=None, stamp="9")
    )
    step = world.reply(bind, world.start(bind), UNBOUND)
    assert step == WriteBinding(REF, "n", {**OURS, ALIYUN.assume_time: "9"})


def test_no_second_binding_is_sent_to_a_node_that_is_gone_meanwhile(world: BindWorld) -> None:
    world.in_doubt().ledger.node_gone("n")
    assert world.run(world.bind(), [UNBOUND]).reason == "UnknownNode"
    assert world.standing() == "doubt n:0"


def test_no_second_binding_is_sent_to_devices_that_another_leader_gave_away_meanwhile(
    world: BindWorld,
) -> None:
    world.in_doubt()
    rival = pod_json("rival", 8, node="n", annotations=RIVALS)
    world.ledger.pod_changed(observe_pod(read_pod(rival), ALIYUN))
    answer = world.run(world.bind(), [UNBOUND])
    assert answer.reason == "InsufficientMemory"
    assert "device 0 was given to others meanwhile" in answer.error
    assert (world.standing(), world.overdue()) == ("doubt n:0", True)


def test_while_one_bind_is_in_flight_another_of_the_pod_writes_nothing(world: BindWorld) -> None:
    first = world.bind()
    world.start(first)
    for node in ("n", "m"):
        assert world.run(world.bind(node), []).reason == "in_flight"
    assert world.standing() == "assumed n:0"


def test_until_a_409_is_understood_another_bind_of_the_pod_writes_nothing(world: BindWorld) -> None:
    """A read could not distinguish this Binding from the other bind's."""
    first = world.bind()
    reading = world.reply(first, world.start(first), CONFLICT)
    assert world.run(world.bind(), []).reason == "in_flight"
    assert world.reply(first, reading, UNBOUND) == BindResult(f"pod {REF}: {CONFLICT}", "refused")
    assert world.standing() == "free"


def test_a_uid_under_another_name_neither_writes_nor_reads(world: BindWorld) -> None:
    """A read of the other name would settle a charge of another pod."""
    world.in_doubt()
    impostor = replace(world.bind(), ref=PodRef("team", "other", REF.uid))
    answer = world.start(impostor)
    assert isinstance(answer, BindResult)
    assert answer.reason == "gone"
    assert world.standing() == "doubt n:0"


def test_a_bind_in_doubt_is_not_tried_on_another_node(world: BindWorld) -> None:
    assert world.in_doubt().run(world.bind("m"), []).reason == "in_flight"
    assert world.standing() == "doubt n:0"


def test_of_two_that_read_a_doubtful_pod_one_writes(world: BindWorld) -> None:
    first, second = world.in_doubt().bind(), world.bind()
    reading, later_bind = world.start(first), world.start(second)
    assert isinstance(world.reply(first, reading, UNBOUND), WriteBinding)
    answer = world.reply(second, later_bind, UNBOUND)
    assert isinstance(answer, BindResult)
    assert answer.reason == "in_flight"
    assert world.standing() == "doubt n:0"
    assert not world.overdue()


def test_a_doubt_that_has_lasted_longer_than_any_late_write_is_settled_by_the_retry(
    world: BindWorld,
) -> None:
    world.in_doubt().now += BINDING_LIFETIME + 1
    assert world.run(world.bind(), [UNBOUND, FORBIDDEN]).reason == "refused"
    assert world.standing() == "free"


def test_what_counts_is_when_a_read_was_sent_and_not_when_it_was_answered(world: BindWorld) -> None:
    world.in_doubt().now += BINDING_LIFETIME - 1.6  # the Binding was sent a second before
    assert world.run(world.bind(), [UNBOUND, FORBIDDEN]).reason == "refused"
    assert world.standing() == "doubt n:0"


def test_a_refusal_that_could_not_be_understood_needs_no_waiting(world: BindWorld) -> None:
    """A refused Binding cannot land late."""
    assert world.run(world.bind(), [CONFLICT, LOST]).reason == "refused"
    assert world.standing() == "doubt n:0"
    assert world.run(world.bind(), [UNBOUND, CONFLICT, UNBOUND]).reason == "refused"
    assert world.standing() == "free"


def test_a_pod_that_is_bound_while_it_is_read_is_not_bound_again(world: BindWorld) -> None:
    bind = world.in_doubt().bind()
    reading = world.start(bind)
    world.ledger.pod_changed(observe_pod(seen(node="m"), ALIYUN))
    answer = world.reply(bind, reading, UNBOUND)
    assert isinstance(answer, BindResult)
    assert (answer.reason, world.standing()) == ("in_flight", "bound m:?")


def test_a_pod_that_begins_to_be_bound_elsewhere_while_it_is_read_is_not_bound_again(
    world: BindWorld,
) -> None:
    bind = world.in_doubt().bind()
    reading = world.start(bind)
    world.now += BINDING_LIFETIME
    world.ledger.settle(REF.uid, world.ledger.token(REF.uid), None, world.now)
    assert world.run(world.bind("m"), [LOST, UNBOUND]).reason == "in_doubt"
    answer = world.reply(bind, reading, UNBOUND)
    assert isinstance(answer, BindResult)
    assert (answer.reason, world.standing()) == ("in_flight", "doubt m:0")


@pytest.mark.parametrize("outcome", [OK, NOT_FOUND, LOST])
def test_what_one_bind_reports_says_nothing_of_another_that_began_when_the_pod_was_gone(
    world: BindWorld, outcome: ApiError | None
) -> None:
    first = world.bind(stamp="1")
    step = world.start(first)
    world.ledger.pod_changed(observe_pod(BOUND, ALIYUN))
    world.ledger.pod_gone(REF.uid)
    assert isinstance(world.start(world.bind("m", stamp="2")), WriteBinding)
    world.reply(first, step, outcome)
    assert world.standing() == "assumed m:0"


def test_what_was_read_before_a_list_came_does_not_settle(world: BindWorld) -> None:
    bind = world.bind()
    step = world.reply(bind, world.start(bind), LOST)
    world.ledger.replace_pods([])
    answer = world.reply(bind, step, NOBODY)
    assert isinstance(answer, BindResult)
    assert (answer.reason, world.standing(), world.overdue()) == ("gone", "doubt n:0", True)


@pytest.mark.parametrize("node", [BOUND, ELSEWHERE], ids=["here", "elsewhere"])
def test_a_pod_that_is_bound_gets_the_same_answer_without_a_call(
    world: BindWorld, node: Pod
) -> None:
    world.ledger.pod_changed(observe_pod(node, ALIYUN))
    before = world.standing()
    answer = world.run(world.bind(), [])
    assert answer.reason == ("bound" if node is BOUND else "bound_elsewhere")
    assert world.standing() == before


def test_a_pod_whose_binding_was_confirmed_gets_the_same_answer_before_the_watch_shows_it(
    world: BindWorld,
) -> None:
    assert world.run(world.bind(), [OK]).reason == "bound"
    assert world.run(world.bind(), []) == BindResult("", "bound")
    assert world.run(world.bind("m"), []).reason == "bound_elsewhere"
    world.now += LANDED_GRACE
    assert world.overdue()


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (NOBODY, "gone"),
        (RECREATED, "gone"),
        (BOUND, "bound"),
        (ELSEWHERE, "bound_elsewhere"),
        (MALFORMED, "malformed"),
        (seen(annotations={ALIYUN.policy: "nobody-has-it"}), "malformed"),
        (LOST, "api"),
        (FORBIDDEN, "api"),
    ],
)
def test_a_pod_that_is_not_remembered_is_read_first(
    world: BindWorld, reading: Any, reason: str
) -> None:
    answer = world.run(world.bind(approved=False, asked=None), [reading])
    assert (answer.reason, world.standing()) == (reason, "free")


PLAIN = [
    ([OK], "bound"),
    ([FORBIDDEN], "refused"),
    ([NOT_FOUND], "refused"),
    ([CONFLICT, UNBOUND], "refused"),
    ([CONFLICT, BOUND], "bound"),
    ([CONFLICT, LOST], "refused"),
    ([LOST, BOUND], "bound"),
    ([LOST, ELSEWHERE], "bound_elsewhere"),
    ([LOST, UNBOUND], "refused"),
    ([LOST, NOBODY], "gone"),
    ([LOST, RECREATED], "gone"),
    ([LOST, LOST], "in_doubt"),
]


@pytest.mark.parametrize(("replies", "reason"), PLAIN, ids=_name)
@pytest.mark.parametrize("approved", [True, False], ids=["remembered", "read-first"])
def test_a_pod_without_gpu_is_bound_plainly_and_charged_nothing(
    world: BindWorld, approved: bool, replies: list[Any], reason: str
) -> None:
    bind = world.bind(approved=approved, asked=None)
    step = world.start(bind)
    if not approved:
        step = world.reply(bind, step, read_pod(pod_json("web")))
    assert step == WriteBinding(REF, "n", {})
    for reply in replies:
        step = world.reply(bind, step, reply)
    assert isinstance(step, BindResult)
    assert (step.reason, world.standing()) == (reason, "free")


def test_nothing_is_charged_or_written_by_who_may_not_lead_long_enough(world: BindWorld) -> None:
    world.leads_until = world.now + BUDGET - 0.01
    assert world.run(world.bind(), []).reason == "not_leading"
    assert world.run(world.bind(asked=None), []).reason == "not_leading"
    assert world.run(world.bind(approved=False), [UNBOUND]).reason == "not_leading"
    assert world.standing() == "free"


def test_who_leads_no_more_writes_no_second_binding(world: BindWorld) -> None:
    world.in_doubt().leads_until = world.now
    assert world.run(world.bind(), [UNBOUND]).reason == "not_leading"
    assert world.standing() == "doubt n:0"


@pytest.mark.parametrize(
    ("node", "asks", "reason", "text"),
    [
        ("x", ASKS, "UnknownNode", "node 'x' is not known"),
        ("n", replace(ASKS, units=9), "InsufficientMemory", "free by device: 8, 8"),
        ("n", replace(ASKS, devices=3), "InsufficientMemory", "4 units on 3 device(s)"),
        ("n", replace(ASKS, policy="none"), "MessageError", "no policy is called 'none'"),
    ],
)
def test_a_pod_that_does_not_fit_is_refused_with_the_numbers(
    world: BindWorld, node: str, asks: Request, reason: str, text: str
) -> None:
    answer = world.run(world.bind(node, asked=(world.managed, asks)), [])
    assert answer.reason == reason
    assert text in answer.error
    assert world.standing() == "free"


class Thief:
    """A policy that loses every race: another pod takes the device while the policy scores."""

    def __init__(self, ledger: Ledger, devices: Sequence[int], units: int = 8) -> None:
        self._ledger = ledger
        self._devices = list(devices)
        self._units = units

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        if self._devices:
            device = self._devices.pop(0)
            thief = PodRef("team", "thief", f"uid-{len(self._devices)}")
            took = Allocation("n", ((device, self._units),))
            self._ledger.assume(thief, Request(self._units, 1), took, 0.0)
        values: Floats = -np.tile(np.arange(snapshot.used.shape[1], dtype=float), (len(rows), 1))
        return values


def test_a_bind_that_loses_a_race_for_the_device_looks_again(world: BindWorld) -> None:
    resource = replace(
        world.managed, rankings={"device-bestfit": Ranking(Thief(world.ledger, [0]))}
    )
    assert world.run(world.bind(asked=(resource, ASKS)), [OK]).reason == "bound"
    assert world.standing() == "landed n:1"


def test_a_bind_chooses_anew_where_its_device_still_has_room_but_another_is_better_now(
    world: BindWorld,
) -> None:
    class Emptiest(Thief):
        def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
            super().score(snapshot, rows, request)
            values: Floats = -snapshot.used[rows].astype(float)
            return values

    rankings = {"device-bestfit": Ranking(Emptiest(world.ledger, [0], units=4))}
    resource = replace(world.managed, rankings=rankings)
    assert world.run(world.bind(asked=(resource, ASKS)), [OK]).reason == "bound"
    assert world.standing() == "landed n:1"


def test_a_bind_that_is_overtaken_every_time_takes_what_fits(world: BindWorld) -> None:
    world.ledger.node_changed(make_node("n", *[8] * 13))
    thief = Thief(world.ledger, range(1, 13))
    resource = replace(world.managed, rankings={"device-bestfit": Ranking(thief)})
    assert world.run(world.bind(asked=(resource, ASKS)), [OK]).reason == "bound"
    assert world.standing() == "landed n:0"


def test_a_bind_that_loses_every_race_is_refused(world: BindWorld) -> None:
    asks = replace(ASKS, units=8)
    world.ledger.node_changed(make_node("n", *[8] * 13))
    resource = replace(
        world.managed, rankings={"device-bestfit": Ranking(Thief(world.ledger, range(12)))}
    )
    assert world.run(world.bind(asked=(resource, asks)), []).reason == "InsufficientMemory"
    assert world.standing() == "free"


def test_pairing_makes_an_equal_pod_wait_at_bind_too() -> None:
    world = BindWorld(managed_resource(pairing=Pairing.ON))
    served = pod_json("other", 4, node="n", annotations=OURS)
    world.ledger.pod_changed(observe_pod(read_pod(served), ALIYUN))
    assert world.run(world.bind(), [OK]).reason == "bound"
    assert world.standing() == "landed n:0"
    third = replace(world.bind(), ref=PodRef("team", "third", "uid-third"))
    assert world.run(third, []).reason == "InsufficientMemory"


def test_a_pod_is_found_in_the_books_of_whichever_resource_charged_it(world: BindWorld) -> None:
    world.run(world.bind(), [OK])
    resources = (ManagedResource(ALIYUN, Ledger(), RANKINGS, "spread"), world.managed)
    bind = replace(world.bind(approved=False, asked=None), resources=ManagedResources(resources))
    assert world.run(bind, []) == BindResult("", "bound")
