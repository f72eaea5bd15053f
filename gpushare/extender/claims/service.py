"""The devices and claims of DRA drivers, followed and ranked: the parts, wired.

Tested in `tests/unit/extender/claims/test_service.py` and, with a real kube-scheduler, in
`tests/e2e/test_claims.py`.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from gpushare.core.claims.model import Slice
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO, FALLBACK_POLICY
from gpushare.errors import MessageError
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord, claim_record
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.claims.view import ClaimCounts, ClaimsView
from gpushare.extender.follow.readiness import Source
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.client import KubeClient
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.logline import Line
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import Codec, Decoded, WatchEvent
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import (
    CLASS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gpushare.wire.dra.requests import class_record
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.inventory import mib_of

log = logging.getLogger("gpushare.claims")

DRA = "/apis/resource.k8s.io/v1"

_ObjectT = TypeVar("_ObjectT")
_RecordT = TypeVar("_RecordT")


class ObjectHandler(Generic[_ObjectT, _RecordT]):
    """Handler that keeps a record of each object; an object that cannot be read counts as gone.

    read_record: returns the record, or None for an object to leave out; raises MessageError.
    replace_records: takes all records by key. change_record: takes a key, and the record, or None
    for a deleted object. key: returns the key of an object.
    """

    def __init__(
        self,
        read_record: Callable[[_ObjectT], _RecordT | None],
        replace_records: Callable[[Mapping[str, _RecordT]], None],
        change_record: Callable[[str, _RecordT | None], None],
        key: Callable[[_ObjectT], str],
    ) -> None:
        self._read = read_record
        self._listed = replace_records
        self._changed = change_record
        self._key = key

    def trim(self, page: Decoded[_ObjectT]) -> Decoded[tuple[str, _RecordT]]:
        """Return (key, record) of each object of a page."""
        records = ((self._key(item), self._record(item)) for item in page.items)
        return page.with_items([(key, record) for key, record in records if record is not None])

    def replace(self, pages: Sequence[Decoded[tuple[str, _RecordT]]], started: float) -> None:
        """Take over all objects."""
        del started
        self._listed(dict(item for page in pages for item in page.items))

    def apply(self, event: WatchEvent[_ObjectT]) -> None:
        """Take over one object; one that cannot be decoded changes nothing."""
        item = event.object
        if item is not None:
            is_deleted = event.kind == "DELETED"
            self._changed(self._key(item), None if is_deleted else self._record(item))

    def _record(self, item: _ObjectT) -> _RecordT | None:
        try:
            return self._read(item)
        except MessageError as error:
            log.warning(Line("object left out", object=self._key(item), error=str(error)))
            return None


def handlers_of(
    books: ClaimBooks,
    claim_shown: Callable[[ClaimRecord], None] = lambda _: None,
    list_slices: Callable[[], None] = lambda: None,
) -> dict[str, tuple[Codec[Any], ObjectHandler[Any, Any]]]:
    """Return the codec and the handler of each collection that fills the books, by collection.

    claim_shown: called with each claim, after the books have taken it over. list_slices: called
    when the books need a new list of slices.
    """

    def slices_listed(records: Mapping[str, Slice]) -> None:
        books.replace_slices(records.values())
        if books.misses_slices:
            list_slices()

    def slice_changed(name: str, item: Slice | None) -> None:
        if item is None:
            books.slice_gone(name)
        else:
            books.slice_changed(item)
        if books.misses_slices:
            list_slices()

    def claims_listed(claims: Mapping[str, ClaimRecord]) -> None:
        books.replace_claims(claims.values())
        for claim in claims.values():
            claim_shown(claim)

    def claim_changed(uid: str, claim: ClaimRecord | None) -> None:
        if claim is None:
            books.claim_gone(uid)
            return
        books.claim_changed(claim)
        claim_shown(claim)

    slices = ObjectHandler(read_slice, slices_listed, slice_changed, _name)
    classes = ObjectHandler(
        class_record,
        lambda records: books.replace_classes(records.values()),
        books.class_changed,
        _name,
    )
    return {
        "resourceslices": (RESOURCE_SLICES, slices),
        "resourceclaims": (
            RESOURCE_CLAIMS,
            ObjectHandler(claim_record, claims_listed, claim_changed, _uid),
        ),
        "deviceclasses": (DEVICE_CLASSES, classes),
        # GA since Kubernetes 1.37; before, no device has taints of rules.
        "devicetaintrules": (
            DEVICE_TAINT_RULES,
            ObjectHandler(read_taint_rule, books.replace_rules, books.rule_changed, _name),
        ),
    }


class ClaimsService:
    """The devices of one driver, in the cluster's memory unit, ranked by a policy.

    sources: the collections that are followed, by name. ranker: orders nodes for pods with claims.
    view: the books, for metrics, pages and commands.
    """

    def __init__(
        self,
        driver: str,
        client: KubeClient,
        resources: ManagedResources,
        *,
        unit: str,
        policy: str,
    ) -> None:
        self._resources = resources
        self._books = books = ClaimBooks(
            driver, mib_of(unit) << 20, labels=self._labels, published=self._lend
        )
        name = policy if policy != AUTO else FALLBACK_POLICY
        source = ManagedResource(
            replace(ALIYUN, resource=CLASS),
            books.ledger,
            {name: Ranking(load_policy(name))},
            name,
            counted_by_scheduler=False,
            filters=next(iter(resources)).filters,
        )
        self._selectors = Selectors(time.thread_time)
        self.ranker = ClaimRanker(books, source, self._selectors, is_ready=self._is_ready)
        self.view = ClaimsView(books, source, matches=self._selectors.matches, counts=self._counts)
        followed: dict[str, Reflector[Any, Any]] = {
            name: Reflector(client, ListWatch(f"{DRA}/{name}", codec), handler)
            for name, (codec, handler) in handlers_of(
                books, self.ranker.shown, self._list_slices
            ).items()
        }
        self._slices = followed["resourceslices"]
        self._needed = [followed[name] for name in ("resourceslices", "resourceclaims")]
        # Without a right to read these, or without the API, no pod with claims is ranked.
        self.sources = {
            name: Source(reflector, optional=True) for name, reflector in followed.items()
        }

    def _list_slices(self) -> None:
        self._slices.request_relist()

    def _is_ready(self) -> bool:
        return all(reflector.status.synced for reflector in self._needed)

    def _counts(self) -> ClaimCounts:
        return ClaimCounts(
            claims=len(self._books.allocated()),
            offers=self.ranker.offers(),
            predictions=dict(self.ranker.predictions),
            pods=dict(self.ranker.pods),
            unevaluated_selectors=dict(self._selectors.unevaluated),
            unmodelled_nodes=len(self._books.unmodelled_nodes()),
        )

    def _labels(self, node: str) -> Mapping[str, str]:
        state = self._resources.node_states.get(node)
        return (state and state.labels) or {}

    def _lend(self, node: str) -> None:
        """Take the node's devices out of the books by annotation."""
        for resource in self._resources:
            resource.ledger.lend(node)


def _name(item: ResourceSlice | DeviceClass | DeviceTaintRule) -> str:
    return (item.metadata and item.metadata.name) or ""


def _uid(item: ResourceClaim) -> str:
    return (item.metadata and item.metadata.uid) or ""
