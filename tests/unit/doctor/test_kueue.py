"""A check of the extender that nobody answers, or that Kueue cannot heed, is found."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.doctor.checks.kueue import KUEUE_RIGHTS
from gpushare.doctor.facts import Facts, ListedKueue, Unread
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import read_kueue
from gpushare.doctor.report import run_checks
from gpushare.wire.kueue import CONTROLLER
from tests.unit.doctor.facts import RIGHTS, extender, healthy

MAY = RIGHTS | dict.fromkeys(KUEUE_RIGHTS, True)


def facts(*, answers: bool = True, **changes: Any) -> Facts:
    told = extender()
    samples = {"gpushare_kueue_ready_total": 0.0} if answers else {}
    told = replace(told, samples={**told.samples, **samples})
    kueue = ListedKueue(("gpus",))
    return healthy(**{"extender": told, "rights": MAY, "kueue": kueue, **changes})


def said(input_facts: Facts) -> list[Finding]:
    return [finding for finding in run_checks(input_facts) if finding.check == "kueue"]


def test_a_check_that_is_answered_is_well_and_none_is_not_spoken_of() -> None:
    (finding,) = said(facts())
    assert (finding.level, finding.message) == ("ok", "AdmissionChecks for the extender: gpus")
    assert said(healthy()) == []


@pytest.mark.parametrize(
    ("level", "words", "changes"),
    [
        ("fail", "without --kueue: no job is admitted by gpus", {"answers": False}),
        ("fail", "list workloads.kueue.x-k8s.io", {"rights": RIGHTS}),
        ("warn", "again at each try: a10", {"kueue": ListedKueue(("gpus",), ("a10",))}),
        ("skip", "403", {"kueue": Unread("cannot be read: 403", "x", "skip")}),
    ],
)
def test_what_is_wrong_is_said_once(level: str, words: str, changes: dict[str, Any]) -> None:
    (finding,) = said(facts(**changes))
    assert finding.level == level
    assert words in finding.message


def test_flavors_are_by_host_if_the_lowest_level_of_their_topology_is() -> None:
    def topology(name: str, *levels: str) -> dict[str, Any]:
        spec = {"levels": [{"nodeLabel": level} for level in levels]}
        return {"metadata": {"name": name}, "spec": spec}

    def flavor(name: str, topology_name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"topologyName": topology_name}}

    checks = [
        {"metadata": {"name": "gpus"}, "spec": {"controllerName": CONTROLLER}},
        {"metadata": {"name": "other"}, "spec": {"controllerName": "other"}},
    ]
    topologies = [topology("hosts", "rack", "kubernetes.io/hostname"), topology("racks", "rack")]
    flavors = [flavor("a10", "hosts"), flavor("t4", "racks"), {"metadata": {"name": "l4"}}]
    assert read_kueue(checks, flavors, topologies) == ListedKueue(("gpus",), ("a10",))
