"""Which of several schedulers schedules: who holds the Lease that the configuration names."""

import socket
import time
import uuid

from gpushare.kube.election import ElectionTiming, Elector
from gpushare.kube.lease_runner import LeaseRunner
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.config import SchedulerOptions


class Leadership:
    """Takes and renews the Lease; leads always where the options name none."""

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
        """Begin to ask for the Lease."""
        if self._runner is not None:
            self._runner.start()

    def leads(self) -> bool:
        """Return whether this scheduler may schedule now.

        From the moment that it holds the Lease, as kube-scheduler; it waits for no fence.
        """
        return self._elector is None or self._elector.term.end > time.monotonic()

    def stop(self) -> None:
        """Give the Lease away."""
        if self._runner is not None:
            self._runner.stop()
