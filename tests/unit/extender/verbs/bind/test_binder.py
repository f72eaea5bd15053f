"""The I/O around binds: time limits, stamps, surprises, and the settling of doubtful ones."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.core.model import Allocation, PodRef, Request
from gpushare.core.states.entry import Phase
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.extender.managed_resources import ManagedResources, ResourceRequest
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.transaction import BUDGET, BindResult
from gpushare.kube.client import connect
from gpushare.ledger import BINDING_LIFETIME, LANDED_GRACE, Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, managed_resources, pod_json
from tests.unit.kube.scripted_server import scripted_server, write_kubeconfig

REF = PodRef("team", "web", "uid-web")
ASKS = Request(units=4, devices=1, containers=((0, 4),))
OURS = encode(Allocation("n", ((0, 4),)), ASKS, 8, "1", ALIYUN)
LOST = ApiUnavailable("no answer", 0)
POD = "/api/v1/namespaces/team/pods/web"


def body(**changes: Any) -> bytes:
    return json.dumps(pod_json("web", 4, **changes)).encode()


UNBOUND = body()
BOUND = body(node="n", annotations=OURS)


def bind(
    binder: Binder, ref: PodRef, node: str, approved: bool, asks: ResourceRequest | None
) -> BindResult:
    """The outcome of the bind of a pod that has no group to wait for."""
    result = binder.bind(ref, node, approved, asks)
    assert result is not None
    return result


@pytest.fixture
def resources() -> Iterator[ManagedResources]:
    books = managed_resources()
    ledger(books).node_changed(make_node("n", 8, 8))
    yield books
    ledger(books).check()


@pytest.fixture
def api() -> ScriptedApi:
    return ScriptedApi()


@pytest.fixture
def binder(api: ScriptedApi, resources: ManagedResources) -> Binder:
    return Binder(api, resources, lambda: float("inf"), api.clock)


def ledger(resources: ManagedResources) -> Ledger:
    return resources.resources[0].ledger


def asked(resources: ManagedResources) -> ResourceRequest:
    return (resources.resources[0], ASKS)


def test_a_remembered_pod_is_bound_by_one_call(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    assert bind(binder, REF, "n", True, asked(resources)).reason == "bound"
    (call,) = api.calls
    assert (call.method, call.path) == ("POST", f"{POD}/binding")
    assert call.content_type == "application/json"
    body = call.document
    assert body["metadata"]["uid"] == REF.uid
    assert body["metadata"]["annotations"][ALIYUN.idx] == "0"
    assert body["target"]["name"] == "n"


NOT_BOUND = [
    b"",
    b"<html>sign in</html>",
    b"{}",
    b'{"kind":"Status","status":"Failure","code":200}',
    b'{"kind":"Binding","apiVersion":"v1","metadata":{"name":"web"}}',
]


@pytest.mark.parametrize("answer", NOT_BOUND)
def test_a_2xx_that_is_no_status_of_success_is_read_back_and_in_doubt(
    api: ScriptedApi, binder: Binder, resources: ManagedResources, answer: bytes
) -> None:
    """A proxy's login page with 200 must not pass for a Binding done."""
    api.answers = [answer, UNBOUND]
    text = bind(binder, REF, "n", True, asked(resources))
    assert text.reason == "in_doubt"
    assert "does a proxy answer" in text.error
    assert [call.method for call in api.calls] == ["POST", "GET"]
    assert ledger(resources).counts()["in_doubt"] == 1
    api.answers = [UNBOUND]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "bound"


def test_a_2xx_that_is_no_status_of_success_may_be_a_binding_done(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    api.answers = [b"<html>", BOUND]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "bound"


def test_a_plain_bind_that_no_api_server_answered_is_read_back(
    api: ScriptedApi, binder: Binder
) -> None:
    api.answers = [b"<html>", UNBOUND]
    assert bind(binder, REF, "n", True, None).reason == "refused"


ELSE = json.dumps({"kind": "Node", "metadata": {"name": "web", "uid": "u"}}).encode()


@pytest.mark.parametrize("answer", [b"<html>", b"{}", ELSE, body(uid="x").replace(b"web", b"wep")])
def test_what_is_no_pod_of_that_name_settles_nothing(
    api: ScriptedApi, binder: Binder, resources: ManagedResources, answer: bytes
) -> None:
    """Another uid under the pod's name says that the pod is gone; under another, nothing."""
    api.answers = [LOST, LOST]
    bind(binder, REF, "n", True, asked(resources))
    api.now += BINDING_LIFETIME
    api.answers = [answer]
    binder.settle_overdue()
    assert ledger(resources).counts()["in_doubt"] == 1
    assert ledger(resources).entry(REF.uid) is not None


def test_a_charge_that_has_landed_and_reads_unbound_is_told_once(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    assert bind(binder, REF, "n", True, asked(resources)).reason == "bound"
    api.forever = UNBOUND
    for _ in range(3):
        api.now += LANDED_GRACE
        binder.settle_overdue()
        assert ledger(resources).entry(REF.uid) is not None
    assert ledger(resources).counts()["binding_lost"] == 1
    (alarm,) = ledger(resources).take_alarms()
    assert (alarm.kind, alarm.ref, alarm.node) == ("binding_lost", REF, "n")
    api.now += BINDING_LIFETIME
    binder.settle_overdue()
    assert ledger(resources).entry(REF.uid) is None


def test_bindings_refused_with_409_are_counted(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    api.answers = [ApiConflict("assigned", 409), UNBOUND, ApiError("forbidden", 403)]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "refused"
    assert bind(binder, REF, "n", True, asked(resources)).reason == "refused"
    assert binder.state()["bind_conflicts_total"] == 1


def test_a_pod_nobody_remembers_is_read_and_then_bound(api: ScriptedApi, binder: Binder) -> None:
    api.answers = [UNBOUND]
    assert bind(binder, REF, "n", False, None).reason == "bound"
    assert [(call.method, call.path) for call in api.calls] == [
        ("GET", POD),
        ("POST", f"{POD}/binding"),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ApiNotFound("no such pod", 404), "gone"),
        (ApiError("forbidden", 403), "api"),
        (LOST, "api"),
        (b"<html>", "api"),
    ],
)
def test_a_pod_that_cannot_be_read_is_not_bound(
    api: ScriptedApi, binder: Binder, resources: ManagedResources, answer: Any, reason: str
) -> None:
    api.answers = [answer]
    assert bind(binder, REF, "n", False, None).reason == reason
    assert len(api.calls) == 1
    assert ledger(resources).entry(REF.uid) is None


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("last", [UNBOUND, LOST, ApiConflict("assigned", 409)])
def test_a_bind_stays_within_its_budget_however_slow_the_api_server_is(
    api: ScriptedApi, binder: Binder, resources: ManagedResources, approved: bool, last: Any
) -> None:
    api.takes = lambda timeout: timeout * 0.999
    api.answers = ([] if approved else [UNBOUND]) + [LOST, last]
    began = api.now
    bind(binder, REF, "n", approved, asked(resources) if approved else None)
    assert len(api.calls) == len([approved]) + 1 + (not approved)
    assert api.now - began <= BUDGET
    assert all(call.timeout >= 0.5 for call in api.calls)
    assert max(call.timeout for call in api.calls) <= 3.0


def test_the_api_server_is_told_to_work_on_a_binding_no_longer_than_its_answer_is_waited_for(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    bind(binder, REF, "n", True, asked(resources))
    (call,) = api.calls
    assert call.query == {"timeout": f"{call.timeout:.3f}s"}


def test_a_process_that_was_stopped_before_it_wrote_does_not_write_any_more(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    """The process may not lead any more, and the chosen device may belong to another pod."""
    api.takes = lambda _timeout: BUDGET + 0.1
    api.answers = [UNBOUND]
    assert bind(binder, REF, "n", False, None).reason == "refused"
    assert [call.method for call in api.calls] == ["GET"]
    assert ledger(resources).counts()["assumed"] == 0


def test_a_binding_held_up_on_its_way_is_not_sent_after_the_time_for_its_bind(
    resources: ManagedResources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a name server that does not answer, say: the leadership was seen to last for BUDGET."""
    monkeypatch.setattr("gpushare.extender.verbs.bind.binder.BUDGET", 0.5)
    outcome: Callable[..., Any] = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.6)
        return outcome(*args, **options)

    with scripted_server() as server:
        path = write_kubeconfig(tmp_path / "config", server.url, {"token": "secret"})
        client = connect(path, pool_size=1, user_agent="t")
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        binder = Binder(client, resources, lambda: float("inf"))
        assert bind(binder, REF, "n", True, asked(resources)).reason == "refused"
        client.close()
        assert server.seen == []
    assert ledger(resources).entry(REF.uid) is None


def test_a_process_that_was_stopped_while_it_wrote_still_gives_the_read_a_moment(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    api.takes = lambda _timeout: 60.0
    api.answers = [LOST, LOST]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "in_doubt"
    assert [call.timeout for call in api.calls] == [3.0, 0.5]


def test_stamps_are_unique_and_rise_though_the_wall_clock_steps_back(
    api: ScriptedApi, resources: ManagedResources
) -> None:
    wall = iter([500, 900, 900, 100, 901, 2000])
    binder = Binder(api, resources, lambda: float("inf"), api.clock, lambda: next(wall))
    for index in range(6):
        small = Request(units=1, devices=1)
        ref = PodRef("team", f"p{index}", f"uid-{index}")
        assert not bind(binder, ref, "n", True, (resources.resources[0], small)).error
    assert stamps(api) == [500, 900, 901, 902, 903, 2000]


def test_stamps_are_unique_among_32_threads(api: ScriptedApi, resources: ManagedResources) -> None:
    ledger(resources).node_changed(make_node("n", *[64] * 8))
    binder = Binder(api, resources, lambda: float("inf"), api.clock, lambda: 1_000)
    ready = threading.Barrier(32)
    reasons: list[str] = []

    def work(thread: int) -> None:
        ready.wait(30)
        for index in range(8):
            ref = PodRef("team", f"p{thread}-{index}", f"uid-{thread}-{index}")
            answer = bind(binder, ref, "n", True, (resources.resources[0], Request(2, 1)))
            reasons.append(answer.reason)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert reasons == ["bound"] * 256
    assert sorted(stamps(api)) == list(range(1_000, 1_256))
    # 256 pods of 2 units fill 8 devices of 64 exactly: not one unit was counted twice or lost.
    assert ledger(resources).dump("n")[0].used == (64,) * 8


def test_a_failure_nobody_thought_of_leaves_the_charge_in_doubt(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    """The Binding may have been sent before it failed."""
    api.answers = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        bind(binder, REF, "n", True, asked(resources))
    entry = ledger(resources).entry(REF.uid)
    assert entry is not None
    assert entry.in_doubt


def test_a_failure_with_a_plain_pod_has_nothing_to_doubt(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    api.answers = [SystemExit(1)]
    with pytest.raises(SystemExit):
        bind(binder, REF, "n", True, None)
    assert ledger(resources).entry(REF.uid) is None


def doubtful(api: ScriptedApi, binder: Binder, resources: ManagedResources) -> None:
    api.answers = [LOST, UNBOUND]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "in_doubt"
    api.calls.clear()


def test_it_is_settled_when_no_bind_is_under_way_and_none_in_doubt(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    """The next leader does not wait where the Lease is given away, so nothing may land any more."""
    meanwhile: list[bool] = []

    def look(timeout: float) -> float:
        meanwhile.append(binder.settled())
        return timeout

    assert binder.settled()
    api.takes = look
    api.answers = [LOST, UNBOUND]
    assert bind(binder, REF, "n", True, asked(resources)).reason == "in_doubt"
    assert meanwhile == [False, False]
    assert not binder.settled()
    api.answers = [BOUND]
    binder.settle_overdue()
    assert binder.settled()


@pytest.mark.parametrize(
    ("later", "answer", "charges"),
    [
        (1.0, BOUND, "landed"),
        (1.0, UNBOUND, "doubt"),
        (BINDING_LIFETIME - 1, UNBOUND, "doubt"),
        (BINDING_LIFETIME, UNBOUND, None),
        (1.0, ApiNotFound("no such pod", 404), None),
        (1.0, body(uid="uid-other"), None),
        (1.0, body(uid="uid-other", limits={"cpu": "much"}), None),
        (1.0, body(phase="Succeeded", node="n"), None),
        (BINDING_LIFETIME, LOST, "doubt"),
        (BINDING_LIFETIME, ApiError("forbidden", 403), "doubt"),
        (BINDING_LIFETIME, b"<html>", "doubt"),
        (1.0, body(limits={"cpu": "much"}), "doubt"),
        (BINDING_LIFETIME, body(limits={"cpu": "much"}), None),
        (BINDING_LIFETIME, body(annotations={ALIYUN.count: "x"}), None),
        (1.0, body(annotations={ALIYUN.count: "x"}, phase="Failed"), None),
        (BINDING_LIFETIME, json.dumps(pod_json("web", "much", node="n")).encode(), "doubt"),
        (BINDING_LIFETIME, body(node="n", limits={"cpu": "much"}), "landed"),
    ],
)
def test_what_is_in_doubt_is_settled_by_a_read_alone(
    api: ScriptedApi, resources: ManagedResources, later: float, answer: Any, charges: str | None
) -> None:
    released: list[str] = []
    binder = Binder(api, resources, lambda: float("inf"), api.clock, room_on=released.append)
    doubtful(api, binder, resources)
    api.now += later
    api.answers = [answer]
    assert binder.settle_overdue() == 1
    assert [(call.method, call.path) for call in api.calls] == [("GET", POD)]
    entry = ledger(resources).entry(REF.uid)
    assert (entry and ("landed" if entry.phase is Phase.LANDED else "doubt")) == charges
    # No other event tells kube-scheduler of the room that is given back.
    assert released == ([] if charges else ["n"])


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_read_counts_from_when_it_was_sent(
    api: ScriptedApi, binder: Binder, resources: ManagedResources, asked_again: bool
) -> None:
    doubtful(api, binder, resources)
    api.now += BINDING_LIFETIME - 1
    api.takes = lambda timeout: timeout
    api.answers = [UNBOUND, ApiError("forbidden", 403)]
    if asked_again:
        assert bind(binder, REF, "n", True, asked(resources)).reason == "refused"
    else:
        assert binder.settle_overdue() == 1
    entry = ledger(resources).entry(REF.uid)
    assert entry is not None
    assert entry.in_doubt


def test_what_no_watch_has_shown_for_a_while_is_read_too(
    api: ScriptedApi, binder: Binder, resources: ManagedResources
) -> None:
    bind(binder, REF, "n", True, asked(resources))
    assert binder.settle_overdue() == 0
    api.now += LANDED_GRACE
    api.answers = [ApiNotFound("no such pod", 404)]
    assert binder.settle_overdue() == 1
    assert ledger(resources).entry(REF.uid) is None


def test_every_resource_has_its_doubts_settled(api: ScriptedApi) -> None:
    resources = managed_resources(ALIYUN, NPU)
    second = resources.resources[1]
    second.ledger.node_changed(make_node("n", 8))
    binder = Binder(api, resources, lambda: float("inf"), api.clock)
    api.answers = [LOST, UNBOUND]
    bind(binder, REF, "n", True, (second, ASKS))
    api.answers = [ApiNotFound("no such pod", 404)]
    assert binder.settle_overdue() == 1
    assert second.ledger.entry(REF.uid) is None


def test_an_api_server_that_answers_nothing_does_not_hold_the_settling_for_ever(
    api: ScriptedApi, resources: ManagedResources
) -> None:
    """The thread must return to its other duties, or the process counts as stuck."""
    count = 40
    ledger(resources).node_changed(make_node("n", *[8] * 8))
    binder = Binder(api, resources, lambda: float("inf"), api.clock)
    for index in range(count):
        api.answers = [LOST, LOST]
        ref = PodRef("team", f"p{index}", f"uid-{index}")
        bind(binder, ref, "n", True, (resources.resources[0], Request(1, 1)))
    api.calls.clear()
    api.takes, api.forever = (lambda timeout: timeout), LOST
    looked = []
    while len({call.path for call in api.calls}) < count:
        began = api.now
        looked.append(binder.settle_overdue())
        assert api.now - began < 40
    assert max(looked) < count
    assert sum(looked) < 2 * count


def stamps(api: ScriptedApi) -> list[int]:
    """The time each Binding sent carries, in the order sent."""
    bodies = [json.loads(call.body or b"{}") for call in api.calls if call.method == "POST"]
    return [int(body["metadata"]["annotations"][ALIYUN.assume_time]) for body in bodies]
