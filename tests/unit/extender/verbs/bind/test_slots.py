"""No more binds at once than there are slots, and filter waits while three quarters are taken."""

import threading
import time

from gpushare.extender.verbs.tickets import BindSlots


def taken(count: int, max_wait: float) -> BindSlots:
    slots = BindSlots(8, max_wait)
    for _ in range(count):
        assert slots.take()
    return slots


def seconds_waited(slots: BindSlots) -> float:
    began = time.monotonic()
    slots.wait_while_many()
    return time.monotonic() - began


def test_a_bind_beyond_the_most_is_refused_until_one_ends() -> None:
    slots = taken(8, 0)
    assert not slots.take()
    slots.free()
    assert slots.take()
    assert not slots.take()


def test_filter_waits_from_three_quarters_on_and_no_longer_than_it_may() -> None:
    assert seconds_waited(taken(5, 30)) < 10
    assert seconds_waited(taken(6, 0.05)) >= 0.05


def test_filter_goes_on_when_a_bind_ends() -> None:
    slots = taken(7, 30)
    ended: list[float] = []
    waiter = threading.Thread(target=lambda: ended.append(seconds_waited(slots)))
    waiter.start()
    slots.free()
    waiter.join(0.05)
    assert waiter.is_alive()  # six are still many
    slots.free()
    waiter.join(30)
    assert ended
    assert ended[0] < 10
