"""The books under real threads that are switched as often as Python can."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from gpushare.core.decide import place
from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Ranking
from gpushare.errors import RequestRefused
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node

THREADS = 32
SECONDS = 2.0
CAPACITY = (16, 16, 7)


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _together(*work: threading.Thread) -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


def _bind_and_end(ledger: Ledger, uid: str, chance: Random) -> bool:
    """Whether a pod came, was bound, was seen and went; else it was refused at some point."""
    ref = PodRef("default", uid, uid)
    request = Request(chance.randint(1, 6), chance.choice([1, 1, 2]))
    try:
        place_result = place(ledger.snapshot(), "gpu-a", request, Ranking(DeviceBestFit()))
        ledger.assume(ref, request, place_result, time.monotonic())
    except RequestRefused:
        return False
    if chance.random() < 0.5:
        ledger.forget(uid)
        return False
    ledger.landed(uid, time.monotonic())
    ledger.pod_changed(ObservedPod(ref, request, "gpu-a", place_result.shares))
    ledger.pod_gone(uid)
    return True


def test_no_device_is_overfull_while_threads_bind_on_one_node(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", *CAPACITY))
    end = time.monotonic() + SECONDS
    overfull: list[object] = []
    bound_pod: list[int] = []

    def bind(number: int) -> None:
        chance, turn = Random(number), 0
        while time.monotonic() < end:
            turn += 1
            if _bind_and_end(ledger, f"p{number}-{turn}", chance):
                bound_pod.append(number)

    def read() -> None:
        while time.monotonic() < end:
            ledger.check()
            view = ledger.snapshot()
            if (view.used > view.capacity).any():
                overfull.append(view.used.tolist())
            ledger.overdue(time.monotonic())

    binders = [threading.Thread(target=bind, args=(number,)) for number in range(THREADS)]
    _together(*binders, threading.Thread(target=read))
    assert overfull == []
    assert len(bound_pod) > THREADS
    assert ledger.snapshot().used.tolist() == [[0, 0, 0]]


def _both(uid: str, name: str) -> ObservedPod:
    """A pod on both devices of the node."""
    return ObservedPod(PodRef("default", uid, uid), Request(2, 2), name, ((0, 2), (1, 2)))


def _come_and_go(ledger: Ledger, uid: str, name: str) -> None:
    """A node comes, a pod waits and is bound to it, and all of it goes."""
    pod = _both(uid, name)
    ledger.node_changed(node(name, 64, 64, unhealthy=[1]))
    ledger.set_unhealthy(name, frozenset([0]))
    ledger.pod_changed(pod._replace(node="", placement=None))
    ledger.pod_changed(pod)
    ledger.set_unhealthy(name, frozenset())
    ledger.pod_gone(uid)
    ledger.node_gone(name)


def _is_whole_view(ledger: Ledger) -> bool:
    used = ledger.snapshot().used
    return not used.size or bool((used[:, 0] == used[:, 1]).all())


def _is_whole_dump(ledger: Ledger) -> bool:
    holding = [(2 * len(books.entries), books.used) for books in ledger.dump()]
    return all(used == (units, units) for units, used in holding)


def _is_whole_copy(ledger: Ledger) -> bool:
    entries, specs = ledger.entries_and_specs()
    return all(entry.node for entry in entries.values()) and all(specs.values())


_LOOKS: tuple[Callable[[Ledger], bool], ...] = (
    _is_whole_view,
    _is_whole_dump,
    _is_whole_copy,
    lambda ledger: ledger.counts()["bound"] >= 200,
    lambda ledger: ledger.closed_devices() is not None,
    lambda ledger: all(pod.request.devices for pod in ledger.waiting()),
)
"""Each is one reader's; an exception in its thread fails the test, too."""


def test_the_books_are_read_whole_while_everything_in_them_changes(ledger: Ledger) -> None:
    for number in range(200):
        ledger.pod_changed(_both(f"stays-{number}", f"n{number % 4}"))
    end = time.monotonic() + SECONDS
    result: list[bool] = []

    def change(number: int) -> None:
        turn = 0
        while time.monotonic() < end:
            turn += 1
            _come_and_go(ledger, f"p{number}-{turn}", f"n{number % 4}")

    def read(look: Callable[[Ledger], bool]) -> None:
        looks = [look(ledger)]
        while time.monotonic() < end:
            looks.append(look(ledger))
        result.append(all(looks))

    changers = [threading.Thread(target=change, args=(number,)) for number in range(12)]
    _together(*changers, *(threading.Thread(target=read, args=(look,)) for look in _LOOKS))
    assert result == [True] * len(_LOOKS)


def test_binds_of_one_pod_charge_it_once(ledger: Ledger) -> None:
    ledger.node_changed(node("gpu-a", 64))
    won: list[int] = []
    for turn in range(20):
        uid = f"p{turn}"
        start = threading.Barrier(8)

        def bind(uid: str = uid, start: threading.Barrier = start, turn: int = turn) -> None:
            request = Request(2, 1)
            place_result = place(ledger.snapshot(), "gpu-a", request, Ranking(DeviceBestFit()))
            start.wait()
            try:
                ledger.assume(PodRef("default", uid, uid), request, place_result, 0)
            except RequestRefused:
                return
            won.append(turn)

        _together(*(threading.Thread(target=bind) for _ in range(8)))
    assert won == list(range(20))
    assert ledger.snapshot().used.tolist() == [[40]]


def test_a_ranking_may_be_asked_by_many_threads_for_more_kinds_than_it_keeps(
    ledger: Ledger,
) -> None:
    ledger.replace_nodes(node(f"n{number}", 16, 16) for number in range(20))
    policy = DeviceBestFit()
    ranking = Ranking(policy, kinds=2)
    end = time.monotonic() + SECONDS / 4
    wrong: list[object] = []

    def ask(number: int) -> None:
        chance = Random(number)
        while time.monotonic() < end:
            view, request = ledger.snapshot(), Request(chance.randint(1, 16), 1)
            try:
                fresh = Ranking(policy).scores(view, request).values
                if (ranking.scores(view, request).values != fresh).any():
                    wrong.append(request)
            except (RuntimeError, KeyError, StopIteration) as error:
                wrong.append(error)

    def change() -> None:
        chance = Random(0)
        while time.monotonic() < end:
            uid = f"p{chance.randrange(30)}"
            placements = ((chance.randrange(2), 1),)
            ref = PodRef("default", uid, uid)
            ledger.pod_changed(
                ObservedPod(ref, Request(1, 1), f"n{chance.randrange(20)}", placements)
            )
            ledger.pod_gone(f"p{chance.randrange(30)}")

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    _together(*askers, threading.Thread(target=change))
    assert wrong == []
