"""Pairing: which devices are left to a pod while an equal one waits for its device plug-in.

The kubelet tells a device plug-in how much, not for which pod: with two equal pods waiting on
different devices of a node, the plug-in may swap them. So while a bound pod has not been served,
another of an equal size takes the same devices, where a swap is no harm, or waits.

A pod may get what is meant for another until the kubelet has admitted it: it asks for all its
containers then, before it first writes the pod's status (and in it status.startTime). Another may
get what is meant for the pod while the plug-in looks for it: until it is marked, or runs (the
original looks among Pending pods, podmanager.go). Neither alone will do. The mark may come of an
equal's call, with the pod's own still to come; and one that was admitted and not marked waits to be
found. A pod that runs is past both, marked or not.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from gpushare.core.entry import Entry
from gpushare.core.model import Request
from gpushare.core.snapshot import Pinned


class Pairing(Enum):
    """On which nodes a bound pod holds back equal pods until its device plug-in has served it."""

    AUTO = "auto"  # everywhere but where a plug-in is known to serve by identity
    ON = "on"
    OFF = "off"


def paired_devices(pinned: Iterable[Pinned], request: Request) -> tuple[int, ...] | None:
    """Return the devices that pairing leaves on a node with these pins; None for all."""
    wanted = request.sizes
    equals = [(sizes, devices) for sizes, devices in pinned if sizes & wanted]
    if not equals:
        return None
    devices = equals[0][1]
    together = len(devices) == request.devices and all(other == devices for _, other in equals)
    # A container of a pod on several devices has its own share of each, which a swap would change;
    # only where each container has the size of the whole pod are the shares the same.
    alike = len(wanted) == 1 and all(sizes == wanted for sizes, _ in equals)
    return devices if together and (alike or len(devices) == 1) else ()


def pin_of(entry: Entry) -> Pinned:
    """Return the sizes and devices by which a pod that pins holds back its equals."""
    return entry.request.sizes, tuple(device for device, _ in entry.cover.written or ())


class Pins:
    """The pods that hold back equal pods, by node. Counted by the Ledger, under its lock.

    A node counts until its plug-in is known to need no pairing. It would be too late to wait for a
    sign that pairing is needed: the first sign is a swap.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._pins: dict[str, dict[str, Pinned]] = {}
        self._by_identity: set[str] = set()
        # Those of nodes where pairing applies, as a snapshot has them: it is taken after each bind.
        self._active: dict[str, tuple[Pinned, ...]] = {}

    def active(self, node: str) -> bool:
        """Return whether pairing applies on the node."""
        if self._pairing is Pairing.AUTO:
            return node not in self._by_identity
        return self._pairing is Pairing.ON

    def serves_by_identity(self, node: str, known: bool) -> None:
        """Take over whether the node's plug-in is known to tell equal pods apart."""
        if known:
            self._by_identity.add(node)
        else:
            self._by_identity.discard(node)
        self._renew(node)

    def add(self, entry: Entry) -> None:
        """Take a charge into account."""
        if entry.pins:
            self._pins.setdefault(entry.node, {})[entry.ref.uid] = pin_of(entry)
            self._renew(entry.node)

    def remove(self, entry: Entry) -> None:
        """Take a charge out of account."""
        pins = self._pins.get(entry.node)
        if pins is None or pins.pop(entry.ref.uid, None) is None:
            return
        if not pins:
            del self._pins[entry.node]
        self._renew(entry.node)

    def devices(self, node: str, request: Request, of: str) -> tuple[int, ...] | None:
        """Return the devices left to the request of a pod (`of`: its uid): None for all, () for
        none.
        """
        if not self.active(node):
            return None
        pins = self._pins.get(node, {}).items()
        return paired_devices((pin for uid, pin in pins if uid != of), request)

    def by_row(self, rows: Mapping[str, int]) -> dict[int, tuple[Pinned, ...]]:
        """Return the active pins by the row of their node."""
        return {rows[node]: pins for node, pins in self._active.items() if node in rows}

    def _renew(self, node: str) -> None:
        """Keep the node's pins for snapshots, if it has any and pairing applies there."""
        pins = self._pins.get(node)
        if pins and self.active(node):
            self._active[node] = tuple(pins.values())
        else:
            self._active.pop(node, None)
