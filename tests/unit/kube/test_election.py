"""The election by a Lease of gpushare: one rule after another."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.errors import ApiError, ApiNotFound, ApiUnavailable, SettingsError, WireError
from gpushare.kube.election import (
    Action,
    Create,
    Done,
    ElectionTiming,
    Elector,
    Read,
    Update,
    Wait,
    stamp,
)
from tests.unit.kube.lease_store import LeaseStore

BUDGET = 4.0
WALL = 1_700_000_000.0
"""The wall clock when the monotonic clock is 0."""
LOST = ApiUnavailable("no answer", 0)


def elector(identity: str = "me_1") -> Elector:
    return Elector("kube-system", "gpushare", identity, BUDGET)


@pytest.fixture
def store() -> LeaseStore:
    return LeaseStore()


def answer_to(candidate: Elector, action: Action, store: LeaseStore, now: float) -> None:
    """Carry out the action, and pass the answer to the machine."""
    try:
        if isinstance(action, Read):
            try:
                body = store.get()
            except ApiNotFound:
                candidate.on_lease(None, now)
            else:
                candidate.on_lease(body, now)
        elif isinstance(action, Create):
            candidate.on_written(store.create(action.body), now)
        elif isinstance(action, Update):
            candidate.on_written(store.update(action.body), now)
    except (ApiError, WireError) as error:
        candidate.on_error(error, now)


def run(candidate: Elector, store: LeaseStore, now: float, until: float) -> float:
    """Let the candidate act from `now` on, with an API server that answers at once."""
    while True:
        action = candidate.tick(now, WALL + now, 0.5)
        if isinstance(action, Done):
            return now
        if isinstance(action, Wait):
            assert action.seconds > 0
            if now + action.seconds > until:
                return until
            now += action.seconds
        else:
            answer_to(candidate, action, store, now)


def leads(candidate: Elector, now: float) -> bool:
    return candidate.term.until(now) > now


def test_the_first_ever_leader_waits_out_one_who_may_not_know_of_the_deletion(
    store: LeaseStore,
) -> None:
    me = elector()
    run(me, store, 0.0, 18.9)
    assert store.spec["holderIdentity"] == "me_1"
    assert store.spec["leaseTransitions"] == 0
    assert store.spec["leaseDurationSeconds"] == 15
    assert not leads(me, 18.9)
    run(me, store, 18.9, 30.0)
    assert leads(me, 30.0)


@pytest.mark.parametrize("what", ["an old Lease", "another kind", "a page of HTML"])
def test_a_renewal_that_is_not_answered_by_the_lease_as_written_renews_nothing(
    store: LeaseStore, what: str
) -> None:
    """A cache on the way, or a proxy's login page, answers 200 for a write that nobody has seen."""
    me = elector()
    run(me, store, 0.0, 30.0)
    until = me.term.until(30.0)
    answers = {
        "an old Lease": store.get(),
        "another kind": store.get().replace(b'"Lease"', b'"Status"'),
        "a page of HTML": b"<html>",
    }
    action = me.tick(32.0, 1_700_000_032, 0.5)
    assert isinstance(action, Update)
    with pytest.raises(WireError, match="Lease: "):
        me.on_written(answers[what], 32.5)
    assert me.term.until(32.5) == until


def test_a_term_counts_from_before_the_renewal_was_sent(store: LeaseStore) -> None:
    me = elector()
    run(me, store, 0.0, 30.0)
    action = me.tick(32.0, 0.0, 0.5)
    assert isinstance(action, Update)
    me.on_written(store.update(action.body), 39.0)
    assert me.term.until(39.0) == 32.0 + 10.0


def test_a_leader_that_cannot_renew_ends_before_another_may_begin(store: LeaseStore) -> None:
    me = elector()
    run(me, store, 0.0, 30.0)
    last = me.term.until(30.0)
    assert last <= 30.0 + 10.0
    for now in (31.0, 33.0, 36.0, 39.0):
        action = me.tick(now, 0.0, 0.5)
        if not isinstance(action, Wait):
            me.on_error(LOST, now)
    assert me.term.until(39.0) == last


def test_an_expired_lease_of_another_is_taken_and_fenced(store: LeaseStore) -> None:
    store.write("other_1", renewTime="2026-01-01T00:00:00.000000Z")
    me = elector()
    run(me, store, 100.0, 114.9)
    assert store.spec["holderIdentity"] == "other_1"
    run(me, store, 114.9, 118.9)
    assert store.spec["holderIdentity"] == "me_1"
    assert store.spec["leaseTransitions"] == 1
    assert not leads(me, 118.9)
    assert leads(me, 119.0)
    assert me.term.begin == 119.0
    # By the holder's clock the renewal is years ahead; it was before the first read.
    assert me.earlier_end == 100.0 + 10.0


def test_without_an_earlier_read_the_clock_of_the_holder_tells_the_end_of_its_term(
    store: LeaseStore,
) -> None:
    store.write("", renewTime=stamp(WALL - 900), leaseDurationSeconds=1)
    me = elector()
    run(me, store, 0.0, 10.0)
    assert me.earlier_end == pytest.approx(-900)


@pytest.mark.parametrize("skew", [-300.0, -1.0, 0.0, 300.0])
@pytest.mark.parametrize(("holder", "duration", "term"), [("other_1", 15, 10.0), ("", 1, 0.0)])
def test_the_end_of_the_term_before_is_between_two_reads_whatever_its_clock_says(
    store: LeaseStore, holder: str, duration: int, term: float, skew: float
) -> None:
    me = elector()
    store.write("other_1", renewTime=stamp(WALL + skew))
    now = run(me, store, 0.0, 10.0)
    store.write(holder, renewTime=stamp(WALL + now + skew), leaseDurationSeconds=duration)
    run(me, store, now, now + 30.0)
    assert store.spec["holderIdentity"] == "me_1"
    # Reads are 3.2 s apart.
    assert now - 3.2 <= me.earlier_end - term <= now + 3.2
    if skew == 0.0:
        assert me.earlier_end == pytest.approx(now + term, abs=1e-3)


def test_a_lease_without_a_readable_renewal_tells_of_no_term_before(store: LeaseStore) -> None:
    store.write("", renewTime="yesterday", leaseDurationSeconds=1)
    me = elector()
    run(me, store, 0.0, 10.0)
    assert leads(me, 10.0)
    assert math.isnan(me.earlier_end)


def test_the_first_leader_knows_of_no_term_before(store: LeaseStore) -> None:
    me = elector()
    run(me, store, 0.0, 30.0)
    assert leads(me, 30.0)
    assert math.isnan(me.earlier_end)


def test_each_renewal_of_another_starts_the_wait_anew_whatever_its_clock_says(
    store: LeaseStore,
) -> None:
    me = elector()
    now = 0.0
    for _ in range(20):
        store.write("other_1", renewTime="1999-01-01T00:00:00.000000Z", renewed=str(now))
        now = run(me, store, now, now + 10.0)
    assert store.spec["holderIdentity"] == "other_1"


def test_a_longer_duration_in_the_lease_is_respected(store: LeaseStore) -> None:
    store.write("other_1", leaseDurationSeconds=60)
    me = elector()
    run(me, store, 0.0, 59.0)
    assert store.spec["holderIdentity"] == "other_1"


def test_a_lease_given_away_is_taken_without_a_fence(store: LeaseStore) -> None:
    first, second = elector("a_1"), elector("b_1")
    run(first, store, 0.0, 30.0)
    first.release()
    assert not leads(first, 30.0)
    run(first, store, 30.0, 31.0)
    assert store.spec["holderIdentity"] == ""
    assert isinstance(first.tick(32.0, 0.0, 0.5), Done)
    run(second, store, 32.0, 33.0)
    assert leads(second, 33.0)
    assert store.spec["leaseTransitions"] == 1


def test_who_holds_nothing_gives_nothing_away(store: LeaseStore) -> None:
    store.write("other_1")
    me = elector()
    run(me, store, 0.0, 5.0)
    me.release()
    run(me, store, 5.0, 10.0)
    assert store.spec["holderIdentity"] == "other_1"


def test_a_renewal_in_flight_at_the_release_does_not_bring_the_term_back(
    store: LeaseStore,
) -> None:
    me = elector()
    run(me, store, 0.0, 30.0)
    action = me.tick(32.0, 0.0, 0.5)
    assert isinstance(action, Update)
    me.release()
    me.on_written(store.update(action.body), 32.5)
    assert not leads(me, 32.5)
    run(me, store, 33.0, 34.0)
    assert store.spec["holderIdentity"] == ""


@pytest.mark.parametrize("holder", ["me_10", "me", "ME_1", "me_1 "])
def test_an_identity_is_matched_whole(store: LeaseStore, holder: str) -> None:
    me = elector()
    store.write(holder)
    run(me, store, 0.0, 10.0)
    assert store.spec["holderIdentity"] == holder


def test_a_lease_under_our_name_that_this_process_never_wrote_is_another_s(
    store: LeaseStore,
) -> None:
    store.write("me_1")
    me = elector()
    run(me, store, 0.0, 14.0)
    assert not leads(me, 14.0)
    run(me, store, 14.0, 20.0)
    assert me.term.begin == 15.0 + BUDGET


def test_a_lost_answer_to_the_taking_keeps_the_fence(store: LeaseStore) -> None:
    store.write("other_1")
    me = elector()
    run(me, store, 0.0, 14.9)
    now = 15.0
    while not isinstance(action := me.tick(now, 0.0, 0.5), Update):
        answer_to(me, action, store, now)
        now += 0.01
    store.update(action.body)
    me.on_error(LOST, now + 1.0)
    run(me, store, now + 1.0, 30.0)
    assert me.term.begin == pytest.approx(15.0 + BUDGET)
    assert leads(me, 30.0)


def test_a_stolen_lease_ends_the_term_when_it_is_seen(store: LeaseStore) -> None:
    me = elector()
    run(me, store, 0.0, 30.0)
    store.write("thief_1")
    run(me, store, 30.0, 33.0)
    assert not leads(me, 33.0)


def test_a_lease_that_comes_back_without_our_doing_is_waited_for_like_another_s(
    store: LeaseStore,
) -> None:
    """By hand, or by an etcd set back: the holder may not know yet."""
    me = elector()
    run(me, store, 0.0, 30.0)
    store.write("other_1")
    run(me, store, 30.0, 40.0)
    store.write("me_1")
    run(me, store, 40.0, 55.0)
    assert not leads(me, 55.0)
    run(me, store, 55.0, 70.0)
    assert leads(me, 70.0)
    assert me.term.begin >= 40.0 + 15.0 + BUDGET


def test_a_lease_whose_holder_somebody_took_out_is_waited_for(store: LeaseStore) -> None:
    """A holder that releases the Lease writes a duration of a second; this holder may not know."""
    first, second = elector("a_1"), elector("b_1")
    run(first, store, 0.0, 30.0)
    store.edit("")
    run(second, store, 30.0, 31.0)
    assert leads(first, 31.0)
    assert not leads(second, 31.0)
    run(second, store, 31.0, 60.0)
    assert leads(second, 60.0)
    assert second.term.begin >= 30.0 + 15.0 + BUDGET


def test_two_that_were_given_one_name_never_lead_both(store: LeaseStore) -> None:
    """As with one --identity in the manifest of all replicas."""
    first, second = elector("same"), elector("same")
    run(first, store, 0.0, 30.0)
    run(second, store, 30.0, 60.0)  # the first is paused, and wakes up
    assert leads(second, 60.0)
    run(first, store, 60.1, 64.0)
    assert not leads(first, 64.0)
    run(second, store, 60.1, 64.0)
    assert leads(second, 64.0)


def test_fields_of_others_survive_our_writes(store: LeaseStore) -> None:
    store.write("", preferredHolder="x")
    assert store.document
    store.document["metadata"]["labels"] = {"a": "b"}
    me = elector()
    run(me, store, 0.0, 1.0)
    assert store.spec["preferredHolder"] == "x"
    assert store.document["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"metadata": {}}', b'{"metadata": 5}'])
def test_an_answer_that_is_no_lease_is_an_error_and_ends_no_term(body: bytes) -> None:
    me = elector()
    me.tick(0.0, 0.0, 0.5)
    with pytest.raises(WireError):
        me.on_lease(body, 0.0)


@pytest.mark.parametrize("seconds", ["1e999", "NaN", "1" + "0" * 400, '"inf"'])
def test_a_lease_of_no_length_that_ends_is_no_lease(seconds: str) -> None:
    metadata = '"metadata": {"resourceVersion": "1"}'
    body = f'{{{metadata}, "spec": {{"leaseDurationSeconds": {seconds}}}}}'
    me = elector()
    me.tick(0.0, 0.0, 0.5)
    with pytest.raises(WireError):
        me.on_lease(body.encode(), 0.0)


@pytest.mark.parametrize("times", [(15.0, 15.0, 2.0), (15.0, 10.0, 10.0), (15.0, 10.0, 0.0)])
def test_times_that_allow_two_leaders_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError):
        ElectionTiming(*times)


@settings(deadline=None)  # machines of tests are busy
@given(st.lists(st.sampled_from(["lost", "conflict", "ok"]), min_size=1), st.floats(0, 0.999))
def test_no_answers_make_it_ask_in_a_hot_loop(answers: list[str], jitter: float) -> None:
    store, me, now = LeaseStore(), elector(), 0.0
    calls = 0
    while now < 60.0:
        action = me.tick(now, 0.0, jitter)
        if isinstance(action, Wait):
            assert action.seconds > 0
            now += action.seconds
            continue
        calls += 1
        kind = answers[calls % len(answers)]
        if kind == "ok":
            answer_to(me, action, store, now)
        else:
            me.on_error(LOST if kind == "lost" else ApiError("", 403), now)
    assert calls <= 90
