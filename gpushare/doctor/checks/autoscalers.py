"""Checks of the extender's options for autoscalers: rights, and leftovers of disabled options.

The extender's metrics tell the enabled options. Pure.

Tested in `tests/unit/doctor/test_autoscalers.py`, and with the others in
`tests/unit/doctor/test_checks.py`.
"""

import re
from collections.abc import Iterator, Sequence

from gpushare.doctor.facts import ExtenderAnswers, Facts, PlaceholderNamespace, Right, Unread
from gpushare.doctor.finding import Check, Finding, some
from gpushare.wire.metrics import family, total

_NAME = Check("autoscalers")
_PLACE = Check("placeholders")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def placeholders_namespace(answers: ExtenderAnswers | Unread | None) -> str:
    """Return the namespace of the extender's placeholders; "" if there are none or none is told."""
    samples = answers.samples if isinstance(answers, ExtenderAnswers) else {}
    counts = family(samples, "gpushare_placeholders")
    namespace = next((labels.get("namespace", "") for labels, _ in counts), "")
    return namespace if _LABEL.fullmatch(namespace) else ""


def placeholder_rights(namespace: str) -> Sequence[Right]:
    """Return the rights that the extender needs in the namespace of placeholders."""
    return (
        *(Right(verb, "pods", "", namespace) for verb in ("create", "delete")),
        Right("patch", "pods/status", "", namespace),
    )


def check_autoscalers(facts: Facts) -> Iterator[Finding]:
    """Yield findings; nothing about an extender that was not asked or does not lead."""
    answers = facts.leader
    if answers is None:
        return
    problems = list(_problems(answers, facts))
    yield from problems or [_NAME.ok("nothing is left of an option that is off")]
    if facts.asks is not None:
        problems = list(_namespace_problems(facts.asks, facts))
        place = f"the namespace {facts.asks.namespace}"
        yield from problems or [_PLACE.ok(f"{place} is there, for placeholders alone")]


def _problems(answers: ExtenderAnswers, facts: Facts) -> Iterator[Finding]:
    kept_nodes = [node.name for node in facts.known_nodes if node.is_kept]
    if total(answers.samples, "gpushare_scale_down_kept_nodes") is None:
        if kept_nodes:
            yield _NAME.warn(
                f"--scale-down-guard is off, and still kept from scale-down: {some(kept_nodes)}",
                "if that lasts, let the extender's account patch nodes, so that it takes its"
                " annotations away",
            )
    elif facts.lacked([Right("patch", "nodes")]):
        yield _NAME.fail(
            "--scale-down-guard is on, and the extender's account may not patch nodes",
            "grant the right, or leave out --scale-down-guard",
        )
    failed = total(answers.samples, "gpushare_placeholders_failed_writes_total") or 0.0
    if failed:
        yield _NAME.warn(
            f"writes of placeholders that have failed since the extender started: {failed:.0f}",
            "look for events GPUShareNodeNotAsked and into its log: the namespace, the right to"
            " create pods in it, or room in its quota is missing",
        )
    pods = facts.known_pods.placeholders
    if pods and total(answers.samples, "gpushare_placeholders") is None:
        yield _NAME.warn(
            f"--placeholders is off, and there are still some: {some(pods)}",
            "if that lasts, let the extender's account delete pods in their namespace, or delete"
            " that",
        )


def _namespace_problems(asks: PlaceholderNamespace, facts: Facts) -> Iterator[Finding]:
    place = f"the namespace {asks.namespace} of --placeholders"
    if isinstance(asks.phase, Unread):
        yield asks.phase.finding(_PLACE)
    elif asks.phase == "":
        yield _PLACE.fail(
            f"{place} is not there: no autoscaler is asked for a node",
            f"kubectl create namespace {asks.namespace}",
        )
        return
    elif asks.phase != "Active":
        yield _PLACE.fail(
            f"{place} is {asks.phase}: no placeholder can be created in it",
            "have its deletion end, and create it again; or name another one",
        )
    if lacking := facts.lacked(placeholder_rights(asks.namespace)):
        yield _PLACE.fail(
            f"the extender's account may not {some(map(str, lacking))}",
            "let it create and delete pods there, and patch pods/status",
        )
    pods = facts.known_pods
    if pods.gated:
        yield _PLACE.fail(
            f"with a scheduling gate, so that no autoscaler counts them: {some(pods.gated)}",
            f"have Kueue, or who else sets gates, leave the namespace {asks.namespace} out",
        )
    if pods.neighbours:
        yield _PLACE.warn(
            f"{place} holds other pods, too: {some(pods.neighbours)}. Its quotas and policies are"
            " theirs and those of placeholders",
            "give placeholders a namespace of their own",
        )
