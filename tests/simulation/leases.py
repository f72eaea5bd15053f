"""kube-scheduler's own Lease, as instances on several hosts hold and lose it.

Writes the Lease like client-go's leader election; which of the hosts' extenders follows is not
known here.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

from gpushare_localcluster.api.resources import LEASES
from gpushare_localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.replica import LEASE_NAMES, NAMESPACE
from tests.simulation.server import EPOCH, Server
from tests.simulation.tasks import Tasks
from tests.simulation.truth import Json

_NAME = LEASE_NAMES["scheduler"]
_DURATION = 15.0
_RENEW = 2.0


@dataclass(repr=False)
class SchedulerLease:
    """The Lease. holder: identity of the holder in client-go's form, "" before the first."""

    server: Server
    tasks: Tasks
    holder: str = ""
    host: str = ""
    renewed: float = -math.inf
    silent_until: float = -math.inf
    heir: str = ""
    _count: int = 0

    def take(self, host: str) -> None:
        """The scheduler of a host takes the Lease."""
        self._count += 1
        self.heir, self.silent_until = "", -math.inf
        self.host, self.holder = host, f"{host}_uuid-{self._count}"
        self._write(acquired=True)

    def next_renewal(self) -> float:
        """The time of the next write."""
        if not self.holder:
            return math.inf
        return max(self.renewed + _RENEW, self.silent_until)

    def renew(self) -> None:
        """Write the Lease if due: by the holder, or by the heir of an ended holder."""
        if self.tasks.now < self.next_renewal():
            return
        if self.heir:
            host, self.heir = self.heir, ""
            self.take(host)
        else:
            self._write(acquired=False)

    def fail_over(self, chance: Chance) -> str:
        """The leading scheduler ends; the next leader is of either host."""
        if self.heir:
            return ""
        self.heir = chance.pick(("host-0", "host-1"))
        if chance.below(2):
            # The leader releases the Lease (--leader-elect with release on cancel): nobody waits.
            self._put("", 1.0, acquired=False)
            self.silent_until = self.tasks.now + 0.5
            return f"given to {self.heir}"
        self.silent_until = self.renewed + _DURATION + 1.0
        return f"to {self.heir} when the Lease has run out"

    def _write(self, *, acquired: bool) -> None:
        self._put(self.holder, _DURATION, acquired=acquired)

    def _put(self, holder: str, duration: float, *, acquired: bool) -> None:
        self.renewed = self.tasks.now
        stamp = self._stamp()
        registry = self.server.registry

        def renewed(lease: Json) -> Json:
            spec = {
                **lease["spec"],
                "holderIdentity": holder,
                "leaseDurationSeconds": math.ceil(duration),
                "renewTime": stamp,
            }
            if acquired:
                spec["acquireTime"] = stamp
                spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
            return {**lease, "spec": spec}

        try:
            registry.revise(LEASES, NAMESPACE, _NAME, renewed)
        except StatusError:
            # Somebody has deleted the Lease: client-go creates a new one, and counts from 0 again.
            acquired = True
            fresh: Json = {"metadata": {"name": _NAME, "namespace": NAMESPACE}, "spec": {}}
            registry.create(LEASES, NAMESPACE, renewed(fresh))

    def _stamp(self) -> str:
        now = EPOCH + timedelta(seconds=self.tasks.now)
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
