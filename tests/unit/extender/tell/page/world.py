"""A cluster as the page shows it: books that are filled by hand, and the page's own server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gpushare.core.amounts import compute
from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.core.trial import Choice
from gpushare.errors import NotReady
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.tell.page.server import UiServer
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources

SPACES = ("vision", "speech", "search", "default", "batch")
HOSTILE = '<img src=x onerror="document.title=1">'


def pod(
    name: str, units: int, where: str = "", *devices: int, space: str = "default", cores: int = 0
) -> ObservedPod:
    """A pod as the watch shows it; without devices on a node they are not known."""
    shares = tuple((device, units) for device in devices) or None
    request = Request(units, max(len(devices), 1), percents=compute(cores))
    ref = PodRef(space, name, f"uid-{space}-{name}")
    return ObservedPod(ref, request, where, shares, created=1_700_000_000.0)


class World:
    """Books of one resource, the counts of the last hour, and the document of both."""

    def __init__(self) -> None:
        self.resources = managed_resources()
        self.managed = self.resources.resources[0]
        self.ledger = self.managed.ledger
        self.hour = LastHour()
        self.mistaken_pods = MistakenPods(self.resources, "GiB", time.monotonic)
        self.not_ready = ""
        self.busy = ""
        self.kept: dict[str, str] = {}
        self.documents = Documents(
            self.resources,
            "GiB",
            self.hour,
            not_ready=lambda: self.not_ready,
            called=lambda uid: "unasked" not in uid,
            mistaken_pods=self.mistaken_pods,
            kept_nodes=lambda: dict(self.kept),
        )

    def fill(self, nodes: int, devices: int = 8, pods: int = 3) -> None:
        """Nodes of 80 GiB devices with some pods on each."""
        for number in range(nodes):
            name = f"gpu-{number + 1}"
            self.ledger.node_changed(node(name, *[80] * devices))
            for device in range(devices):
                for index in range((number + device) % (pods + 1)):
                    space = SPACES[(number * 3 + device + index) % len(SPACES)]
                    units = 8 * (1 + (number + device * index) % 3)
                    self.ledger.pod_changed(
                        pod(f"{space}-{number}-{device}-{index}", units, name, device, space=space)
                    )

    def close(self, spec: NodeSpec, reason: Reason) -> None:
        """Have a node that no pod may be placed on."""
        self.ledger.node_changed(replace(spec, closed=reason))

    def trial(self) -> None:
        """Have a trial that has chosen a policy."""
        allocated = {"binpack": 81.2, "shadow-price": 79.1, "device-bestfit": 78.4}
        refusals = {"binpack": 9.1, "shadow-price": 10.4, "device-bestfit": 12.0}
        self.managed.choice = Choice(
            "binpack", 1_790_000_000.0, "shadow-price", 2.1, 0.4, allocated, refusals
        )

    def _body(self) -> bytes:
        if self.busy:
            raise NotReady(self.busy)
        return self.documents.body()

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address of the page, while it is answered."""
        server = UiServer("127.0.0.1", 0, self._body)
        server.start()
        try:
            yield f"http://127.0.0.1:{server.port}/ui"
        finally:
            server.stop()
