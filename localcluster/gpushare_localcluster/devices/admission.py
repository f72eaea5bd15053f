"""The device managers of nodes as the kubelet uses them; without gRPC.

Tested in `tests/integration/test_demo_devices.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

Json = dict[str, Any]

Told = Mapping[str, Mapping[str, str]]
"""The variables that the device plug-in gave, by container with device memory."""


class AdmissionError(Exception):
    """The pod fails with UnexpectedAdmissionError."""


class Devices:
    """The device managers of all nodes; this base class has no device plug-ins."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda node: None
        """A callback with the name of a node whose devices changed, set by the kubelet."""
        self.beyond: set[str] = set()
        """Nodes without a device plug-in, since the limit was reached."""

    def see(self, node: Json) -> None:
        """Start a device manager for a new node with devices. Raises WireError."""

    def forget(self, node: str) -> None:
        """End the device manager of a deleted node."""

    def amounts(self, node: str) -> tuple[int, int] | None:
        """Return (units, healthy units) of a node; None before the device plug-in reports."""
        del node
        return None

    def admit(self, pod: Json) -> Told | None:
        """Return the variables of the containers; None: the plug-in is not ready.

        Raises AdmissionError. On a node without a device plug-in there are none.
        """
        del pod
        return {}

    def release(self, uid: str) -> None:
        """Release the devices of the pod, if any."""

    def serve(self, nodes: Set[str]) -> bool:
        """Return whether the device plug-ins of these nodes, if any, have reported devices."""
        del nodes
        return True

    def told(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield (pod, container, variables) of the containers with devices."""
        yield from ()
