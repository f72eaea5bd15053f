"""The audit of the ledger once a minute: what it is compared with, and what is done about findings.

A list and the watch show different moments. So a difference between ledger and list counts only
when the next audit finds it again and the watch has meanwhile reached the version of the first
list. Before each list the ledger is copied, and before that the version of the watch is read: so
what was bound or gone in the first list must be in the copy. Differences within the ledger count at
once.

Only device memory is compared, since that is what is promised: not CPU and host memory, nor which
cards a pod names (users may edit annotations; the ledger keeps what it saw first, and an alarm
reports the edit). Which cards a node has, and in which order, is compared: by that the ledger finds
the devices that a charge counts on.

An audit heals only towards less free memory: a pod that is not charged gets charged, a node is
narrowed, sums grow. A charge without a pod stays, and is reported, until somebody ends this
process: an audit that frees memory would need as much trust as the ledger.

Tested in `tests/unit/extender/follow/test_auditor.py` and `tests/integration/test_audit.py`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Generic, TypeVar

from gpushare.core.model import NodeSpec, PodRef
from gpushare.core.states.entry import Entry, Phase
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiError, ApiNotFound, ApiUnavailable, ApiUnreachable, WireError
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.api import LIMIT, Api, pages
from gpushare.logline import Line
from gpushare.wire.codec import Codec, Decoded
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS, Metadata, Node, Pod
from gpushare.wire.pods import has_ended, observe_pod, units_of

log = logging.getLogger("gpushare.audit")

AUDIT_INTERVAL = 60.0
PAGE_PAUSE = 0.5
"""Seconds between the pages of a list: an audit is in no hurry, and the API server has others."""

_TIMEOUT = 10.0
_BOUND_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_STUCK = 120.0

MISSING = "not charged"
MISPLACED = "charged elsewhere, or less than it asks"
OVERCHARGED = "charged more than it asks"
LEAKED = "charged although it is gone"
SHAPE = "other devices than the node has"
ARRAYS = "sums that are not those of the entries"

_NAMELESS = Metadata()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference; equal ones are the same difference seen again."""

    resource: str
    what: str
    """One of the texts above."""
    node: str = ""
    """Where it is in the ledger, else on the API server."""
    pod: PodRef | None = None
    """The pod concerned, if it is not about a node."""
    detail: str = ""
    """What differs."""
    uid: str = ""
    """Of the node that was listed, if one was."""
    seen: NodeSpec | None = field(default=None, compare=False)
    """The node as it was listed."""
    known: NodeSpec | None = field(default=None, compare=False)
    """The node as the ledger had it, None if it did not."""

    def __str__(self) -> str:
        """Return the finding as the end of a sentence."""
        whom = f"pod {self.pod} on node {self.node}" if self.pod else f"node {self.node}"
        return f"{whom}: {self.what}" + (f" ({self.detail})" if self.detail else "")


ListedPod = tuple[str, int, str, str]
"""A bound pod as listed: its node, the units it asks for, its namespace and name.

A tuple of plain values costs the garbage collector nothing; there may be ten thousands.
"""


ListedNode = tuple[str, NodeSpec]
"""A node as listed: its uid, and what it offers."""


class UnconfirmedFindings:
    """Differences between ledger and list that may still be only a delay.

    A node that changes, or goes and comes, differs each time in the same way. So one that the
    ledger has counts as found again only if neither watch nor list has replaced it meanwhile:
    its spec is the very same object. One that the ledger does not have counts only if the list
    had the very same node, by its uid.
    """

    def __init__(self) -> None:
        self._unconfirmed: Mapping[Finding, Finding] = {}
        self._listed_at = ""
        self._confirmed: frozenset[Finding] = frozenset()

    def confirm(
        self, findings: Collection[Finding], watch_version: str, listed_at: str
    ) -> frozenset[Finding]:
        """Return the findings that count: found again after the watch had reached the first list.

        `watch_version`: where the watch stood when the ledger was copied for this comparison;
        `listed_at`: where this list stands.
        """
        again = frozenset(finding for finding in findings if self._was_found_before(finding))
        caught_up = _is_at(watch_version, self._listed_at)
        self._confirmed = again if caught_up else again & self._confirmed
        if caught_up or not again:
            self._unconfirmed = {finding: finding for finding in findings}
            self._listed_at = listed_at
        else:
            self._unconfirmed = {finding: finding for finding in again}
        return self._confirmed

    def _was_found_before(self, finding: Finding) -> bool:
        before = self._unconfirmed.get(finding)
        return before is not None and before.known is finding.known


@dataclass(slots=True)
class Listed(Generic[_T]):
    """What a list has: by name or uid, and the names or uids of what cannot be read."""

    read: dict[str, _T] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


def _is_at(watch_version: str, listed: str) -> bool:
    """Return whether the first resourceVersion is not before the second: of one API server they are
    numbers.
    """
    return watch_version.isdecimal() and listed.isdecimal() and int(watch_version) >= int(listed)


def add_nodes(
    page: Decoded[Node], managed: ManagedResource, unit: str, listed: Listed[ListedNode]
) -> None:
    """Add the nodes of a page."""
    listed.unread.update(bad.ref.name for bad in page.bad)
    for node in page.items:
        spec = node_spec(node, managed.names, unit)
        listed.read[spec.name] = ((node.metadata or _NAMELESS).uid or "", spec)


def add_pods(page: Decoded[Pod], managed: ManagedResource, listed: Listed[ListedPod]) -> None:
    """Add the bound pods of a page that ask for the resource."""
    listed.unread.update(bad.ref.uid for bad in page.bad)
    resource = managed.names.resource
    for pod in page.items:
        meta, node = pod.metadata or _NAMELESS, pod.spec.node_name if pod.spec else None
        try:
            units = units_of(pod, resource)
        except WireError:
            listed.unread.add(meta.uid or "")
            continue
        if units and node:
            holder = (node, units, meta.namespace or "", meta.name or "")
            listed.read[meta.uid or ""] = holder


def compare_pods(
    resource: str,
    entries: Mapping[str, Entry],
    listed: Mapping[str, ListedPod],
    unread: Collection[str],
) -> Iterator[Finding]:
    """Yield the differences between the charges and the bound pods that ask for devices, both by
    uid.

    unread: uids of pods that are listed but make no sense; whatever they hold is kept. An assumed
    charge that is not listed is a bind under way.
    """
    for uid, (node, units, namespace, name) in listed.items():
        entry = entries.get(uid)
        if entry is None:
            yield Finding(resource, MISSING, node, PodRef(namespace, name, uid))
            continue
        least, most = entry.charged
        if entry.node != node or least < units:
            detail = f"{least} units, on node {node} it asks for {units}"
            yield Finding(resource, MISPLACED, entry.node, entry.ref, detail)
        elif most > units:
            detail = f"{most} units, it asks for {units}"
            yield Finding(resource, OVERCHARGED, entry.node, entry.ref, detail)
    for uid in entries.keys() - listed.keys() - set(unread):
        entry = entries[uid]
        if entry.phase is Phase.BOUND:
            yield Finding(resource, LEAKED, entry.node, entry.ref)


def compare_nodes(
    resource: str,
    known: Mapping[str, NodeSpec],
    listed: Mapping[str, ListedNode],
    unread: Collection[str],
) -> Iterator[Finding]:
    """Yield the differences between the shapes of nodes, by name, in the ledger and as listed."""
    nothing = NodeSpec("")
    nobody = ("", nothing)
    for name in sorted((known.keys() | listed.keys()) - set(unread)):
        ours, (uid, theirs) = known.get(name, nothing), listed.get(name, nobody)
        if _devices(ours) != _devices(theirs):
            detail = f"books {_describe(ours)}, API server {_describe(theirs)}"
            seen = replace(theirs, name=name)
            yield Finding(resource, SHAPE, name, None, detail, uid, seen, known.get(name))


def narrowed(known: NodeSpec, seen: NodeSpec) -> NodeSpec:
    """Return the node as it was listed, but with nothing free that was not free in the ledger."""
    pairs = list(zip_longest(known.capacity, seen.capacity, fillvalue=0))
    healthy = zip_longest(known.healthy, seen.healthy, fillvalue=False)
    wider = max(known, seen, key=lambda spec: len(spec.capacity))
    # Cards are where they were seen last; an index that is gone has none.
    uuids = seen.uuids + ("",) * (len(pairs) - len(seen.uuids))
    return replace(
        wider,
        capacity=tuple(min(pair) for pair in pairs),
        healthy=tuple(all(pair) for pair in healthy),
        uuids=uuids,
        closed=known.closed or seen.closed,
        serves_by_identity=known.serves_by_identity and seen.serves_by_identity,
    )


def _devices(spec: NodeSpec) -> tuple[object, ...]:
    return (spec.capacity, spec.healthy, spec.closed, spec.uuids, spec.serves_by_identity)


def _describe(spec: NodeSpec) -> str:
    uuids = spec.uuids or ("",) * len(spec.capacity)
    units = ",".join(
        f"{units}{f' {uuid}' if uuid else ''}{'' if ok else ' (unhealthy)'}"
        for units, ok, uuid in zip(spec.capacity, spec.healthy, uuids, strict=False)
    )
    return (units or "none") + (f", closed: {spec.closed.value}" if spec.closed else "")


Report = Callable[[Finding, bool], None]
"""Called with each new finding, and whether it has been healed."""


class Auditor(LoopPart):
    """Audits the ledgers of all managed resources: `audit` once, a started auditor every minute.

    `unit`: the memory unit of the cluster. `not_ready`: why not to audit now (the ledger is being
    filled or out of date, another process leads), or "". `watch_version`: up to which
    resourceVersion the ledger holds a collection ("nodes", "pods"). `report`: called with each new
    finding.
    """

    def __init__(
        self,
        api: Api,
        resources: ManagedResources,
        unit: str,
        *,
        not_ready: Callable[[], str],
        watch_version: Callable[[str], str],
        report: Report,
        clock: Callable[[], float] = time.monotonic,
        every: float = AUDIT_INTERVAL,
        pause: float = PAGE_PAUSE,
        page: int = LIMIT,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self._api = api
        self._resources = resources
        self._unit = unit
        self._not_ready = not_ready
        self._watch_version = watch_version
        self._report = report
        self._clock = clock
        self._every = every
        self._pause = pause
        self._page = page
        self._nodes = UnconfirmedFindings()
        self._pods = UnconfirmedFindings()
        self._open: dict[str, frozenset[Finding]] = {}
        self._audits = self._findings = self._healed = 0
        self._last = clock()
        self.loop = Loop(
            "audit",
            self._audit_in_thread,
            every,
            log=log,
            failed="audit failed",
            clock=clock,
            event=event,
        )

    def start(self) -> None:
        """Start the thread."""
        # gunicorn's master made this object, perhaps long before it forked this worker.
        self._last = self._clock()
        super().start()

    def liveness(self) -> dict[str, str]:
        """Return whether the thread is long overdue."""
        is_stuck = self.loop.seconds_since_progress() > self._every + _STUCK
        return {"audit": "its thread is stuck" if is_stuck else ""}

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        return {
            "audits_total": self._audits,
            "audit_age_seconds": self._clock() - self._last,
            "audit_findings": sum(map(len, self._open.values())),
            "audit_findings_total": self._findings,
            "audit_healed_total": self._healed,
        }

    def _audit_in_thread(self) -> None:
        try:
            self.audit()
        except (ApiError, WireError) as error:
            log.warning(Line("audit not done", error=str(error)))

    def audit(self) -> None:
        """Look once. Raises ApiError if the API server does not list, WireError for no list."""
        if self._not_ready():
            self._open = {}
            self._nodes, self._pods = UnconfirmedFindings(), UnconfirmedFindings()
            return
        sums = frozenset(
            Finding(managed.names.resource, ARRAYS, node)
            for managed in self._resources
            for node in managed.ledger.differing_nodes()
        )
        self._heal_new("sums", sums)
        self._heal_new("lists", self._compare_with_api_server())
        self._audits += 1
        self._last = self._clock()

    def _heal_new(self, part: str, findings: frozenset[Finding]) -> None:
        """Heal the findings that are new, and report each once.

        Raises ApiError if a pod could not be read for that. Its finding is left to the next
        audit; so are the others, unless the API server answers.
        """
        self._open[part] = known = self._open.get(part, frozenset()) & findings
        refused: ApiError | None = None
        for finding in sorted(findings - known, key=str):
            try:
                healed = self._heal(finding)
            except (ApiUnavailable, ApiUnreachable):
                raise
            except ApiError as error:
                refused = error
                continue
            self._open[part] |= {finding}
            self._findings += 1
            self._healed += healed
            log.error(
                Line(
                    "the books are wrong",
                    healed=healed,
                    what=finding.what,
                    resource=finding.resource,
                    node=finding.node,
                    pod=finding.pod or "-",
                    detail=finding.detail or "-",
                )
            )
            self._report(finding, healed)
        try:
            if refused is not None:
                raise refused
        finally:
            del refused  # or the error would hold this frame, and this frame the error

    def _compare_with_api_server(self) -> frozenset[Finding]:
        # First: what the watch shows from here on must not count as in the copy.
        watch_version = {name: self._watch_version(name) for name in ("nodes", "pods")}
        entries_and_specs = [
            (managed, *managed.ledger.entries_and_specs()) for managed in self._resources
        ]
        specs = [Listed[ListedNode]() for _ in entries_and_specs]
        pods = [Listed[ListedPod]() for _ in entries_and_specs]
        nodes_at = pods_at = ""
        for nodes in self._pages("/api/v1/nodes", NODES):
            nodes_at = nodes_at or nodes.resource_version
            for (managed, *_), listed in zip(entries_and_specs, specs, strict=True):
                add_nodes(nodes, managed, self._unit, listed)
        for page in self._pages("/api/v1/pods", PODS, _BOUND_PODS):
            pods_at = pods_at or page.resource_version
            for (managed, *_), seen in zip(entries_and_specs, pods, strict=True):
                add_pods(page, managed, seen)
        findings = [
            finding
            for (managed, _, known), listed in zip(entries_and_specs, specs, strict=True)
            for finding in compare_nodes(managed.names.resource, known, listed.read, listed.unread)
        ]
        confirmed = self._nodes.confirm(findings, watch_version["nodes"], nodes_at)
        findings = [
            finding
            for (managed, entries, _), seen in zip(entries_and_specs, pods, strict=True)
            for finding in compare_pods(managed.names.resource, entries, seen.read, seen.unread)
        ]
        return confirmed | self._pods.confirm(findings, watch_version["pods"], pods_at)

    def _pages(self, path: str, codec: Codec[_T], select: str = "") -> Iterator[Decoded[_T]]:
        """Yield the pages of one list."""
        query = {"fieldSelector": select} if select else {}
        decoded = pages(
            self._api, path, codec.decode_list, query, timeout=_TIMEOUT, limit=self._page
        )
        for page in decoded:
            self.loop.note_progress()
            yield page
            if page.continue_token:
                self.loop.rest(self._pause)

    def _heal(self, finding: Finding) -> bool:
        """Return whether the ledger was corrected, or at least put on the safe side."""
        managed = self._resources.find(finding.resource)
        if managed is None:
            return False
        ledger = managed.ledger
        if finding.what == ARRAYS:
            ledger.recount([finding.node])
            return finding.node not in ledger.differing_nodes()
        if finding.known is not None and finding.seen is not None:
            return ledger.reshape(finding.known, narrowed(finding.known, finding.seen))
        if finding.what in (MISSING, MISPLACED) and finding.pod is not None:
            return self._charge(managed, finding.pod)
        return False

    def _charge(self, managed: ManagedResource, ref: PodRef) -> bool:
        """Charge the pod as it is, then read it again: the watch may have shown its end since."""
        with contextlib.suppress(WireError):  # the watch could not read it either
            pod = self._read(ref)
            if pod is None:
                return False
            managed.ledger.correct(observe_pod(pod, managed.names))
            with contextlib.suppress(ApiError):  # it stays charged, which is the safe side
                if self._read(ref) is None:
                    managed.ledger.pod_gone(ref.uid)
            return True
        return False

    def _read(self, ref: PodRef) -> Pod | None:
        """Return the pod as it is now; None if it is gone or holds nothing any more."""
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
        try:
            body = self._api.request("GET", path, timeout=_TIMEOUT)
            pod = PODS.decode_answer(body, ref.namespace, ref.name)
        except ApiNotFound:
            return None
        same = pod.metadata is not None and pod.metadata.uid == ref.uid
        return pod if same and not has_ended(pod) else None
