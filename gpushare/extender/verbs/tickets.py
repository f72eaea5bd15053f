"""A cache of what filter found: what each pod asks for, and the nodes approved for it.

Bounded by count, by weight and by time; the oldest entries ("tickets") go first. A pod without a
ticket is read from the API server at bind, and checked again. Any thread may call any method.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.core.node_names import NodeNames, NodeNumbers
from gpushare.extender.managed_resources import ResourceRequest

TTL = 900.0
"""Seconds. Between filter and bind kube-scheduler may wait for volumes: 10 minutes by default."""

MAX_TICKETS = 20_000
MAX_PARTS = 400_000
"""Parts of all tickets together: at most some 120 bytes each, so that all stay below 60 MB. An
ordinary ticket has 5, with 5,000 nodes 14.
"""
_MAX_PARTS_OF_ONE = 400
"""Parts of one ticket; a heavier one is not kept."""
_NO_NODES = NodeNames()
_MAX_NODES = 50_000
"""Names of nodes that have numbers: nodes of the ledger, which may come and go for years."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    """`valid`: the pod's request makes sense. `nodes`: a bit for each node number that fits."""

    valid: bool
    resource_request: ResourceRequest | None
    nodes: bytes
    until: float
    parts: int


class Tickets:
    """Tickets by the pod's uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._parts = 0
        self._numbers = NodeNumbers()

    def __contains__(self, uid: str) -> bool:
        """Return whether filter was called for the pod, and it has not been bound since."""
        return uid in self._tickets

    def get(self, uid: str, node: str) -> tuple[bool, ResourceRequest | None]:
        """Return (whether filter has approved the pod for the node, what the pod asks for).

        Both come from one lookup: a filter of the same pod may replace the ticket meanwhile, and a
        pod taken for one that asks for nothing would be bound without a charge.
        """
        with self._lock:
            ticket = self._tickets.get(uid)
            if ticket is None or not ticket.valid or self._clock() > ticket.until:
                return False, None
            approved = self._numbers.has(ticket.nodes, node)
        return (True, ticket.resource_request) if approved else (False, None)

    def put(
        self,
        uid: str,
        resource_request: ResourceRequest | None,
        nodes: NodeNames = _NO_NODES,
        *,
        valid: bool = True,
    ) -> None:
        """Keep what the pod asks for (None: nothing of ours), and the nodes that may take it.

        `valid` False: the request makes no sense. `nodes`: nodes that the ledger has; their names
        are numbered. A pod without a uid gets no ticket.
        """
        if not uid:
            return
        with self._lock:
            if len(self._numbers) > _MAX_NODES:
                self._numbers, self._tickets, self._parts = NodeNumbers(), {}, 0
            bits = self._numbers.bits(nodes)
            parts = 4 + len(bits) // 64
            if resource_request is not None:
                request = resource_request[1]
                parts += len(request.containers) + len(request.inits) + len(request.models)
            if parts > _MAX_PARTS_OF_ONE:
                valid, resource_request, bits, parts = False, None, b"", 4
            self._remove(uid)
            self._tickets[uid] = _Ticket(valid, resource_request, bits, self._clock() + TTL, parts)
            self._parts += parts
            while len(self._tickets) > MAX_TICKETS or self._parts > MAX_PARTS:
                self._remove(next(iter(self._tickets)))

    def remove(self, uid: str) -> None:
        """Remove the pod's ticket: it is bound."""
        with self._lock:
            self._remove(uid)

    def _remove(self, uid: str) -> None:
        ticket = self._tickets.pop(uid, None)
        if ticket is not None:
            self._parts -= ticket.parts
