"""Checks of kube-scheduler's file: it must call this extender for every GPU pod, in a version that
the running kube-schedulers read.

Pure. The codec has already refused fields that kube-scheduler would refuse. The releases of
kube-scheduler are the image tags of its pods in kube-system; static pods count on nodes of the
control plane alone. If there are none, the release of the API server counts.

Tested in `tests/unit/doctor/test_checks.py`.
"""

import re
from collections.abc import Iterator

from gpushare.doctor.facts import ApiServer, Facts, ListedNode, SchedulerFile, Unread
from gpushare.doctor.finding import Check, Finding
from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import (
    GROUP,
    OUTWEIGHED,
    ExtenderConfig,
    SchedulerConfig,
    decode_scheduler_config,
)
from gpushare.wire.scheduler.entry import our_entry
from gpushare.wire.scheduler.schema import RELEASES

BIND_BUDGET = 4.0
"""Seconds that one bind may take the extender."""

_SHORTEST = 10.0
"""Seconds of httpTimeout that leave a group of some pods the time to come to bind."""

_SAMPLED_ABOVE = 100
"""The most nodes that kube-scheduler always scores completely, at any percentage."""

_FORMS = {"v1": (0, 22)} | {f"{GROUP}/{version}": window for version, window in RELEASES.items()}
"""apiVersion -> first and last minor release of kube-scheduler with support (v1 alone is the legacy
Policy, removed by kubernetes #105424)."""


def entry_of(facts: Facts) -> ExtenderConfig | None:
    """Return our entry; None without a file or an entry."""
    if not isinstance(facts.scheduler, SchedulerFile):
        return None
    try:
        return our_entry(facts.scheduler.config, facts.listen)
    except SettingsError:
        return None


def check_scheduler_file(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the file and our entry."""
    file = facts.scheduler
    if file is None:
        yield Check("scheduler-file").skip(
            "not given, so what kube-scheduler is told was not looked at",
            "give --scheduler-config FILE, the file of its flag --config (or --policy-config-file)",
        )
        return
    if isinstance(file, Unread):
        yield file.finding("scheduler-file")
        return
    # Other checks report these keys.
    keys_of_other_checks = (
        ".ignorable:",
        ".nodeCacheCapable:",
        ".tlsConfig:",
        ".managedResources:",
        ".urlPrefix:",
    )
    warnings = [
        text
        for text in file.config.warnings
        if not any(key in text for key in keys_of_other_checks)
    ]
    if warnings:
        problem = f"{file.path}: {'; '.join(warnings)}"
        yield Check("scheduler-file").warn(problem, "correct the file")
    else:
        yield Check("scheduler-file").ok(f"{file.path} is valid ({file.config.api_version})")
    try:
        entry = our_entry(file.config, facts.listen)
    except SettingsError as error:
        yield Check("extender-entry").fail(str(error), "see `gpushare scheduler-config --help`")
        return
    yield _entry(entry)
    yield _managed(entry, facts.names.resource)
    yield from _settings(entry)
    yield _sample(file.config, facts.known_nodes)


def _entry(entry: ExtenderConfig) -> Finding:
    name = Check("extender-entry")
    if not entry.filter_verb:
        return name.fail(
            "has no filterVerb, so nodes without room on one device are not ruled out",
            "add filterVerb: filter",
        )
    if not entry.bind_verb:
        return name.fail(
            "has no bindVerb, so pods are bound without devices",
            "add bindVerb: bind (of all extenders one alone may have it)",
        )
    missed = {
        "prioritizeVerb": "the fullest node that fits is not preferred",
        "preemptVerb": "pods may be evicted whose going frees no device",
    }
    if entry.prioritize_verb:
        del missed["prioritizeVerb"]
    if entry.preempt_verb:
        del missed["preemptVerb"]
    if missed:
        todo = " and ".join(f"{verb}: {verb.removesuffix('Verb')}" for verb in missed)
        return name.warn(
            "; ".join(f"has no {verb}, so {effect}" for verb, effect in missed.items()),
            f"add {todo}" + (" and a weight" if "prioritizeVerb" in missed else ""),
        )
    verbs = (entry.filter_verb, entry.prioritize_verb, entry.bind_verb, entry.preempt_verb)
    return name.ok(f"{entry.url_prefix} is asked to {', '.join(verbs)}")


def _managed(entry: ExtenderConfig, resource: str) -> Finding:
    name = Check("managed-resources")
    resources = {item.name: item.ignored_by_scheduler for item in entry.managed_resources}
    if not resources:
        return name.warn(
            "empty, so every pod of the cluster waits for the extender, the extender's own too",
            f"name {resource} in managedResources",
        )
    if resource not in resources:
        return name.fail(
            f"{resource} is not among {', '.join(resources)}, so its pods never come to the"
            " extender",
            f"add name: {resource} to managedResources, or give --resource the one that is meant",
        )
    if resources[resource]:
        return name.warn(
            f"{resource} has ignoredByScheduler: true, so kube-scheduler does not count it; the"
            " extender alone does, and up to 1.31 a new node wakes no pod that waits for it",
            "say ignoredByScheduler: false unless the nodes do not advertise it",
        )
    return name.ok(f"{', '.join(resources)} come to the extender and are counted by kube-scheduler")


def _settings(entry: ExtenderConfig) -> Iterator[Finding]:
    """Yield findings about the weight, the timeout, and what travels or may be left out."""
    if not entry.prioritize_verb:
        yield Check("weight").skip("of no effect without a prioritizeVerb")
    elif entry.order_decides:
        yield Check("weight").ok(f"{entry.weight}: our order of the nodes decides")
    else:
        voice = f"our order is one voice among others (from {OUTWEIGHED + 1} on it decides)"
        yield Check("weight").ok(f"{entry.weight}: {voice}")
    seconds = f"{entry.http_timeout:g} s"
    if entry.http_timeout <= BIND_BUDGET:
        yield Check("http-timeout").fail(
            f"{seconds} is not more than the {BIND_BUDGET:g} s a bind may take, so kube-scheduler"
            " gives up binds that succeed",
            "set httpTimeout to 30 s",
        )
    elif entry.http_timeout < _SHORTEST:
        yield Check("http-timeout").warn(
            f"{seconds} leaves a bind {entry.http_timeout - BIND_BUDGET:g} s to wait for the other"
            " pods of its group, so groups may be refused again and again",
            "set httpTimeout to 30 s",
        )
    else:
        yield Check("http-timeout").ok(f"{seconds} for a bind of {BIND_BUDGET:g} s at most")
    if entry.node_cache_capable:
        yield Check("node-cache").ok("nodeCacheCapable: only the names of nodes travel")
    else:
        yield Check("node-cache").warn(
            "nodeCacheCapable is false: whole nodes travel with every call, megabytes in a large"
            " cluster",
            "say nodeCacheCapable: true; the extender follows the nodes itself",
        )
    if entry.ignorable:
        yield Check("ignorable").fail(
            "true: while the extender does not answer, GPU pods are bound without devices",
            "say ignorable: false",
        )
    else:
        yield Check("ignorable").ok("false: without the extender GPU pods wait")


def _sample(config: SchedulerConfig, nodes: tuple[ListedNode, ...]) -> Finding:
    name = Check("node-sample")
    if config.api_version == "v1":
        return name.skip("a Policy does not say it (--percentage-of-nodes-to-score does)")
    percentage = config.percentage_of_nodes_to_score
    setting = f"percentageOfNodesToScore is {percentage or 'not set'}"
    if percentage == 100:
        return name.ok("percentageOfNodesToScore is 100: all nodes are looked at")
    if len(nodes) > _SAMPLED_ABOVE:
        return name.warn(
            f"{setting} with {len(nodes)} nodes: the extender is shown a sample, and where that"
            " has no room the pod waits although another node has some",
            "set percentageOfNodesToScore: 100, in profiles too where they have one of their own",
        )
    return name.ok(f"{setting}: of up to {_SAMPLED_ABOVE} nodes all are looked at")


def minor_of(version: str) -> int:
    """Return the minor release in "v1.27.3" and the like; 0 if there is none."""
    match = re.match(r"v?1\.([0-9]{1,3})(?![0-9])", version, re.ASCII)
    return int(match[1]) if match else 0


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Yield findings about whether the running schedulers can read the file."""
    name = Check("scheduler-version")
    if not isinstance(facts.scheduler, SchedulerFile):
        return
    minors = _minors(facts)
    if not minors:
        yield name.skip("which release kube-scheduler has is not known")
        return
    form = facts.scheduler.config.api_version
    oldest, newest = _FORMS.get(form, (0, 999))
    form_text = "a Policy" if form == "v1" else form
    refusing = [minor for minor in minors if not oldest <= minor <= newest]
    running = ", ".join(f"1.{minor}" for minor in minors)
    todo = f"take the file of `gpushare scheduler-config --kubernetes 1.{(refusing or minors)[0]}`"
    if len(refusing) == len(minors):
        yield name.fail(
            f"{form_text} is read by {_window(oldest, newest)}, and {running} runs here", todo
        )
    elif refusing:
        yield name.warn(
            f"of the kube-schedulers {running} those of 1.{refusing[0]} do not read {form_text}",
            todo,
        )
    else:
        for minor in minors:
            try:
                decode_scheduler_config(facts.scheduler.document, minor)
            except SettingsError as error:
                yield name.fail(f"kube-scheduler 1.{minor} does not start: {error}", todo)
                return
        yield name.ok(f"{form_text} is read by kube-scheduler {running}")


def _minors(facts: Facts) -> list[int]:
    # Any node may make a static pod, in any namespace.
    nodes = {node.name for node in facts.known_nodes if node.control_plane}
    tags = {*facts.known_pods.schedulers}
    tags |= {tag for tag, node in facts.known_pods.static if node in nodes}
    minors = {minor_of(tag) for tag in tags} - {0}
    if not minors and isinstance(facts.api, ApiServer):
        minors = {facts.api.minor} - {0}
    return sorted(minors)


def _window(oldest: int, newest: int) -> str:
    if newest == 999:
        return f"kube-scheduler from 1.{oldest} on"
    if oldest in (0, newest):
        return f"kube-scheduler up to 1.{newest}" if not oldest else f"kube-scheduler 1.{newest}"
    return f"kube-scheduler 1.{oldest} to 1.{newest}"
