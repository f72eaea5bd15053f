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
    pod_json_result = pod_json("web", 4, limits={name: amount})
    more = [{"resources": {"requests": {name: amount}}} for _ in range(containers - 1)]
    pod_json_result["spec"]["containers"] += more
    return pod_json_result


def extender_with_rankings() -> ScriptedExtender:
    """With the default policy, made for a cluster that has just begun."""
    extender = ScriptedExtender()
    for resource in extender.resources:
        for policy in ("shadow-price", "fgd"):
            resource.rankings[policy] = Ranking(load_policy(policy, workload_of({}, [2, 8, 16])))
    return extender


@pytest.mark.parametrize("policy", ["shadow-price", "fgd"])
@pytest.mark.parametrize("containers", [1, 2, 3])
@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_each_verb_answers_or_refuses(name: str, amount: str, containers: int, policy: str) -> None:
    caller = pod(name, amount, containers)
    caller["metadata"]["annotations"]["gpushare.io/policy"] = policy
    extender = extender_with_rankings()
    fit = extender.filter(caller)["NodeNames"]
    assert refuses(lambda: extender.prioritize(caller, ["big"])) == (not fit)
    preempting = {"Pod": caller, "NodeNameToMetaVictims": {"big": {"Pods": []}}}
    body = json.dumps(preempting).encode()
    assert refuses(lambda: extender.service.preempt(body)) == (not fit)
    if fit:
        assert extender.bind(caller, fit[0]) == ""
    extender.ledger.check()


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except MessageError:
        return True
    return False


def test_filter_refuses_what_cannot_be_added_up_for_good() -> None:
    request_result = request(pod("cpu", "9e15", 2), ["big"])
    answer = json.loads(extender_with_rankings().service.filter(request_result))
    assert "larger than" in answer["FailedAndUnresolvableNodes"]["big"]
