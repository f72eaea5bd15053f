"""The report: all checks in order, as lines for people and as one document.

Pure. The document is `gpushare.io/v1`, kind DoctorReport; keys may be added, none changes.

Tested in `tests/unit/doctor/test_parts.py`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gpushare.doctor.checks import (
    autoscalers,
    claims,
    extender,
    kueue,
    nodes,
    other_binders,
    pods,
    scheduler_file,
    server,
)
from gpushare.doctor.facts import Facts
from gpushare.doctor.finding import LEVELS, Finding, Level
from gpushare.wire.printable import folded
from gpushare.yamlfile import yaml_of

Check = Callable[[Facts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    server.check_server,
    scheduler_file.check_scheduler_file,
    scheduler_file.check_versions,
    extender.check_address,
    extender.check_extender,
    server.check_rights,
    autoscalers.check_autoscalers,
    kueue.check_kueue,
    nodes.check_nodes,
    nodes.check_compute,
    nodes.check_unhealthy_configmaps,
    pods.check_pods,
    pods.check_pending,
    other_binders.check_other_binders,
    claims.check_claims,
)
"""From the border of the cluster inwards, the order of a search for a fault."""

_COLOURS: dict[Level, str] = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}


def run_checks(facts: Facts) -> list[Finding]:
    """Return the findings of all checks."""
    return [finding for check in CHECKS for finding in check(facts)]


def failed(findings: Iterable[Finding]) -> bool:
    """Return whether something is wired wrongly."""
    return any(finding.level == "fail" for finding in findings)


def as_text(findings: Sequence[Finding], *, colours: bool, columns: int = 0) -> str:
    """Return a line for each finding, and a line with their numbers by level.

    columns: where long lines are broken, 0 for nowhere.
    """
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = f"{finding.level:<4}"
        if colours:
            mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m"
        todo = f" -> {finding.todo}" if finding.todo else ""
        body = f"{finding.level:<4}  {finding.check:<{width}}  {finding.message}{todo}"
        # Texts of the cluster may have control characters for a terminal.
        body = "".join(char if char.isprintable() else "?" for char in body)
        lines.append(mark + folded(body, columns, width + 8)[4:])
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(f"{counts[level]} {level}" for level in LEVELS)
    return "\n".join([*lines, summary, ""])


def as_document(findings: Sequence[Finding], form: str = "json") -> str:
    """Return the document as json or yaml."""
    counts = Counter(finding.level for finding in findings)
    document = {
        "apiVersion": "gpushare.io/v1",
        "kind": "DoctorReport",
        "result": "fail" if failed(findings) else "ok",
        "counts": {level: counts[level] for level in LEVELS},
        "findings": [
            {"check": f.check, "level": f.level, "what": f.message, "todo": f.todo}
            for f in findings
        ],
    }
    if form == "yaml":
        return yaml_of(document)
    return json.dumps(document, indent=2) + "\n"
