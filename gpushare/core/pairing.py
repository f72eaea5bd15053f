"""Pairing: which devices a pod may use while an equal pod waits for its device plug-in.

The kubelet tells a device plug-in how much, not for which pod: if two equal pods wait on different
devices of a node, the plug-in may swap them. So while a bound pod has not been served, another pod
of an equal size gets the same devices, where a swap does no harm, or waits.

A pod may get the devices of another one until the kubelet has admitted it: then the kubelet calls
for all its containers, before it first writes the pod's status (with status.startTime). Another pod
may get the devices of this one while the plug-in looks for it: until it is marked, or runs (the
original looks among Pending pods, podmanager.go). Neither sign alone is enough. The mark may come
from the call for an equal pod, before the pod's own call; and a pod that was admitted but not
marked can still be found by the plug-in. A pod that runs is past both, marked or not.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from collections.abc import Iterable
from enum import Enum

from gpushare.core.model import Allocation, Charge, Pinned, Request
from gpushare.errors import InsufficientMemory


class Pairing(Enum):
    """On which nodes a bound pod holds back equal pods until its device plug-in has served it."""

    AUTO = "auto"  # on all nodes except those whose plug-in is known to serve by identity
    ON = "on"
    OFF = "off"


def paired_devices(pinned: Iterable[Pinned], request: Request) -> tuple[int, ...] | None:
    """Return the devices that pairing allows on a node with these pins; None for all."""
    wanted = request.sizes
    equals = [(sizes, devices) for sizes, devices in pinned if sizes & wanted]
    if not equals:
        return None
    devices = equals[0][1]
    together = len(devices) == request.devices and all(other == devices for _, other in equals)
    # On several devices each container has its own share of each, and a swap would change them;
    # the shares are the same only if each container has the size of the whole pod.
    alike = len(wanted) == 1 and all(sizes == wanted for sizes, _ in equals)
    return devices if together and (alike or len(devices) == 1) else ()


class Pins:
    """The pods that hold back equal pods, by node. Counted by the Ledger, under its lock.

    Pairing applies on a node until its plug-in is known to need none: the first sign that it was
    needed would be a swap.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._pins: dict[str, dict[str, Pinned]] = {}
        self._by_identity: set[str] = set()
        self.by_node: dict[str, tuple[Pinned, ...]] = {}
        """The pins on nodes where there are some and pairing applies, for snapshots."""

    def serves_by_identity(self, node: str, known: bool) -> None:
        """Note whether the node's plug-in is known to tell equal pods apart."""
        if known:
            self._by_identity.add(node)
        else:
            self._by_identity.discard(node)
        self._renew(node)

    def add(self, uid: str, charge: Charge, sign: int = 1) -> None:
        """Add the pin of a charge, if it has one; sign -1: remove it."""
        if charge.pinned is None or self._pairing is Pairing.OFF:
            return
        pins = self._pins.setdefault(charge.node, {})
        if sign > 0:
            pins[uid] = charge.request.sizes, charge.pinned
        else:
            del pins[uid]
        self._renew(charge.node)

    def check(self, uid: str, request: Request, allocation: Allocation) -> None:
        """Raise InsufficientMemory if the pod would have to wait for an equal one."""
        node = allocation.node
        if node not in self.by_node:
            return
        pins = self._pins[node].items()
        allowed = paired_devices((pin for other, pin in pins if other != uid), request)
        if allowed not in (None, allocation.devices):
            raise InsufficientMemory(f"node {node!r}: an equal pod waits for the device plug-in")

    def _renew(self, node: str) -> None:
        """Keep the node's pins for snapshots if it has any and pairing applies there."""
        pins = self._pins.get(node)
        if pins and (self._pairing is Pairing.ON or node not in self._by_identity):
            self.by_node[node] = tuple(pins.values())
        else:
            self.by_node.pop(node, None)
        if not pins:
            self._pins.pop(node, None)
