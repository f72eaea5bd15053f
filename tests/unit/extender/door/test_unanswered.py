"""A request without an answer for long is told of, and a process that stood still is not blamed."""

from gpushare.extender.door.worker import UnansweredRequests

HANGS, NEXT = (1, 5.0), (1, 9.0)


def test_a_request_that_is_there_at_every_look_is_told_of() -> None:
    requests = UnansweredRequests(max_looks=3)
    for _ in range(3):
        requests.observe([HANGS, (2, 0.0)])
        assert requests.stuck() == ""
    requests.observe([HANGS])
    assert requests.stuck() == "requests without an answer for 3 s: 1"
    requests.observe([])
    assert requests.stuck() == ""


def test_another_request_on_its_connection_is_counted_anew() -> None:
    requests = UnansweredRequests(max_looks=3)
    for turn in range(9):
        requests.observe([HANGS if turn % 2 else NEXT])
        assert requests.stuck() == ""


def test_it_is_looks_that_count_and_not_how_old_a_request_is() -> None:
    requests = UnansweredRequests(max_looks=3)
    requests.observe([(1, -1e9)])  # the process was stopped for years
    assert requests.stuck() == ""
