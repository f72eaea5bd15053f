"""The devices and claims of DRA drivers, followed and ranked: the parts, wired.

Tested in `tests/unit/extender/claims/test_service.py` and, with a real kube-scheduler, in
`tests/e2e/test_claims.py`.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from gpushare.core.claims.model import Slice
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO, FALLBACK_POLICY
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord, claim_record
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.claims.view import ClaimCounts, ClaimsView
from gpushare.extender.follow.readiness import Source
from gpushare.extender.follow.shown import ObjectHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.client import KubeClient
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import Codec
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import (
    CLASS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gpushare.wire.dra.requests import class_record
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.inventory import mib_of

DRA = "/apis/resource.k8s.io/v1"


def handlers_of(
    books: ClaimBooks,
    claim_shown: Callable[[ClaimRecord], None] = lambda _: None,
    list_slices: Callable[[], None] = lambda: None,
) -> dict[str, tuple[Codec[Any], ObjectHandler[Any, Any]]]:
    """Return the codec and the handler of each collection that fills the books, by collection.

    claim_shown: called with each claim, after the books have taken it over. list_slices: called
    when the books need a new list of slices.
    """

    def slices_listed(records: Mapping[str, Slice], _: Collection[str]) -> None:
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

    def claims_listed(claims: Mapping[str, ClaimRecord], _: Collection[str]) -> None:
        books.replace_claims(claims.values())
        for claim in claims.values():
            claim_shown(claim)

    def claim_changed(uid: str, claim: ClaimRecord | None) -> None:
        if claim is None:
            books.claim_gone(uid)
            return
        books.claim_changed(claim)
        claim_shown(claim)

    # Books take whole lists: an unreadable object counts as gone.
    handlers: dict[str, tuple[Codec[Any], ObjectHandler[Any, Any]]] = {
        "resourceslices": (
            RESOURCE_SLICES,
            ObjectHandler(read_slice, slices_listed, slice_changed),
        ),
        "resourceclaims": (
            RESOURCE_CLAIMS,
            ObjectHandler(claim_record, claims_listed, claim_changed, lambda ref: ref.uid),
        ),
        "deviceclasses": (
            DEVICE_CLASSES,
            ObjectHandler(
                class_record,
                lambda records, _: books.replace_classes(records.values()),
                books.class_changed,
            ),
        ),
        # GA since Kubernetes 1.37; before, no device has taints of rules.
        "devicetaintrules": (
            DEVICE_TAINT_RULES,
            ObjectHandler(
                read_taint_rule, lambda records, _: books.replace_rules(records), books.rule_changed
            ),
        ),
    }
    return handlers


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
