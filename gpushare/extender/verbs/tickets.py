"""What is between filter and bind: the tickets of pods, and how many binds are under way.

Tickets are a cache of what filter found: what each pod asks for, and the nodes approved for it.
Bounded by count, by weight and by time; the oldest go first. A pod without a ticket is read from
the API server at bind, and checked again.

A bind waits for the API server, and holds a thread. If kube-scheduler decides faster than pods are
bound, binds pile up until one has to be refused, and kube-scheduler tries its pod again seconds
later. So while there are many, filter waits for a bind to end: kube-scheduler calls filter for one
pod after the other, and then decides no faster than pods are bound.

Any thread may call any method. Tested in `tests/unit/extender/verbs/test_tickets.py` and
`tests/unit/extender/verbs/bind/test_slots.py`.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.core.node_names import NodeNames
from gpushare.extender.managed_resources import ResourceRequest
from gpushare.wire.groups import NO_GROUP, Group
from gpushare.wire.objects import Pod

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
_MAX_WAIT = 0.1
"""Seconds that filter waits at most: all pods of a kube-scheduler wait with it."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What filter found of a pod."""

    valid: bool = False
    """The pod's request makes sense."""
    resource_request: ResourceRequest | None = None
    nodes: bytes = b""
    """A bit for each node number that fits."""
    until: float = 0.0
    """By the clock of the tickets."""
    parts: int = 0
    group: Group = NO_GROUP


_NO_TICKET = _Ticket()


class Tickets:
    """Tickets by the pod's uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._parts = 0
        # Of nodes, by name, from 0 on: one takes a bit in each of thousands of tickets.
        self._numbers: dict[str, int] = {}
        self._last_request: tuple[Pod, ResourceRequest] | None = None

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
            place, bit = divmod(self._numbers.get(node, 8 * len(ticket.nodes)), 8)
        approved = place < len(ticket.nodes) and bool(ticket.nodes[place] >> bit & 1)
        return (True, ticket.resource_request) if approved else (False, None)

    def put(
        self,
        uid: str,
        resource_request: ResourceRequest | None,
        nodes: NodeNames = _NO_NODES,
        *,
        valid: bool = True,
        group: Group = NO_GROUP,
        pod: Pod | None = None,
    ) -> None:
        """Keep what the pod asks for (None: nothing of ours), and the nodes that may take it.

        `valid` False: the request makes no sense. `group`: the pod's group. `nodes`: nodes that the
        ledger has; their names are numbered. `pod`: the decoded pod, for `last_request`. A pod
        without a uid gets no ticket.
        """
        if not uid:
            return
        with self._lock:
            if len(self._numbers) > _MAX_NODES:
                self._numbers, self._tickets, self._parts = {}, {}, 0
            bits = nodes.bits(self._numbers)
            parts = 4 + len(bits) // 64 + 4 * bool(group.key)
            if resource_request is not None:
                if pod is not None:
                    self._last_request = pod, resource_request
                request = resource_request[1]
                parts += len(request.containers) + len(request.inits) + len(request.models)
            if parts > _MAX_PARTS_OF_ONE:
                valid, resource_request, bits, parts = False, None, b"", 4
            self._parts += parts - self._tickets.pop(uid, _NO_TICKET).parts
            self._tickets[uid] = _Ticket(
                valid=valid,
                resource_request=resource_request,
                nodes=bits,
                until=self._clock() + TTL,
                parts=parts,
                group=group,
            )
            while len(self._tickets) > MAX_TICKETS or self._parts > MAX_PARTS:
                self._parts -= self._tickets.pop(next(iter(self._tickets))).parts

    def last_request(self, pod: Pod) -> ResourceRequest | None:
        """Return the request that filter decoded last, if it is that of this very object; or None.

        kube-scheduler calls prioritize for a pod right after filter, and the wire format decodes
        equal bytes to one object.
        """
        with self._lock:
            last = self._last_request
        return last[1] if last is not None and last[0] is pod else None

    def group_of(self, uid: str) -> Group:
        """Return the pod's group, as filter has seen it; NO_GROUP without a ticket."""
        with self._lock:
            return self._tickets.get(uid, _NO_TICKET).group

    def remove(self, uid: str) -> None:
        """Remove the pod's ticket: it is bound."""
        with self._lock:
            self._parts -= self._tickets.pop(uid, _NO_TICKET).parts


class BindSlots:
    """The binds under way: at most `most`. Three quarters of that are many.

    Every method may be called from any thread. max_wait: seconds that filter waits at most.
    """

    def __init__(self, most: int, max_wait: float = _MAX_WAIT) -> None:
        self._most, self._max_wait = most, max_wait
        self._under_way = 0
        self._ended = threading.Condition()

    def take(self) -> bool:
        """Return whether one more bind may be under way; if so, `free` must follow."""
        with self._ended:
            if self._under_way == self._most:
                return False
            self._under_way += 1
            return True

    def free(self) -> None:
        """Note that a bind has ended."""
        with self._ended:
            self._under_way -= 1
            self._ended.notify_all()

    def wait_while_many(self) -> None:
        """Wait until the binds under way are not many, at most `max_wait` seconds."""
        with self._ended:
            self._ended.wait_for(lambda: self._under_way < self._most * 3 / 4, self._max_wait)
