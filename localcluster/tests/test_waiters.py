"""Waiters for changes: the ones a change wakes, the ones it skips, and the version to continue
from.
"""

from gpushare_localcluster.api.objects import Change, Object, Record
from gpushare_localcluster.api.store import Place, Waiter, Waiters

NODE_NAME = "spec.nodeName"


def pod(version: int, node: str = "") -> Record:
    body: Object = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"nodeName": node}}
    return Record(body, version)


def moved(version: int, before: str, after: str) -> Change:
    return Change("MODIFIED", pod(version, after), pod(version - 1, before))


class Asked:
    """A waiter that records each checked change and the result."""

    def __init__(self, place: Place | None, answer: bool = True) -> None:
        self.changes: list[int] = []
        self.answer = answer
        self.waiter = Waiter(1, self.concerns, place)

    def concerns(self, change: Change) -> bool:
        self.changes.append(change.version)
        return self.answer

    @property
    def woken(self) -> bool:
        return not self.waiter.gate.locked()


def test_a_change_asks_those_of_the_places_that_it_leaves_and_comes_to() -> None:
    waiters = Waiters()
    one, two, three = (Asked((NODE_NAME, node)) for node in ("one", "two", "three"))
    anywhere = Asked(None)
    for calls in (one, two, three, anywhere):
        waiters.add(calls.waiter)
    waiters.tell(moved(7, "one", "two"))
    assert [one.woken, two.woken, three.woken, anywhere.woken] == [True, True, False, True]
    assert three.changes == []


def test_one_that_is_woken_goes_on_right_before_the_change_and_waits_no_more() -> None:
    waiters, calls = Waiters(), Asked((NODE_NAME, "one"))
    waiters.add(calls.waiter)
    waiters.tell(Change("ADDED", pod(9, "one"), None))
    assert calls.waiter.cursor == 8
    assert not waiters.remove(calls.waiter)
    waiters.tell(moved(10, "one", "one"))
    assert calls.changes == [9]


def test_one_whom_a_change_does_not_concern_waits_on() -> None:
    waiters, calls = Waiters(), Asked(None, answer=False)
    waiters.add(calls.waiter)
    waiters.tell(Change("ADDED", pod(9), None))
    assert (calls.woken, calls.waiter.cursor) == (False, 1)
    assert waiters.remove(calls.waiter)


def test_a_field_without_a_value_is_a_place_too() -> None:
    waiters, calls = Waiters(), Asked(("spec.unschedulable", "false"))
    waiters.add(calls.waiter)
    waiters.tell(Change("ADDED", Record({"metadata": {"name": "node"}}, 2), None))
    assert calls.woken


def test_all_can_be_woken() -> None:
    waiters, several = Waiters(), [Asked(None), Asked((NODE_NAME, "one"))]
    for calls in several:
        waiters.add(calls.waiter)
    waiters.wake()
    assert all(calls.woken and calls.waiter.cursor == 1 for calls in several)
