"""The namespace of placeholders exists, has no other pods, and the account has rights there."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.doctor.checks.autoscalers import placeholder_rights, placeholders_namespace
from gpushare.doctor.facts import ExtenderAnswers, Facts, ListedPods, PlaceholderNamespace, Unread
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import read_pods
from gpushare.doctor.report import run_checks
from gpushare.wire.annotations import ALIYUN
from tests.unit.doctor.facts import NOW, RIGHTS, extender, healthy

ON = 'gpushare_placeholders{namespace="asks"}'
MAY = RIGHTS | dict.fromkeys(placeholder_rights("asks"), True)


def asking(phase: str | Unread = "Active", **changes: Any) -> Facts:
    facts = extender()
    facts = replace(facts, samples={**facts.samples, ON: 0.0})
    return healthy(
        **{"extender": facts, "rights": MAY, "asks": PlaceholderNamespace("asks", phase), **changes}
    )


def said(facts: Facts) -> list[Finding]:
    return [finding for finding in run_checks(facts) if finding.check == "placeholders"]


def test_a_namespace_of_their_own_is_well_and_none_is_not_spoken_of() -> None:
    (finding,) = said(asking())
    assert (finding.level, finding.message) == (
        "ok",
        "the namespace asks is there, for placeholders alone",
    )
    assert said(healthy()) == []


@pytest.mark.parametrize(
    ("level", "words", "facts"),
    [
        ("fail", "is not there", asking("", rights=RIGHTS)),
        ("fail", "is Terminating", asking("Terminating")),
        ("skip", "403", asking(Unread("the namespace asks cannot be read: 403", "x", "skip"))),
        ("fail", "may not create pods in asks, delete pods in asks, patch", asking(rights=RIGHTS)),
        ("fail", "no autoscaler counts them: asks/a", asking(pods=ListedPods(gated=["asks/a"]))),
        (
            "warn",
            "holds other pods, too: asks/web",
            asking(pods=ListedPods(neighbours=["asks/web"])),
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_once(level: str, words: str, facts: Facts) -> None:
    (finding,) = said(facts)
    assert finding.level == level, finding
    assert words in finding.message
    assert finding.todo


def test_the_rights_of_another_account_say_nothing() -> None:
    (finding,) = said(asking(rights=RIGHTS, own_account=False))
    assert finding.level == "ok"


@pytest.mark.parametrize(
    ("sample", "namespace"),
    [
        (ON, "asks"),
        ("gpushare_placeholders", ""),  # an extender of an earlier version
        ("gpushare_placeholders_created_total", ""),
        ('gpushare_placeholders{namespace="../../x"}', ""),
        ('gpushare_placeholders{namespace="a?b"}', ""),
    ],
)
def test_the_extender_says_which_it_is(sample: str, namespace: str) -> None:
    assert placeholders_namespace(ExtenderAnswers(200, 200, samples={sample: 1.0})) == namespace
    assert placeholders_namespace(Unread("no answer")) == ""
    assert placeholders_namespace(None) == ""


def test_who_else_is_there_is_read_from_the_pods() -> None:
    pods: list[dict[str, Any]] = [
        {"metadata": {"namespace": "asks", "name": "for-a"}, "spec": {"schedulerName": name}}
        for name in ("gpushare-placeholder", "default-scheduler")
    ]
    gated = {"schedulerName": "gpushare-placeholder", "schedulingGates": [{"name": "x"}]}
    pods.append({"metadata": {"namespace": "asks", "name": "gated"}, "spec": gated})
    pods.append({"metadata": {"namespace": "team", "name": "web"}, "spec": {}})
    pods[1]["metadata"]["name"] = "web"
    facts = read_pods(pods, ALIYUN, NOW, "asks")
    assert (facts.neighbours, facts.gated) == (["asks/web"], ["asks/gated"])
    assert read_pods(pods, ALIYUN, NOW).neighbours == []
