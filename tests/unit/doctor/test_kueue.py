"""A check of the extender that nobody answers, or that Kueue cannot heed, is found."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpushare.doctor.checks.kueue import KUEUE_RIGHTS
from gpushare.doctor.collect import Collector
from gpushare.doctor.facts import Facts, ListedKueue, Unread
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import read_kueue
from gpushare.doctor.report import run_checks
from gpushare.errors import ApiNotFound
from gpushare.wire.annotations import ALIYUN
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
        ("fail", "by gpus", {"kueue": ListedKueue(("gpus",), inactive=("gpus",), is_too_old=True)}),
        ("fail", "not Active: gpus", {"kueue": ListedKueue(("gpus",), inactive=("gpus",))}),
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

    topologies = [topology("hosts", "rack", "kubernetes.io/hostname"), topology("racks", "rack")]
    flavors = [flavor("a10", "hosts"), flavor("t4", "racks"), {"metadata": {"name": "l4"}}]
    assert read_kueue([], flavors, topologies).by_host == ("a10",)


def test_a_check_is_inactive_unless_its_condition_is_true() -> None:
    def check(name: str, controller: str, *conditions: tuple[str, str]) -> dict[str, Any]:
        written = [
            {"type": kind, "status": status, "message": "no parameters"}
            for kind, status in conditions
        ]
        spec, status = {"controllerName": controller}, {"conditions": written}
        return {"metadata": {"name": name}, "spec": spec, "status": status}

    kueue = read_kueue(
        [
            check("active", CONTROLLER, ("Odd", "False"), ("Active", "True")),
            check("refused", CONTROLLER, ("Active", "False")),
            check("new", CONTROLLER),
            check("other", "other"),
        ]
    )
    assert kueue.checks == ("active", "refused", "new")
    unwritten = "new (nobody has written the condition)"
    assert kueue.inactive == ("refused (no parameters)", unwritten)


class OlderKueue:
    """An API server with an AdmissionCheck in the version of older releases alone."""

    server_time = None

    def request(self, _method: str, path: str, **_: object) -> bytes:
        if path == "/apis/kueue.x-k8s.io/v1beta1/admissionchecks":
            check = {"metadata": {"name": "gpus"}, "spec": {"controllerName": CONTROLLER}}
            return json.dumps({"kind": "AdmissionCheckList", "items": [check]}).encode()
        if path == "/version":
            return b"{}"
        raise ApiNotFound("unknown", 404)


def test_a_kueue_that_is_too_old_is_found_by_its_check() -> None:
    client: Any = OlderKueue()
    kueue = Collector(client, ALIYUN, "GiB", "kube-system").collect(None, "").kueue
    assert isinstance(kueue, ListedKueue)
    assert (kueue.checks, kueue.is_too_old) == (("gpus",), True)
