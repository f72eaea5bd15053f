"""Repetitions, rates and new events, by a clock of the test."""

from dataclasses import replace

from gpushare.daemon.events import (
    OBJECT_BURST,
    OBJECT_RATE,
    SERIES_EVERY,
    WINDOW,
    Bucket,
    Buckets,
    EventAggregator,
    PendingEvent,
    Write,
)
from gpushare.wire.events import ObjectReference

NOTICE = PendingEvent(
    ObjectReference("Pod", "team", "web", "uid"), "GPUShareBindFailed", "Binding", "why", True, 1
)


def later(stamp: int) -> PendingEvent:
    return replace(NOTICE, stamp=stamp)


def new(step: Write | None) -> Write:
    """The write, which makes a new event."""
    assert step is not None
    assert step.count == 1
    return step


def test_a_new_thing_is_a_new_event() -> None:
    flow = EventAggregator()
    first = new(flow.take(NOTICE, 0.0))
    other_step = new(flow.take(replace(NOTICE, note="another why", stamp=2), 0.0))
    assert first.name != other_step.name


def test_a_repetition_counts_up_its_event_once_a_minute() -> None:
    flow = EventAggregator()
    first = new(flow.take(NOTICE, 0.0))
    assert [flow.take(later(n), float(n)) for n in range(2, 30)] == [None] * 28
    step = flow.take(later(90), SERIES_EVERY)
    assert step == Write(first.name, later(90), 30)
    assert flow.take(later(91), SERIES_EVERY + 1) is None


def test_a_thing_that_comes_again_much_later_is_a_new_event() -> None:
    flow = EventAggregator()
    first = new(flow.take(NOTICE, 0.0))
    again = new(flow.take(later(2), WINDOW + 1))
    assert first.name != again.name


def test_an_event_that_was_lost_begins_anew() -> None:
    flow = EventAggregator()
    flow.take(NOTICE, 0.0)
    flow.forget(NOTICE)
    assert new(flow.take(later(2), 1.0))


def about(number: int) -> PendingEvent:
    pod = ObjectReference("Pod", "team", f"web-{number}", f"uid-{number}")
    return replace(NOTICE, regarding=pod, stamp=number)


def test_a_text_that_changes_all_the_time_makes_few_events_and_leaves_others_theirs() -> None:
    flow = EventAggregator()
    steps = [
        flow.take(replace(NOTICE, note=f"text {number}", stamp=number), number / 3)
        for number in range(3 * 3600)
    ]
    hour = sum(step is not None and step.count == 1 for step in steps)
    assert hour == OBJECT_BURST + 3600 * OBJECT_RATE - 1
    assert new(flow.take(about(1), 3600.0))


def test_only_so_many_series_are_kept() -> None:
    flow = EventAggregator()
    for number in range(10_000):
        flow.take(about(number), 0.0)
    assert new(flow.take(about(0), 0.0))
    assert flow.take(about(9999), 0.0) is None


def test_what_counts_no_more_is_forgotten() -> None:
    flow = EventAggregator()
    for number in range(100):
        flow.take(about(number), 0.0)
    flow.take(about(0), WINDOW)
    assert len(flow) == 100
    flow.take(about(100), WINDOW + 1)
    assert len(flow) == 2
    buckets = Buckets(rate=1.0, burst=3.0, max_buckets=10)
    for name in ("a", "b", "b"):
        buckets.take(name, 0.0)
    buckets.take("c", 1.0)
    assert len(buckets) == 2, "the bucket of a is full again"


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    bucket, now, token_count = Bucket(0.0, rate=5.0, burst=20.0), 0.0, 0
    while now < 10.0:
        wait = bucket.take_or_wait(now)
        now += wait + 1e-9 if wait else 0.0
        token_count += not wait
    assert 69 <= token_count <= 71


def test_only_so_many_buckets_are_kept() -> None:
    buckets = Buckets(rate=1e-9, burst=1.0, max_buckets=10)
    assert buckets.take("a", 0.0)
    assert not buckets.take("a", 0.0)
    for name in range(10):
        buckets.take(str(name), 0.0)
    assert buckets.take("a", 0.0), "it was used longest ago"
