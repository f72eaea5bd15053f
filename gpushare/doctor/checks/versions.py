"""Checks that the running kube-schedulers can read the form of the file.

Pure. The releases come from the images of the schedulers that run as pods in kube-system, static
ones on nodes of the control plane alone. On a cluster that shows none, kube-scheduler is taken to
be as old as the API server.

Tested in `tests/unit/doctor/test_checks.py`.
"""

import re
from collections.abc import Iterator

from gpushare.doctor.facts import ApiServer, Facts, PodsSeen, SchedulerFile, Unread
from gpushare.doctor.finding import Finding, fail, ok, skip, warn
from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import GROUP, decode_scheduler_config
from gpushare.wire.scheduler.schema import RELEASES

_FORMS = {"v1": (0, 22)} | {f"{GROUP}/{version}": window for version, window in RELEASES.items()}
"""apiVersion -> the first and the last minor release of kube-scheduler that reads it (v1 alone is
the legacy Policy, removed by kubernetes #105424)."""


def minor_of(version: str) -> int:
    """Return the minor release in "v1.27.3" and the like; 0 if there is none."""
    match = re.match(r"v?1\.([0-9]{1,3})(?![0-9])", version, re.ASCII)
    return int(match[1]) if match else 0


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Yield findings about whether the running schedulers can read the file."""
    name = "scheduler-version"
    if not isinstance(facts.scheduler, SchedulerFile):
        return
    minors = _minors(facts)
    if not minors:
        yield skip(name, "which release kube-scheduler has is not known")
        return
    form = facts.scheduler.config.api_version
    oldest, newest = _FORMS.get(form, (0, 999))
    form_text = "a Policy" if form == "v1" else form
    refusing = [minor for minor in minors if not oldest <= minor <= newest]
    running = ", ".join(f"1.{minor}" for minor in minors)
    todo = f"take the file of `gpushare scheduler-config --kubernetes 1.{(refusing or minors)[0]}`"
    if len(refusing) == len(minors):
        yield fail(
            name, f"{form_text} is read by {_window(oldest, newest)}, and {running} runs here", todo
        )
    elif refusing:
        yield warn(
            name,
            f"of the kube-schedulers {running} those of 1.{refusing[0]} do not read {form_text}",
            todo,
        )
    else:
        for minor in minors:
            try:
                decode_scheduler_config(facts.scheduler.document, minor)
            except SettingsError as error:
                yield fail(name, f"kube-scheduler 1.{minor} does not start: {error}", todo)
                return
        yield ok(name, f"{form_text} is read by kube-scheduler {running}")


def _minors(facts: Facts) -> list[int]:
    found = set()
    if isinstance(facts.pods, PodsSeen):
        tags = {*facts.pods.schedulers}
        if not isinstance(facts.nodes, Unread):
            # Any node may make a static pod, in any namespace.
            nodes = {node.name for node in facts.nodes if node.control_plane}
            tags |= {tag for tag, node in facts.pods.static if node in nodes}
        found = {minor_of(tag) for tag in tags} - {0}
    if not found and isinstance(facts.api, ApiServer):
        found = {facts.api.minor} - {0}
    return sorted(found)


def _window(oldest: int, newest: int) -> str:
    if newest == 999:
        return f"kube-scheduler from 1.{oldest} on"
    if oldest in (0, newest):
        return f"kube-scheduler up to 1.{newest}" if not oldest else f"kube-scheduler 1.{newest}"
    return f"kube-scheduler 1.{oldest} to 1.{newest}"
