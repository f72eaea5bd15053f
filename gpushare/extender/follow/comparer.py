"""Comparison of the ledger with the sums of its entries and with a fresh list.

Pure: compares values, and says what differs and whether that is more than a delay. What is done
about it is in auditor.py. Only device memory is compared, since that is what is promised: not CPU
and host memory, nor which cards a pod names (users may edit annotations; the ledger keeps what it
saw first, and an alarm reports the edit). Which cards a node has, and in which order, is compared:
by that the ledger finds the devices that a charge counts on.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Generic, TypeVar

from gpushare.core.model import NodeSpec, PodRef
from gpushare.core.states.entry import Entry, Phase
from gpushare.errors import WireError
from gpushare.extender.managed_resources import ManagedResource
from gpushare.wire.codec import Decoded
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import Metadata, Node, Pod
from gpushare.wire.pods import units_of

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
