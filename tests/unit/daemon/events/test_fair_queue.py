"""Events of one namespace take neither the place nor the turn of another's."""

import threading

from gpushare.daemon.events import FairQueue, PendingEvent
from gpushare.wire.events import ObjectReference


def event(namespace: str, number: int) -> PendingEvent:
    pod = ObjectReference("Pod", namespace, f"p{number}", f"{namespace}-{number}")
    return PendingEvent(pod, "GPUShareMistake", "Scheduling", "why", True, number)


def test_namespaces_are_served_in_turn_and_each_in_its_order() -> None:
    queue = FairQueue(100, 50)
    for number in range(40):
        assert queue.put("greedy", event("greedy", number))
    assert queue.put("quiet", event("quiet", 0))
    assert queue.put("quiet", event("quiet", 1))
    events = [queue.get() for _ in range(5)]
    assert [each.regarding.name for each in events if each] == ["p0", "p0", "p1", "p1", "p2"]


def test_a_namespace_has_so_much_room_and_a_full_queue_takes_from_who_has_most() -> None:
    queue = FairQueue(10, 8)
    assert [queue.put("greedy", event("greedy", n)) for n in range(10)] == [True] * 8 + [False] * 2
    assert [queue.put("other", event("other", n)) for n in range(2)] == [True] * 2
    assert queue.put("quiet", event("quiet", 0)), "the newest of the greedy one makes room"
    assert queue.evicted == 1
    assert not queue.put("greedy", event("greedy", 11))
    names = [each.regarding.namespace for each in (queue.get() for _ in range(10)) if each]
    assert (names.count("greedy"), names.count("other"), names.count("quiet")) == (7, 2, 1)


def test_who_waits_for_an_event_is_let_go_when_the_queue_is_closed() -> None:
    queue, events = FairQueue(10, 8), list[PendingEvent | None]()
    thread = threading.Thread(target=lambda: events.append(queue.get()))
    thread.start()
    queue.close()
    thread.join(60)
    assert events == [None]
