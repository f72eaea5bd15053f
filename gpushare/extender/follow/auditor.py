"""The thread that audits the ledger once a minute, and what it does about its findings.

A list and the watch show different moments. So a difference between ledger and list counts only
when the next audit finds it again and the watch has meanwhile reached the version of the first
list. Before each list the ledger is copied, and before that the version of the watch is read: so
what was bound or gone in the first list must be in the copy. Differences within the ledger count at
once.

An audit heals only towards less free memory: a pod that is not charged gets charged, a node is
narrowed, sums grow. A charge without a pod stays, and is reported, until somebody ends this
process: an audit that frees memory would need as much trust as the ledger.

Tested in `tests/integration/test_audit.py`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from gpushare.core.model import PodRef
from gpushare.errors import (
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    ApiUnreachable,
    WireError,
)
from gpushare.extender.follow.comparer import (
    ARRAYS,
    MISPLACED,
    MISSING,
    Finding,
    Listed,
    ListedNode,
    ListedPod,
    UnconfirmedFindings,
    add_nodes,
    add_pods,
    compare_nodes,
    compare_pods,
    narrowed,
)
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.api import LIMIT, Api, pages
from gpushare.logline import Line
from gpushare.wire.codec import Codec, Decoded
from gpushare.wire.objects import NODES, PODS, Pod
from gpushare.wire.pods import has_ended, observe_pod

log = logging.getLogger("gpushare.audit")

_T = TypeVar("_T")

AUDIT_INTERVAL = 60.0
PAGE_PAUSE = 0.5
"""Seconds between the pages of a list: an audit is in no hurry, and the API server has others."""

_TIMEOUT = 10.0
_BOUND_PODS = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_STUCK = 120.0

Report = Callable[[Finding, bool], None]
"""Called with each new finding, and whether it has been healed."""


class Auditor:
    """Audits the ledgers of all managed resources; call `audit` once, or `start` to repeat it.

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
        wake: Callable[[], threading.Event] = threading.Event,
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
        self._beat = self._last = clock()
        self._stopping = wake()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Audit every minute, in a thread."""
        # Not only when it was made: that was in gunicorn's master, for a new worker long ago.
        self._beat = self._last = self._clock()
        self._thread = threading.Thread(target=self.run, name="audit", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Audit every minute until `stop`."""
        while not self._stopping.wait(self._every):
            self._beat = self._clock()
            try:
                self.audit()
            except (ApiError, WireError) as error:
                log.warning(Line("audit not done", error=str(error)))
            except Exception:
                # The thread must go on: an audit that never runs again finds nothing.
                log.exception("audit failed")

    def stop(self) -> None:
        """End the thread; an audit under way is not waited for long."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def stuck(self) -> bool:
        """Return whether the thread has been overdue for long."""
        return self._clock() - self._beat > self._every + _STUCK

    def state(self) -> dict[str, float]:
        """Return values for metrics."""
        return {
            "audits_total": self._audits,
            "audit_age_seconds": self._clock() - self._last,
            "audit_findings": sum(map(len, self._open.values())),
            "audit_findings_total": self._findings,
            "audit_healed_total": self._healed,
        }

    def audit(self) -> None:
        """Look once. Raises ApiError if the API server does not list, WireError for no list."""
        if self._not_ready():
            self._open = {}
            self._nodes, self._pods = UnconfirmedFindings(), UnconfirmedFindings()
            return
        self._heal_new("sums", frozenset(self._compare_with_entries()))
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
            log.error(Line("the books are wrong", healed=healed, **_values(finding)))
            self._report(finding, healed)
        try:
            if refused is not None:
                raise refused
        finally:
            del refused  # or the error would hold this frame, and this frame the error

    def _compare_with_entries(self) -> Iterator[Finding]:
        for managed in self._resources:
            for node in managed.ledger.differing_nodes():
                yield Finding(managed.names.resource, ARRAYS, node)

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
            self._beat = self._clock()
            yield page
            if page.continue_token:
                self._stopping.wait(self._pause)

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


def _values(finding: Finding) -> dict[str, object]:
    return {
        "what": finding.what,
        "resource": finding.resource,
        "node": finding.node,
        "pod": finding.pod or "-",
        "detail": finding.detail or "-",
    }
