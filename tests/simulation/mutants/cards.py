"""Bugs about cards: an index is mistaken for a device, and a report for the truth."""

from typing import Any

from gpushare.core import cover
from gpushare.extender.verbs.bind import transaction
from gpushare.ledger import books
from gpushare.wire import nodes, pods
from tests.simulation.mutants.museum import mutant
from tests.simulation.truth import ALLOCATION, IDX, UUIDS


@mutant(
    "C16", "ours, once: a charge stays at its index when the cards move", books, "resolve_devices"
)
def takes_an_index_for_a_device(original: Any) -> Any:
    def resolve_devices(cover: Any, spec: Any) -> Any:
        shares = cover.written or ()
        all_on_node = all(device < len(spec.capacity) for device, _ in shares)
        return (cover, cover.written) if shares and all_on_node else original(cover, spec)

    return resolve_devices


@mutant(
    "C16",
    "a charge is on the card that its uuid names, whatever the plug-in reads",
    cover,
    "_resolve_share",
)
def believes_the_uuid_alone(original: Any) -> Any:
    def share(cards: Any, card: Any, *args: Any) -> Any:
        return original(cards, None if cards else card, *args)

    return share


@mutant(
    "C16",
    "ours, once: who starts anew finds indices alone in the annotations",
    transaction,
    "encode",
)
def writes_no_uuids(original: Any) -> Any:
    def encode(*of: Any) -> dict[str, str]:
        return {**original(*of), UUIDS: ""}

    return encode


@mutant("C16", "what a pod's owner wrote for uuids outlives the Binding", transaction, "encode")
def leaves_the_owners_uuids(original: Any) -> Any:
    def encode(*of: Any) -> dict[str, str]:
        return {key: text for key, text in original(*of).items() if key != UUIDS}

    return encode


@mutant("C17", "ours, once: without a count all memory is one giant device", nodes, "_from_totals")
def makes_one_giant_device(original: Any) -> Any:
    def from_totals(bare: Any, capacity: Any, allocatable: Any, names: Any) -> Any:
        one = {names.count: "1"}
        return original(bare, {**one, **capacity}, {**one, **allocatable}, names)

    return from_totals


@mutant("C18", "ours, once: a map of containers wins over the index", pods, "placement")
def believes_the_map_alone(original: Any) -> Any:
    def placed(annotations: Any, request: Any, names: Any) -> Any:
        by_map = {key: text for key, text in annotations.items() if key != IDX}
        placement = original(by_map, request, names) if ALLOCATION in annotations else None
        return placement or original(annotations, request, names)

    return placed
