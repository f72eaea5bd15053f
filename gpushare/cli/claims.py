"""The cards of DRA drivers and the claims that have them, from lists of slices and claims; with
templates and manifests, what pods may ask for by claims.

`inspect` loads it only where a cluster has the device class of claims: it needs more than the
standard library.
Two things only the extender knows: allocations that are being written, and which cards a name has
meant before its driver numbered its devices anew.

Tested in `tests/unit/cli/test_inspect_claims.py` and `tests/unit/cli/test_whatif_claims.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from gpushare.cli.facts import Fields, pod_ref
from gpushare.cli.lister import DRA
from gpushare.errors import ApiError, ApiNotFound, MessageError, WireError
from gpushare.explain import claim_pods
from gpushare.explain.claims import explain_claim
from gpushare.explain.document import given_documents
from gpushare.explain.placer import Wanted
from gpushare.explain.pod import ClaimExplanation
from gpushare.kube.api import Getter
from gpushare.wire.codec import Codec
from gpushare.wire.dra.claims import CLASS, ClaimRequest, Part
from gpushare.wire.dra.objects import (
    CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ResourceClaim,
)
from gpushare.wire.dra.slices import DeviceKey, SliceCard, cards_of
from gpushare.wire.dra.templates import sized_template

_T = TypeVar("_T")
_TIMEOUT = 30.0


class ListedClaims:
    """Cards, and claims by namespace and name, that were listed (see `explain.claims.ClaimReader`).

    unit: the bytes of a unit.
    """

    def __init__(
        self, cards: Mapping[DeviceKey, SliceCard], claims: Iterable[ResourceClaim], unit: int
    ) -> None:
        self.unit = unit
        self.cards = cards
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        for claim in claims:
            metadata = claim.metadata
            namespace = (metadata and metadata.namespace) or ""
            self.claims[namespace, (metadata and metadata.name) or ""] = claim

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""
        return self.claims.get((namespace, name))

    def card(self, key: DeviceKey) -> SliceCard | None:
        """Return the card that a slice gives this name."""
        return self.cards.get(key)

    def in_flight(self) -> frozenset[str]:
        """Return nothing: only the extender knows what it is writing."""
        return frozenset()


class Claims(ListedClaims):
    """Claims with templates (see `explain.claim_pods.ClaimSource`), those of manifests too.

    api: None: there is no cluster. cards: what is dealt out. namespace: returns that of what names
    none. why_not: "", or why claims do not count.
    """

    def __init__(
        self,
        api: Getter | None,
        unit: int,
        cards: Mapping[DeviceKey, SliceCard] = MappingProxyType({}),
        claims: Iterable[ResourceClaim] = (),
        *,
        namespace: Callable[[], str] = lambda: "default",
        why_not: str = "",
    ) -> None:
        super().__init__(cards, claims, unit)
        self._api = api
        self.namespace = namespace
        self.why_not = why_not
        self.templates: dict[tuple[str, str], ResourceClaim | None] = {}
        """As a claim that each makes, by namespace and name; None: there is none."""
        self._dealt: dict[int, int] = {}

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim as the template of that name makes it; None if there is no template."""
        key = namespace, name
        if key not in self.templates:
            # One by size is written as soon as a pod waits for it.
            sized = sized_template(namespace, name)
            by_size = CLAIM_TEMPLATES.decode(sized.body(CLASS)).claim() if sized else None
            self.templates[key] = self._listed_template(namespace, name) or by_size
        return self.templates[key]

    def least_dealt(self, memory: int) -> int:
        """Return the fewest bytes that a claim for so many takes."""
        if memory not in self._dealt:
            self._dealt[memory] = claim_pods.least_dealt(self.cards.values(), memory)
        return self._dealt[memory]

    def in_words(self, pods: Wanted) -> Wanted:
        """Return pods that ask for so many units as pods with one claim each."""
        parts = (Part("", units * self.unit) for units in pods.request.parts)
        asked = claim_pods.asked_of(ClaimRequest(tuple(parts)), self)
        request = pods.request.of_parts(asked.request.parts)
        return replace(pods, request=request, exact=asked.exact)

    def _listed_template(self, namespace: str, name: str) -> ResourceClaim | None:
        if self._api is None:
            return None
        path = f"{DRA}/namespaces/{namespace}/resourceclaimtemplates/{name}"
        try:
            body = self._api.request("GET", path, query={}, timeout=_TIMEOUT)
        except ApiNotFound:
            return None
        except ApiError as error:
            text = f"ResourceClaimTemplate {namespace}/{name} cannot be read: {error}"
            raise MessageError(text) from error
        return CLAIM_TEMPLATES.decode_answer(body, namespace, name).claim()


@dataclass(frozen=True, slots=True)
class CardLine:
    """A card that claims may have parts of."""

    card: SliceCard
    total: int
    allocated: int

    @property
    def free(self) -> int:
        """Units that can still be given out."""
        return max(0, self.total - self.allocated) if self.card.open else 0


@dataclass(frozen=True, slots=True)
class ClaimsReport:
    """Cards by node and name, and the claims of our class by namespace and name."""

    nodes: tuple[tuple[str, tuple[CardLine, ...]], ...]
    claims: tuple[ClaimExplanation, ...]

    def within(self, namespace: str) -> "ClaimsReport":
        """Return the report with the claims of this namespace alone; sums stay those of all."""
        claims = tuple(claim for claim in self.claims if claim.ref.namespace == namespace)
        return replace(self, claims=claims)


def claims_report(
    slices: Iterable[Fields], claims: Iterable[Fields], unit: int, nodes: Collection[str] | None
) -> tuple[ClaimsReport, list[str]]:
    """Return the report, and what could not be read, one line each.

    unit: the bytes of a unit. nodes: those that are shown; None: all.
    """
    notes: list[str] = []
    cards = cards_of(_decoded(slices, RESOURCE_SLICES, notes))
    listed = ListedClaims(cards, _decoded(claims, RESOURCE_CLAIMS, notes), unit)
    allocated: Counter[DeviceKey] = Counter()
    shown: list[ClaimExplanation] = []
    for name in sorted(listed.claims):
        claim = explain_claim(listed.claims[name], listed, foreign=True)
        if claim is None:
            continue
        can_show = not claim.cards
        for given in claim.cards:
            key = DeviceKey(given.driver, given.pool, given.device)
            card = cards.get(key)
            can_show = can_show or card is None or card.shared
            if card is not None:
                # Whatever a claim says that it has: the whole card at most.
                whole = card.memory // unit
                allocated[key] += whole if given.units is None else min(given.units, whole)
        if can_show and (nodes is None or claim.node in nodes):
            shown.append(claim)
    by_node: dict[str, list[CardLine]] = {}
    for key, card in sorted(cards.items(), key=lambda item: _order(item[0])):
        if card.shared and (nodes is None or card.node in nodes):
            line = CardLine(card, card.memory // unit, allocated[key])
            by_node.setdefault(card.node, []).append(line)
    by_name = tuple(sorted((name, tuple(lines)) for name, lines in by_node.items()))
    return ClaimsReport(by_name, tuple(shown)), notes


def claims_document(report: ClaimsReport) -> dict[str, Any]:
    """Return the part of the document about claims."""
    return {
        "class": CLASS,
        "total": sum(line.total for _, lines in report.nodes for line in lines),
        "allocated": sum(line.allocated for _, lines in report.nodes for line in lines),
        "free": sum(line.free for _, lines in report.nodes for line in lines),
        "nodes": [
            {
                "name": name,
                "devices": [
                    {
                        "driver": line.card.key.driver,
                        "pool": line.card.key.pool,
                        "device": line.card.key.device,
                        "uuid": line.card.uuid,
                        "model": line.card.model or None,
                        "open": line.card.open,
                        "total": line.total,
                        "allocated": line.allocated,
                        "free": line.free,
                    }
                    for line in lines
                ],
            }
            for name, lines in report.nodes
        ],
        "claims": [
            {
                "namespace": claim.ref.namespace,
                "name": claim.ref.name,
                "uid": claim.ref.uid,
                "state": claim.state,
                "detail": claim.detail or None,
                "requested": claim.asked.request.total if claim.asked else None,
                "node": claim.node or None,
                "devices": given_documents(claim),
                "pods": list(claim.pods),
            }
            for claim in report.claims
        ],
    }


def _decoded(items: Iterable[Fields], codec: Codec[_T], notes: list[str]) -> Iterator[_T]:
    for item in items:
        try:
            yield codec.decode(json.dumps(item).encode())
        except WireError as error:
            notes.append(f"{codec.kind} {pod_ref(item)} is left out: {error}")


def _order(key: DeviceKey) -> tuple[str, str, list[tuple[int, str]]]:
    """Return by what devices are sorted: gpu-2 comes before gpu-10."""
    parts = re.split(r"(\d+)", key.device)
    numbered = [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in parts]
    return key.driver, key.pool, numbered
