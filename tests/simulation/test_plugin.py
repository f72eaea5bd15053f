"""Our device plug-in in the simulation never guesses, and the judge sees a wrong device."""

import pytest

from gpushare.core.model import Allocation, Request
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare_localcluster.pod_status import AdmissionError
from tests.simulation.plugin import ContainerCards, OurPlugin, Weather, units_by_card, wrongly_given
from tests.simulation.truth import RESOURCE, Asked, Json, PodTruth

FAIR = Weather()
CROWD = Weather(crowd=True)
LATE = Weather(told=False)
PODS: dict[str, Json] = {}


def bound(name: str, device: int, uid: str = "") -> Json:
    """A pod of 2 units that is bound to a device of the node n."""
    notes = encode(Allocation("n", ((device, 2),)), Request(2), 4, "1", ALIYUN)
    meta = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "annotations": notes}
    container = {"name": "c0", "resources": {"limits": {RESOURCE: "2"}}}
    PODS[name] = {
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "n", "containers": [container]},
        "status": {},
    }
    return PODS[name]


@pytest.fixture
def plugin() -> OurPlugin:
    new_plugin = OurPlugin("n", PODS.__getitem__)
    new_plugin.count(("a", "b"), {"a": 4, "b": 4}, frozenset())
    return new_plugin


def test_a_pod_is_given_its_own_card_by_watch_or_by_a_read(plugin: OurPlugin) -> None:
    for name, card, weather in (("p", "b", FAIR), ("q", "a", LATE)):
        pod = bound(name, "ab".index(card))
        (allocation,) = plugin.serve(pod, (), weather).values()
        assert (allocation.told, allocation.units) == (frozenset(card), {card: 2})
        assert plugin.complete(pod)


def test_of_several_that_are_to_have_different_cards_none_is_guessed(plugin: OurPlugin) -> None:
    with pytest.raises(AdmissionError, match="2 containers wait for as many"):
        plugin.serve(bound("p", 0), (bound("q", 1),), CROWD)
    (allocation,) = plugin.serve(bound("r", 1), (bound("s", 1),), CROWD).values()
    assert allocation.told == {"b"}


def test_a_pod_that_comes_again_under_its_name_is_read_anew(plugin: OurPlugin) -> None:
    plugin.serve(bound("p", 0, "first"), (), FAIR)
    plugin.remove("first")
    (allocation,) = plugin.serve(bound("p", 1, "second"), (), LATE).values()
    assert allocation.told == {"b"}


def test_a_pod_that_came_again_and_cannot_be_read_is_refused(plugin: OurPlugin) -> None:
    plugin.serve(bound("p", 0, "first"), (), FAIR)
    plugin.remove("first")
    with pytest.raises(AdmissionError, match="no pod of this node is known"):
        plugin.serve(bound("p", 1, "second"), (), Weather(told=False, api=False))


def test_who_was_served_by_a_late_watch_alone_does_not_start(plugin: OurPlugin) -> None:
    waits = bound("q", 1)
    plugin.serve(bound("p", 0), (waits,), FAIR)
    deaf = Weather(told=False, api=False, is_listed=False)
    with pytest.raises(AdmissionError, match="PreStartContainer: the pod is not known"):
        plugin.serve(bound("r", 0), (), deaf)


def test_units_that_an_init_container_has_are_used_again() -> None:
    init = ContainerCards({"a": 3}, frozenset("a"), frozenset(), init=True)
    one = ContainerCards({"a": 1}, frozenset("a"), frozenset(), init=False)
    second = ContainerCards({"a": 1, "b": 2}, frozenset("ab"), frozenset(), init=False)
    assert units_by_card([init, one, second]) == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("announced", "units", "device", "own_ids", "wrong"),
    [
        ("a", 2, "a-_-1", True, ""),
        ("a", 2, "b-_-1", False, ""),
        ("a", 2, "b-_-1", True, "the kubelet has it on other cards"),
        ("b", 2, "b-_-1", True, "not on the cards of its Binding"),
        ("a", 1, "a-_-1", True, "a container has more or less than it asks for"),
    ],
)
def test_the_judge_sees_what_is_wrong(
    announced: str, units: int, device: str, own_ids: bool, wrong: str
) -> None:
    pod = PodTruth("u", "p", Asked(2, 1, (2,)))
    allocation = ContainerCards(
        {announced: units}, frozenset(announced), frozenset({device}), init=False
    )
    assert wrongly_given(pod, {"a": 2}, [allocation], own_ids=own_ids) == wrong


def test_the_judge_sees_a_container_that_was_told_of_another_card() -> None:
    pod = PodTruth("u", "p", Asked(2, 1, (2,)))
    allocation = ContainerCards({"a": 2}, frozenset("b"), frozenset({"a-_-1"}), init=False)
    assert "told of other cards" in wrongly_given(pod, {"a": 2}, [allocation], own_ids=True)
