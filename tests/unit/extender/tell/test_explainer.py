"""Explanations by the extender's own books: the answers, and the number of callers at once."""

import json
import re
import threading
import time
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from gpushare.core.claims.model import ClassRecord
from gpushare.core.model import PodRef, Request
from gpushare.core.node_filters import NodeState, NodeStates, OwnFilters
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.errors import ApiError, ApiNotFound, ApiUnavailable
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.pod import NodeAsk
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.follow.group_members import Member
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.verbs.bind.gate import Arrival
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.groups import Group, group_of
from gpushare.wire.pods import claimant
from tests.support.claim_values import DRIVER, GIB, allocated, device, holding, open_claim, slice_of
from tests.support.documents import check
from tests.support.scripted_api import ScriptedApi
from tests.support.waiting import poll
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources, pod_json, read_pod


class World:
    """An explainer over one node, and the API server for its reads."""

    def __init__(
        self,
        scope: ExtenderScope = ExtenderScope(),  # noqa: B008 -- frozen
        claims: ClaimBooks | None = None,
    ) -> None:
        self.api = ScriptedApi()
        self.not_ready = ""
        self.called = False
        resources = replace(managed_resources(), scope=scope)
        self.holds = resources.resources[0].holds
        self.gate = resources.gate
        resources.resources[0].ledger.node_changed(node("a", 16, 16))
        self.explainer = Explainer(
            self.api,
            resources,
            "GiB",
            not_ready=lambda: self.not_ready,
            called=lambda _uid: self.called,
            ask_for={"uid-web": NodeAsk(why_not="no room for it")}.get,
            claims=view_of(claims) if claims is not None else None,
        )

    def answer(self, answer: dict[str, Any] | ApiError, name: str = "web") -> tuple[int, Any]:
        inputs = answer if isinstance(answer, ApiError) else json.dumps(answer).encode()
        self.api.answers = [inputs]
        status, body = self.explainer.answer("team", name)
        document = json.loads(body)
        if status == 200:
            check(document)
        return status, document


def test_a_pod_is_read_and_explained() -> None:
    world = World()
    world.called = True
    status, document = world.answer(pod_json("web", 20))
    assert status == 200
    assert document["pod"] == {"namespace": "team", "name": "web", "uid": "uid-web"}
    assert document["explanation"]["never"] is True
    assert document["scheduler"]["asked"] is True
    assert document["scheduler"]["served"] is None
    (call,) = world.api.calls
    assert (call.method, call.path) == ("GET", "/api/v1/namespaces/team/pods/web")


def view_of(books: ClaimBooks) -> ClaimsView:
    """A view of the books' nodes, all open to every pod."""
    states, policy = NodeStates(NodeState(name) for name in books.nodes()), "device-bestfit"
    names, rankings = replace(ALIYUN, resource=CLASS), {policy: Ranking(load_policy(policy))}
    source = ManagedResource(names, books.ledger, rankings, policy, filters=OwnFilters(states))
    return ClaimsView(books, source, matches=lambda _selectors, _device: True, counts=Mock())


def test_a_pod_with_claims_is_judged_by_their_books() -> None:
    books = ClaimBooks(DRIVER, GIB)
    books.replace_classes([ClassRecord("gpu", (), extended_resource="nvidia.com/gpu")])
    books.slice_changed(slice_of("n1", device("gpu-0", 80)))
    books.claim_changed(allocated(1, holding("n1", "gpu-0", 70), users=(("train", "u"),)))
    books.claim_changed(open_claim(2, 20))
    world = World(claims=books)
    pod = pod_json("web")
    pod["metadata"]["namespace"] = "default"
    pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "claim-2"}]
    world.api.answers = [json.dumps(pod).encode()]
    status, body = world.explainer.answer("default", "web")
    parsed_document = json.loads(body)
    assert (status, parsed_document["state"], parsed_document["resource"]) == (
        200,
        "pending",
        "gpushare.io",
    )
    assert parsed_document["claimDevices"]["remedy"]["ends"][0]["pods"] == ["train"]
    # kube-scheduler makes the claim of an extended resource of a class.
    whole = pod_json("web", limits={"nvidia.com/gpu": "1"})
    _, document = world.answer(whole)
    assert document["claimDevices"]["remedy"]["ends"][0]["name"] == "claim-1"
    assert World().answer(whole)[0] == 422


def test_a_scheduler_that_nobody_runs_is_known_by_the_profiles() -> None:
    world = World(ExtenderScope(schedulers=frozenset({"gpu-scheduler"})))
    _, document = world.answer(pod_json("web", 2))
    assert document["scheduler"]["served"] is False
    assert "no profile 'default-scheduler'" in document["lines"][-1]


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (ApiNotFound("pods not found", 404), 404, "there is no pod team/web"),
        (ApiUnavailable("no answer", 0), 503, "no answer"),
        (pod_json("web"), 422, "pod team/web asks for no aliyun.com/gpu-mem"),
        (pod_json("other", 4), 422, "the Pod has another name"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    answer: dict[str, Any] | ApiError, status: int, text: str
) -> None:
    result, document = World().answer(answer)
    assert result == status
    assert text in document["error"]
    assert "\n" not in document["error"]


def test_a_name_that_leads_elsewhere_is_not_asked_for() -> None:
    world = World()
    assert world.answer(pod_json("web", 4), "..")[0] == 422
    assert world.api.calls == []


def test_who_does_not_lead_explains_nothing() -> None:
    world = World()
    world.not_ready = "another process leads"
    status, document = world.answer(pod_json("web", 4))
    assert (status, document["error"]) == (503, "gpushare is not ready: another process leads")


def test_many_that_ask_at_once_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world, let_go = World(), threading.Event()
    begun = threading.Semaphore(0)

    def slow(*_: object, **__: object) -> bytes:
        begun.release()
        assert let_go.wait(20)
        return json.dumps(pod_json("web", 4)).encode()

    monkeypatch.setattr(world.api, "request", slow)
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(world.explainer.answer("team", "web")[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        assert begun.acquire(timeout=20)
        poll(lambda: statuses.count(503) == 2)
    finally:
        let_go.set()
        for thread in threads:
            thread.join()
    assert sorted(statuses) == [200, 200, 200, 200, 503, 503]


def test_what_is_held_for_others_and_whether_the_group_fits_is_said() -> None:
    world = World()
    labels = {
        "scheduling.x-k8s.io/pod-group": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": "3",
    }
    pod_json_result = pod_json("web", 10)
    pod_json_result["metadata"]["labels"] = labels
    train = read_pod(pod_json("train", 6))
    plain = read_pod(pod_json("plain", 5))
    world.holds.shown(claimant(train, Request(6, 1)), "a", 0.0)
    world.holds.offered(claimant(plain, Request(5, 1)), "a", time.monotonic())
    _, document = world.answer(pod_json_result)
    assert document["group"] == {
        "needed": 3,
        "fitting": 1,
        "atOnce": True,
        "kinds": [
            {
                "units": 10,
                "devices": 1,
                "split": None,
                "cores": None,
                "share": None,
                "needed": 3,
                "fitting": 1,
            }
        ],
    }
    assert [(item["pod"]["name"], item["node"]) for item in document["held"]] == [
        ("train", "a"),
        ("plain", "a"),
    ]
    assert document["held"][0]["until"] is None
    text = "\n".join(document["lines"])
    assert "needs 3 x 10 GiB at once: 1 fit now" in text
    assert "6 GiB on a for team/train until kube-scheduler binds it or gives it up" in text
    assert re.search(r"5 GiB on a for team/plain until \d\d:\d\d:\d\d UTC", text)


def test_what_keeps_a_pod_out_no_more_is_not_told_as_held_from_it() -> None:
    world, now = World(), time.monotonic()
    web, idle = (claimant(read_pod(pod_json(name, 10)), Request(10, 1)) for name in ("web", "idle"))
    world.holds.nominates = True
    world.holds.offered(idle, "a", now)
    assert len(world.answer(pod_json("web", 10))[1]["held"]) == 1
    world.holds.refused(web, now - 3.0)
    assert world.answer(pod_json("web", 10))[1]["held"] == []


def test_what_is_held_is_told_by_resource_without_what_keeps_nobody_off() -> None:
    world = World()
    train = read_pod(pod_json("train", 6))
    group = claimant(read_pod(pod_json("member", 5)), Request(5, 1))
    world.holds.nominates = True
    world.holds.shown(claimant(train, Request(6, 2)), "a", 0.0)
    lapsed = replace(group, group=Group("podgroup team/g"))
    world.holds.offered(lapsed, "a", time.monotonic() - 3)
    status, body = world.explainer.held()
    assert status == 200
    ref = {"namespace": "team", "name": "train", "uid": "uid-train"}
    held_units = [{"pod": ref, "node": "a", "units": 6, "devices": 2, "until": None}]
    assert json.loads(body) == {
        "unit": "GiB",
        "resources": [{"resource": "aliyun.com/gpu-mem", "held": held_units}],
    }
    world.not_ready = "another process leads"
    assert world.explainer.held()[0] == 503
    assert world.api.calls == []


def test_a_pod_that_has_no_room_is_told_why_no_node_was_asked_for() -> None:
    world = World()
    document = world.answer(pod_json("web", 20))[1]
    assert document["newNode"] == {"askedAt": None, "whyNot": "no room for it"}
    assert "New node:   none was asked for: no room for it" in document["lines"]
    assert world.answer(pod_json("web", 8))[1]["newNode"] is None


def in_group(name: str, size: int) -> dict[str, Any]:
    """A pod of a group that says its size."""
    body = pod_json(name, 10)
    labels = {"kueue.x-k8s.io/pod-group-name": "train"}
    annotations = {"kueue.x-k8s.io/pod-group-total-count": str(size)}
    body["metadata"] |= {"labels": labels, "annotations": annotations}
    return body


def test_of_a_group_it_is_told_how_many_are_there_and_wait_at_bind() -> None:
    world = World()
    group = group_of(read_pod(in_group("web", 3)))
    for name, is_bound in (("web", False), ("db", True)):
        world.gate.shown(group.key, Member(PodRef("team", name, f"uid-{name}"), is_bound))
    document = world.answer(in_group("web", 3))[1]
    assert document["groupProgress"] == {
        "name": "kueue team/train",
        "size": 3,
        "existing": 2,
        "bound": 1,
        "waiting": 0,
        "waitsUntil": None,
    }
    assert "Group:      kueue team/train: 2 of 3 pods are there, 1 bound" in document["lines"]
    until = time.monotonic() + 5.0
    world.gate.arrive(group, Arrival(PodRef("team", "web", "uid-web"), "1", "a", "", until))
    document = world.answer(in_group("web", 3))[1]
    assert document["groupProgress"]["waiting"] == 1
    assert document["groupProgress"]["waitsUntil"]
    text = "\n".join(document["lines"])
    assert re.search(r"1 with a place waits at bind for the others until \d\d:\d\d:\d\d UTC", text)


def test_a_group_of_unknown_size_is_told_to_be_bound_pod_by_pod() -> None:
    world = World()
    body = pod_json("web", 10)
    body["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "train"}
    document = world.answer(body)[1]
    assert document["groupProgress"]["size"] is None
    assert (
        "Group:      jobset team/train does not say how many pods it needs, so each is bound by"
        " itself" in document["lines"]
    )
    assert world.answer(pod_json("web", 10))[1]["groupProgress"] is None


def test_a_reservation_is_told_to_its_pod_and_to_the_pods_that_it_keeps_out() -> None:
    world, now = World(), time.monotonic()
    large = claimant(read_pod(pod_json("large", 16)), Request(16, 1))
    world.holds.begin_reservation(large, "a", ((0, 16),), now + 600, now)
    _, document = world.answer(pod_json("large", 16), "large")
    assert document["reserved"]["node"] == "a"
    assert document["held"] == []
    assert re.search(
        r"Reserved: +a until it is bound; reserved since", "\n".join(document["lines"])
    )
    _, document = world.answer(pod_json("web", 4))
    assert document["reserved"] is None
    # Filter offers the other device alone.
    assert document["explanation"]["fit"] == ["a"]
    _, document = world.answer(pod_json("web", 32, annotations={ALIYUN.count: "2"}))
    assert document["explanation"]["fit"] == []
    assert (
        "May fit:    soon: the books have just changed, or places are held for other pods"
        in document["lines"]
    )
    assert re.search(
        r"16 GiB on a for team/large until it is bound; reserved since [-\d ]*\d\d:\d\d:\d\d UTC",
        "\n".join(document["lines"]),
    )
