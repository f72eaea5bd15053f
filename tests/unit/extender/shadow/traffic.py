"""The real events, played on true books: pods are asked about, bound, refused, and leave."""

from collections.abc import Sequence
from dataclasses import replace

from gpushare.core.decide import best_row, judge, place
from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.node_names import NodeNames
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking
from gpushare.core.shadow_books import ShadowBooks
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.shadow.follower import Asked, Counts
from gpushare.extender.shadow.shadow import Shadow
from gpushare.ledger import Changes, LearnedPod
from tests.unit.core.clusters import POLICIES
from tests.unit.extender.kit import managed_resources


class Traffic:
    """A cluster with pods placed by `policy`, and a shadow of it that has no thread."""

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        policy: str = "device-bestfit",
        shadow: str = "device-bestfit",
        **policies: Policy,
    ) -> None:
        resources = managed_resources()
        rankings = {name: Ranking(entry) for name, entry in (POLICIES | policies).items()}
        managed_resource = replace(resources.resources[0], rankings=rankings, default_policy=policy)
        self.resources = ManagedResources((managed_resource,))
        self.managed = managed_resource
        self.ledger = managed_resource.ledger
        for spec in nodes:
            self.ledger.node_changed(spec)
        self.now = 0.0
        self.cpu = 0.0
        self.pauses: list[float] = []
        self.shadow = Shadow(
            self.resources,
            shadow,
            clock=lambda: self.now,
            cpu=lambda: self.cpu,
            pause=self.pauses.append,
        )
        self.shadow.work()

    @property
    def counts(self) -> Counts:
        return self.shadow.counts[self.managed.names.resource]

    @property
    def books(self) -> ShadowBooks:
        books = self.shadow.followers[self.managed.names.resource].books
        assert books is not None
        return books

    def ask(self, uid: str, request: Request, names: Sequence[str] = ()) -> Allocation | None:
        """Return the choice of the real policy, after filter has answered for the pod."""
        snapshot_result = self.ledger.snapshot()
        node_names = NodeNames(names or self.named(request))
        rows = node_names.rows(snapshot_result.row)
        judge_result = judge(snapshot_result, rows, request)
        resource = self.managed.names.resource
        self.shadow.asked(
            Asked(resource, uid, request, node_names, judge_result.fits, snapshot_result)
        )
        ranking = self.managed.ranking(request)
        best = best_row(snapshot_result, rows, request, ranking)
        return None if best is None else place(snapshot_result, node_names[best], request, ranking)

    def named(self, request: Request) -> list[str]:
        """The nodes that kube-scheduler asks about: those with the CPU and the memory."""
        snapshot_result = self.ledger.snapshot()
        enough = (snapshot_result.cpu_capacity < 0) | (snapshot_result.cpu_free >= request.cpu)
        enough &= (snapshot_result.memory_capacity < 0) | (
            snapshot_result.memory_free >= request.memory
        )
        return [name for name, row in snapshot_result.row.items() if enough[row]]

    def bind(self, uid: str, request: Request, allocation: Allocation) -> None:
        """Have the watch show the pod bound so."""
        snapshot_result = self.ledger.snapshot()
        uuids = snapshot_result.uuids[snapshot_result.row[allocation.node]]
        pod = ObservedPod(
            PodRef("team", uid, uid),
            request,
            allocation.node,
            placement=allocation.shares,
            uuids=tuple(uuids[device] for device in allocation.devices) if uuids else (),
        )
        self.shadow.moved(self.managed, pod, uid, self.ledger.pod_changed(pod))

    def come(self, uid: str, request: Request, names: Sequence[str] = ()) -> Allocation | None:
        """Ask about a pod and bind it, if it fits; then let the shadow see the bind."""
        allocation = self.ask(uid, request, names)
        if allocation is not None:
            self.bind(uid, request, allocation)
        self.shadow.work()
        return allocation

    def go(self, uid: str) -> None:
        """Have the pod end."""
        self.shadow.moved(self.managed, None, uid, self.ledger.pod_gone(uid))

    def relist(self) -> None:
        """Have a list show the changes that the watch has missed."""
        self.shadow.moved(self.managed, None, "", Changes(went=[LearnedPod("team", Request())]))

    def used(self) -> dict[str, list[int]]:
        """Units by node in the shadow's books."""
        view = self.books.snapshot
        return {name: view.used[row].tolist() for name, row in view.row.items()}

    def really_used(self) -> dict[str, list[int]]:
        """The same in the real ones."""
        real = self.ledger.snapshot()
        return {name: real.used[row].tolist() for name, row in real.row.items()}
