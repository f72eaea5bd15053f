"""The audit once a minute: it compares the ledger with lists, and corrects the ledger.

A list and the watch show different moments. So a difference between ledger and list counts only
when the next audit repeats the difference and the watch has reached the version of the first list.
The audit reads the version of the watch, then copies the ledger, then lists: so every pod that the
first list shows bound or gone must be so in the second copy. Differences within the ledger count
at once.

Between ledger and lists the audit compares device memory only, since the ledger promises nothing
else: not CPU and host memory, and not the cards in the annotations of a pod (users may edit
annotations; the ledger keeps the first value, and an alarm reports the edit). The audit also
compares the cards of a node and their order: the ledger needs both to find the devices of a charge.

An audit heals only towards less free memory: it charges a pod without a charge, narrows a node, and
raises sums. A charge without a pod stays, and is reported, until the process ends: an audit that
frees memory would need as much trust as the ledger.

Tested in `tests/unit/extender/follow/test_auditor.py` and `tests/integration/test_audit.py`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Generic, TypeVar

from gpushare.core.model import ANY_SHARERS, NodeSpec, PodRef
from gpushare.core.states.entry import Entry, Phase
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiError, ApiUnavailable, ApiUnreachable, WireError
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.api import LIMIT, Api, pages
from gpushare.logline import Line
from gpushare.wire.codec import Codec, Decoded
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS, Metadata, Node, Pod
from gpushare.wire.pods import has_ended, observe_pod, read_pod, units_of

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
    """The node in the ledger, else the node that the API server shows."""
    pod: PodRef | None = None
    """The pod; None for a finding about a node."""
    detail: str = ""
    """The two values that differ, as text."""
    uid: str = ""
    """The uid of the listed node, "" if no node was listed."""
    listed_spec: NodeSpec | None = field(default=None, compare=False)
    """The listed node."""
    ledger_spec: NodeSpec | None = field(default=None, compare=False)
    """The node in the ledger, None if the ledger has no such node."""

    def __str__(self) -> str:
        """Return the finding as the end of a sentence."""
        whom = f"pod {self.pod} on node {self.node}" if self.pod else f"node {self.node}"
        return f"{whom}: {self.what}" + (f" ({self.detail})" if self.detail else "")


ListedPod = tuple[str, int, str, str]
"""A listed bound pod: (node, requested units, namespace, name).

A tuple of plain values costs the garbage collector nothing; there may be ten thousands.
"""


ListedNode = tuple[str, NodeSpec]
"""A listed node: (uid, devices of the node)."""


class UnconfirmedFindings:
    """Differences between ledger and list that may still be only a delay.

    A node that changes again and again may differ in the same way each time. So a difference of a
    node in the ledger counts as repeated only if the spec in the ledger is still the same object:
    neither watch nor list has replaced the spec. A node that the ledger lacks counts as repeated
    only if both lists show the same uid.
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
        return before is not None and before.ledger_spec is finding.ledger_spec


@dataclass(slots=True)
class Listed(Generic[_T]):
    """The items of a list by name or uid, and the names or uids of unreadable items."""

    items_by_key: dict[str, _T] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


def _is_at(watch_version: str, list_version: str) -> bool:
    """Return whether the first resourceVersion is at or after the second; both are numbers."""
    return (
        watch_version.isdecimal()
        and list_version.isdecimal()
        and int(watch_version) >= int(list_version)
    )


def add_nodes(
    page: Decoded[Node], resource: ManagedResource, unit: str, listed_nodes: Listed[ListedNode]
) -> None:
    """Add the nodes of a page."""
    listed_nodes.unread.update(bad.ref.name for bad in page.bad)
    for node in page.items:
        spec = node_spec(node, resource.names, unit)
        listed_nodes.items_by_key[spec.name] = ((node.metadata or _NAMELESS).uid or "", spec)


def add_pods(
    page: Decoded[Pod], managed_resource: ManagedResource, listed_pods: Listed[ListedPod]
) -> None:
    """Add the bound pods of a page that ask for the resource."""
    listed_pods.unread.update(bad.ref.uid for bad in page.bad)
    for pod in page.items:
        meta, node = pod.metadata or _NAMELESS, pod.spec.node_name if pod.spec else None
        try:
            units = units_of(pod, managed_resource.names)
        except WireError:
            listed_pods.unread.add(meta.uid or "")
            continue
        if units and node:
            holder = (node, units, meta.namespace or "", meta.name or "")
            listed_pods.items_by_key[meta.uid or ""] = holder


def compare_pods(
    resource: str,
    entries: Mapping[str, Entry],
    listed_pods: Mapping[str, ListedPod],
    unread: Collection[str],
) -> Iterator[Finding]:
    """Yield the differences between the charges and the bound pods that ask for devices, both by
    uid.

    unread: uids of listed pods that are unreadable; their charges stay. An assumed charge without a
    listed pod is a bind under way.
    """
    for uid, (node, units, namespace, name) in listed_pods.items():
        entry = entries.get(uid)
        if entry is None:
            yield Finding(resource, MISSING, node, PodRef(namespace, name, uid))
            continue
        lower_bound, upper_bound = entry.charged
        if entry.node != node or lower_bound < units:
            detail = f"{lower_bound} units, on node {node} it asks for {units}"
            yield Finding(resource, MISPLACED, entry.node, entry.ref, detail)
        elif upper_bound > units:
            detail = f"{upper_bound} units, it asks for {units}"
            yield Finding(resource, OVERCHARGED, entry.node, entry.ref, detail)
    for uid in entries.keys() - listed_pods.keys() - set(unread):
        entry = entries[uid]
        if entry.phase is Phase.BOUND:
            yield Finding(resource, LEAKED, entry.node, entry.ref)


def compare_nodes(
    resource: str,
    ledger_specs: Mapping[str, NodeSpec],
    listed_nodes: Mapping[str, ListedNode],
    unread: Collection[str],
) -> Iterator[Finding]:
    """Yield the differences between the shapes of nodes, by name, in the ledger and as listed."""
    nothing = NodeSpec("")
    nobody = ("", nothing)
    for name in sorted((ledger_specs.keys() | listed_nodes.keys()) - set(unread)):
        ledger_spec, (uid, spec) = ledger_specs.get(name, nothing), listed_nodes.get(name, nobody)
        if _devices(ledger_spec) != _devices(spec):
            detail = f"books {_describe(ledger_spec)}, API server {_describe(spec)}"
            listed_spec = replace(spec, name=name)
            yield Finding(
                resource, SHAPE, name, None, detail, uid, listed_spec, ledger_specs.get(name)
            )


def narrowed(ledger_spec: NodeSpec, listed_spec: NodeSpec) -> NodeSpec:
    """Return the listed node, with nothing free that is not free in the ledger."""
    pairs = list(zip_longest(ledger_spec.capacity, listed_spec.capacity, fillvalue=0))
    healthy = zip_longest(ledger_spec.healthy, listed_spec.healthy, fillvalue=False)
    wider = max(ledger_spec, listed_spec, key=lambda spec: len(spec.capacity))
    # The list has the latest place of each card; an index that is gone has no card.
    uuids = listed_spec.uuids + ("",) * (len(pairs) - len(listed_spec.uuids))
    return replace(
        wider,
        capacity=tuple(min(pair) for pair in pairs),
        healthy=tuple(all(pair) for pair in healthy),
        uuids=uuids,
        closed=ledger_spec.closed or listed_spec.closed,
        serves_by_identity=ledger_spec.serves_by_identity and listed_spec.serves_by_identity,
        max_sharers=min(ledger_spec.max_sharers, listed_spec.max_sharers),
    )


def _devices(spec: NodeSpec) -> tuple[object, ...]:
    return (
        *(spec.capacity, spec.healthy, spec.closed, spec.uuids),
        *(spec.serves_by_identity, spec.max_sharers),
    )


def _describe(spec: NodeSpec) -> str:
    uuids = spec.uuids or ("",) * len(spec.capacity)
    units = ",".join(
        f"{units}{f' {uuid}' if uuid else ''}{'' if ok else ' (unhealthy)'}"
        for units, ok, uuid in zip(spec.capacity, spec.healthy, uuids, strict=False)
    )
    limit = f", at most {spec.max_sharers} pods a device" * (spec.max_sharers < ANY_SHARERS)
    return (units or "none") + limit + (f", closed: {spec.closed.value}" if spec.closed else "")


Report = Callable[[Finding, bool], None]
"""Called with (new finding, whether the auditor corrected the ledger)."""


@dataclass(eq=False)
class Auditor(LoopPart):
    """Audits the ledgers of all managed resources: `audit` once, a started auditor every minute.

    unit: the memory unit of the cluster. not_ready: why not to audit now (the ledger is not filled
    or out of date, another process leads), or "". watch_version: returns the last resourceVersion
    in the ledger of a collection ("nodes", "pods"). report: called with each new finding.
    """

    api: Api
    resources: ManagedResources
    unit: str
    _: KW_ONLY
    not_ready: Callable[[], str]
    watch_version: Callable[[str], str]
    report: Report
    clock: Callable[[], float] = time.monotonic
    interval: float = AUDIT_INTERVAL
    pause: float = PAGE_PAUSE
    page: int = LIMIT
    event: Callable[[], threading.Event] = threading.Event

    def __post_init__(self) -> None:
        self._nodes = UnconfirmedFindings()
        self._pods = UnconfirmedFindings()
        self._open: dict[str, frozenset[Finding]] = {}
        self._audits = self._findings = self._healed = 0
        self._last = self.clock()
        self.loop = Loop(
            "audit",
            self._audit_in_thread,
            self.interval,
            log=log,
            failed="audit failed",
            clock=self.clock,
            event=self.event,
        )

    def start(self) -> None:
        """Start the thread."""
        # gunicorn's master made this object, perhaps long before the fork.
        self._last = self.clock()
        super().start()

    def liveness(self) -> dict[str, str]:
        """Return the problem of an audit that is long overdue."""
        is_stuck = self.loop.seconds_since_progress() > self.interval + _STUCK
        return {"audit": "its thread is stuck" if is_stuck else ""}

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        return {
            "audits_total": self._audits,
            "audit_age_seconds": self.clock() - self._last,
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
        if self.not_ready():
            self._open = {}
            self._nodes, self._pods = UnconfirmedFindings(), UnconfirmedFindings()
            return
        sums = frozenset(
            Finding(resource.names.resource, ARRAYS, node)
            for resource in self.resources
            for node in resource.ledger.differing_nodes()
        )
        self._heal_new("sums", sums)
        self._heal_new("lists", self._compare_with_api_server())
        self._audits += 1
        self._last = self.clock()

    def _heal_new(self, part: str, findings: frozenset[Finding]) -> None:
        """Heal the findings that are new, and report each once.

        Raises ApiError if the read of a pod failed. The next audit handles the finding of this pod;
        also all other findings, if the API server does not answer.
        """
        self._open[part] = repeated = self._open.get(part, frozenset()) & findings
        refusal = ApiError("", 0)
        for finding in sorted(findings - repeated, key=str):
            try:
                healed = self._heal(finding)
            except (ApiUnavailable, ApiUnreachable):
                raise
            except ApiError as error:
                # The error itself would hold this frame, and this frame the error.
                refusal = ApiError(str(error), error.status)
                continue
            self._open[part] |= {finding}
            self._findings += 1
            self._healed += healed
            about = {"what": finding.what, "resource": finding.resource, "node": finding.node}
            about |= {"pod": str(finding.pod or "-"), "detail": finding.detail or "-"}
            log.error(Line("the books are wrong", healed=healed, **about))
            self.report(finding, healed)
        if refusal.status:
            raise refusal

    def _compare_with_api_server(self) -> frozenset[Finding]:
        # First: the copy of the ledger may lack events that the watch shows from here on.
        nodes_version, pods_version = self.watch_version("nodes"), self.watch_version("pods")
        books = [
            (item, *item.ledger.entries_and_specs(), Listed[ListedNode](), Listed[ListedPod]())
            for item in self.resources
        ]
        nodes_at = pods_at = ""
        for nodes in self._pages("/api/v1/nodes", NODES):
            nodes_at = nodes_at or nodes.resource_version
            for resource, _, _, listed_nodes, _ in books:
                add_nodes(nodes, resource, self.unit, listed_nodes)
        for pods in self._pages("/api/v1/pods", PODS, _BOUND_PODS):
            pods_at = pods_at or pods.resource_version
            for resource, _, _, _, listed_pods in books:
                add_pods(pods, resource, listed_pods)
        of_nodes, of_pods = list[Finding](), list[Finding]()
        for resource, entries, specs, listed_nodes, listed_pods in books:
            name = resource.names.resource
            of_nodes += compare_nodes(name, specs, listed_nodes.items_by_key, listed_nodes.unread)
            of_pods += compare_pods(name, entries, listed_pods.items_by_key, listed_pods.unread)
        confirmed = self._nodes.confirm(of_nodes, nodes_version, nodes_at)
        return confirmed | self._pods.confirm(of_pods, pods_version, pods_at)

    def _pages(self, path: str, codec: Codec[_T], select: str = "") -> Iterator[Decoded[_T]]:
        """Yield the pages of one list."""
        query = {"fieldSelector": select} if select else {}
        decoded = pages(self.api, path, codec.decode_list, query, timeout=_TIMEOUT, limit=self.page)
        for page in decoded:
            self.loop.note_progress()
            yield page
            if page.continue_token:
                self.loop.rest(self.pause)

    def _heal(self, finding: Finding) -> bool:
        """Return whether the ledger was corrected, or at least put on the safe side."""
        resource = self.resources.find(finding.resource)
        if resource is None:
            return False
        ledger = resource.ledger
        if finding.what == ARRAYS:
            ledger.recount([finding.node])
            return finding.node not in ledger.differing_nodes()
        if finding.ledger_spec is not None and finding.listed_spec is not None:
            return ledger.reshape(
                finding.ledger_spec, narrowed(finding.ledger_spec, finding.listed_spec)
            )
        if finding.what in (MISSING, MISPLACED) and finding.pod is not None:
            return self._charge(resource, finding.pod)
        return False

    def _charge(self, resource: ManagedResource, ref: PodRef) -> bool:
        """Charge the pod, then read the pod again: the watch may have shown the end of the pod."""
        with contextlib.suppress(WireError):  # the watch could not decode the pod either
            pod = self._read(ref)
            if pod is None:
                return False
            resource.ledger.correct(observe_pod(pod, resource.names))
            with contextlib.suppress(ApiError):  # the charge stays: the safe side
                if self._read(ref) is None:
                    resource.ledger.pod_gone(ref.uid)
            return True
        return False

    def _read(self, ref: PodRef) -> Pod | None:
        """Return the pod from the API server; None if the pod is gone or has ended."""
        pod = read_pod(partial(self.api.request, "GET", timeout=_TIMEOUT), ref)
        return None if pod is None or has_ended(pod) else pod
