"""Devices of DRA drivers and claims, from lists of the API server, templates and manifests.

`inspect` loads this module only for a cluster with the DeviceClass gpushare.io, since the module
needs more than the standard library.

Tested in `tests/unit/cli/test_inspect_claims.py` and `tests/unit/cli/test_whatif_claims.py`.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpushare.cli.cluster import items
from gpushare.cli.facts import Fields, pod_ref
from gpushare.cli.lister import CLAIMS, DEVICE_CLASSES, DRA, SLICES, TAINT_RULES
from gpushare.core.claims.model import ClaimRequest, PodClaims, Slice
from gpushare.core.node_filters import NodeStates
from gpushare.errors import ApiError, ApiNotFound, MessageError, WireError
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_pods import memory_parts
from gpushare.explain.claim_records import MEMORY, ClaimCard, ClaimRecord, claim_record
from gpushare.explain.claims import explain_claim
from gpushare.explain.document import claim_document
from gpushare.explain.placer import PodBatch
from gpushare.explain.pod import ClaimExplanation
from gpushare.kube.api import Getter
from gpushare.wire.codec import Codec
from gpushare.wire.dra import objects
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import CLASS, ResourceClaim
from gpushare.wire.dra.requests import claim_request, class_record, classes_by_resource
from gpushare.wire.dra.selectors import Selectors

_T = TypeVar("_T")
_R = TypeVar("_R")
_TIMEOUT = 30.0


class Claims:
    """Claims and templates of a cluster and of manifests (see `explain.claim_pods.ClaimSource`).

    api: None: there is no cluster. books: with the claims of the cluster. namespace: returns the
    namespace of manifests that name none. why_not: "", or why claims do not count.
    """

    def __init__(
        self,
        api: Getter | None,
        books: ClaimBooks,
        claims: Iterable[ResourceClaim] = (),
        *,
        namespace: Callable[[], str] = lambda: "default",
        why_not: str = "",
    ) -> None:
        self._api = api
        self.books = books
        self.namespace = namespace
        self.why_not = why_not
        self.matches = Selectors(time.thread_time).matches
        """Evaluates selectors."""
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        """By namespace and name."""
        for claim in claims:
            metadata = claim.metadata or objects.ClaimMetadata()
            self.claims[metadata.namespace or "", metadata.name or ""] = claim
        self.templates: dict[tuple[str, str], ResourceClaim | None] = {}
        """As a claim that each makes, by namespace and name; None: there is none."""

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""
        return self.claims.get((namespace, name))

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim of the template of that name; None if there is no template."""
        key = namespace, name
        if key not in self.templates:
            self.templates[key] = self._listed_template(namespace, name)
        return self.templates[key]

    def request(self, claim: ResourceClaim) -> ClaimRequest:
        """Return the requests of a claim with the selectors of the classes. Raises MessageError."""
        if claim.spec is None:
            raise MessageError("a claim cannot be read")
        classes = {record.name: record for record in self.books.classes()}
        request = claim_request(claim.spec)
        complete = request.with_classes(classes)
        if complete is None:
            class_names = {
                alternative.device_class
                for item in request.requests
                for alternative in item.alternatives
            }
            raise MessageError(f"there is no DeviceClass {min(class_names - classes.keys())}")
        return complete

    def nodes_of(self, claim: ResourceClaim) -> frozenset[str] | None:
        """Return the nodes that can use the devices of an allocated claim; None: not known."""
        metadata = claim.metadata or objects.ClaimMetadata()
        record = self.books.named(metadata.namespace or "", metadata.name or "")
        return self.books.common_nodes(record) if record else None

    def in_words(self, pods: PodBatch) -> PodBatch:
        """Return pods that ask for so many units as pods with one claim each of our class."""
        if not pods.request.devices:
            return pods
        memory = str(pods.request.units * self.books.unit)
        exactly = {
            "deviceClassName": CLASS,
            "count": pods.request.devices,
            "capacity": {"requests": {MEMORY: memory}},
        }
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = objects.RESOURCE_CLAIMS.decode(json.dumps({"spec": spec}).encode())
        return replace(pods, claims=PodClaims((self.request(claim),)))

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
        return objects.CLAIM_TEMPLATES.decode_answer(body, namespace, name).claim()


def no_claims(why_not: str, namespace: Callable[[], str] = lambda: "default") -> Claims:
    """Return no claims, with the reason. namespace: as of `Claims`."""
    return Claims(None, ClaimBooks("", 1), namespace=namespace, why_not=why_not)


def list_slices(api: Getter, notes: list[str]) -> tuple[Slice, ...]:
    """Return the slices of all drivers. Raises ApiError."""
    return tuple(_read(items(api, SLICES, objects.RESOURCE_SLICES, {}, notes), read_slice, notes))


def list_claims(
    api: Getter,
    books: ClaimBooks,
    slices: Iterable[Slice],
    notes: list[str],
    namespace: Callable[[], str] = lambda: "default",
) -> Claims:
    """Fill the books with these slices, and with lists of classes, taint rules and claims; return
    the claims. Raises ApiError.
    """
    try:
        objects_listed = [*items(api, TAINT_RULES, objects.DEVICE_TAINT_RULES, {}, notes)]
    except ApiError as error:  # the API is younger than that of claims
        objects_listed = []
        if not isinstance(error, ApiNotFound):
            notes.append(f"DeviceTaintRules do not count: {error}")
    rules = {(rule.metadata and rule.metadata.name) or "": rule for rule in objects_listed}
    books.replace_rules(
        {
            name: taint
            for name, rule in rules.items()
            for taint in _read([rule], read_taint_rule, notes)
        }
    )
    books.replace_slices(slices)
    classes = items(api, DEVICE_CLASSES, objects.DEVICE_CLASSES, {}, notes)
    books.replace_classes(_read(classes, class_record, notes))
    claims = [*items(api, CLAIMS, objects.RESOURCE_CLAIMS, {}, notes)]
    books.replace_claims(_read(claims, claim_record, notes))
    return Claims(api, books, claims, namespace=namespace)


def class_resources(api: Getter) -> Collection[str]:
    """Return the extended resources that kube-scheduler makes claims for; none if the API server
    has no classes or shows none.
    """
    try:
        classes = items(api, DEVICE_CLASSES, objects.DEVICE_CLASSES, {}, [])
        return classes_by_resource(_read(classes, class_record, [])).keys()
    except ApiError:
        return ()


def books_of(driver: str, unit: int, states: NodeStates) -> ClaimBooks:
    """Return empty books. unit: bytes of a memory unit. states: states of the nodes with labels."""

    def labels(node: str) -> dict[str, str]:
        state = states.get(node)
        return dict(state.labels or {}) if state else {}

    return ClaimBooks(driver, unit, labels)


def drivers_with_memory(slices: Iterable[Slice]) -> list[str]:
    """Return the drivers that have devices with memory."""
    return sorted(
        {
            item.driver
            for item in slices
            for device in item.devices
            if {MEMORY, f"{item.driver}/{MEMORY}"} & device.capacities.keys()
        }
    )


@dataclass(frozen=True, slots=True)
class CardLine:
    """A device with memory, and the units that claims hold."""

    card: ClaimCard
    allocated: int

    @property
    def free(self) -> int:
        """Units that claims can still be allocated."""
        return max(0, self.card.units - self.allocated) if self.card.is_offered else 0


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """A claim, and the units of memory of its holdings or requests; None: no memory is named."""

    claim: ClaimExplanation
    units: int | None


@dataclass(frozen=True, slots=True)
class ClaimsReport:
    """Devices with memory by node and name, and claims by namespace and name."""

    nodes: tuple[tuple[str, tuple[CardLine, ...]], ...]
    claims: tuple[ClaimLine, ...]

    def within(self, namespace: str) -> "ClaimsReport":
        """Return the report with the claims of this namespace alone; sums stay those of all."""
        lines = tuple(line for line in self.claims if line.claim.ref.namespace == namespace)
        return replace(self, claims=lines)


def claims_report(
    slices: Iterable[Fields], claims: Iterable[Fields], unit: int, nodes: Collection[str] | None
) -> tuple[ClaimsReport, list[str]]:
    """Return the report, and one line for each object that could not be read.

    unit: the bytes of a unit. nodes: those that are shown; None: all.
    """
    notes: list[str] = []
    all_slices = [*_read(_decoded(slices, objects.RESOURCE_SLICES, notes), read_slice, notes)]
    records = [*_read(_decoded(claims, objects.RESOURCE_CLAIMS, notes), claim_record, notes)]
    by_node: dict[str, list[CardLine]] = {}
    claim_lines: dict[tuple[str, str], ClaimLine] = {}
    for driver in drivers_with_memory(all_slices):
        books = ClaimBooks(driver, unit)
        books.replace_slices(all_slices)
        books.replace_claims(records)
        for node in books.nodes():
            lines = [line for line in _lines(books, node) if nodes is None or node in nodes]
            by_node.setdefault(node, []).extend(lines)
        for record in records:
            line = _claim_line(record, books)
            if line is not None and (nodes is None or line.claim.node in nodes):
                claim_lines[record.ref.namespace, record.ref.name] = line
    by_name = tuple((name, tuple(lines)) for name, lines in sorted(by_node.items()) if lines)
    return ClaimsReport(by_name, tuple(claim_lines[name] for name in sorted(claim_lines))), notes


def _lines(books: ClaimBooks, node: str) -> Iterator[CardLine]:
    devices = books.devices(node)
    for device in devices.devices if devices else ():
        card = books.card(device.key, node)
        if card is not None and card.key == device.key:
            held_units = (
                books.units_of(holding, card)
                for key in card.keys
                for claim in books.holders(key)
                for holding in claim.holdings
                if holding.key == key
            )
            yield CardLine(card, min(sum(held_units), card.units))


def _claim_line(record: ClaimRecord, books: ClaimBooks) -> ClaimLine | None:
    """Return the line of a claim; None for a claim without a card of the driver."""
    claim = explain_claim(record, books)
    if record.request is not None:
        parts = memory_parts([record.request], books.unit)
        requests = record.request.requests
        classes = {one.device_class for item in requests for one in item.alternatives}
        return ClaimLine(claim, sum(parts) or None) if parts or CLASS in classes else None
    held_units = [
        books.units_of(holding, card)
        for holding in record.holdings
        if (card := books.card(holding.key)) is not None
    ]
    return ClaimLine(claim, sum(held_units)) if held_units else None


def claims_document(report: ClaimsReport) -> dict[str, Any]:
    """Return the part of the document about claims."""
    lines = [line for _, lines in report.nodes for line in lines]
    return {
        "class": CLASS,
        "total": sum(line.card.units for line in lines),
        "allocated": sum(line.allocated for line in lines),
        "free": sum(line.free for line in lines),
        "nodes": [
            {"name": name, "devices": [_card_document(line) for line in lines]}
            for name, lines in report.nodes
        ],
        "claims": [claim_document(line.claim) | {"units": line.units} for line in report.claims],
    }


def _card_document(line: CardLine) -> dict[str, Any]:
    card = line.card
    return {
        **card.key._asdict(),
        "uuid": card.uuid,
        "model": card.model or None,
        "shared": card.is_shared,
        "open": card.is_offered,
        "total": card.units,
        "allocated": line.allocated,
        "free": line.free,
    }


def _decoded(objects_listed: Iterable[Fields], codec: Codec[_T], notes: list[str]) -> Iterator[_T]:
    for item in objects_listed:
        try:
            yield codec.decode(json.dumps(item).encode())
        except WireError as error:
            notes.append(f"{codec.kind} {pod_ref(item)} is left out: {error}")


def _read(
    objects_listed: Iterable[_T], read_item: Callable[[_T], _R], notes: list[str]
) -> Iterator[_R]:
    for item in objects_listed:
        try:
            yield read_item(item)
        except WireError as error:
            notes.append(f"{type(item).__name__} is left out: {error}")
