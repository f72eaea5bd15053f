"""No text that a tenant can read names the pods or the namespace of another.

A tenant reads the events of his pods, and kube-scheduler's text in their status: the refusals of
filter by node, its error, and the error of bind.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare.core.model import Allocation, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.daemon.events import Details
from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    InvariantError,
    RequestRefused,
    WireError,
)
from gpushare.extender.follow.auditor import LEAKED, MISPLACED, Finding
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.events import ObjectReference
from gpushare.wire.pods import observe_pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resource, pod_json, read_pod
from tests.unit.extender.scripted_extender import bind_request, request

Json = dict[str, Any]

COLOURS = ("crimson", "azure")
NODES = ("n0", "n1")
ANSWERS = (
    ApiConflict("it is bound already", 409),
    ApiNotFound("not found", 404),
    ApiError("quota", 403),
    ApiUnavailable("no answer", 0),
)
ODD: tuple[dict[str, str], ...] = (
    {},
    {},
    {ALIYUN.count: "2"},
    {ALIYUN.count: "many"},
    {"gpushare.io/policy": "no-such"},
)
"""Annotations of pods that wait."""


@dataclass
class Texts:
    """The texts and their readers: the colour of the reader's pods, and the text or its maker."""

    read: list[tuple[str, Callable[[], str]]] = field(default_factory=list)

    def record(
        self,
        regarding: ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        warning: bool = False,
        details: Details | None = None,
    ) -> None:
        """Keep an event of a pod; its details are made when the story has ended, as late as can
        be.
        """
        if regarding.kind == "Pod":
            colour = regarding.namespace.partition("-")[0]
            self.say(colour, f"{reason} {action} {note}")
            if details is not None:
                self.read.append((colour, details))

    def say(self, colour: str, text: str) -> None:
        self.read.append((colour, lambda: text))

    def check(self) -> None:
        for colour, make in self.read:
            (second,) = {*COLOURS} - {colour}
            assert second not in make(), f"a text for {colour} pods"


class World:
    """Two tenants in a small cluster; every step is one that the extender may meet."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...], pairing: Pairing) -> None:
        self.managed = managed_resource(pairing=pairing)
        self.api = ScriptedApi()
        self.texts = Texts()
        self.not_ready = ""
        self.pods: list[Json] = []
        for name, units in zip(NODES, shapes, strict=False):
            self.managed.ledger.node_changed(node(name, *units, marks_assigned=True))
        resources = ManagedResources((self.managed,))
        self.messages = EventMessages(self.texts, resources, "GiB")
        self.messages.tick(is_ready=True)
        self.service = Service(
            resources,
            Binder(self.api, resources, lambda: float("inf"), self.api.clock),
            not_ready=lambda: self.not_ready,
            bind_slots=BindSlots(8),
            recipients=Recipients(event_messages=self.messages),
        )

    def pod(self, colour: str, units: int | str, annotations: Mapping[str, str]) -> Json:
        number = len(self.pods)
        pod_json_result = pod_json(
            f"{colour}-{number}", units, uid=f"u{number}", annotations=annotations
        )
        pod_json_result["metadata"]["namespace"] = f"{colour}-team"
        self.pods.append(pod_json_result)
        return pod_json_result

    def show(self, pod: Json) -> None:
        """As the watch shows it."""
        decoded = read_pod(pod)
        self.messages.mistaken_pods.observe(
            pod["metadata"]["uid"], self.messages.mistaken_pods.mistake(decoded)
        )
        try:
            self.managed.ledger.pod_changed(observe_pod(decoded, ALIYUN))
        except WireError:
            return

    def filter(self, pod: Json) -> None:
        body = request(pod, [*NODES, "n9"])
        answer = json.loads(self.service.filter(body))
        result = [answer["Error"], *answer["FailedNodes"].values()]
        for text in [*result, *answer["FailedAndUnresolvableNodes"].values()]:
            self.texts.say(_colour(pod), text)

    def bind(self, pod: Json, where: str) -> None:
        error = json.loads(self.service.bind(bind_request(pod, where)))["Error"]
        self.texts.say(_colour(pod), error)

    def charge(self, pod: Json, where: str) -> None:
        """A bind of it is under way."""
        metadata = pod["metadata"]
        ref = PodRef(metadata["namespace"], metadata["name"], metadata["uid"])
        try:
            self.managed.ledger.assume(ref, Request(1, 1), Allocation(where, ((0, 1),)), 0.0)
        except (RequestRefused, InvariantError):
            return


def _colour(pod: Json) -> str:
    name: str = pod["metadata"]["name"]
    return name.partition("-")[0]


def _create(world: World, pick: int) -> None:
    units: int | str = (1, 2, 3, 4, 8, 99, 5000, "1.5")[pick % 8]
    world.show(world.pod(COLOURS[pick // 8 % 2], units, ODD[pick // 16 % 5]))


def _place(world: World, pick: int) -> None:
    """A pod of a tenant is bound, served or not, by its annotations or by somebody unknown."""
    device, units = str(pick % 3), 1 + pick // 3 % 4
    inputs: dict[str, str] = {ALIYUN.idx: device} if pick // 12 % 4 else {}
    if pick // 48 % 2:
        inputs |= {ALIYUN.assigned: "false", ALIYUN.assume_time: "1"}
    pod = world.pod(COLOURS[pick // 96 % 2], units, inputs)
    pod["spec"]["nodeName"] = NODES[pick // 192 % 2]
    if pick // 384 % 2:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(pod)


def _edit(world: World, pod: Json, pick: int) -> None:
    pod["metadata"]["annotations"][ALIYUN.idx] = str(pick % 4)
    world.show(pod)


def _lose(world: World, pod: Json, pick: int) -> None:
    del pick
    pod["spec"]["nodeName"] = ""
    world.show(pod)


def _find_wrong(world: World, pod: Json, pick: int) -> None:
    metadata = pod["metadata"]
    ref = PodRef(metadata["namespace"], metadata["name"], metadata["uid"])
    finding = Finding(ALIYUN.resource, (LEAKED, MISPLACED)[pick % 2], "n0", ref, "1 units")
    world.messages.books_wrong(finding, healed=bool(pick % 2))


def _bind(world: World, pod: Json, pick: int) -> None:
    world.api.answers = [] if pick % 3 else [ANSWERS[pick // 3 % 4]]
    world.bind(pod, NODES[pick // 12 % 2])


def _bind_by_name_of_another(world: World, pod: Json, pick: int) -> None:
    """A call that names the uid of another pod."""
    second = world.pods[pick % len(world.pods)]
    uid = second["metadata"]["uid"]
    world.bind({"metadata": pod["metadata"] | {"uid": uid}}, NODES[pick % 2])


def _close(world: World, pod: Json, pick: int) -> None:
    del pod
    unhealthy = (pick % 2,)
    world.managed.ledger.node_changed(node("n0", 4, 4, unhealthy=unhealthy, marks_assigned=True))


def _stop(world: World, pod: Json, pick: int) -> None:
    del pod
    world.not_ready = "pods are not listed yet" * (pick % 2)


STEPS: tuple[Callable[[World, Json, int], None], ...] = (
    lambda world, _, pick: _create(world, pick),
    lambda world, _, pick: _place(world, pick),
    lambda world, pod, _: world.filter(pod),
    lambda world, pod, _: world.filter(pod),
    _bind,
    _bind_by_name_of_another,
    lambda world, pod, pick: world.charge(pod, NODES[pick % 2]),
    _edit,
    _lose,
    _find_wrong,
    _close,
    _stop,
)

steps = st.tuples(st.sampled_from(range(len(STEPS))), st.integers(0, 9), st.integers(0, 767))
shapes = st.lists(st.lists(st.integers(1, 8), max_size=3).map(tuple), min_size=1, max_size=2).map(
    tuple
)
PLACE, FILTER, BIND_BY_ANOTHERS_UID, CHARGE = 1, 2, STEPS.index(_bind_by_name_of_another), 6
FULL_OF_OTHERS = [(PLACE, 0, 117), (FILTER, 0, 0)]
"""A pod of the other tenant fills the only device, and then the pod asks for room."""
BOUND_BY_THE_UID_OF_ANOTHER = [(0, 0, 8), (CHARGE, 1, 0), (BIND_BY_ANOTHERS_UID, 0, 1)]
"""A pod of the other tenant is being bound, and the pod is said to have its uid."""


@given(shapes, st.sampled_from([Pairing.OFF, Pairing.ON]), st.lists(steps, max_size=24))
@example(((4,),), Pairing.OFF, FULL_OF_OTHERS)
@example(((4,),), Pairing.OFF, BOUND_BY_THE_UID_OF_ANOTHER)
@settings(max_examples=60, deadline=None)
def test_a_text_for_one_tenant_names_nothing_of_another(
    shaped: tuple[tuple[int, ...], ...], pairing: Pairing, story: list[tuple[int, int, int]]
) -> None:
    world = World(shaped, pairing)
    _create(world, 0)
    for step, which, pick in story:
        STEPS[step](world, world.pods[which % len(world.pods)], pick)
        world.messages.tick(is_ready=True)
    world.texts.check()
