"""Checks of what the extender does for autoscalers: the right to it, and what was left behind.

Which of its options are on is read from its metrics. Pure.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator

from gpushare.doctor.facts import ExtenderSeen, Facts, PodsSeen, Right, Unread
from gpushare.doctor.finding import Finding, fail, ok, some, warn
from gpushare.wire.metrics import total

_NAME = "autoscalers"
_OK = 200


def check_autoscalers(facts: Facts) -> Iterator[Finding]:
    """Yield findings; nothing about an extender that was not asked or does not lead."""
    seen = facts.extender
    if not isinstance(seen, ExtenderSeen) or seen.ready != _OK:
        return
    problems = list(_problems(seen, facts))
    yield from problems or [ok(_NAME, "nothing is left of an option that is off")]


def _problems(seen: ExtenderSeen, facts: Facts) -> Iterator[Finding]:
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    kept = [node.name for node in nodes if node.kept]
    if total(seen.samples, "gpushare_scale_down_kept_nodes") is None:
        if kept:
            yield warn(
                _NAME,
                f"--scale-down-guard is off, and still kept from scale-down: {some(kept)}",
                "if that lasts, let the extender's account patch nodes, so that it takes its"
                " annotations away",
            )
    elif _lacks(facts, Right("patch", "nodes")):
        yield fail(
            _NAME,
            "--scale-down-guard is on, and the extender's account may not patch nodes",
            "grant the right, or leave out --scale-down-guard",
        )
    pods = facts.pods.placeholders if isinstance(facts.pods, PodsSeen) else ()
    if pods and total(seen.samples, "gpushare_placeholders") is None:
        yield warn(
            _NAME,
            f"--placeholders is off, and there are still some: {some(pods)}",
            "if that lasts, let the extender's account delete pods in their namespace, or delete"
            " that",
        )


def _lacks(facts: Facts, right: Right) -> bool:
    """Return whether the extender's account is known not to have it."""
    rights = facts.rights
    return facts.own_account and not isinstance(rights, Unread) and not rights.get(right)
