"""Checks of Kueue's admission checks that the extender has to answer.

Pure.
"""

from collections.abc import Iterator

from gpushare.doctor.facts import Facts, ListedKueue, Right, Unread
from gpushare.doctor.finding import Check, Finding, some
from gpushare.wire.kueue import API, GROUP
from gpushare.wire.metrics import total

_NAME = Check("kueue")

KUEUE_RIGHTS = (
    *(
        Right(verb, of, GROUP)
        for of in ("workloads", "admissionchecks", "resourceflavors")
        for verb in ("list", "watch")
    ),
    *(Right("patch", f"{of}/status", GROUP) for of in ("workloads", "admissionchecks")),
)
"""Rights that the extender needs with --kueue."""


def check_kueue(facts: Facts) -> Iterator[Finding]:
    """Yield findings; none in a cluster without an AdmissionCheck of the extender."""
    if isinstance(facts.kueue, Unread):
        yield facts.kueue.finding(_NAME)
    elif facts.kueue.checks:
        problems = list(_problems(facts, facts.kueue))
        names = some(facts.kueue.checks)
        yield from problems or [_NAME.ok(f"AdmissionChecks for the extender: {names}")]


def _problems(facts: Facts, kueue: ListedKueue) -> Iterator[Finding]:
    causes = [*_causes(facts, kueue)]
    yield from causes
    if kueue.inactive and not causes:
        yield _NAME.fail(
            f"Kueue admits no job by a check that is not Active: {some(kueue.inactive)}",
            "look at the AdmissionCheck's conditions and at the extender's log",
        )
    if kueue.by_host:
        yield _NAME.warn(
            "the lowest level of their Topology is kubernetes.io/hostname, so Kueue chooses nodes"
            f" by sums, and the same again at each try: {some(kueue.by_host)}",
            "let the lowest level be above the node, such as a rack: docs/kueue.md, Topologies",
        )


def _causes(facts: Facts, kueue: ListedKueue) -> Iterator[Finding]:
    """Yield why the extender does not answer the checks."""
    if kueue.is_too_old:
        yield _NAME.fail(
            f"Kueue does not serve {API.removeprefix('/apis/')}: no job is admitted by"
            f" {some(kueue.checks)}",
            "update Kueue to 0.16 or later, or take the check out of the ClusterQueues",
        )
    answers = facts.leader
    if answers and total(answers.samples, "gpushare_kueue_ready_total") is None:
        yield _NAME.fail(
            f"the extender runs without --kueue: no job is admitted by {some(kueue.checks)}",
            "run it with --kueue, or take the check out of the ClusterQueues",
        )
    if lacking := facts.lacked(KUEUE_RIGHTS):
        yield _NAME.fail(
            f"the extender's account may not {some(map(str, lacking))}",
            "apply config/extender/kueue",
        )
