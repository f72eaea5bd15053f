"""The policy `auto`: when its candidates are tried, which of them ranks, and the told figures."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gpushare.core.model import Request
from gpushare.core.policy import Policy, load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import AUTO, CANDIDATES, FALLBACK_POLICY, Trial
from gpushare.core.workload import Workload
from gpushare.core.workload_estimator import FEWEST_SEEN
from gpushare.extender.learning.policy_refresher import (
    LONGEST_WAIT,
    QUIET,
    REST,
    SHORTEST_REST,
    SPACING,
    PolicyRefresher,
)
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.ledger import Changes, LearnedPod, Ledger
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node as make_node

WALL = 1_800_000_000.0
SHARE = Request(4, 1, cpu=1000, memory=2**30)


@dataclass
class Referee:
    """Lets the policy of the test win; by how much in the two streams: `leads`."""

    wins: str = "binpack"
    leads: tuple[float, float] = (1.0, 1.1)
    error: Exception | None = None
    nothing: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    pods: list[int] = field(default_factory=list)
    names: tuple[str, ...] = ()
    clock: "Clock | None" = None
    takes: float = 0.0

    def __call__(
        self, names: Sequence[str], workload: Workload, snapshot: Snapshot, seed: int
    ) -> Trial | None:
        self.names = tuple(names)
        assert snapshot.names[0] == "a"
        if self.clock is not None:
            self.clock.now += self.takes
        self.pods.append(workload.pods)
        if self.error:
            raise self.error
        if self.nothing:
            return None
        best = [50 + lead for lead in self.leads]
        sound = [name for name in names if name not in self.failed]
        allocated = {name: best if name == self.wins else [50.0, 50.0] for name in sound}
        failed = {name: entry for name, entry in self.failed.items() if name in names}
        return Trial(allocated, {name: [5.0, 6.0] for name in sound}, failed)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _make(names: Sequence[str], workload: Workload) -> Mapping[str, Policy]:
    return {name: load_policy(name, workload) for name in names}


@pytest.fixture
def referee() -> Referee:
    return Referee()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def managed() -> ManagedResource:
    rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
    managed_resource = ManagedResource(ALIYUN, Ledger(), rankings, AUTO, candidates=CANDIDATES)
    managed_resource.ledger.node_changed(make_node("a", 16, 16))
    return managed_resource


@pytest.fixture
def learning(managed: ManagedResource, referee: Referee, clock: Clock) -> PolicyRefresher:
    return PolicyRefresher(ManagedResources((managed,)), _make, referee, clock, lambda: WALL)


def create(learning: PolicyRefresher, managed: ManagedResource, pods: int, clock: Clock) -> None:
    """So many pods come, and then none for a while."""
    changes = Changes(new=[(LearnedPod("team", SHARE), False)])
    for _ in range(pods):
        learning.changed(managed, changes, False)
    clock.now += QUIET


def next_trial(learning: PolicyRefresher, managed_resource: ManagedResource, clock: Clock) -> None:
    """So many pods come, and so much time goes by, that another trial may be."""
    clock.now += SHORTEST_REST - QUIET
    create(learning, managed_resource, 1000, clock)


def test_a_trial_waits_for_the_end_of_a_burst_and_no_longer_than_a_bound_time(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    new = Changes(new=[(LearnedPod("team", SHARE), False)])

    def burst(seconds: float, changes: Changes = new) -> None:
        end = clock.now + seconds
        while clock.now < end:
            for _ in range(10):
                learning.changed(managed, changes, False)
            clock.now += 1.0
            learning.refresh()

    burst(20.0)
    # The pods of the burst are bound one after the other.
    burst(20.0, Changes(came=[LearnedPod("team", SHARE)]))
    assert referee.pods == []
    clock.now += QUIET - 2.0
    learning.refresh()
    assert referee.pods == []
    clock.now += 1.0
    learning.refresh()
    assert len(referee.pods) == 1
    # Pods that come all the time do not put a trial off for ever.
    clock.now += 10 * SHORTEST_REST
    burst(LONGEST_WAIT - 5.0)
    assert len(referee.pods) == 1
    burst(20.0)
    assert len(referee.pods) == 2


def test_before_enough_pods_were_seen_the_safe_policy_ranks(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    learning.refresh()
    create(learning, managed, FEWEST_SEEN - 1, clock)
    clock.now += SPACING
    learning.refresh()
    assert referee.pods == []
    assert managed.ranking_policy == FALLBACK_POLICY
    assert managed.ranking(SHARE) is managed.rankings[FALLBACK_POLICY]
    create(learning, managed, 1, clock)
    learning.refresh()
    assert referee.pods == [FEWEST_SEEN]
    assert referee.names == CANDIDATES
    assert managed.ranking_policy == "binpack"
    assert managed.ranking(SHARE) is managed.rankings["binpack"]


def test_another_one_ranks_when_enough_other_pods_have_come_and_the_rest_is_over(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    referee.wins = "device-bestfit"
    clock.now += SHORTEST_REST
    create(learning, managed, 49, clock)
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    create(learning, managed, 1, clock)
    clock.now -= 1
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    clock.now += 1
    learning.refresh()
    assert managed.ranking_policy == "device-bestfit"
    assert len(referee.pods) == 2


def test_a_trial_that_took_long_is_followed_by_a_long_rest(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    referee.clock, referee.takes = clock, 10.0
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    next_trial(learning, managed, clock)
    learning.refresh()
    assert len(referee.pods) == 1
    clock.now += 10 * REST - SHORTEST_REST
    learning.refresh()
    assert len(referee.pods) == 2


def test_a_lead_that_may_be_chance_changes_nothing(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    referee.wins, referee.leads = "device-bestfit", (-1.0, 3.0)
    next_trial(learning, managed, clock)
    learning.refresh()
    assert len(referee.pods) == 2
    assert managed.ranking_policy == "binpack"


def test_policies_made_anew_rank_under_the_winner_name_too(
    learning: PolicyRefresher, managed: ManagedResource, clock: Clock
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    before = managed.ranking(SHARE)
    create(learning, managed, 250, clock)
    clock.now += SPACING
    learning.refresh()
    assert managed.ranking(SHARE) is managed.rankings["binpack"] is not before
    assert managed.ranking_policy == "binpack"


def test_the_winner_knows_the_kinds_that_were_asked_for(
    learning: PolicyRefresher, managed: ManagedResource, clock: Clock
) -> None:
    managed.ranking(SHARE).scores(managed.ledger.snapshot(), SHARE)
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    assert managed.ranking(SHARE).recent_requests == (SHARE,)


def test_a_trial_that_fails_changes_nothing_and_is_told_once(
    learning: PolicyRefresher,
    managed: ManagedResource,
    referee: Referee,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    referee.error = ZeroDivisionError("a bug of a policy")
    create(learning, managed, FEWEST_SEEN, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            learning.refresh()
            next_trial(learning, managed, clock)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "could not be tried" in line
    assert "a bug of a policy" in line
    assert len(referee.pods) == learning.state()["trial_failures_total"] == 3
    assert managed.ranking_policy == FALLBACK_POLICY
    referee.error = None
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    assert learning.state()["trials_total"] == 1


def test_where_nothing_can_be_allocated_yet_the_next_trial_is_when_nodes_come(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    referee.nothing = True
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    assert managed.ranking_policy == FALLBACK_POLICY
    referee.nothing = False
    clock.now += SHORTEST_REST
    learning.refresh()
    assert managed.ranking_policy == FALLBACK_POLICY
    managed.ledger.node_changed(make_node("b", 16, 16))
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    assert learning.state()["trials_total"] == 1


def test_a_fixed_policy_is_never_tried(referee: Referee, clock: Clock) -> None:
    rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
    managed_resource = ManagedResource(ALIYUN, Ledger(), rankings, "spread", candidates=CANDIDATES)
    managed_resource.ledger.node_changed(make_node("a", 16, 16))
    learning = PolicyRefresher(ManagedResources((managed_resource,)), _make, referee, clock)
    create(learning, managed_resource, FEWEST_SEEN, clock)
    learning.refresh()
    assert referee.pods == []
    assert managed_resource.ranking_policy == "spread"
    assert (
        managed_resource.ranking(Request(4, 1, policy=AUTO))
        is managed_resource.rankings[FALLBACK_POLICY]
    )


def test_the_log_says_which_policy_ranks_now_and_what_each_would_allocate(
    learning: PolicyRefresher,
    managed: ManagedResource,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    with caplog.at_level(logging.INFO):
        learning.refresh()
    line = next(text for text in caplog.messages if "tried" in text)
    for item in (
        "another one ranks",
        "ranks=binpack",
        f"before={FALLBACK_POLICY}",
        "binpack=51.0",
        "lead=1.1",
    ):
        assert item in line
    choice = managed.choice
    assert choice is not None
    assert (choice.policy, choice.second, choice.since) == ("binpack", CANDIDATES[0], WALL)
    assert (choice.lead, choice.error) == pytest.approx((1.05, 0.05))
    assert choice.allocated["binpack"] == pytest.approx(51.05)
    assert choice.refused_percent["binpack"] == 5.5


def test_a_candidate_that_fails_is_left_out_and_not_tried_again_after_three_times(
    learning: PolicyRefresher,
    managed: ManagedResource,
    referee: Referee,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    referee.failed = {"shadow-price": "no end after 120 s"}
    create(learning, managed, FEWEST_SEEN, clock)
    result = []
    for _ in range(4):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            learning.refresh()
        result.append(caplog.messages[:])
        next_trial(learning, managed, clock)
    assert managed.ranking_policy == "binpack"
    assert referee.names == (FALLBACK_POLICY, "binpack")
    assert managed.choice is not None
    assert set(managed.choice.allocated) == {FALLBACK_POLICY, "binpack"}
    assert learning.state()["trial_failures_total"] == 3
    assert learning.state()["trials_total"] == 4
    first, second, third, fourth = result
    assert second == fourth == []
    for lines, entry in ((first, "left out of a trial"), (third, "not tried any more")):
        (line,) = lines
        assert entry in line
        assert "policy=shadow-price" in line
        assert "no end after 120 s" in line


def test_a_candidate_that_fails_now_and_then_is_tried_on(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    for number in range(8):
        referee.failed = {"shadow-price": "status -9: no word"} if number % 3 else {}
        learning.refresh()
        assert referee.names == CANDIDATES
        next_trial(learning, managed, clock)


def test_the_winner_that_fails_later_makes_room_for_the_next_best(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    create(learning, managed, FEWEST_SEEN, clock)
    learning.refresh()
    assert managed.ranking_policy == "binpack"
    referee.failed = {"binpack": "no end after 120 s"}
    next_trial(learning, managed, clock)
    learning.refresh()
    assert managed.ranking_policy == FALLBACK_POLICY
    assert managed.choice is not None
    assert "binpack" not in managed.choice.allocated


def test_where_every_candidate_fails_the_policy_stays_and_there_is_an_end_to_it(
    learning: PolicyRefresher, managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    referee.failed = dict.fromkeys(CANDIDATES, "no end after 120 s")
    create(learning, managed, FEWEST_SEEN, clock)
    for _ in range(5):
        learning.refresh()
        next_trial(learning, managed, clock)
    assert managed.ranking_policy == FALLBACK_POLICY
    assert managed.choice is None
    assert len(referee.pods) == 3
    assert learning.state()["trials_total"] == 0


def test_a_policy_ranks_since_the_trial_that_chose_it_first(
    managed: ManagedResource, referee: Referee, clock: Clock
) -> None:
    learning = PolicyRefresher(ManagedResources((managed,)), _make, referee, clock, clock)
    create(learning, managed, FEWEST_SEEN, clock)
    since = []
    for wins in ("binpack", "binpack", "device-bestfit"):
        referee.wins = wins
        learning.refresh()
        assert managed.choice is not None
        since.append(managed.choice.since)
        next_trial(learning, managed, clock)
    assert since == [1000.0 + QUIET] * 2 + [1000.0 + QUIET + 2 * SHORTEST_REST]
