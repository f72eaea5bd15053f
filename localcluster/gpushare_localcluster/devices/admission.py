"""What the kubelet needs to know of its nodes' device managers; nothing here needs gRPC.

Tested in `tests/integration/test_demo_devices.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

Json = dict[str, Any]

Told = Mapping[str, Mapping[str, str]]
"""By container that asks for device memory, the variables that its device plug-in told it."""


class AdmissionError(Exception):
    """The pod fails with UnexpectedAdmissionError."""


class Devices:
    """The device managers of all nodes; these are nodes without device plug-ins."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda node: None
        """Called with the name of a node whose devices changed; the kubelet sets it."""
        self.beyond: set[str] = set()
        """Nodes that got no device plug-in since there were too many before."""

    def see(self, node: Json) -> None:
        """Give the node a device manager, where it has devices and none yet. Raises WireError."""

    def forget(self, node: str) -> None:
        """End the device manager of a node that is gone."""

    def amounts(self, node: str) -> tuple[int, int] | None:
        """Return (units, healthy units) of a node; None before its device plug-in has told."""
        del node
        return None

    def admit(self, pod: Json) -> Told | None:
        """Return what its containers are told; None: ask again in a moment. Raises AdmissionError.

        On a node without a device plug-in nothing is told.
        """
        del pod
        return {}

    def release(self, uid: str) -> None:
        """Take back what the pod has, if it has anything."""

    def serve(self, nodes: Set[str]) -> bool:
        """Return whether the device plug-ins of these nodes, if any, have told of their devices."""
        del nodes
        return True

    def told(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield (pod, container, variables) of the containers that hold devices."""
        yield from ()
