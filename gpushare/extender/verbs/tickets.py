"""The state between filter and bind: the tickets of pods, and the number of binds under way.

A ticket caches the result of filter: the request of a pod, and the nodes approved for the pod. The
cache is bounded by count, by weight and by time; the oldest tickets go first. Bind reads a pod
without a ticket from the API server, and checks the pod again.

A bind waits for the API server, and takes a thread. If kube-scheduler decides faster than the API
server binds, the binds pile up until one has to be refused, and kube-scheduler tries its pod again
seconds later. So while many binds are under way, filter waits for a bind to end: kube-scheduler
filters one pod after the other, and then decides no faster than pods are bound.

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
"""Parts of all tickets together, of some 120 bytes each: below 60 MB. An ordinary ticket has 5
parts, with 5,000 nodes 14.
"""
_MAX_PARTS_OF_ONE = 400
"""Parts of one ticket; a heavier ticket is kept as an invalid one."""
_NO_NODES = NodeNames()
_MAX_NODES = 50_000
"""Names of nodes that have numbers: nodes of the ledger, which may come and go for years."""
_MAX_WAIT = 0.1
"""Upper bound of filter's wait in seconds: all pods of a kube-scheduler wait as long."""


@dataclass(frozen=True, slots=True)
class _Ticket:
    """The result of filter for a pod."""

    valid: bool = False
    """Whether the pod's request makes sense, is ours, and is not too heavy to keep."""
    resource_request: ResourceRequest | None = None
    nodes: bytes = b""
    """A bit for each node number that fits."""
    until: float = 0.0
    """By the clock of the tickets."""
    parts: int = 0
    group: Group = NO_GROUP


_NO_TICKET = _Ticket()


class Tickets:
    """The tickets, by the uid of the pod."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._parts = 0
        # Node numbers by name, from 0 on: a node takes one bit in each of thousands of tickets.
        self._numbers: dict[str, int] = {}
        self.last_request: tuple[Pod, ResourceRequest] | None = None
        """The decoded pod of the last filter call, and its request. kube-scheduler calls prioritize
        for a pod right after filter, and equal bytes are decoded to one object."""

    def __contains__(self, uid: str) -> bool:
        """Return whether filter was called for the pod, and the pod has not been bound since."""
        return uid in self._tickets

    def get(self, uid: str, node: str) -> tuple[bool, ResourceRequest | None, Group]:
        """Return whether filter has approved the pod for the node, the pod's request and its group.

        All three come from one lookup: another filter call may replace the ticket meanwhile, and a
        pod with the request None would be bound without a charge. The group is that of any ticket
        of the pod, approved or not.
        """
        with self._lock:
            ticket = self._tickets.get(uid, _NO_TICKET)
            if not ticket.valid or self._clock() > ticket.until:
                return False, None, ticket.group
            place, bit = divmod(self._numbers.get(node, 8 * len(ticket.nodes)), 8)
        if place < len(ticket.nodes) and ticket.nodes[place] >> bit & 1:
            return True, ticket.resource_request, ticket.group
        return False, None, ticket.group

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
        """Keep the pod's request (None: no managed resource), and the nodes that may take the pod.

        `valid` False: the request makes no sense. `group`: the pod's group. `nodes`: nodes that the
        ledger has; Tickets numbers their names. `pod`: the decoded pod, for `last_request`. A pod
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
                    self.last_request = pod, resource_request
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

    def remove(self, uid: str) -> None:
        """Remove the ticket of a bound pod."""
        with self._lock:
            self._parts -= self._tickets.pop(uid, _NO_TICKET).parts


class BindSlots:
    """The binds of calls under way: at most `max_binds`; filter waits while three quarters of them
    are under way. Bindings that the gate sends later do not count.

    Any thread may call any method. max_wait: upper bound of filter's wait in seconds.
    """

    def __init__(self, max_binds: int, max_wait: float = _MAX_WAIT) -> None:
        self._max_binds, self._max_wait = max_binds, max_wait
        self._under_way = 0
        self.are_many = False
        """Whether three quarters of the binds are under way; filter reads this without the lock."""
        self._ended = threading.Condition()

    def take(self) -> bool:
        """Return whether one more bind may begin; the caller then calls `free` at its end."""
        with self._ended:
            if self._under_way == self._max_binds:
                return False
            self._under_way += 1
            self.are_many = self._under_way >= self._max_binds * 3 / 4
            return True

    def free(self) -> None:
        """Note that a bind has ended."""
        with self._ended:
            self._under_way -= 1
            self.are_many = self._under_way >= self._max_binds * 3 / 4
            self._ended.notify_all()

    def wait_while_many(self) -> None:
        """Wait until the binds under way are not many, at most `max_wait` seconds."""
        with self._ended:
            self._ended.wait_for(lambda: not self.are_many, self._max_wait)
