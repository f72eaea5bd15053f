"""What is watched for claims: slices, claims, and the pods that wait for a node.

Tested in `tests/unit/extender/claims`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from gpushare.errors import MessageError
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.extender.claims.cases import WaitingPod, kept_pod
from gpushare.logline import Line
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.claims import CLASS, CLASS_ASIDE, kept_claim
from gpushare.wire.dra.objects import ClaimsPod, DeviceClass, ResourceClaim, ResourceSlice
from gpushare.wire.dra.slices import kept_slice
from gpushare.wire.pods import pod_name

log = logging.getLogger("gpushare.claims")

_T = TypeVar("_T", ResourceSlice, DeviceClass)

_SHARE = 4.0
"""A rest is this many times as long as it took to take over all slices before it."""


class _Followed(Generic[_T]):
    """Handler that keeps objects by name, as last shown; one that cannot be read stays as it was.

    changed: called after each change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._now: dict[str, _T] = {}

    def replace(self, pages: Sequence[Decoded[_T]], started: float) -> None:
        """Take over all objects."""
        del started
        unread = {bad.ref.name for page in pages for bad in page.bad}
        unchanged = {name: item for name, item in self._now.items() if name in unread}
        self._now = unchanged | {_name(item): item for page in pages for item in page.items}
        self._came(at_once=True)

    def apply(self, event: WatchEvent[_T]) -> None:
        """Take over one object."""
        name = _name(event.object) if event.object else event.bad.ref.name if event.bad else ""
        if event.kind == "DELETED":
            self._now.pop(name, None)
        elif event.object is not None:
            self._now[name] = event.object
        self._came(at_once=False)

    def _came(self, *, at_once: bool) -> None:
        del at_once
        self._changed()


class SliceHandler(_Followed[ResourceSlice]):
    """Handler for slices.

    A slice may change what the others of its pool or node say, so all are taken over together, at
    once; of the many that come when a driver is rolled out, some together, by `take_over`.
    """

    def __init__(
        self,
        books: ClaimBooks,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(changed)
        self._books = books
        self._clock = clock
        self._lock = threading.Lock()
        self._fresh = False
        self._due = -math.inf

    def trim(self, page: Decoded[ResourceSlice]) -> Decoded[ResourceSlice]:
        """Return what is kept of a page."""
        kept = (kept_slice(item, self._books.driver) for item in page.items)
        return page.with_items([item for item in kept if item is not None])

    def apply(self, event: WatchEvent[ResourceSlice]) -> None:
        """Take over one slice, if it is of the driver."""
        kept = event.object and kept_slice(event.object, self._books.driver)
        if kept or event.object is None:
            super().apply(replace(event, object=kept))

    def _came(self, *, at_once: bool) -> None:
        self._fresh = True
        if at_once:
            self._due = -math.inf
        self.take_over()
        self._changed()

    def take_over(self) -> None:
        """Show the books what has come, unless they were shown a moment ago."""
        with self._lock:
            begun = self._clock()
            if not self._fresh or begun < self._due:
                return
            self._fresh = False
            self._books.slices_changed([*self._now.values()])
            now = self._clock()
            self._due = now + (now - begun) * _SHARE


class ClassHandler(_Followed[DeviceClass]):
    """Handler for device classes, of which one is ours."""

    @property
    def ours(self) -> DeviceClass | None:
        """Our class as last shown; None if it is not there."""
        return self._now.get(CLASS) or self._now.get(CLASS_ASIDE)


class ClaimHandler:
    """Handler for claims. changed: called after each change by which a pod may be given devices.

    A claim that cannot be read may have a card: while there is one, nothing is given out.
    """

    def __init__(self, books: ClaimBooks, changed: Callable[[], None]) -> None:
        self._books = books
        self._changed = changed

    def trim(self, page: Decoded[ResourceClaim]) -> Decoded[ResourceClaim]:
        """Return what is kept of a page."""
        return page.with_items([_kept(claim) for claim in page.items])

    def replace(self, pages: Sequence[Decoded[ResourceClaim]], started: float) -> None:
        """Take over all claims."""
        del started
        unread = {_logged(bad.ref.uid, bad.error) for page in pages for bad in page.bad}
        claims = [claim for page in pages for claim in page.items]
        wrong = {_uid(claim): claim for claim in claims if _mistake(claim)}
        self._books.replace_claims(
            (claim for claim in claims if _uid(claim) not in wrong), keep=unread | wrong.keys()
        )
        self._changed()

    def apply(self, event: WatchEvent[ResourceClaim]) -> None:
        """Take over one claim."""
        claim = _kept(event.object) if event.object else None
        uid = _uid(claim) if claim else event.bad.ref.uid if event.bad else ""
        if event.kind == "DELETED":
            self._books.claim_gone(uid)
        elif claim is None or _mistake(claim):
            self._books.claim_unread(_logged(uid, event.bad.error if event.bad else "no identity"))
        else:
            self._books.claim_changed(claim)
            if claim.allocation:
                return  # it takes, and frees nothing
        self._changed()


class WaitingPods:
    """Handler for pods without a node; the watch selects them, so an end is a DELETED.

    changed: called after each change by which one may be given devices. names: of the resource
    whose node filters judge them.
    """

    def __init__(self, changed: Callable[[], None], names: Names = ALIYUN) -> None:
        self._changed = changed
        self._names = names
        self._lock = threading.Lock()
        self._pods: dict[str, WaitingPod] = {}

    def all(self) -> dict[str, WaitingPod]:
        """Return those with claims, by uid."""
        with self._lock:
            return dict(self._pods)

    def trim(self, page: Decoded[ClaimsPod]) -> Decoded[WaitingPod]:
        """Return what is kept of a page: of the pods that have claims."""
        waiting = map(self._seen, page.items)
        return page.with_items([pod for pod in waiting if pod is not None])

    def replace(
        self, pages: Sequence[Decoded[ClaimsPod] | Decoded[WaitingPod]], started: float
    ) -> None:
        """Take over all pods."""
        del started
        items = [item for page in pages for item in page.items]
        waiting = [item if isinstance(item, WaitingPod) else self._seen(item) for item in items]
        pods = {pod.ref.uid: pod for pod in waiting if pod is not None}
        with self._lock:
            self._pods = pods
        self._changed()

    def apply(self, event: WatchEvent[ClaimsPod]) -> None:
        """Take over one pod; for one that cannot be read nothing is done."""
        item = event.object
        uid = _uid(item) if item else event.bad.ref.uid if event.bad else ""
        pod = self._seen(item) if item and event.kind != "DELETED" else None
        with self._lock:
            before = self._pods.pop(uid, None)
            if pod is None:
                return
            self._pods[uid] = pod
        if before is None or (before.claims, before.gated) != (pod.claims, pod.gated):
            self._changed()

    def _seen(self, pod: ClaimsPod) -> WaitingPod | None:
        """Return what is kept of the pod; None if it has no claims, or no name."""
        if not (pod.spec and pod.spec.resource_claims):
            return None
        try:
            return kept_pod(pod, self._names)
        except MessageError:
            return None
        except Exception:
            # What one tenant writes must not keep the others waiting.
            log.exception(Line("pod with claims not read", pod=pod_name(pod)))
            return None


def _name(item: ResourceSlice | DeviceClass) -> str:
    return (item.metadata and item.metadata.name) or ""


def _uid(item: ResourceClaim | ClaimsPod) -> str:
    return (item.metadata and item.metadata.uid) or ""


def _kept(claim: ResourceClaim) -> ResourceClaim:
    try:
        return kept_claim(claim, CLASS)
    except Exception:
        # What one tenant writes must not keep the others waiting; what it has is counted.
        log.exception(Line("claim not read", claim=_uid(claim)))
        return ResourceClaim(claim.metadata, status=claim.status)


def _mistake(claim: ResourceClaim) -> str:
    """Return why the claim cannot be followed; "" if it can."""
    try:
        claim_ref(claim)
        version_of(claim)
    except MessageError as error:
        return str(error)
    return ""


def _logged(uid: str, error: str) -> str:
    log.warning(Line("claim kept as it was, nothing is given out", claim=uid, error=error))
    return uid
