"""A thread that goes on whatever its rounds raise."""

import threading

from gpushare.extender.follow.rounds import Rounds


def test_a_round_that_could_not_do_all_is_repeated_sooner() -> None:
    waits: list[float] = []
    answers: list[bool | Exception] = [True, False, ZeroDivisionError("a bug"), True, True]

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return len(waits) > 5

    def one() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    Rounds("test", one, 60.0, 5.0, Event()).run()
    assert waits == [5.0, 60.0, 5.0, 5.0, 60.0, 60.0]


def test_it_begins_and_ends() -> None:
    called = threading.Event()

    def one() -> bool:
        called.set()
        return True

    rounds = Rounds("test", one, 60.0, 0.0, threading.Event())
    rounds.start()
    assert called.wait(10.0)
    rounds.stop()
    assert "test" not in {thread.name for thread in threading.enumerate()}
