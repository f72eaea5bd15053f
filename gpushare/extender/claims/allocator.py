"""Allocates the claims of pods that wait: decide, charge, protect the claim, write the allocation.

One thread, so one write at a time. An allocation whose outcome is unknown keeps its charge. It is
settled by another write, of an annotation: after that one it cannot land any more, and the answer
shows whether it has. kube-scheduler takes back what it cannot use; such a node comes last for the
pod.

Tested in `tests/unit/extender/claims` and, with a real control plane, in
`tests/e2e/test_claims_served.py`.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.errors import (
    ApiError,
    ApiTooLarge,
    ApiUnavailable,
    InvariantError,
    WireError,
)
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.claims import ClaimRequest, claim_names, claim_request, is_protected
from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    ClaimsPod,
    DeviceClass,
    ResourceClaim,
)
from gpushare.wire.dra.slices import SliceCard
from gpushare.wire.dra.writes import allocation, protection, settlement
from gpushare.wire.objects import Metadata
from gpushare.wire.pods import observe_pod, scheduler_of

log = logging.getLogger("gpushare.claims")

CLASS = "gpushare.io"
"""The device class whose claims are ours."""

DRA = "/apis/resource.k8s.io/v1"
_TIMEOUT = 3.0
"""Seconds that a write may take. It begins within the rest of BUDGET after leadership was checked,
so it ends while this process leads."""
_EVERY = 1.0
"""Seconds between rounds in which nothing changes."""
_LEAST, _MOST = 1.0, 16.0
"""Seconds until a pod is tried again that nothing was found for, or that failed."""


@dataclass(slots=True)
class _Tries:
    """What became of a pod's tries."""

    due: float = 0.0
    delay: float = 0.0
    seen: tuple[int, int] | None = None
    """The version of the books in which there was no room for it; it is tried in another at once.
    """
    nodes: set[str] = field(default_factory=set)
    """Where its claim was allocated; as it waits again, kube-scheduler took that back."""

    def later(self, now: float, seen: tuple[int, int] | None = None) -> None:
        self.seen = seen
        self.delay = min(max(self.delay * 2, _LEAST), _MOST)
        self.due = now + self.delay


@dataclass(frozen=True, slots=True)
class _Case:
    """A pod that waits, and its claim."""

    pod: PodRef
    claim: ResourceClaim
    asked: ClaimRequest
    request: Request
    demands: Demands


class Allocator:
    """Gives the driver's cards to claims, while this process leads and its books are full."""

    def __init__(
        self,
        api: Calls,
        books: ClaimBooks,
        waiting: WaitingPods,
        resources: ManagedResources,
        changed: threading.Event,
        *,
        not_ready: Callable[[], str],
        leads_until: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._books = books
        self._waiting = waiting
        self._resources = resources
        self._changed = changed
        self._not_ready = not_ready
        self._leads_until = leads_until
        self._clock = clock
        self._stopped = False
        self._tries: dict[str, _Tries] = {}
        self._doubts: dict[str, PodRef] = {}
        """The claims of which an allocation was sent whose outcome is not known, by uid."""
        self._told: dict[str, str] = {}
        """By pod, why its claim has no cards, as last said."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no write any more; one that is under way is waited for a little."""
        self._stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def settled(self) -> bool:
        """Return whether nothing sent from here can still land."""
        return not self._books.in_flight()

    def round(self) -> None:
        """Try all pods that wait and are due."""
        self._settle_doubts()
        pods = self._waiting.all()
        for known in (self._tries, self._told):
            for gone in known.keys() - pods.keys():
                del known[gone]
        device_class: DeviceClass | None = None
        for uid, pod in sorted(pods.items(), key=lambda item: _age(item[1])):
            tries = self._tries.setdefault(uid, _Tries())
            changed = tries.seen not in (None, self._books.ledger.version())
            if self._clock() < tries.due and not changed:
                continue
            if self._stopped or self._not_ready():
                return
            case = self._case(pod)
            if case is None:
                continue
            if device_class is None:
                device_class = self._device_class()
            if device_class is None:
                return
            self._allocate(case, tries, device_class)

    # -- one pod --------------------------------------------------------------------------------

    def _case(self, pod: ClaimsPod) -> _Case | None:
        """Return the pod's case; None if nothing can be done for it now."""
        metadata = pod.metadata or Metadata()
        ref = PodRef(metadata.namespace or "", metadata.name or "", metadata.uid or "")
        try:
            names = claim_names(pod)
            schedulers = self._resources.scope.schedulers
            if (
                names is None
                or metadata.deletion_timestamp
                or (schedulers and scheduler_of(pod) not in schedulers)
            ):
                return None
            if pod.spec is not None and pod.spec.scheduling_gates:
                return None
            claims = [self._books.named(ref.namespace, name) for name in names]
            ours: list[tuple[ResourceClaim, ClaimRequest]] = []
            for claim in claims:
                if claim is None:
                    return None
                asked = claim_request(claim, CLASS)
                if asked is not None:
                    ours.append((claim, asked))
            if len(ours) > 1:
                self._tell(ref, f"a pod may have one claim of class {CLASS}")
                return None
            if not ours or not _may_be_allocated(ours[0][0]):
                return None
            managed = next(iter(self._resources))
            request = observe_pod(pod, managed.names).request
        except WireError as error:
            self._tell(ref, str(error))
            return None
        return _Case(ref, *ours[0], request, demands_of(pod))

    def _allocate(self, case: _Case, tries: _Tries, device_class: DeviceClass) -> None:
        claim = case.claim
        ref = claim_ref(claim)
        seen = self._books.ledger.version()
        tries.later(self._clock())
        try:
            cards = self._books.take(
                claim, case.asked, lambda node: node not in tries.nodes and self._fits(case, node)
            )
        except WireError as error:
            self._tell(case.pod, str(error))
            return
        if not cards:
            tries.nodes.clear()
            tries.seen = seen
            self._tell(case.pod, "no node has room for its claim")
            return
        sent = False
        try:
            if not is_protected(claim):
                claim = self._protect(ref, claim)
            body = allocation(
                claim,
                case.asked,
                cards,
                device_class,
                pod=case.pod,
                share_ids=[str(uuid.uuid4()) for _ in cards],
                now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )
            not_after = self._may_write_until()
            if not_after is not None and self._books.sending(ref.uid, version_of(claim)):
                sent = True
                if self._write(case, cards, body, not_after):
                    tries.nodes.add(cards[0].node)
        except (ApiError, WireError, InvariantError) as error:
            log.warning(Line("claim not allocated", claim=ref, error=str(error)))
        finally:
            if not sent:
                self._books.forget(ref.uid)

    def _write(
        self, case: _Case, cards: tuple[SliceCard, ...], body: bytes, not_after: float
    ) -> bool:
        """Send the allocation, of which the books know; return whether it has landed, or may."""
        ref = claim_ref(case.claim)
        # Until its outcome is known. Whatever ends the call, the charge stays.
        self._doubts[ref.uid] = ref
        try:
            answer = self._patch(ref, body, not_after, "/status")
        except ApiError as error:
            refused = not isinstance(error, ApiUnavailable | ApiTooLarge)
            if refused:
                # The first and only one that was sent: it never lands.
                del self._doubts[ref.uid]
                self._books.forget(ref.uid)
            log.warning(Line("claim not allocated", claim=ref, error=str(error)))
            return not refused
        self._show(ref, answer)
        devices = ",".join(card.uuid for card in cards)
        log.info(Line("claim", claim=ref, pod=case.pod, node=cards[0].node, devices=devices))
        self._told.pop(case.pod.uid, None)
        return True

    def _fits(self, case: _Case, node: str) -> bool:
        """Return whether the node is the driver's alone, and kube-scheduler would not refuse it."""
        if any(managed.ledger.serves(node) for managed in self._resources):
            return False
        filters = next(iter(self._resources)).filters
        return node in filters.states and not filters.obstacles(node, case.request, case.demands)

    def _tell(self, pod: PodRef, why: str) -> None:
        if self._told.get(pod.uid) != why:
            self._told[pod.uid] = why
            log.info(Line("claim waits", pod=pod, why=why))

    # -- the API server -------------------------------------------------------------------------

    def _may_write_until(self) -> float | None:
        """Return when a write may begin at the latest; None if none may."""
        now = self._clock()
        if self._stopped or self._not_ready() or now + BUDGET > self._leads_until():
            return None
        return now + BUDGET - _TIMEOUT

    def _protect(self, ref: PodRef, claim: ResourceClaim) -> ResourceClaim:
        answer = self._patch(ref, protection(claim), self._clock() + _TIMEOUT)
        found = RESOURCE_CLAIMS.decode_answer(answer, ref.namespace, ref.name)
        self._books.claim_changed(found, read=True)
        return found

    def _settle_doubts(self) -> None:
        """Find out what became of allocations without an answer."""
        for uid in self._doubts.keys() - self._books.in_flight():
            del self._doubts[uid]
        for ref in list(self._doubts.values()):
            not_after = self._may_write_until()
            if not_after is None:
                return
            try:
                self._show(ref, self._patch(ref, settlement(ref, str(uuid.uuid4())), not_after))
            except ApiError as error:
                # That the claim is gone is told by the watch alone.
                log.warning(Line("allocation in doubt", claim=ref, error=str(error)))

    def _show(self, ref: PodRef, answer: bytes) -> None:
        """Show the books the claim as a write has left it."""
        try:
            found = RESOURCE_CLAIMS.decode_answer(answer, ref.namespace, ref.name)
            self._books.claim_changed(found, read=True)
        except WireError as error:
            # Who answered is not the API server, so nothing is known.
            log.warning(Line("allocation in doubt", claim=ref, error=str(error)))

    def _patch(self, ref: PodRef, body: bytes, not_after: float, part: str = "") -> bytes:
        return self._api.request(
            "PATCH",
            f"{_path(ref)}{part}",
            query={"timeout": f"{_TIMEOUT:.3f}s"},
            body=body,
            content_type="application/merge-patch+json",
            timeout=_TIMEOUT,
            not_after=not_after,
        )

    def _device_class(self) -> DeviceClass | None:
        try:
            answer = self._api.request("GET", f"{DRA}/deviceclasses/{CLASS}", timeout=_TIMEOUT)
            return DEVICE_CLASSES.decode_answer(answer, "", CLASS)
        except (ApiError, WireError) as error:
            log.warning(Line("device class not read", error=str(error)))
            return None

    def _run(self) -> None:
        while not self._stopped:
            self._changed.wait(_EVERY)
            self._changed.clear()
            try:
                self.round()
            except Exception:
                # The thread must go on: without it no claim would get cards any more.
                log.exception("a round of claims failed")


def _path(ref: PodRef) -> str:
    return f"{DRA}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"


def _may_be_allocated(claim: ResourceClaim) -> bool:
    status = claim.status
    deleted = claim.metadata is None or claim.metadata.deletion_timestamp is not None
    return not deleted and not (status and (status.allocation or status.reserved_for))


def _age(pod: ClaimsPod) -> tuple[str, str]:
    metadata = pod.metadata
    created = (metadata and metadata.creation_timestamp) or ""
    return created, (metadata and metadata.name) or ""
