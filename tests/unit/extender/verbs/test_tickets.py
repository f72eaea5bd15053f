"""The tickets of filtered pods, for their binds, within bounds."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import Request
from gpushare.core.node_names import NodeNames
from gpushare.errors import MessageError
from gpushare.extender.managed_resources import ManagedResource, ResourceRequest
from gpushare.extender.verbs.tickets import MAX_PARTS, MAX_TICKETS, TTL, Tickets
from gpushare.wire.annotations import ALIYUN
from tests.unit.extender.kit import managed_resource, pod_json
from tests.unit.extender.scripted_extender import FREE, ScriptedExtender, bind_request, request

pytestmark = pytest.mark.usefixtures("frozen_heap")

MANY = 25
SMALL = 1 << 20
"""Bytes that may stay of a hundred hostile calls."""


@pytest.fixture
def resource() -> ManagedResource:
    return managed_resource()


def asks(resource: ManagedResource, **pod_request: Any) -> ResourceRequest:
    return resource, Request(4, 1, **pod_request)


@contextmanager
def staying(max_bytes: int) -> Iterator[None]:
    """Fail if the block leaves more bytes allocated."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        gc.collect()
        stays = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert stays < max_bytes, f"{stays} bytes stay"


def test_a_ticket_is_for_one_pod_and_the_nodes_that_fit(resource: ManagedResource) -> None:
    tickets = Tickets()
    tickets.put("a", asks(resource), NodeNames(["n1", "n9"]))
    tickets.put("b", None, NodeNames(["n2"]))
    assert tickets.get("a", "n1")[:2] == tickets.get("a", "n9")[:2] == (True, asks(resource))
    assert tickets.get("b", "n2")[:2] == (True, None)
    for uid, node in (("a", "n2"), ("b", "n1"), ("a", "n3"), ("c", "n1")):
        assert tickets.get(uid, node)[:2] == (False, None)


def test_the_last_filter_counts(resource: ManagedResource) -> None:
    """Of a nominated node kube-scheduler asks alone first, and then of all."""
    tickets = Tickets()
    tickets.put("a", asks(resource), NodeNames(["n1"]))
    tickets.put("a", asks(resource), NodeNames([]))
    assert tickets.get("a", "n1")[:2] == (False, None)
    tickets.put("a", asks(resource), NodeNames(["n2"]))
    assert tickets.get("a", "n2")[:2] == (True, asks(resource))
    tickets.remove("a")
    assert tickets.get("a", "n2")[:2] == (False, None)


def test_a_ticket_ends_and_it_is_still_known_that_filter_was_called(
    resource: ManagedResource,
) -> None:
    now = 0.0
    tickets = Tickets(lambda: now)
    tickets.put("a", asks(resource), NodeNames(["n1"]))
    now = TTL + 1
    assert tickets.get("a", "n1")[:2] == (False, None)
    assert "a" in tickets


def parts_of(tickets: Tickets) -> int:
    return tickets._parts  # noqa: SLF001 -- what bounds the memory


def test_what_is_kept_is_bounded_by_count_and_by_weight(resource: ManagedResource) -> None:
    tickets = Tickets()
    heavy = asks(resource, containers=tuple((index, 1) for index in range(300)))
    for number in range(MAX_TICKETS + 10):
        tickets.put(f"light-{number}", asks(resource), NodeNames(["n1"]))
        assert parts_of(tickets) <= MAX_PARTS
    assert len(tickets._tickets) == MAX_TICKETS  # noqa: SLF001
    for number in range(2000):
        tickets.put(f"heavy-{number}", heavy, NodeNames(["n1"]))
        assert parts_of(tickets) <= MAX_PARTS
    assert len(tickets._tickets) < 1500  # noqa: SLF001
    assert tickets.get("heavy-1999", "n1")[:2] == (True, heavy)
    too_heavy = asks(resource, containers=tuple((index, 1) for index in range(1000)))
    tickets.put("huge", too_heavy, NodeNames(["n1"]))
    assert tickets.get("huge", "n1")[:2] == (False, None)
    for uid in [*tickets._tickets]:  # noqa: SLF001 -- the weight has to come to nothing
        tickets.remove(uid)
    assert parts_of(tickets) == 0


def test_a_large_cluster_costs_a_ticket_a_bit_for_each_node(resource: ManagedResource) -> None:
    names = NodeNames([f"node-{number}" for number in range(5000)])
    tickets = Tickets()
    tickets.put("first", asks(resource), names)
    with staying(2 << 20):
        for number in range(1000):
            tickets.put(f"uid-{number}", asks(resource), names)
    assert tickets.get("uid-999", "node-4999")[0]


def test_nodes_that_come_and_go_for_years_are_forgotten(resource: ManagedResource) -> None:
    tickets = Tickets()
    with staying(24 << 20):
        for number in range(120):
            tickets.put(
                "a", asks(resource), NodeNames([f"node-{number}-{index}" for index in range(1000)])
            )
    assert tickets.get("a", "node-119-999")[0]
    assert not tickets.get("a", "node-118-999")[0]


@given(st.lists(st.sets(st.sampled_from([f"n{number}" for number in range(40)])), max_size=5))
def test_a_set_of_nodes_has_those_nodes(sets: list[set[str]]) -> None:
    tickets = Tickets()
    for number, nodes in enumerate(sets):
        tickets.put(str(number), None, NodeNames(nodes))
    all_names = [f"n{number}" for number in range(41)]
    for number, nodes in enumerate(sets):
        assert {name for name in all_names if tickets.get(str(number), name)[0]} == nodes


def test_the_bits_of_a_list_are_its_own() -> None:
    tickets = Tickets()
    for names in map(NodeNames, (["a", "b"], ["b"], ["c", "a"], ["b"])):
        for _ in range(2):
            tickets.put("uid", None, names)
            assert [name for name in "abc" if tickets.get("uid", name)[0]] == sorted(names)


LONG = "x" * (1 << 20)
NAMES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("Pod.metadata.uid", lambda pod: pod["metadata"].update(uid=LONG)),
    ("Pod.metadata.name", lambda pod: pod["metadata"].update(name=LONG)),
    ("Pod.metadata.name", lambda pod: pod["metadata"].update(name="a/../b")),
    ("Pod.metadata.namespace", lambda pod: pod["metadata"].update(namespace="x" * 64)),
    ("Pod.spec.nodeName", lambda pod: pod["spec"].update(nodeName="x" * 254)),
    ("Pod.status.nominatedNodeName", lambda pod: pod["status"].update(nominatedNodeName=LONG)),
]


@pytest.mark.parametrize(("field", "change"), NAMES)
def test_no_verb_takes_a_name_that_kubernetes_does_not_allow(
    field: str, change: Callable[[dict[str, Any]], object]
) -> None:
    extender, pod = ScriptedExtender(), pod_json("web", 4)
    change(pod)
    body = request(pod, ["big"])
    preempt = json.dumps({"Pod": pod, "NodeNameToMetaVictims": {}}).encode()
    errors = [json.loads(extender.service.filter(body))["Error"]]
    for verb, document in (
        (extender.service.prioritize, body),
        (extender.service.preempt, preempt),
    ):
        with pytest.raises(MessageError) as caught:
            verb(document)
        errors.append(str(caught.value))
    assert all(field in error and len(error) < 300 for error in errors), errors


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("PodUID", "x" * 129),
        ("PodUID", "é"),
        ("PodName", "x" * 254),
        ("PodNamespace", "x" * 64),
        ("PodNamespace", "a.b"),
        ("Node", "x" * 254),
    ],
)
def test_a_bind_names_its_pod_as_kubernetes_does(field: str, value: str) -> None:
    document = json.loads(bind_request(pod_json("web", 4), "big"))
    answer = json.loads(
        ScriptedExtender().service.bind(json.dumps(document | {field: value}).encode())
    )
    assert field in answer["Error"]
    assert len(answer["Error"]) < 300


@pytest.mark.parametrize("name", ["x" * 254, LONG])
def test_no_node_has_a_longer_name_than_any_object(name: str) -> None:
    extender, pod = ScriptedExtender(), pod_json("web", 4)
    assert "$.NodeNames[1]" in extender.filter(pod, ["big", name])["Error"]
    for victims, field in (
        ({name: {"Pods": []}}, "NodeNameToMetaVictims"),
        ({"big": {"Pods": [{"UID": name}]}}, "NodeNameToMetaVictims.big"),
    ):
        body = json.dumps({"Pod": pod, "NodeNameToMetaVictims": victims}).encode()
        with pytest.raises(MessageError, match=field) as caught:
            extender.service.preempt(body)
        assert len(str(caught.value)) < 300


def hostile(number: int, kind: str) -> dict[str, Any]:
    """A pod of about a megabyte."""
    pod = pod_json("web", 4, uid=f"uid-{number}")
    many = 300 if kind == "containers" else 10_000
    match kind:
        case "uid":
            pod["metadata"]["uid"] = f"{number}-{LONG}"
        case "containers":
            document = {"resources": {"limits": {ALIYUN.resource: "1"}}}
            pod["spec"]["containers"] = pod["spec"]["initContainers"] = [document] * many
        case "one model":
            pod["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": f"{number}-{LONG}"}
        case "models":
            models = [f"model-{number}-{index}-{'x' * 40}" for index in range(many)]
            term = {"key": "nvidia.com/gpu.product", "operator": "In", "values": models}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
            rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            pod["spec"]["affinity"] = {"nodeAffinity": rule}
        case "labels":
            pod["metadata"]["labels"] = {f"k{number}-{index}": "x" * 50 for index in range(many)}
        case _:
            pod["metadata"]["annotations"] = {ALIYUN.policy: f"{number}-{LONG}"}
    return pod


@pytest.mark.parametrize("kind", ["uid", "containers", "one model", "models", "labels", "policy"])
def test_little_stays_of_many_hostile_calls(kind: str) -> None:
    """Bodies of about a megabyte each; together they leave less than one megabyte."""
    extender = ScriptedExtender()
    bodies = [request(hostile(number, kind), [*FREE]) for number in range(MANY + 1)]
    extender.service.filter(bodies.pop())
    with staying(SMALL):
        for body in bodies:
            extender.service.filter(body)
            try:
                extender.service.prioritize(body)
            except MessageError:
                continue
        extender.told.clear()
        extender.heard.events.clear()
