"""The extender's own objects wired up in the test's process, with a true API client and server.

It starts in milliseconds and shows its ledgers, so faults can be tried one by one. What gunicorn
and `main.py` add is tried by the tests that start the process.
"""

import math
import time
from collections.abc import Callable, Sequence

from gpushare.core.pairing import Pairing
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.trial import CANDIDATES
from gpushare.core.workload import Workload
from gpushare.errors import GpuShareError, NotReady, UnknownNode
from gpushare.extender.follow.readiness import Readiness, Source
from gpushare.extender.follow.watch_handlers import (
    NodeEventHandler,
    PodEventHandler,
    UnhealthyEventHandler,
)
from gpushare.extender.learning.policy_refresher import PolicyRefresher
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch, Timing
from gpushare.kube.reflector import Reflector
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import CONFIG_MAPS, NODES, PODS
from tests.integration.verbs import Reply, Verbs
from tests.support.waiting import poll
from tests.unit.extender.kit import try_here

QUICK = Timing(pause=0.02, longest_pause=0.2, relist_spacing=0.05)
_LIVE = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_STATUS = {UnknownNode: 404, NotReady: 503}


class Wired(Verbs):
    """An extender without HTTP; `pods`, `nodes`: its reflectors; `managed`: its one resource.

    lag: seconds that the clock of its gate is ahead.

    learning: counts pods; a caller that wants new policies calls its `tick`.
    """

    def __init__(
        self, kubeconfig: str, timing: Timing = QUICK, policy: str = "device-bestfit"
    ) -> None:
        self.ledger = Ledger(Pairing.OFF)  # no kubelet runs the pods that equals wait for
        rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
        managed_resource = ManagedResource(
            ALIYUN, self.ledger, rankings, policy, candidates=CANDIDATES
        )
        resources = ManagedResources((managed_resource,))
        self.managed = managed_resource
        self.clock = 0.0
        self.learning = PolicyRefresher(resources, _make, try_here, lambda: self.clock)
        self._client = connect(kubeconfig, pool_size=80, user_agent="wired")
        self.lag = 0.0
        self.nodes = Reflector(
            self._client,
            ListWatch("/api/v1/nodes", NODES, timing=timing),
            NodeEventHandler(resources, "GiB"),
        )
        self.pods = Reflector(
            self._client,
            ListWatch("/api/v1/pods", PODS, _LIVE, timing),
            PodEventHandler(resources, self.learning.changed),
        )
        self.maps = Reflector(
            self._client,
            ListWatch(_MAPS, CONFIG_MAPS, timing=timing),
            UnhealthyEventHandler(resources),
        )
        sources = {
            "nodes": Source(self.nodes),
            "pods": Source(self.pods),
            "configmaps": Source(self.maps, optional=True),
        }
        self.readiness = Readiness(sources, None, lambda: time.monotonic() + self.lag)
        self.binder = Binder(self._client, resources, lambda: math.inf)
        self.service = Service(
            resources,
            self.binder,
            not_ready=self.readiness.not_ready,
            bind_slots=BindSlots(64),
        )

    def start(self) -> None:
        self.readiness.start()
        poll(lambda: not self.readiness.not_ready(), "the books are filled")

    def stop(self) -> None:
        """Audit the books, and end all threads and connections."""
        self.readiness.stop()
        self._client.close()
        self.ledger.check()

    def settle(self) -> None:
        self.binder.settle_overdue()

    def post(self, verb: str, body: bytes) -> Reply:
        verbs: dict[str, Callable[[bytes], bytes]] = {
            "filter": self.service.filter,
            "prioritize": self.service.prioritize,
            "bind": self.service.bind,
        }
        return self._reply(lambda: verbs[verb](body))

    def inspect_reply(self, node: str = "", resource: str = "") -> Reply:
        return self._reply(lambda: self.service.inspect(node or None, resource or None))

    def _reply(self, work: Callable[[], bytes]) -> Reply:
        try:
            return Reply(200, work())
        except GpuShareError as error:
            return Reply(_STATUS.get(type(error), 400), str(error).encode())


def _make(names: Sequence[str], workload: Workload) -> dict[str, Policy]:
    """The policies, made here: a test has time."""
    return {name: load_policy(name, workload) for name in names}
