"""The verbs, bytes in and bytes out, over true books and a true binder."""

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import Allocation, ObservedPod, PodRef, Reason, Request
from gpushare.core.states.entry import Phase
from gpushare.errors import ApiNotFound, ApiUnavailable, MessageError, NotReady, UnknownNode
from gpushare.extender.tell.events.overdue_pods import pending_without_call
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import NEIGHBOURS, OWN_DEVICES, SPLIT
from gpushare.wire.pods import observe_pod
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, node_json, pod_json, read_pod
from tests.unit.extender.scripted_extender import FREE, ScriptedExtender, bind_request, request


@pytest.fixture
def extender() -> Iterator[ScriptedExtender]:
    scripted_extender = ScriptedExtender()
    yield scripted_extender
    for resource in scripted_extender.resources:
        resource.ledger.check()


def test_filter_splits_fit_from_busy_from_never(extender: ScriptedExtender) -> None:
    ref = PodRef("team", "other", "uid-other")
    extender.ledger.assume(ref, Request(5, 2), Allocation("small", ((0, 5), (1, 5))), 0.0)
    answer = extender.filter(pod_json("web", 4), [*FREE, "new"])
    assert answer == {
        "Nodes": None,
        "NodeNames": ["big"],
        "FailedNodes": {
            "small": Reason.INSUFFICIENT_MEMORY.value,
            "new": 'node "new" not found',
        },
        "FailedAndUnresolvableNodes": {"tiny": Reason.TOO_LARGE.value},
        "Error": "",
    }
    assert extender.told == [("filter", "fit")]


@pytest.mark.parametrize(
    ("memory", "cores", "annotations"),
    [
        (4, "130", {}),
        (4, "-5", {}),
        (4, "0.5", {}),
        (0, "30", {}),
        (4, "30", {"gpushare.io/use-models": "a", "nvidia.com/use-gputype": "b"}),
    ],
)
def test_cores_and_wishes_that_make_no_sense_fit_nowhere_and_charge_nothing(
    extender: ScriptedExtender, memory: int, cores: str, annotations: dict[str, str]
) -> None:
    pod = pod_json("web", memory, limits={ALIYUN.cores: cores}, annotations=annotations)
    answer = extender.filter(pod)
    (message,) = set(answer["FailedAndUnresolvableNodes"].values())
    assert message.startswith((ALIYUN.cores, "gpushare.io/use-models and"))
    assert answer["NodeNames"] == []
    assert answer["Error"] == ""
    document = json.loads(extender.service.bind(bind_request(pod, "big")))
    assert document["Error"]
    assert extender.ledger.entry("uid-web") is None
    assert not extender.ledger.snapshot().cores_used.any()


def test_filter_mirrors_nodes_where_nodes_came(extender: ScriptedExtender) -> None:
    nodes = [node_json(name, units) for name, units in FREE.items()]
    body = json.dumps({"Pod": pod_json("web", 4), "Nodes": {"items": nodes}}).encode()
    answer = json.loads(extender.service.filter(body))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == nodes[:2]


def test_filter_changes_nothing_in_the_books(extender: ScriptedExtender) -> None:
    before = extender.ledger.snapshot().generation, extender.ledger.counts()
    for units in (1, 4, 99):
        extender.filter(pod_json("web", units))
    assert (extender.ledger.snapshot().generation, extender.ledger.counts()) == before


def test_filter_may_answer_its_best_node_alone() -> None:
    extender = ScriptedExtender(best_only=True)
    answer = extender.filter(pod_json("web", 4))
    assert answer["NodeNames"] == ["small"]
    assert answer["FailedNodes"] == {}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"tiny"}
    assert extender.filter(pod_json("web", 9))["NodeNames"] == ["big"]
    assert extender.filter(pod_json("web", 99))["NodeNames"] == []
    assert extender.told[-1] == ("filter", "no_fit")


def test_the_best_node_alone_is_mirrored_where_nodes_came() -> None:
    nodes = [node_json(name, units) for name, units in FREE.items()]
    body = json.dumps({"Pod": pod_json("web", 4), "Nodes": {"items": nodes}}).encode()
    answer = json.loads(ScriptedExtender(best_only=True).service.filter(body))
    assert answer["NodeNames"] is None
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["small"]


@pytest.mark.parametrize("best_only", [True, False])
def test_a_pod_that_is_charged_is_sent_where_its_charge_is(best_only: bool) -> None:
    """kube-scheduler filters the pod again when a bind took too long; its charge fills the node."""
    extender = ScriptedExtender(best_only=best_only)
    pod = pod_json("web", 8)
    extender.filter(pod)
    extender.api.answers = [ApiUnavailable("no answer", 0), ApiUnavailable("nor here", 0)]
    assert "did not say" in extender.bind(pod, "small")
    filter_result = extender.filter(pod_json("other", 8), ["small", "tiny"])
    assert filter_result["NodeNames"] == ["small"]  # its second device
    extender.ledger.assume(
        PodRef("team", "other", "uid-other"), Request(8, 1), Allocation("small", ((1, 8),)), 0.0
    )
    answer = extender.filter(pod, [*FREE, "new"])
    assert answer["NodeNames"] == ["small"]
    assert set(answer["FailedNodes"]) == {"new"}
    assert answer["FailedAndUnresolvableNodes"] == {
        "big": Reason.BEING_BOUND.value,
        "tiny": Reason.TOO_LARGE.value,
    }
    assert extender.filter(pod, ["big"])["NodeNames"] == ["big"]


def in_doubt(extender: ScriptedExtender, pod: dict[str, Any], node: str) -> None:
    """Bind the pod with an API server that does not answer."""
    extender.filter(pod)
    extender.api.answers = [ApiUnavailable("no answer", 0), ApiUnavailable("nor here", 0)]
    assert "did not say" in extender.bind(pod, node)


def test_a_node_that_went_during_a_bind_is_not_found_and_the_others_stay() -> None:
    extender = ScriptedExtender()
    pod = pod_json("web", 8)
    in_doubt(extender, pod, "small")
    extender.ledger.node_gone("small")
    answer = extender.filter(pod)
    assert answer["NodeNames"] == ["big"]
    assert set(answer["FailedNodes"]) == {"small"}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"tiny"}
    assert "has not ended" in extender.bind(
        pod, "big"
    )  # refused until settled, then asked for again


@given(data=st.data())
def test_every_node_asked_about_is_answered_once_whatever_is_charged(data: st.DataObject) -> None:
    """Fit, failed and unresolvable are disjoint; the best may stand for all that fit."""
    best_only = data.draw(st.booleans())
    extender = ScriptedExtender(best_only=best_only)
    pod = pod_json("web", data.draw(st.integers(1, 20)))
    draw_result, lost = data.draw(st.sampled_from([*FREE])), data.draw(st.booleans())
    extender.filter(pod)
    if lost:
        extender.api.answers = [ApiUnavailable("no answer", 0), ApiUnavailable("nor here", 0)]
    extender.bind(pod, draw_result)
    for name in data.draw(st.sets(st.sampled_from([*FREE]))):
        match data.draw(st.sampled_from(["gone", "closed", "full", "smaller"])):
            case "gone":
                extender.ledger.node_gone(name)
            case "closed":
                extender.ledger.set_unhealthy(
                    name, frozenset(data.draw(st.sets(st.integers(0, 1))))
                )
            case "full":
                observed_pod = ObservedPod(
                    PodRef("team", "other", f"uid-{name}"), Request(FREE[name], 1), name
                )
                extender.ledger.pod_changed(observed_pod)
            case _:
                extender.ledger.node_changed(make_node(name, 1))
    names = data.draw(st.lists(st.sampled_from([*FREE, "new", "npu"]), unique=True))
    answer = extender.filter(pod, names)
    assert answer["Error"] == ""
    result = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert len(set(result)) == len(result)
    assert set(result) <= set(names)
    left_out = set(names) - set(result)
    assert not left_out or (best_only and len(answer["NodeNames"]) == 1)
    assert "new" not in left_out
    extender.ledger.check()


def test_a_pod_that_asks_for_more_than_it_did_is_resolved_again(extender: ScriptedExtender) -> None:
    nodes = list(FREE)
    for units in (4, 99, 4):
        pod = pod_json("web", units)
        assert bool(extender.filter(pod)["NodeNames"]) is (units == 4)
        assert (10 in extender.prioritize(pod, nodes).values()) is (units == 4)


def test_prioritize_gives_ten_to_the_node_that_bind_would_choose(
    extender: ScriptedExtender,
) -> None:
    scores = extender.prioritize(pod_json("web", 4), list(FREE))
    assert scores == {"big": 0, "small": 10, "tiny": 0}
    best = ScriptedExtender(best_only=True).filter(pod_json("web", 4))["NodeNames"]
    assert [name for name, score in scores.items() if score == 10] == best


def test_prioritize_scores_by_the_request_of_its_own_pod(extender: ScriptedExtender) -> None:
    extender.filter(pod_json("web", 4))
    scores = extender.prioritize(pod_json("large", 12), list(FREE))
    assert scores == {"big": 10, "small": 0, "tiny": 0}


def test_the_policy_a_pod_wishes_is_asked(extender: ScriptedExtender) -> None:
    wish = pod_json("web", 4, annotations={ALIYUN.policy: "spread"})
    assert extender.prioritize(wish, list(FREE))["big"] == 10


def test_a_pod_that_asks_for_nothing_passes_scores_zero_and_is_bound_plainly(
    extender: ScriptedExtender,
) -> None:
    plain = pod_json("web")
    assert extender.filter(plain, ["big", "x"])["NodeNames"] == ["big", "x"]
    assert extender.prioritize(plain, ["big", "x"]) == {"big": 0, "x": 0}
    assert extender.bind(plain, "big") == ""
    (call,) = extender.api.calls
    assert json.loads(call.body or b"")["metadata"]["annotations"] == {}
    assert extender.told == [("filter", "plain"), ("prioritize", "plain"), ("bind", "bound")]


def test_containers_of_one_pod_get_devices_of_their_own(extender: ScriptedExtender) -> None:
    asks = pod_json("pair", 3, annotations={SPLIT: OWN_DEVICES})
    another = {"name": "other", "resources": {"limits": {ALIYUN.resource: "7"}}}
    asks["spec"]["containers"].append(another)
    extender.ledger.set_unhealthy("small", frozenset({1}))
    assert extender.filter(asks, ["small", "big"])["NodeNames"] == ["big"]
    assert extender.bind(asks, "big") == ""
    document = json.loads(extender.api.calls[0].body or b"")["metadata"]["annotations"]
    ((first, units),) = json.loads(document[ALIYUN.allocation])["0"].items()
    ((second, more),) = json.loads(document[ALIYUN.allocation])["1"].items()
    assert (units, more) == (3, 7)
    assert {first, second} == {"0", "1"}
    (entry,) = extender.ledger.dump("big")[0].entries
    assert dict(entry.placement or ()) == {int(first): 3, int(second): 7}


def test_a_filtered_pod_is_bound_without_reading_it(extender: ScriptedExtender) -> None:
    pod = pod_json("web", 4)
    extender.filter(pod)
    assert extender.bind(pod, "small") == ""
    assert [call.method for call in extender.api.calls] == ["POST"]
    entry = extender.ledger.entry("uid-web")
    assert entry is not None
    assert (entry.phase, entry.placement) == (Phase.LANDED, ((0, 4),))


def test_a_pod_filter_never_saw_is_read(extender: ScriptedExtender) -> None:
    pod = pod_json("web", 4)
    extender.api.answers = [json.dumps(pod).encode()]
    assert extender.bind(pod, "small") == ""
    assert [call.method for call in extender.api.calls] == ["GET", "POST"]


def test_a_refused_bind_says_why_and_remembers_the_pod(extender: ScriptedExtender) -> None:
    pod = pod_json("web", 4)
    extender.filter(pod)
    extender.api.answers = [json.dumps(pod).encode()]
    assert "node 'x' is not known" in extender.bind(pod, "x")
    assert extender.bind(pod, "big") == ""
    assert [call.method for call in extender.api.calls] == ["GET", "POST"]
    assert extender.told[1:] == [("bind", "UnknownNode"), ("bind", "bound")]


def test_a_pod_without_a_uid_is_not_remembered(extender: ScriptedExtender) -> None:
    pod = pod_json("web", 4)
    del pod["metadata"]["uid"]
    assert extender.filter(pod)["NodeNames"] == ["big", "small"]
    pod["metadata"]["uid"] = "uid-web"
    extender.api.answers = [ApiNotFound("no such pod", 404)]
    assert "does not exist" in extender.bind(pod, "big")


def test_of_very_many_pods_the_oldest_are_forgotten_and_then_read(
    extender: ScriptedExtender,
) -> None:
    first = pod_json("first", 4)
    extender.filter(first)
    head, tail = request(pod_json("other", 0, uid="@"), ["big"]).split(b"@")
    for index in range(20_000):
        extender.service.filter(head + str(index).encode() + tail)
    extender.api.answers = [json.dumps(first).encode()]
    assert extender.bind(first, "big") == ""
    assert [call.method for call in extender.api.calls] == ["GET", "POST"]


def test_a_pod_is_never_bound_plainly_while_filter_sees_it_again(
    extender: ScriptedExtender,
) -> None:
    """The scheduler may time out and filter a pod again while its bind is under way."""
    pod = pod_json("web", 4)
    body, bind_request_result = request(pod, ["big"]), bind_request(pod, "big")
    extender.api.forever = json.dumps(pod).encode()
    ended = threading.Event()

    def filter_on() -> None:
        while not ended.is_set():
            extender.service.filter(body)

    threads = [threading.Thread(target=filter_on) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            extender.service.bind(bind_request_result)
            extender.ledger.pod_gone("uid-web")
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join(30)
    posted = [call.body for call in extender.api.calls if call.method == "POST"]
    assert len(posted) == 300
    assert all(ALIYUN.idx.encode() in (item or b"") for item in posted)


def test_binds_beyond_the_limit_are_refused_at_once_and_the_rest_goes_on() -> None:
    """Binds wait for the API server; when that is slow they must leave threads to filter."""
    extender = ScriptedExtender(max_binds=1)
    first, second = pod_json("first", 4), pod_json("second", 4)
    extender.filter(first)
    entered, go_on = threading.Event(), threading.Event()

    def wait(_timeout: float) -> float:
        entered.set()
        go_on.wait(30)
        return 0.0

    extender.api.takes = wait
    errors: list[str] = []
    thread = threading.Thread(target=lambda: errors.append(extender.bind(first, "big")))
    thread.start()
    try:
        assert entered.wait(30)
        assert "too many binds" in extender.bind(second, "big")
        began = time.monotonic()
        assert extender.filter(second)["NodeNames"] == ["big", "small"]
        assert time.monotonic() - began >= 0.05  # filter has waited for a bind to end
    finally:
        go_on.set()
        thread.join(30)
    assert errors == [""]
    assert extender.bind(second, "big") == ""
    assert ("bind", "busy") in extender.told


def test_a_bind_that_fails_gives_its_place_back() -> None:
    extender = ScriptedExtender(max_binds=1)
    extender.api.answers = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        extender.bind(pod_json("web", 4), "big")
    assert "too many" not in extender.bind(pod_json("web", 4), "big")


def test_a_pod_chooses_only_among_the_policies_that_the_operator_allows(
    extender: ScriptedExtender,
) -> None:
    for resource in extender.resources:
        resource.pod_policies = frozenset({"binpack"})
    pod_json_result = pod_json("web", 4, annotations={ALIYUN.policy: "binpack"})
    assert extender.filter(pod_json_result)["NodeNames"] == ["big", "small"]
    assert extender.filter(pod_json("none", 4))["NodeNames"] == ["big", "small"]
    answer = extender.filter(pod_json("wide", 4, annotations={ALIYUN.policy: "spread"}))
    text = "gpushare.io/policy: pods may not choose 'spread' in this cluster; they may choose: bin"
    assert all(
        failed_and_unresolvable_node.startswith(text)
        for failed_and_unresolvable_node in answer["FailedAndUnresolvableNodes"].values()
    )
    assert set(answer["FailedAndUnresolvableNodes"]) == set(FREE)


@pytest.mark.parametrize("wish", ["few", "any"])
def test_a_pod_chooses_its_neighbours_only_where_it_may_choose_every_policy(
    extender: ScriptedExtender, wish: str
) -> None:
    asks = pod_json("web", 4, annotations={NEIGHBOURS: wish})
    assert extender.filter(asks)["NodeNames"] == ["big", "small"]
    for resource in extender.resources:
        resource.pod_policies = frozenset({"binpack"})
    answer = extender.filter(asks)["FailedAndUnresolvableNodes"]
    assert all("pods may not choose neighbours" in text for text in answer.values())
    assert set(answer) == set(FREE)


REFUSED = [
    (pod_json("web", 7, annotations={ALIYUN.count: "2"}), "cannot be split evenly"),
    (pod_json("web", 7, annotations={ALIYUN.policy: "none"}), "no policy is called 'none'"),
    (pod_json("web", 7, limits={NPU.resource: "1"}), "may ask for one of them alone"),
    (pod_json("web", "-1"), ALIYUN.resource),
    (pod_json("web", 4, annotations={"notes": "x" * 255_000}), "its annotations have 255005 bytes"),
]


@pytest.mark.parametrize(("pod", "text"), REFUSED)
def test_a_request_that_makes_no_sense_is_refused_everywhere_for_good(
    extender: ScriptedExtender, pod: dict[str, Any], text: str
) -> None:
    answer = extender.filter(pod)
    assert answer["NodeNames"] == []
    assert answer["Error"] == ""
    assert set(answer["FailedAndUnresolvableNodes"]) == set(FREE)
    assert all(
        text in failed_and_unresolvable_node
        for failed_and_unresolvable_node in answer["FailedAndUnresolvableNodes"].values()
    )
    with pytest.raises(MessageError, match=re.escape(text)):
        extender.prioritize(pod, ["big"])
    extender.api.answers = [json.dumps(pod).encode()]
    assert text in extender.bind(pod, "big")
    assert extender.told == [
        ("filter", "refused"),
        ("prioritize", "malformed"),
        ("bind", "malformed"),
    ]


@pytest.mark.parametrize("pod", [pod for pod, _ in REFUSED[1:3]], ids=["policy", "resources"])
def test_a_pod_refused_for_good_is_none_that_nobody_asked_about(
    extender: ScriptedExtender, pod: dict[str, Any]
) -> None:
    for resource in extender.resources:
        resource.ledger.pod_changed(observe_pod(read_pod(pod), resource.names))
    assert pending_without_call(extender.resources, extender.service.called, 0.0, 100.0) == 100
    extender.filter(pod)
    assert pending_without_call(extender.resources, extender.service.called, 0.0, 100.0) == 0


def test_a_refused_pod_without_a_name_is_refused_all_the_same(extender: ScriptedExtender) -> None:
    pod = pod_json("web", "-1")
    del pod["metadata"]["name"]
    assert extender.filter(pod)["NodeNames"] == []


def test_each_resource_has_its_own_books(extender: ScriptedExtender) -> None:
    pod = pod_json("npu-pod", 3, resource=NPU.resource)
    answer = extender.filter(pod, ["npu", "big"])
    assert answer["NodeNames"] == ["npu"]
    assert "big" in answer["FailedNodes"]
    assert extender.bind(pod, "npu") == ""
    assert extender.ledger.entry("uid-npu-pod") is None
    entry = extender.resources.resources[1].ledger.entry("uid-npu-pod")
    assert entry is not None
    assert entry.placement == ((0, 3),)
    document = json.loads(extender.api.calls[0].body or b"")["metadata"]["annotations"]
    assert document[NPU.idx] == "0"
    assert ALIYUN.idx not in document


def test_before_it_is_ready_every_verb_says_so(extender: ScriptedExtender) -> None:
    extender.why_not = "pods are not listed yet"
    pod = pod_json("web", 4)
    assert "pods are not listed yet" in extender.filter(pod)["Error"]
    assert "pods are not listed yet" in extender.bind(pod, "big")
    for call in (
        lambda: extender.prioritize(pod, ["big"]),
        lambda: extender.service.inspect(None, None),
    ):
        with pytest.raises(NotReady, match="pods are not listed yet"):
            call()
    assert extender.told == [(verb, "not_ready") for verb in ("filter", "bind", "prioritize")]
    assert extender.api.calls == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"Pod":1}', b"\xff", b"[" * 10_000])
def test_bytes_that_are_no_request_get_an_error(extender: ScriptedExtender, body: bytes) -> None:
    assert json.loads(extender.service.filter(body))["Error"].startswith("gpushare: ")
    assert json.loads(extender.service.bind(body))["Error"].startswith("gpushare: ")
    with pytest.raises(MessageError):
        extender.service.prioritize(body)
    assert extender.told == [(verb, "malformed") for verb in ("filter", "bind", "prioritize")]
    assert extender.ledger.counts()["assumed"] == 0


def test_a_failure_nobody_thought_of_is_counted_too(extender: ScriptedExtender) -> None:
    extender.api.answers = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        extender.bind(pod_json("web", 4), "big")
    assert extender.told == [("bind", "failed")]


def test_inspect_shows_the_books(extender: ScriptedExtender) -> None:
    pod = pod_json("web", 4)
    extender.filter(pod)
    extender.bind(pod, "small")
    document = json.loads(extender.service.inspect(None, None))["nodes"]
    assert [(node["name"], node["usedGPU"]) for node in document] == [
        ("big", 0),
        ("small", 4),
        ("tiny", 0),
    ]
    (one,) = json.loads(extender.service.inspect("small", ALIYUN.resource))["nodes"]
    assert one == document[1]
    assert one["devs"][0]["pods"] == [{"name": "web", "namespace": "team", "usedGPU": 4}]
    (npu,) = json.loads(extender.service.inspect(None, NPU.resource))["nodes"]
    assert (npu["name"], npu["totalGPU"]) == ("npu", 4)


@pytest.mark.parametrize(
    ("node", "resource"), [("nowhere", None), (None, "example.com/other"), ("npu", None)]
)
def test_inspect_knows_no_other_nodes_or_resources(
    extender: ScriptedExtender, node: str | None, resource: str | None
) -> None:
    with pytest.raises(UnknownNode):
        extender.service.inspect(node, resource)
