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
    whole = {_name(policy) for policy in named if _fences(policy.spec or PolicySpec())}
    if not whole:
        return f"the admission policy {_name(named[0])} does not refuse every allocation of others"
    if not any(_binds(binding.spec or BindingSpec(), whole) for binding in bindings):
        return f"no binding makes the admission policy {min(whole)} refuse (Deny)"
    return ""


def _name(policy: FencePolicy) -> str:
    return (policy.metadata and policy.metadata.name) or ""


def _names(spec: PolicySpec, driver: str) -> bool:
    expressions = [validation.expression or "" for validation in spec.validations or ()]
    return any(f"{quote}{driver}{quote}" in text for text in expressions for quote in "'\"")


def _fences(spec: PolicySpec) -> bool:
    matched = spec.match_constraints
    # Fail is what the API server takes where nothing is said.
    return (
        spec.failure_policy in (None, "Fail")
        and matched is not None
        and not _narrowed(matched)
        and any(_meets(rule) for rule in matched.resource_rules or ())
    )


def _binds(spec: BindingSpec, policies: set[str]) -> bool:
    matched = spec.match_resources or Matched()
    rules = matched.resource_rules
    return (
        (spec.policy_name or "") in policies
        and "Deny" in (spec.validation_actions or ())
        and not _narrowed(matched)
        and (not rules or any(_meets(rule) for rule in rules))
    )


def _narrowed(matched: Matched) -> bool:
    return bool(
        matched.exclude_resource_rules or matched.namespace_selector or matched.object_selector
    )


def _meets(rule: Rule) -> bool:
    """Return whether the rule meets every write of an allocation."""
    return (
        bool({"resource.k8s.io", "*"} & set(rule.api_groups or ()))
        and bool({"resourceclaims/status", "*/*", "*/status"} & set(rule.resources or ()))
        and bool({"UPDATE", "*"} & set(rule.operations or ()))
        and not rule.resource_names
    )
