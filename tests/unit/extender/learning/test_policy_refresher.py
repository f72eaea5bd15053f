"""When policies are made anew, the pods that count, and the end of a failure."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.trial import AUTO, Choice
from gpushare.core.workload import PodClass, Workload, workload_of
from gpushare.extender.learning.policy_refresher import (
    LONGEST_WAIT,
    QUIET,
    SPACING,
    PolicyRefresher,
)
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.ledger import Changes, LearnedPod, Ledger
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node as make_node
from tests.unit.core.clusters import with_share
from tests.unit.extender.kit import NPU, managed_resources, try_here

SHARE = Request(4, 1, cpu=1000, memory=2**30)
PLAIN = Request(cpu=500)


class Odd:
    """A policy that cannot judge."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        raise ZeroDivisionError("a bug of the policy")


@dataclass
class Maker:
    """Makes policies on the spot, and remembers their workloads."""

    asked: list[Workload] = field(default_factory=list)
    error: Exception | None = None
    odd: bool = False
    clock: float = 1000.0

    def __call__(self, names: Sequence[str], workload: Workload) -> Mapping[str, Policy]:
        self.asked.append(workload)
        self.clock += 0.5
        if self.error:
            raise self.error
        return {name: Odd() if self.odd else load_policy(name, workload) for name in names}


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def resources() -> Iterator[ManagedResources]:
    rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
    managed_resources_object = ManagedResources(
        (ManagedResource(ALIYUN, Ledger(), rankings, "shadow-price"),)
    )
    managed_resources_object.resources[0].ledger.node_changed(make_node("a", 16, 16, 8))
    yield managed_resources_object
    managed_resources_object.resources[0].ledger.check()


@pytest.fixture
def managed(resources: ManagedResources) -> ManagedResource:
    return resources.resources[0]


@pytest.fixture
def learning(resources: ManagedResources, maker: Maker) -> PolicyRefresher:
    return PolicyRefresher(resources, maker, try_here, lambda: maker.clock)


def create(
    learning: PolicyRefresher, managed: ManagedResource, pods: int, request: Request = SHARE
) -> None:
    for _ in range(pods):
        learning.changed(managed, Changes(new=[(LearnedPod("team", request), False)]), False)


def test_policies_are_made_first_for_no_pods_when_nodes_are_known(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    learning.refresh()
    learning.refresh()
    assert maker.asked == [workload_of({}, {8: 1, 16: 2})]
    create(learning, managed, 49)
    maker.clock += SPACING
    learning.refresh()
    assert len(maker.asked) == 1
    create(learning, managed, 1)
    learning.refresh()
    assert [workload.pods for workload in maker.asked[1:]] == [50]


def test_a_pod_that_no_node_could_take_counts_for_nothing(
    learning: PolicyRefresher, managed: ManagedResource
) -> None:
    learning.refresh()
    for request in (Request(17, 1), Request(1, 9)):
        create(learning, managed, 100, request)
    create(learning, managed, 3)
    assert learning.state()["learned_pods_total"] == 3


def test_policies_are_made_for_the_share_of_pods_that_leave(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    learning.refresh()
    create(learning, managed, 50)
    pod = LearnedPod("team", SHARE)
    learning.changed(managed, Changes(came=[pod] * 20), False)
    learning.changed(managed, Changes(went=[pod] * 8), False)
    learning.refresh()
    assert [workload.turnover for workload in maker.asked] == [0, 0.4]


def test_devices_of_a_new_size_have_policies_made_but_not_at_once(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    learning.refresh()
    managed.ledger.node_changed(make_node("b", 80))
    learning.refresh()
    assert len(maker.asked) == 1
    maker.clock += SPACING
    learning.refresh()
    learning.refresh()
    assert maker.asked[1:] == [workload_of({}, {8: 1, 16: 2, 80: 1})]
    managed.ledger.node_gone("b")
    maker.clock += SPACING
    learning.refresh()
    assert len(maker.asked) == 2


def test_policies_are_made_at_50_100_200_and_then_every_250(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    result = []
    learning.refresh()
    for total in range(1, 1001):
        create(learning, managed, 1)
        maker.clock += SPACING
        before = len(maker.asked)
        learning.refresh()
        if len(maker.asked) > before:
            result.append(total)
    assert result == [50, 100, 200, 450, 700, 950]


def test_after_the_first_ones_policies_are_made_at_most_once_a_minute(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    learning.refresh()
    for pods in (50, 50, 100, 400, 400):
        create(learning, managed, pods)
        learning.refresh()
    assert [workload.pods for workload in maker.asked[1:]] == [50, 100, 200]
    maker.clock += SPACING
    learning.refresh()
    assert [workload.pods for workload in maker.asked[1:]] == [50, 100, 200, 1000]
    learning.refresh()
    assert len(maker.asked) == 5


def test_what_was_created_counts_by_class_and_so_do_the_devices_there_are(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    create(learning, managed, 30)
    create(learning, managed, 20, PLAIN)
    learning.refresh()
    (workload,) = maker.asked
    assert workload.capacities == ((8, 1), (16, 2))
    share = PodClass(cpu=1000, units=4, devices=1, memory=2**30)
    assert dict(workload.classes) == {share: 30, PodClass(cpu=500): 20}


def test_a_namespace_counts_by_the_units_that_its_percentages_are_charged(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    whole = Request(1, 1, percents=with_share(0, 100))
    for space, request in (("a", whole), ("b", Request(1, 1))):
        pod = ObservedPod(PodRef(space, "p", space), request, "a", ((int(space == "b"), 1),))
        managed.ledger.pod_changed(pod)
        new = [(LearnedPod(space, request), False)] * 30
        learning.changed(managed, Changes(new=new), False)
    learning.refresh()
    small, large = dict(maker.asked[0].classes).values()
    assert small == large


def test_the_new_rankings_know_what_the_old_ones_were_asked_for(
    learning: PolicyRefresher, managed: ManagedResource
) -> None:
    old = managed.ranking(SHARE)
    kinds = [
        Request(units, 1, models=("T4",), neighbours=units % 2 or None) for units in range(1, 5)
    ]
    managed.neighbours = 3
    for request in kinds:
        old.scores(managed.ledger.snapshot(), request)
    create(learning, managed, 50)
    learning.refresh()
    new = managed.ranking(SHARE)
    assert new is not old
    assert new.recent_requests == tuple(kinds)
    assert new.neighbours == 3


@pytest.mark.parametrize("odd", [True, False])
def test_policies_that_cannot_be_made_leave_the_old_ones_and_are_tried_again_later(
    learning: PolicyRefresher,
    managed: ManagedResource,
    maker: Maker,
    caplog: pytest.LogCaptureFixture,
    odd: bool,
) -> None:
    caplog.set_level(logging.INFO)
    managed.ranking(SHARE).scores(managed.ledger.snapshot(), SHARE)
    before = dict(managed.rankings)
    maker.odd, maker.error = odd, None if odd else MemoryError("no room")
    create(learning, managed, 50)
    for _ in range(3):
        learning.refresh()
        learning.refresh()
        maker.clock += SPACING
    assert managed.rankings == before
    assert len(maker.asked) == 3
    result = [record.getMessage() for record in caplog.records]
    assert len(result) == 1
    assert "policies stay as they are" in result[0]
    assert learning.state()["refit_failures_total"] == 3
    maker.odd, maker.error = False, None
    learning.refresh()
    assert managed.ranking(SHARE) is not before["shadow-price"]
    assert learning.state()["refits_total"] == 1


def test_metrics_say_how_much_was_learned_and_how_old_it_is(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    none = dict.fromkeys(learning.state(), 0.0)
    assert learning.state() == none
    create(learning, managed, 60)
    learning.refresh()
    maker.clock += 7.0
    assert learning.state() == {
        "learned_pods_total": 60.0,
        "refits_total": 1.0,
        "refit_failures_total": 0.0,
        "refit_duration_seconds": 0.5,
        "refit_age_seconds": 7.0,
        "trials_total": 0.0,
        "trial_failures_total": 0.0,
    }


def test_each_resource_learns_for_itself(maker: Maker) -> None:
    resources = managed_resources(ALIYUN, NPU)
    learning = PolicyRefresher(resources, maker, try_here, lambda: maker.clock)
    for resource in resources:
        resource.ledger.node_changed(make_node("a", 16))
    learning.refresh()
    assert [workload.pods for workload in maker.asked] == [0, 0]
    create(learning, resources.resources[1], 50)
    create(learning, resources.resources[0], 49)
    maker.clock += QUIET
    learning.refresh()
    assert [workload.pods for workload in maker.asked[2:]] == [50]


def test_new_policies_wait_for_the_end_of_a_burst_if_they_could_change_no_placement(
    learning: PolicyRefresher, managed: ManagedResource, maker: Maker
) -> None:
    managed.default_policy = "device-bestfit"

    def burst(seconds: float) -> None:
        end = maker.clock + seconds
        while maker.clock < end:
            create(learning, managed, 10)
            maker.clock += 1.0
            learning.refresh()

    burst(20.0)
    assert maker.asked == []
    maker.clock += QUIET
    learning.refresh()
    assert [workload.pods for workload in maker.asked] == [200]
    # Pods that come all the time do not put new policies off for ever.
    maker.clock += SPACING
    burst(25.0 + LONGEST_WAIT - 5.0)  # due after 250 pods
    assert len(maker.asked) == 1
    burst(10.0)
    assert len(maker.asked) == 2
    # A policy that looks at the workload is made anew in a burst, chosen by a trial or not.
    managed.default_policy = "shadow-price"
    maker.clock += SPACING
    burst(26.0)
    assert len(maker.asked) == 3
    managed.default_policy = AUTO
    managed.choice = Choice("shadow-price", 0.0, "", 0.0, 0.0, {}, {})
    managed.rankings[AUTO] = managed.rankings["shadow-price"]
    maker.clock += SPACING
    burst(26.0)
    assert len(maker.asked) == 4


def test_no_policies_are_made_while_no_node_has_devices(maker: Maker) -> None:
    resources = managed_resources(ALIYUN)
    (managed_resource,) = resources
    learning = PolicyRefresher(resources, maker, try_here, lambda: maker.clock)
    create(learning, managed_resource, 50)
    learning.refresh()
    managed_resource.ledger.node_changed(make_node("cpu-only"))
    learning.refresh()
    assert maker.asked == []
    managed_resource.ledger.node_changed(make_node("a", 16))
    maker.clock += QUIET
    learning.refresh()
    assert [workload.pods for workload in maker.asked] == [50]
