"""Bugs about nodes and devices: shapes, health, containers, and the plug-in that mixes up pods."""

from dataclasses import replace
from typing import Any

from gpushare.core.model import Request
from gpushare.core.pairing import Pins
from gpushare.core.snapshot import Snapshot
from gpushare.core.states import records
from gpushare.core.states.entry import Entry
from gpushare.core.states.records import Step
from gpushare.errors import AnnotationError
from gpushare.extender.follow import watch_handlers
from gpushare.extender.follow.watch_handlers import UnhealthyEventHandler
from gpushare.ledger import books
from gpushare.ledger.books import Store
from gpushare.wire import device_request, nodes
from tests.simulation.mutants.museum import mutant


def _on(store: Any, node: str) -> list[str]:
    """All pods on the node."""
    return [*store.on_node.get(node, ())]


@mutant("C1", "HAMi drops a node's pods with the node", Store, "drop_node")
def drops_pods_with_their_node(original: Any) -> Any:
    def drop_node(self: Any, name: str) -> None:
        for uid in _on(self, name):
            self.put(uid, None)
        original(self, name)

    return drop_node


@mutant("C2", "the original takes a node over from zero devices alone", Store, "set_spec")
def never_reshapes(original: Any) -> Any:
    def set_spec(self: Any, spec: Any) -> None:
        old_node = self.nodes.get(spec.name)
        if old_node is None or not old_node.spec.capacity:
            original(self, spec)

    return set_spec


@mutant(
    "C3", "the original and its plug-in take every device for the same", nodes, "_from_inventory"
)
def makes_devices_equal(original: Any) -> Any:
    def from_inventory(bare: Any, text: str, unit: str) -> Any:
        spec = original(bare, text, unit)
        count = len(spec.capacity)
        return replace(spec, capacity=(sum(spec.capacity) // count,) * count) if count else spec

    return from_inventory


@mutant("C4", "the original starts anew when a node had no devices for a moment", Store, "set_spec")
def resets_at_zero(original: Any) -> Any:
    def set_spec(self: Any, spec: Any) -> None:
        if not spec.capacity:
            for uid in _on(self, spec.name):
                self.put(uid, None)
        original(self, spec)

    return set_spec


@mutant(
    "C5",
    "the original takes a device it cannot read for device 0",
    watch_handlers,
    "decode_unhealthy",
)
def reads_odd_devices_as_0(original: Any) -> Any:
    def decode(data: Any) -> Any:
        try:
            return original(data)
        except AnnotationError:
            return frozenset([0])

    return decode


@mutant("C6", "filter and bind forget about health", Snapshot, "open")
def opens_sick_devices(original: Any) -> Any:
    del original

    def is_open(self: Any) -> Any:
        return self.capacity > 0

    return property(is_open)


@mutant("C7", "the original's plug-in: a device once unhealthy stays so", Store, "set_unhealthy")
def never_recovers(original: Any) -> Any:
    def set_unhealthy(self: Any, node: str, devices: Any) -> None:
        original(self, node, devices | self.unhealthy.get(node, frozenset()))

    return set_unhealthy


@mutant("C7", "that the ConfigMap is gone opens no device", UnhealthyEventHandler, "apply")
def stays_closed(original: Any) -> Any:
    def apply(self: Any, event: Any) -> None:
        if event.kind != "DELETED":
            original(self, event)

    return apply


@mutant("C8", "the original's plug-in mixes up pods of equal size (its #16)", Pins, "_renew")
def pairs_nobody(original: Any) -> Any:
    del original

    def renew(self: Any, node: str) -> None:
        return

    return renew


def _pairs_after(original: Any) -> Any:
    """Only where a plug-in has been seen to mark a pod."""

    def renew(self: Any, node: str) -> None:
        if node in vars(self).get("seen", ()):
            original(self, node)

    return renew


@mutant(
    "C8",
    "ours paired only where a plug-in had been seen to mark a pod",
    Store,
    "put",
    [(Pins, "_renew", _pairs_after)],
)
def pairs_too_late(original: Any) -> Any:
    def put(self: Any, uid: str, record: Any, *args: Any) -> None:
        if isinstance(record, Entry) and record.assigned:
            vars(self.pins).setdefault("seen", set()).add(record.node)
        original(self, uid, record, *args)

    return put


@mutant("C8", "a first draft told pods apart by their regular containers alone", Request, "sizes")
def pairs_without_init_containers(original: Any) -> Any:
    def sizes(self: Any) -> Any:
        return original.fget(replace(self, inits=()))

    return property(sizes)


@mutant("C9", "the original's plug-in never marks a pod of several containers", Entry, "charge")
def waits_for_the_mark(original: Any) -> Any:
    def charge(self: Any) -> Any:
        pinned = None
        if self.placement is not None and not self.assigned:
            pinned = tuple(device for device, _ in self.cover.written or ())
        return original.fget(self)._replace(pinned=pinned)

    return property(charge)


@mutant("C10", "the original counts regular containers alone", device_request, "peak")
def forgets_init_containers(original: Any) -> Any:
    del original

    def peak(regular: Any, inits: Any) -> int:
        del inits
        return sum(regular)

    return peak


@mutant("C12", "a pod holds memory once its plug-in has marked it", records, "observed")
def charges_the_assigned(original: Any) -> Any:
    def shown(record: Any, pod: Any) -> Any:
        is_entry = isinstance(record, Entry)
        if is_entry or pod.assigned or not pod.node or not pod.request.devices:
            return original(record, pod)
        return Step(record)

    return shown


@mutant("C14", "the original ignores pods without an index", records, "observed")
def ignores_the_unplaced(original: Any) -> Any:
    def shown(record: Any, pod: Any) -> Any:
        if not pod.node or pod.placement is not None or not pod.request.devices:
            return original(record, pod)
        return Step(record)

    return shown


@mutant("C15", "the original ignores an index it does not know", books, "resolve_devices")
def ignores_unknown_devices(original: Any) -> Any:
    def resolved(cover: Any, spec: Any) -> Any:
        learned, shares = original(cover, spec)
        return learned, shares if cover.written is None else shares or ()

    return resolved
