"""Leading as the scheduler of this host does: nothing is written, all is seen."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.errors import ApiUnavailable, WireError
from gpushare.kube.election import Done, Read, SchedulerLease, Wait
from tests.unit.kube.lease_store import LeaseStore

BUDGET = 4.0
WALL = 1_700_000_000.0
OURS = "here_8d7f5ee8-0c2c-4b21-9c0b-2a3f4d5e6f70"
AGAIN = "here_22222222-0c2c-4b21-9c0b-2a3f4d5e6f70"
OTHERS = "there_11111111-0c2c-4b21-9c0b-2a3f4d5e6f70"


def stamp(now: float) -> str:
    return datetime.fromtimestamp(WALL + now, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Cluster:
    """The Lease of a kube-scheduler, and one follower."""

    def __init__(self, now: float = 1000.0) -> None:
        self.store = LeaseStore()
        self.me = SchedulerLease("here", BUDGET)
        self.now = now

    def renew(self, holder: str = OURS, **spec: Any) -> None:
        document = self.store.document
        if document is None or document["spec"]["holderIdentity"] != holder:
            spec.setdefault("acquireTime", stamp(self.now))
        self.store.write(holder, **spec)

    def look(self, took: float = 0.0) -> None:
        action = self.me.tick(self.now, WALL + self.now, 0.0)
        assert isinstance(action, Read)
        self.now += took
        self.me.on_lease(self.store.get() if self.store.document else None, self.now)

    def wait(self, seconds: float, renewing: str | None = None) -> None:
        """Let seconds pass, with a look each second, and renewals each second by one."""
        for _ in range(int(seconds)):
            self.now += 1.0
            if renewing:
                self.renew(renewing)
            self.look()

    @property
    def leads(self) -> bool:
        return self.me.term.until(self.now) > self.now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def leading(cluster: Cluster) -> Cluster:
    cluster.renew()
    cluster.wait(25, renewing=OURS)
    assert cluster.leads
    return cluster


def test_it_leads_when_its_scheduler_is_seen_to_renew_and_the_fence_is_over(
    cluster: Cluster,
) -> None:
    cluster.renew()
    cluster.look()
    taken_at = cluster.now
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads, "another host may have given the Lease away just before"
    cluster.wait(2, renewing=OURS)
    assert cluster.leads
    assert cluster.me.term.begin == taken_at + 15 + BUDGET


def test_a_scheduler_that_has_led_for_long_needs_only_the_budget(cluster: Cluster) -> None:
    cluster.renew(acquireTime=stamp(cluster.now - 3600))
    cluster.look()
    cluster.wait(3, renewing=OURS)
    assert not cluster.leads
    cluster.wait(2, renewing=OURS)
    assert cluster.leads


def test_a_clock_that_is_set_forward_makes_no_scheduler_lead_for_longer(cluster: Cluster) -> None:
    """Nobody held the Lease a second ago; the host before may lead for some seconds."""
    cluster.renew(OTHERS)
    cluster.wait(3, renewing=OTHERS)
    cluster.renew(OURS, acquireTime=stamp(cluster.now - 3600), leaseTransitions=1)
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads
    cluster.wait(2, renewing=OURS)
    assert cluster.leads


@pytest.mark.parametrize("acquired", ["", "yesterday", "2999-01-01T00:00:00Z", "2020-01-01"])
def test_an_acquire_time_that_says_nothing_is_taken_for_now(
    cluster: Cluster, acquired: str
) -> None:
    cluster.renew(acquireTime=acquired)
    cluster.look()
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads


def test_a_lease_found_is_not_fresh_until_it_is_seen_renewed(cluster: Cluster) -> None:
    cluster.renew(acquireTime=stamp(0.0))
    cluster.wait(30)
    assert not cluster.leads


def test_a_change_that_is_no_renewal_does_not_count_as_one(cluster: Cluster) -> None:
    leading(cluster)
    for _ in range(20):
        cluster.now += 1.0
        renewed = cluster.store.spec["renewTime"]
        cluster.renew(renewTime=renewed, label="edited")
        cluster.look()
    assert not cluster.leads


def test_the_term_runs_from_the_look_before_the_renewal(cluster: Cluster) -> None:
    leading(cluster)
    looked_at = cluster.now
    cluster.now += 1.5
    cluster.renew()
    cluster.look(took=1.0)
    assert cluster.me.term.until(cluster.now) == looked_at + 15


def test_a_scheduler_that_stops_renewing_ends_the_term(cluster: Cluster) -> None:
    leading(cluster)
    cluster.wait(13)
    assert cluster.leads
    cluster.wait(1)
    assert not cluster.leads


def test_looks_that_fail_end_the_term_no_sooner_and_no_later(cluster: Cluster) -> None:
    leading(cluster)
    end = cluster.me.term.until(cluster.now)
    for _ in range(10):
        cluster.now += 1.0
        assert isinstance(cluster.me.tick(cluster.now, WALL, 0.0), Read)
        cluster.me.on_error(ApiUnavailable("no answer", 0), cluster.now)
        assert isinstance(cluster.me.tick(cluster.now, WALL, 0.0), Wait)
    assert cluster.me.term.until(cluster.now) == end


@pytest.mark.parametrize(
    "holder", [OTHERS, "", "here", "here_", "here2_1", "her_e_1", "_1", "Here_1"]
)
def test_any_other_holder_ends_the_term_at_once(cluster: Cluster, holder: str) -> None:
    leading(cluster)
    cluster.now += 1.0
    cluster.renew(holder)
    cluster.look()
    assert not cluster.leads


def test_a_host_name_may_hold_underscores(cluster: Cluster) -> None:
    cluster.me = SchedulerLease("my_host", BUDGET)
    cluster.renew("my_host_1-2", acquireTime=stamp(0.0))
    cluster.wait(8, renewing="my_host_1-2")
    assert cluster.leads


def test_a_deleted_lease_ends_the_term_and_brings_the_fence_back(cluster: Cluster) -> None:
    leading(cluster)
    cluster.store.document = None
    cluster.now += 1.0
    cluster.look()
    assert not cluster.leads
    cluster.renew()
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads


def test_after_another_host_s_term_was_seen_to_run_out_only_the_budget_is_waited(
    cluster: Cluster,
) -> None:
    cluster.renew(OTHERS)
    cluster.wait(17)
    cluster.renew(OURS)
    cluster.wait(6, renewing=OURS)
    assert cluster.leads


def test_after_another_host_gave_the_lease_away_its_whole_term_is_waited_out(
    cluster: Cluster,
) -> None:
    cluster.renew(OTHERS)
    cluster.wait(17, renewing=OTHERS)
    cluster.renew("")
    cluster.renew(OURS)
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads
    cluster.wait(3, renewing=OURS)
    assert cluster.leads


def test_a_term_that_seemed_to_run_out_while_nobody_looked_is_not_believed(
    cluster: Cluster,
) -> None:
    cluster.renew(OTHERS)
    cluster.wait(3, renewing=OTHERS)
    cluster.now += 60.0
    cluster.renew(OURS)
    cluster.look()
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads


def test_a_restart_of_our_scheduler_needs_no_fence(cluster: Cluster) -> None:
    leading(cluster)
    cluster.renew("")
    cluster.now += 1.0
    cluster.look()
    assert not cluster.leads
    cluster.renew(AGAIN)
    cluster.wait(2, renewing=AGAIN)
    assert cluster.leads


def test_another_host_between_two_of_our_schedulers_is_noticed_though_never_seen(
    cluster: Cluster,
) -> None:
    leading(cluster)
    cluster.renew(OTHERS)
    cluster.renew(AGAIN)
    cluster.wait(5, renewing=AGAIN)
    assert not cluster.leads


def test_a_lease_made_anew_while_nobody_looked_brings_the_fence_back(cluster: Cluster) -> None:
    """A new Lease counts transitions from 0, so the number tells nothing about earlier ones."""
    leading(cluster)
    cluster.store.document = None
    cluster.renew(OTHERS)
    cluster.renew(AGAIN)
    cluster.wait(18, renewing=AGAIN)
    assert not cluster.leads
    cluster.wait(3, renewing=AGAIN)
    assert cluster.leads


def test_a_lease_made_anew_does_not_come_after_the_term_seen_to_run_out(cluster: Cluster) -> None:
    cluster.renew(OTHERS)
    cluster.wait(17)
    cluster.store.document = None
    cluster.renew("third_33333333-0c2c-4b21-9c0b-2a3f4d5e6f70")
    cluster.renew(OURS)
    cluster.wait(18, renewing=OURS)
    assert not cluster.leads


def test_what_is_no_lease_is_an_error(cluster: Cluster) -> None:
    cluster.me.tick(0.0, WALL, 0.0)
    with pytest.raises(WireError):
        cluster.me.on_lease(b"{}", 0.0)


def test_after_the_release_nothing_is_done_any_more(cluster: Cluster) -> None:
    leading(cluster)
    cluster.me.release()
    assert not cluster.leads
    assert isinstance(cluster.me.tick(cluster.now + 5, WALL, 0.0), Done)
