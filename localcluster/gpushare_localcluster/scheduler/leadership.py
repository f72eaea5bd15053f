"""Leader election of schedulers, by the Lease in the configuration."""

import socket
import time
import uuid

from gpushare.kube.election import ElectionTiming, Elector
from gpushare.kube.lease_runner import LeaseRunner
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.config import SchedulerOptions


class Leadership:
    """Acquires and renews the Lease; without a Lease in the options always leads."""

    def __init__(self, api: ApiClient, options: SchedulerOptions) -> None:
        self._elector: Elector | None = None
        self._runner: LeaseRunner | None = None
        if options.lease is not None:
            namespace, name = options.lease
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            timing = ElectionTiming(*options.lease_times)
            self._elector = Elector(namespace, name, identity, bind_budget=0.0, timing=timing)
            self._runner = LeaseRunner(api, self._elector, namespace=namespace, name=name)

    def start(self) -> None:
        """Start to acquire the Lease."""
        if self._runner is not None:
            self._runner.start()

    def leads(self) -> bool:
        """Return whether this scheduler may schedule now.

        As in kube-scheduler, from the acquisition of the Lease, without a fence.
        """
        return self._elector is None or self._elector.term.end > time.monotonic()

    def stop(self) -> None:
        """Release the Lease."""
        if self._runner is not None:
            self._runner.stop()
