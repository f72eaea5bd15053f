"""The fence: an admission policy that keeps everybody else from giving out the driver's devices.

Tells whether a policy and a binding (admissionregistration.k8s.io/v1) fence, from what switches
them off or narrows them. What their expressions say is the operator's; that they name the driver is
looked at.

Tested in `tests/unit/wire/dra`.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from gpushare.wire.codec import Codec
from gpushare.wire.objects import Metadata


class Rule(Struct, gc=False, rename="camel"):
    """NamedRuleWithOperations."""

    api_groups: list[str] | None = None
    resources: list[str] | None = None
    operations: list[str] | None = None
    resource_names: list[str] | None = None


class Matched(Struct, gc=False, rename="camel"):
    """MatchResources."""

    resource_rules: list[Rule] | None = None
    exclude_resource_rules: list[Any] | None = None
    namespace_selector: dict[str, Any] | None = None
    object_selector: dict[str, Any] | None = None


class Validation(Struct, gc=False):
    """Validation."""

    expression: str | None = None


class PolicySpec(Struct, gc=False, rename="camel"):
    """ValidatingAdmissionPolicySpec."""

    failure_policy: str | None = None
    match_constraints: Matched | None = None
    validations: list[Validation] | None = None


class FencePolicy(Struct, gc=False):
    """ValidatingAdmissionPolicy."""

    metadata: Metadata | None = None
    spec: PolicySpec | None = None


class BindingSpec(Struct, gc=False, rename="camel"):
    """ValidatingAdmissionPolicyBindingSpec."""

    policy_name: str | None = None
    validation_actions: list[str] | None = None
    match_resources: Matched | None = None


class FenceBinding(Struct, gc=False):
    """ValidatingAdmissionPolicyBinding."""

    spec: BindingSpec | None = None


POLICIES: Codec[FencePolicy] = Codec(FencePolicy, "ValidatingAdmissionPolicy")
BINDINGS: Codec[FenceBinding] = Codec(FenceBinding, "ValidatingAdmissionPolicyBinding")


def unfenced(policies: Iterable[FencePolicy], bindings: Iterable[FenceBinding], driver: str) -> str:
    """Return why nothing fences the devices of the driver; "" if a policy with a binding does."""
    named = [policy for policy in policies if _names(policy.spec or PolicySpec(), driver)]
    if not named:
        return f"there is no admission policy for allocations of {driver}"
    # Fail is what the API server takes where nothing is said.
    whole = {
        _name(policy)
        for policy in named
        if policy.spec
        and policy.spec.failure_policy in (None, "Fail")
        and policy.spec.match_constraints
        and _covers(policy.spec.match_constraints, of_all=False)
    }
    if not whole:
        return f"the admission policy {_name(named[0])} does not refuse every allocation of others"
    binding_specs = [binding.spec or BindingSpec() for binding in bindings]
    if not any(
        (spec.policy_name or "") in whole
        and "Deny" in (spec.validation_actions or ())
        and _covers(spec.match_resources or Matched(), of_all=True)
        for spec in binding_specs
    ):
        return f"no binding makes the admission policy {min(whole)} refuse (Deny)"
    return ""


def _name(policy: FencePolicy) -> str:
    return (policy.metadata and policy.metadata.name) or ""


def _names(spec: PolicySpec, driver: str) -> bool:
    expressions = [validation.expression or "" for validation in spec.validations or ()]
    return any(f"{quote}{driver}{quote}" in text for text in expressions for quote in "'\"")


def _covers(matched: Matched, *, of_all: bool) -> bool:
    """Return whether every write of an allocation is met. of_all: without rules all is met."""
    rules = matched.resource_rules or ()
    if matched.exclude_resource_rules or matched.namespace_selector or matched.object_selector:
        return False
    return (of_all and not rules) or any(
        bool({"resource.k8s.io", "*"} & set(rule.api_groups or ()))
        and bool({"resourceclaims/status", "*/*", "*/status"} & set(rule.resources or ()))
        and bool({"UPDATE", "*"} & set(rule.operations or ()))
        and not rule.resource_names
        for rule in rules
    )
