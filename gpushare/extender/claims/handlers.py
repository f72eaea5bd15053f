"""What is watched for claims: slices, claims, and the pods that wait for a node.

Tested in `tests/unit/extender/claims`.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from gpushare.errors import MessageError
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.logline import Line
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.objects import ClaimsPod, ResourceClaim, ResourceSlice

log = logging.getLogger("gpushare.claims")


class SliceHandler:
    """Handler for slices. changed: called after each change."""

    def __init__(self, books: ClaimBooks, changed: Callable[[], None]) -> None:
        self._books = books
        self._changed = changed
        self._slices: dict[str, ResourceSlice] = {}

    def replace(self, pages: Sequence[Decoded[ResourceSlice]], started: float) -> None:
        """Take over all slices."""
        del started
        unread = {bad.ref.name for page in pages for bad in page.bad}
        kept = {name: each for name, each in self._slices.items() if name in unread}
        self._slices = kept | {_name(each): each for page in pages for each in page.items}
        self._tell()

    def apply(self, event: WatchEvent[ResourceSlice]) -> None:
        """Take over one slice; one that cannot be read stays as it was."""
        name = _name(event.object) if event.object else event.bad.ref.name if event.bad else ""
        if event.kind == "DELETED":
            self._slices.pop(name, None)
        elif event.object is not None:
            self._slices[name] = event.object
        self._tell()

    def _tell(self) -> None:
        self._books.slices_changed(self._slices.values())
        self._changed()


class ClaimHandler:
    """Handler for claims. changed: called after each change.

    A claim that cannot be read may have a card: while there is one, nothing is given out.
    """

    def __init__(self, books: ClaimBooks, changed: Callable[[], None]) -> None:
        self._books = books
        self._changed = changed

    def replace(self, pages: Sequence[Decoded[ResourceClaim]], started: float) -> None:
        """Take over all claims."""
        del started
        unread = {_logged(bad.ref.uid, bad.error) for page in pages for bad in page.bad}
        claims = [each for page in pages for each in page.items]
        wrong = {_uid(each): each for each in claims if _mistake(each)}
        self._books.replace_claims(
            (each for each in claims if _uid(each) not in wrong), keep=unread | wrong.keys()
        )
        self._changed()

    def apply(self, event: WatchEvent[ResourceClaim]) -> None:
        """Take over one claim."""
        claim = event.object
        uid = _uid(claim) if claim else event.bad.ref.uid if event.bad else ""
        if event.kind == "DELETED":
            self._books.claim_gone(uid)
        elif claim is None or _mistake(claim):
            self._books.claim_unread(_logged(uid, event.bad.error if event.bad else "no identity"))
        else:
            self._books.claim_changed(claim)
        self._changed()


class WaitingPods:
    """Handler for pods without a node; the watch selects them, so an end is a DELETED.

    changed: called after each change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._pods: dict[str, ClaimsPod] = {}

    def all(self) -> dict[str, ClaimsPod]:
        """Return those with claims, by uid, as they came."""
        with self._lock:
            return dict(self._pods)

    def kept(self, page: Decoded[ClaimsPod]) -> Decoded[ClaimsPod]:
        """Return the page with the pods that have claims."""
        return page.with_items([pod for pod in page.items if _has_claims(pod)])

    def replace(self, pages: Sequence[Decoded[ClaimsPod]], started: float) -> None:
        """Take over all pods."""
        del started
        found = {_uid(pod): pod for page in pages for pod in page.items if _has_claims(pod)}
        with self._lock:
            self._pods = found
        self._changed()

    def apply(self, event: WatchEvent[ClaimsPod]) -> None:
        """Take over one pod; for one that cannot be read nothing is done."""
        pod = event.object
        uid = _uid(pod) if pod else event.bad.ref.uid if event.bad else ""
        with self._lock:
            if event.kind == "DELETED" or pod is None or not _has_claims(pod):
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = pod
        self._changed()


def _has_claims(pod: ClaimsPod) -> bool:
    return bool(pod.spec and pod.spec.resource_claims)


def _name(each: ResourceSlice) -> str:
    return (each.metadata and each.metadata.name) or ""


def _uid(each: ResourceClaim | ClaimsPod) -> str:
    return (each.metadata and each.metadata.uid) or ""


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
