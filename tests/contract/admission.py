"""Evaluates ValidatingAdmissionPolicies as kube-apiserver does, with an interpreter of CEL.

Knows the order of evaluation alone: rules, conditions, variables, validations. An expression that
cannot be evaluated raises, where kube-apiserver would go by failurePolicy.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.contract.manifests import rendered

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A request: verb, resource and user. new, old: the object after and before."""

    operation: str
    new: Json | None
    old: Json | None = None
    resource: str = "pods"
    user: str = "tenant"
    groups: tuple[str, ...] = ("system:authenticated",)
    extra: Mapping[str, list[str]] = field(default_factory=dict)

    def facts(self) -> Json:
        """The variables of expressions."""
        info: Json = {"username": self.user, "groups": list(self.groups)}
        info |= {"extra": dict(self.extra)} if self.extra else {}
        request = {"userInfo": info, "resource": {"resource": self.resource.partition("/")[0]}}
        return {"object": self.new, "oldObject": self.old, "request": request}


def policies(folder: str) -> list[Json]:
    """The specs of the folder's policies."""
    kind = "ValidatingAdmissionPolicy"
    return [dict(item["spec"]) for item in rendered(folder) if item["kind"] == kind]


def refusals(folder: str, call: Call) -> list[str]:
    """The messages of all policies of the folder that refuse the call."""
    return [text for spec in policies(folder) for text in _refusals(spec, call)]


def evaluate(expression: str, facts: Json) -> object:
    """The value of an expression in CEL."""
    import cel  # a second, which no other test needs

    return cel.evaluate(expression, facts)


def _refusals(spec: Json, call: Call) -> Iterable[str]:
    if not any(_matches(rule, call) for rule in spec["matchConstraints"]["resourceRules"]):
        return
    facts = call.facts()
    values = [_true(item["expression"], facts) for item in spec["matchConditions"]]
    if not all(values):
        return
    variables: Json = {}
    facts["variables"] = variables
    for variable in spec.get("variables", ()):
        variables[variable["name"]] = evaluate(variable["expression"], facts)
    for validation in spec["validations"]:
        if not _true(validation["expression"], facts):
            text = validation.get("messageExpression")
            yield str(evaluate(text, facts)) if text else validation["message"]


def _matches(rule: Json, call: Call) -> bool:
    fits = (fnmatch.fnmatch(call.resource, resource) for resource in rule["resources"])
    return call.operation in rule["operations"] and any(fits)


def _true(expression: str, facts: Json) -> bool:
    result = evaluate(expression, facts)
    assert type(result) is bool, (expression, result)
    return result
