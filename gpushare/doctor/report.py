"""The report: all checks in order, as lines for people and as one JSON document.

Pure. The document is `gpushare.io/v1`, kind DoctorReport; keys may be added, none changes.

Tested in `tests/unit/doctor/test_parts.py`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gpushare.doctor.checks.address import check_address
from gpushare.doctor.checks.autoscalers import check_autoscalers
from gpushare.doctor.checks.claims import check_claims
from gpushare.doctor.checks.compute import check_compute
from gpushare.doctor.checks.extender import check_extender
from gpushare.doctor.checks.nodes import check_nodes, check_unhealthy_configmaps
from gpushare.doctor.checks.other_binders import check_other_binders
from gpushare.doctor.checks.pods import check_pending, check_pods
from gpushare.doctor.checks.rights import check_rights
from gpushare.doctor.checks.scheduler_file import check_scheduler_file, check_versions
from gpushare.doctor.checks.server import check_server
from gpushare.doctor.facts import Facts
from gpushare.doctor.finding import LEVELS, Finding, Level

Check = Callable[[Facts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    check_server,
    check_scheduler_file,
    check_versions,
    check_address,
    check_extender,
    check_rights,
    check_autoscalers,
    check_nodes,
    check_compute,
    check_unhealthy_configmaps,
    check_pods,
    check_pending,
    check_other_binders,
    check_claims,
)
"""In the order in which one would look for a fault: from the border inwards."""

_COLOURS: dict[Level, str] = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}


def run_checks(facts: Facts) -> list[Finding]:
    """Return the findings of all checks."""
    return [finding for check in CHECKS for finding in check(facts)]


def failed(findings: Iterable[Finding]) -> bool:
    """Return whether something is wired wrongly."""
    return any(finding.level == "fail" for finding in findings)


def as_text(findings: Sequence[Finding], *, colours: bool) -> str:
    """Return a line for each finding, and one that counts them."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = [_line(finding, width, colours=colours) for finding in findings]
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(f"{counts[level]} {level}" for level in LEVELS)
    return "\n".join([*lines, summary, ""])


def _line(finding: Finding, width: int, *, colours: bool) -> str:
    mark = f"{finding.level:<4}"
    if colours:
        mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m"
    todo = f" -> {finding.todo}" if finding.todo else ""
    line = f"{mark}  {finding.check:<{width}}  {finding.what}{todo}"
    # Texts of the cluster are in it: nothing of them may move a terminal's cursor.
    body = line.removeprefix(mark)
    return mark + "".join(char if char.isprintable() else "?" for char in body)


def as_json(findings: Sequence[Finding]) -> str:
    """Return the document."""
    counts = Counter(finding.level for finding in findings)
    document = {
        "apiVersion": "gpushare.io/v1",
        "kind": "DoctorReport",
        "result": "fail" if failed(findings) else "ok",
        "counts": {level: counts[level] for level in LEVELS},
        "findings": [
            {"check": f.check, "level": f.level, "what": f.what, "todo": f.todo} for f in findings
        ],
    }
    return json.dumps(document, indent=2) + "\n"
