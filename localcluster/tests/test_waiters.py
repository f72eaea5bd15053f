"""Those who wait for a change: whom it wakes, whom it does not ask, and from where they go on."""

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.records import Change, Record
from gpushare_localcluster.api.waiters import Place, Waiter, Waiters

NODE_NAME = "spec.nodeName"


def pod(version: int, node: str = "") -> Record:
    body: Object = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"nodeName": node}}
    return Record(body, version)


def moved(version: int, before: str, after: str) -> Change:
    return Change("MODIFIED", pod(version, after), pod(version - 1, before))


class Asked:
    """A waiter that notes the changes that it is asked about, and the answer that it gives."""

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
    for asked in (one, two, three, anywhere):
        waiters.add(asked.waiter)
    waiters.tell(moved(7, "one", "two"))
    assert [one.woken, two.woken, three.woken, anywhere.woken] == [True, True, False, True]
    assert three.changes == []


def test_one_that_is_woken_goes_on_right_before_the_change_and_waits_no_more() -> None:
    waiters, asked = Waiters(), Asked((NODE_NAME, "one"))
    waiters.add(asked.waiter)
    waiters.tell(Change("ADDED", pod(9, "one"), None))
    assert asked.waiter.cursor == 8
    assert not waiters.remove(asked.waiter)
    waiters.tell(moved(10, "one", "one"))
    assert asked.changes == [9]


def test_one_whom_a_change_does_not_concern_waits_on() -> None:
    waiters, asked = Waiters(), Asked(None, answer=False)
    waiters.add(asked.waiter)
    waiters.tell(Change("ADDED", pod(9), None))
    assert (asked.woken, asked.waiter.cursor) == (False, 1)
    assert waiters.remove(asked.waiter)


def test_a_field_without_a_value_is_a_place_too() -> None:
    waiters, asked = Waiters(), Asked(("spec.unschedulable", "false"))
    waiters.add(asked.waiter)
    waiters.tell(Change("ADDED", Record({"metadata": {"name": "node"}}, 2), None))
    assert asked.woken


def test_all_can_be_woken() -> None:
    waiters, several = Waiters(), [Asked(None), Asked((NODE_NAME, "one"))]
    for asked in several:
        waiters.add(asked.waiter)
    waiters.wake()
    assert all(asked.woken and asked.waiter.cursor == 1 for asked in several)
