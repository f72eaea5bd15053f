"""A refusal names no pod: the kubelet writes the text into the status of the pod that asked.

That pod may be unknown, and readers of the status may not know names of other namespaces.
"""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpushare.core.model import PodRef
from gpushare.device_plugin.allocator import Allocator
from gpushare.device_plugin.cards import DetectedGpu, Fault, Problem, device_id, make_cards
from gpushare.device_plugin.identity import CheckpointEntry, PodKey
from gpushare.device_plugin.pods import Pods
from gpushare.device_plugin.start_check import StartCheck
from gpushare.errors import RequestRefused
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import Pod
from tests.support.scripted_api import ScriptedApi
from tests.unit.device_plugin.pods import decoded, pod_json, told

LOST = Problem(Fault.LOST, "is lost")
CARDS = make_cards(
    [
        DetectedGpu("GPU-0", 0, 16 * 1024),
        DetectedGpu("GPU-1", 1, 16 * 1024),
        DetectedGpu("GPU-2", 2, 16 * 1024, problem=LOST),
    ],
    "GiB",
    0,
)
ALL = [device_id(card.uuid, number) for card in CARDS.all for number in range(16)]
TOLD = told("GPU-1")


class World:
    """A node with the pods of two tenants; the API server has none of them any more."""

    def __init__(self, pods: list[dict[str, Any]], view: list[bool]) -> None:
        self.pods = Pods(ScriptedApi(forever=b"{}"), ALIYUN, "node")
        self.shown: dict[PodKey, dict[str, frozenset[str]]] = {}
        self.record: list[CheckpointEntry] = []
        self.now = 0.0
        self.pods.wait = self._wait  # type: ignore[method-assign]
        for body, admitted in zip(pods, view, strict=False):
            event: WatchEvent[Pod] = WatchEvent("ADDED", decoded(body))
            self.pods.apply(event)
            if admitted:
                self.shown[_ref(body).namespace, _ref(body).name] = {
                    item["name"]: frozenset() for item in body["spec"]["containers"]
                }
        self.allocator = Allocator(
            self.pods, lambda: self.shown, lambda: CARDS, clock=lambda: self.now
        )
        self.check = StartCheck(self.pods, lambda: self.record, lambda: self.shown, lambda: CARDS)

    def _wait(self, changes: int, seconds: float) -> None:
        del changes
        self.now += seconds

    def refusals(self, units: int, bodies: list[dict[str, Any]]) -> list[str]:
        """The answers to the kubelet's question for so many units, and before the start."""
        texts = []
        try:
            self.allocator.allocate(self.allocator.prefer(ALL, (), units))
        except RequestRefused as error:
            texts.append(str(error))
        ids = frozenset(ALL[:units])
        self.record = [
            CheckpointEntry(_ref(body).uid, body["spec"]["containers"][0]["name"], ids, TOLD)
            for body in bodies
        ]
        try:
            self.check.check(ids)
        except RequestRefused as error:
            texts.append(str(error))
        return texts


def _ref(body: dict[str, Any]) -> PodRef:
    metadata = body["metadata"]
    return PodRef(metadata["namespace"], metadata["name"], metadata["uid"])


def _pod(colour: str, units: int, device: int, odd: dict[str, str]) -> dict[str, Any]:
    body = pod_json(units, devices=[device], annotations=odd)
    body["metadata"] |= {"namespace": f"{colour}-team", "name": f"{colour}-{_ref(body).uid}"}
    for container in body["spec"]["containers"]:
        container["name"] = f"{colour}-main"
    return body


pods = st.builds(
    _pod,
    st.sampled_from(["crimson", "azure"]),
    st.integers(1, 2),
    st.integers(0, 3),
    st.sampled_from([{}, {}, {ALIYUN.idx: "x"}, {ALIYUN.allocation: '{"0":{"0":1}}'}]),
)
TWO_WAIT = [_pod("crimson", 1, 0, {}), _pod("azure", 1, 1, {})]
ONE_IS_LOST = [_pod("crimson", 1, 2, {}), _pod("azure", 1, 2, {})]
TOLD_ANOTHER = [_pod("azure", 1, 0, {})]


@given(st.lists(pods, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
@example(TWO_WAIT, [True] * 2)
@example(ONE_IS_LOST, [True] * 2)
@example(TOLD_ANOTHER, [True])
@settings(max_examples=80, deadline=None)
def test_a_refusal_names_no_pod(bodies: list[dict[str, Any]], view: list[bool]) -> None:
    for units in (1, 2):
        for text in World(bodies, view).refusals(units, bodies):
            assert "crimson-" not in text
            assert "azure-" not in text
