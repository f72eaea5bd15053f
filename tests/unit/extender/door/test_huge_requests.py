"""CPU and memory beyond all bounds are answered by each verb, with the policy that serves."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.workload import workload_of
from gpushare.errors import MessageError
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, request

AMOUNTS = ("9223372036854775807m", "9e15", "9223372036854775807", "9223372036854775808", "1e30")


def pod(name: str, amount: str, containers: int) -> dict[str, Any]:
    made = pod_json("web", 4, limits={name: amount})
    more = [{"resources": {"requests": {name: amount}}} for _ in range(containers - 1)]
    made["spec"]["containers"] += more
    return made


def extender_with_rankings() -> ScriptedExtender:
    """With the default policy, made for a cluster that has just begun."""
    extender = ScriptedExtender()
    for managed in extender.resources:
        for policy in ("shadow-price", "fgd"):
            managed.rankings[policy] = Ranking(load_policy(policy, workload_of({}, [2, 8, 16])))
    return extender


@pytest.mark.parametrize("policy", ["shadow-price", "fgd", "dotproduct", "bestfit"])
@pytest.mark.parametrize("containers", [1, 2, 3])
@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_each_verb_answers_or_refuses(name: str, amount: str, containers: int, policy: str) -> None:
    asking = pod(name, amount, containers)
    asking["metadata"]["annotations"]["gpushare.io/policy"] = policy
    extender = extender_with_rankings()
    fit = extender.filter(asking)["NodeNames"]
    assert refuses(lambda: extender.prioritize(asking, ["big"])) == (not fit)
    preempting = {"Pod": asking, "NodeNameToMetaVictims": {"big": {"Pods": []}}}
    body = json.dumps(preempting).encode()
    assert refuses(lambda: extender.service.preempt(body)) == (not fit)
    if fit:
        assert extender.bind(asking, fit[0]) == ""
    extender.ledger.check()


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except MessageError:
        return True
    return False


def test_filter_refuses_what_cannot_be_added_up_for_good() -> None:
    asking = request(pod("cpu", "9e15", 2), ["big"])
    answer = json.loads(extender_with_rankings().service.filter(asking))
    assert "larger than" in answer["FailedAndUnresolvableNodes"]["big"]
