"""Pairing: the devices that a pod may use while an equal pod waits for the device plug-in.

The kubelet tells a device plug-in an amount, not a pod: if two equal pods wait on different devices
of a node, the plug-in may swap the devices. So while a charged pod has not been served, another pod
of an equal size gets the same devices, where a swap does no harm, or waits.

A pod P may get the devices of another pod until the kubelet has admitted P: at admission the
kubelet calls the plug-in for all containers of P, before the first write of P's status (with
status.startTime). Another pod may get the devices of P while the plug-in searches for P: until P is
marked, or runs (the original searches among Pending pods, podmanager.go). Neither sign alone is
enough. The mark may come from the call for an equal pod, before the call for P; and the plug-in can
still find a pod that was admitted but not marked. A running pod is past both, marked or not.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from collections.abc import Iterable
from enum import Enum

from gpushare.core.model import Allocation, Charge, Pinned, Request
from gpushare.errors import InsufficientMemory


class Pairing(Enum):
    """The nodes on which a bound pod holds back equal pods until the device plug-in served it."""

    AUTO = "auto"  # all nodes except nodes with a plug-in that serves by identity
    ON = "on"
    OFF = "off"


def paired_devices(pinned: Iterable[Pinned], request: Request) -> tuple[int, ...] | None:
    """Return the devices that pairing allows on a node with these pins; None for all."""
    request_sizes = request.sizes
    equals = [(sizes, devices) for sizes, devices in pinned if sizes & request_sizes]
    if not equals:
        return None
    devices = equals[0][1]
    together = len(devices) == request.devices and all(
        equal_devices == devices for _, equal_devices in equals
    )
    # On several devices each container has a share of each device, and a swap would change the
    # shares; the shares are the same only if each container has the size of the whole pod.
    alike = len(request_sizes) == 1 and all(sizes == request_sizes for sizes, _ in equals)
    return devices if together and (alike or len(devices) == 1) else ()


class Pins:
    """The pods that hold back equal pods, by node. Changed by the Ledger alone, under the lock.

    Pairing applies on a node until the plug-in there is known to serve by identity: the first sign
    of a missing pairing would be a swap.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self.are_kept = pairing is not Pairing.OFF
        self._pins: dict[str, dict[str, Pinned]] = {}
        self._by_identity: set[str] = set()
        self.by_node: dict[str, tuple[Pinned, ...]] = {}
        """The pins on nodes where there are some and pairing applies, for snapshots."""

    def serves_by_identity(self, node: str, serves: bool) -> None:
        """Record whether the node's plug-in distinguishes equal pods."""
        if serves:
            self._by_identity.add(node)
        else:
            self._by_identity.discard(node)
        self._renew(node)

    def add(self, uid: str, charge: Charge, sign: int = 1) -> None:
        """Add the pin of a charge, if any; sign -1: remove the pin."""
        pins = self._pins.setdefault(charge.node, {})
        if sign < 0:
            pins.pop(uid, None)
        elif charge.pinned is not None:
            pins[uid] = charge.request.sizes, charge.pinned
        self._renew(charge.node)

    def check(self, uid: str, request: Request, allocation: Allocation) -> None:
        """Raise InsufficientMemory if the pod would have to wait for an equal one.

        The node must be in `by_node`.
        """
        node = allocation.node
        pins = self._pins[node].items()
        allowed_devices = paired_devices((pin for owner, pin in pins if owner != uid), request)
        if allowed_devices not in (None, allocation.devices):
            raise InsufficientMemory(f"node {node!r}: an equal pod waits for the device plug-in")

    def _renew(self, node: str) -> None:
        """Update `by_node`: the node's pins if there are any and pairing applies there."""
        pins = self._pins.get(node)
        if pins and (self._pairing is Pairing.ON or node not in self._by_identity):
            self.by_node[node] = tuple(pins.values())
        else:
            self.by_node.pop(node, None)
        if not pins:
            self._pins.pop(node, None)
