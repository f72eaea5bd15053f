"""Whether a policy and its binding fence: the files as shipped, and each way to switch them off."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpushare.wire.dra.fence import BINDINGS, POLICIES, unfenced
from tests.unit.wire.dra.objects import Json

DRIVER = "gpu.nvidia.com"
FILE = Path(__file__).parents[4] / "config/extender/claims/fence.yaml"
POLICY, BINDING = yaml.safe_load_all(FILE.read_text())
# As the API server fills in what is not said.
POLICY["spec"]["matchConstraints"] |= {
    "namespaceSelector": {},
    "objectSelector": {},
    "matchPolicy": "Equivalent",
}


def why(policy: Json | None, binding: Json | None, driver: str = DRIVER) -> str:
    policies = [POLICIES.decode(json.dumps(each).encode()) for each in (policy,) if each]
    bindings = [BINDINGS.decode(json.dumps(each).encode()) for each in (binding,) if each]
    return unfenced(policies, bindings, driver)


def test_the_fence_that_is_shipped_fences() -> None:
    assert why(POLICY, BINDING) == ""


def test_what_is_gone_or_for_another_driver_does_not_fence() -> None:
    assert "no admission policy" in why(None, BINDING)
    assert "no admission policy" in why(POLICY, BINDING, "gpu.example.com")
    assert "no binding" in why(POLICY, None)


RULE = POLICY["spec"]["matchConstraints"]["resourceRules"][0]
CHANGES: dict[str, Callable[[Json, Json], object]] = {
    "ignores failures": lambda p, _: p.update(failurePolicy="Ignore"),
    "matches nothing": lambda p, _: p.update(matchConstraints=None),
    "some namespaces": lambda p, _: p["matchConstraints"].update(
        namespaceSelector={"matchLabels": {"a": "b"}}
    ),
    "some objects": lambda p, _: p["matchConstraints"].update(
        objectSelector={"matchLabels": {"a": "b"}}
    ),
    "leaves out": lambda p, _: p["matchConstraints"].update(excludeResourceRules=[RULE]),
    "other resource": lambda p, _: p["matchConstraints"].update(
        resourceRules=[RULE | {"resources": ["resourceclaims"]}]
    ),
    "other operation": lambda p, _: p["matchConstraints"].update(
        resourceRules=[RULE | {"operations": ["CREATE"]}]
    ),
    "some names": lambda p, _: p["matchConstraints"].update(
        resourceRules=[RULE | {"resourceNames": ["a"]}]
    ),
    "validates nothing": lambda p, _: p.update(validations=[]),
    "warns": lambda _, b: b.update(validationActions=["Warn", "Audit"]),
    "other policy": lambda _, b: b.update(policyName="other"),
    "binds some namespaces": lambda _, b: b.update(
        matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}}
    ),
    "binds another resource": lambda _, b: b.update(
        matchResources={"resourceRules": [RULE | {"resources": ["pods"]}]}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_was_changed_so_that_others_get_through_does_not_fence(
    change: Callable[[Json, Json], object],
) -> None:
    policy, binding = copy.deepcopy(POLICY), copy.deepcopy(BINDING)
    change(policy["spec"], binding["spec"])
    assert why(policy, binding)
