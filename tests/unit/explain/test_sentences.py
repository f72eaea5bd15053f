"""Every sentence about a pod that waits comes from one verdict, and all surfaces have that one."""

from dataclasses import replace

import pytest
from hypothesis import given

from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.plans import ResourcePlan
from gpushare.cli.whatif_text import lines_of
from gpushare.core.explain import Explanation, PodVerdict, Remedy
from gpushare.core.model import Cards, PodRef, Request
from gpushare.explain.placer import PlacementResult, PodBatch
from gpushare.explain.pod import ClaimExplanation, ClaimRemedy, DeviceReading, PodExplanation
from gpushare.explain.text import claims_sentence, lines, sentence, verdict_text
from gpushare.explain.whatif import DeviceSums, WhatIfAnswer
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.conditions import SchedulerView
from gpushare.wire.dra.objects import CLASS
from tests.support.sentences import SENTENCES, verdicts_of
from tests.unit.core.clusters import node, with_share
from tests.unit.core.test_explain import World, pod, requests_of_parts, worlds

_WORLD = World((node("a", 16),), (pod("one", "a", 12, 0, cores=30), pod("two", "a", 4, 0)))
_ENDS = tuple(_WORLD.ledger().entries_and_specs()[0].values())
_SPLIT = Request().of_parts((6, 4))

FITS, NEVER = Explanation(Request(8, 1), fit=("a",)), Explanation(Request(8, 1))
OPEN = replace(NEVER, most_devices=1)


def once(**parts: object) -> Explanation:
    """The explanation of a pod that such a remedy helps."""
    return replace(OPEN, remedies=(Remedy("a", **parts),))  # type: ignore[arg-type]  # passed on


EXAMPLES: dict[str, Explanation] = {
    "on a": FITS,
    "on a, b and c": replace(FITS, fit=("a", "b", "c")),
    "on a, b, c, d, e and 2 more": replace(FITS, fit=tuple("abcdefg")),
    "soon: the books have just changed, or places are held for other pods": OPEN,
    "on a once ns/one (12 GiB with 30 % of cores) ends": once(ends=_ENDS[:1]),
    "on a once ns/one (12 GiB with 30 % of cores) and ns/two (4 GiB) end": once(ends=_ENDS),
    "on a once ns/one (25 % of the memory, at least 12 GiB with 30 % of cores) ends": once(
        ends=(replace(_ENDS[0], request=replace(_ENDS[0].request, percents=with_share(30, 25))),)
    ),
    "even on an empty node it could only fit on at most one device of 25 % of the memory": replace(
        NEVER, request=Request(1, 2, percents=with_share(0, 25)), most_devices=1
    ),
    "on a once closed device 1 returns": once(opens=(1,)),
    "on a once closed devices 0, 1 return and ns/two (4 GiB) ends": once(
        opens=(0, 1), ends=_ENDS[1:]
    ),
    "on a once ns/two has been given the device by the device plug-in": once(serves=_ENDS[1:]),
    "on a once it is uncordoned and its taint gpu is gone or the pod tolerates it": once(
        cures=("it is uncordoned", "its taint gpu is gone or the pod tolerates it")
    ),
    "on a once it is ready": once(cures=("it is ready",)),
    "on a once its device plug-in offers x/mem again": once(
        cures=("its device plug-in offers x/mem again",)
    ),
    "on a once it offers more x/mem": once(cures=("it offers more x/mem",)),
    "on a once more of its cpu is free": once(cures=("more of its cpu is free",)),
    "on a once ns/two (4 GiB) ends (but the node would still have too little cpu and pods)": once(
        ends=_ENDS[1:], lacks=("cpu", "pods")
    ),
    "on a once it is ready; or on b once it is ready": replace(
        OPEN, remedies=(Remedy("a", cures=("it is ready",)), Remedy("b", cures=("it is ready",)))
    ),
    "even on an empty node it could only fit with at most 4 GiB on one device": replace(
        NEVER, most_units=4
    ),
    "even on an empty node it could only fit with at most 6 + 2 GiB on 2 devices": replace(
        NEVER, request=_SPLIT, most_parts=(6, 2)
    ),
    "even on an empty node it could only fit with at most 4 GiB on each of 2 devices or on at most"
    " one device of 8 GiB": replace(NEVER, request=Request(8, 2), most_units=4, most_devices=1),
    "even on an empty node it could only fit with at most 6 GiB on one device": replace(
        NEVER, request=Request(8, 2), most_alone=6
    ),
    "even on an empty node it could only fit with at most 6 GiB on one device or with 4 GiB on each"
    " of 2 devices: a gpu-count of 2, as an annotation of the pod": replace(
        NEVER, most_alone=6, split=2
    ),
    "even on an empty node it could only fit with at most 6 GiB on one device or with 5 GiB on each"
    " of 2 devices: a gpu-count of 2, as an annotation of the pod in place of its split": replace(
        NEVER, request=_SPLIT, most_alone=6, split=2
    ),
    "no device is one with h200 in the model's name; there are models L4 and T4": replace(
        NEVER, request=replace(Request(8, 1), cards=Cards(models=("h200",))), models=("L4", "T4")
    ),
    "kube-scheduler itself leaves out every node with a device that would do": replace(
        NEVER, kept_out={"cordoned": 1}
    ),
    "no node that the pod may use shares a device": NEVER,
}
"""All forms of the sentence."""


def ending(*names: str) -> DeviceReading:
    """Claims for which these have to end, the first one of a pod."""
    pods = [("train",), *[()] * len(names)]
    claims = [
        ClaimExplanation(PodRef("ns", name, "u"), "allocated", pods=users)
        for name, users in zip(names, pods, strict=False)
    ]
    return DeviceReading(nodes=1, remedy=ClaimRemedy("a", tuple(claims)))


READINGS: dict[str, DeviceReading] = {
    "on a and b": DeviceReading(nodes=2, fit=("a", "b")),
    "on a once claim ns/one (of train) ends": ending("one"),
    "on a once claim ns/one (of train) and claim ns/two end": ending("one", "two"),
    "no node has devices for its claims, even if all other claims end": DeviceReading(
        nodes=1, never=True
    ),
}
"""All forms of the sentence about claims."""


@pytest.mark.parametrize("text", EXAMPLES)
def test_each_sentence_is_of_one_verdict_and_the_same_everywhere(text: str) -> None:
    explanation = EXAMPLES[text]
    assert verdict_text(explanation, "GiB") == text
    assert verdicts_of(text) == [explanation.verdict]
    # The page, and an event for readers of the namespace, which says nothing of a node that fits.
    said = sentence(explanation, "GiB")
    assert said.endswith(text)
    assert sentence(explanation, "GiB", "ns") == ("" if explanation.fit else said)
    view = SchedulerView("default-scheduler")
    ref = PodRef("ns", "late", "u")
    about = PodExplanation(ref, "x/mem", "GiB", "pending", view, explanation=explanation)
    label = f"{explanation.verdict.capitalize()}:"
    assert f"{label:<12}{text}" in lines(about)


def by_claims(reading: DeviceReading) -> PodExplanation:
    """The explanation of a pending pod with such a reading."""
    ref, view = PodRef("ns", "late", "u"), SchedulerView("default-scheduler")
    return PodExplanation(ref, CLASS, "GiB", "pending", view, reading=reading)


@pytest.mark.parametrize("text", READINGS)
def test_each_sentence_about_claims_is_of_one_verdict(text: str) -> None:
    reading = READINGS[text]
    assert [reading.verdict] == verdicts_of(text) == verdicts_of(verdict_text(reading))
    about = by_claims(reading)
    assert claims_sentence(about).endswith(text)
    assert f"{f'{reading.verdict}:'.capitalize():<12}{text}" in lines(about)


def test_claims_that_cannot_be_judged_have_no_verdict() -> None:
    for reading in (DeviceReading(detail="odd"), DeviceReading(nodes=1)):
        assert reading.verdict is None
        assert not verdict_text(reading)
        assert "fit" not in claims_sentence(by_claims(reading))


@pytest.mark.parametrize("text", [text for text, example in EXAMPLES.items() if not example.fit])
def test_what_if_has_the_same_sentence(text: str) -> None:
    explanation = EXAMPLES[text]
    result = PlacementResult(PodBatch("late", explanation.request), 0, explanation=explanation)
    assert result.verdict is explanation.verdict
    sums = DeviceSums(nodes=1, devices=1, total=16, free=0)
    outcome = WhatIfAnswer(sums, sums, (), (), (result,))
    plan = ResourcePlan(ListedResource(ALIYUN, _WORLD.ledger(), "GiB"))
    said = sentence(explanation, "GiB").rpartition("; it ")[2].removeprefix("it ")
    assert f"          it {said}" in lines_of(outcome, plan, "binpack")


def test_there_is_an_example_of_each_verdict() -> None:
    assert {example.verdict for example in EXAMPLES.values()} == set(PodVerdict) == SENTENCES.keys()


@given(worlds(), requests_of_parts())
def test_nothing_else_is_said(world: World, request: Request) -> None:
    explanation = world.explain(request)
    for reader in (None, "other"):
        assert verdicts_of(verdict_text(explanation, "GiB", reader)) == [explanation.verdict]
