"""The step machine by itself: the next request after each outcome."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.errors import ApiError, ApiGone, ApiTooLarge, ApiUnavailable
from gpushare.kube.listwatch import List, ListWatch, Replace, Sleep, Timing, Watch
from tests.unit.kube.json_codec import (
    JsonCodec,
    JsonEvent,
    JsonPage,
    asked,
    error_event,
    event,
    page,
)

Machine = ListWatch[JsonPage, JsonEvent]
NO_ANSWER = ApiUnavailable("no answer", 0)
GONE = ApiGone("too old", 410)


@pytest.fixture
def machine() -> Machine:
    return ListWatch("/api/v1/pods", JsonCodec(), (("fieldSelector", "x=y"),))


def watching(machine: Machine, now: float = 0.0, version: str = "7") -> Watch:
    """Bring the machine into an open watch."""
    action = machine.next(now, 0.5)
    while isinstance(action, Sleep):
        now += action.seconds
        action = machine.next(now, 0.5)
    if isinstance(action, List):
        taken(machine, page(version, "a"), now)
        action = machine.next(now, 0.5)
    assert isinstance(action, Watch)
    machine.on_open(now)
    return action


def taken(machine: Machine, body: bytes, now: float) -> Replace[JsonPage]:
    """Pass the last page of a list, and the delivery of the list."""
    whole = machine.on_page(body, now)
    assert whole is not None
    machine.on_delivered(whole)
    return whole


def pause_of(machine: Machine, now: float, jitter: float = 0.0) -> float:
    """The seconds the machine wants to wait now."""
    action = machine.next(now, jitter)
    return action.seconds if isinstance(action, Sleep) else 0.0


def test_the_first_request_is_a_page_of_the_latest_state(machine: Machine) -> None:
    action = machine.next(0.0, 0.5)
    assert isinstance(action, List)
    assert action.path == "/api/v1/pods"
    assert asked(action.query, "limit") == "500"
    assert asked(action.query, "fieldSelector") == "x=y"
    assert asked(action.query, "resourceVersion") is None
    assert not machine.synced


def test_a_list_in_pages_is_delivered_once_when_it_is_whole(machine: Machine) -> None:
    machine.next(10.0, 0.5)
    assert machine.on_page(page("7", "a", token="t1"), 11.0) is None
    second = machine.next(11.0, 0.5)
    assert isinstance(second, List)
    assert asked(second.query, "continue") == "t1"
    assert not machine.synced

    whole = machine.on_page(page("9", "b"), 12.0)

    assert isinstance(whole, Replace)
    assert [item for each in whole.pages for item in each.items] == ["a", "b"]
    assert whole.started == 10.0
    assert not machine.synced, "its receiver is still to take it over"
    machine.on_delivered(whole)
    assert (machine.synced, machine.listed_at, machine.last_contact) == (True, 10.0, 12.0)
    watch = machine.next(12.0, 0.5)
    assert isinstance(watch, Watch)
    assert asked(watch.query, "resourceVersion") == "7"


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_a_watch_asks_for_bookmarks_and_outlasts_the_servers_end(
    machine: Machine, jitter: float
) -> None:
    machine.next(0.0, jitter)
    machine.on_page(page("7"), 0.0)
    watch = machine.next(0.0, jitter)
    assert isinstance(watch, Watch)
    seconds = int(asked(watch.query, "timeoutSeconds") or 0)
    assert 90 <= seconds <= 110
    assert watch.read_timeout == seconds + 15
    assert asked(watch.query, "allowWatchBookmarks") == "true"
    assert asked(watch.query, "fieldSelector") == "x=y"


def test_an_empty_page_that_is_not_the_last_is_gone_on_from_after_a_pause(
    machine: Machine,
) -> None:
    """As the API allows where the selector leaves nothing of a page."""
    machine.next(0.0, 0.5)
    assert machine.on_page(page("7", token="t1"), 0.0) is None
    pause = pause_of(machine, 0.0)
    assert pause > 0
    second = machine.next(pause, 0.5)
    assert isinstance(second, List)
    assert asked(second.query, "continue") == "t1"
    whole = machine.on_page(page("7", "b"), pause)
    assert whole is not None
    assert [item for each in whole.pages for item in each.items] == ["b"]


def test_410_between_pages_begins_the_list_again(machine: Machine) -> None:
    machine.next(0.0, 0.5)
    machine.on_page(page("7", "a", token="t1"), 0.0)
    machine.next(0.0, 0.5)
    machine.on_error(GONE, 1.0)
    again = machine.next(1.0, 0.5)
    assert isinstance(again, List)
    assert asked(again.query, "continue") is None
    whole = machine.on_page(page("9", "b"), 1.0)
    assert whole is not None
    assert [item for each in whole.pages for item in each.items] == ["b"]


def test_a_page_that_fails_otherwise_is_asked_for_again(machine: Machine) -> None:
    machine.next(0.0, 0.5)
    machine.on_page(page("7", "a", token="t1"), 0.0)
    machine.next(0.0, 0.5)
    machine.on_error(NO_ANSWER, 1.0)
    assert pause_of(machine, 1.0) > 0
    again = machine.next(2.0, 0.5)
    assert isinstance(again, List)
    assert asked(again.query, "continue") == "t1"


@pytest.mark.parametrize(
    "error", [ApiUnavailable("Too large resource version", 504), ApiError("invalid token", 400)]
)
def test_a_page_that_the_server_never_has_is_not_asked_for_for_ever(
    machine: Machine, error: ApiError
) -> None:
    """A server answers so after etcd was set back between two pages, or to an unknown token."""
    machine.next(0.0, 0.5)
    machine.on_page(page("700", "a", token="t1"), 0.0)
    now, query = 0.0, machine.next(0.0, 0.5)
    while isinstance(query, List) and asked(query.query, "continue") and now < 600.0:
        machine.on_error(error, now)
        now += pause_of(machine, now)
        query = machine.next(now, 0.5)
    assert now < 120.0
    whole = machine.on_page(page("7", "b"), now)
    assert whole is not None
    assert [item for each in whole.pages for item in each.items] == ["b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        page(""),
    ],
)
def test_a_page_that_is_none_is_not_delivered_and_asked_for_after_a_pause(
    machine: Machine, body: bytes
) -> None:
    machine.next(0.0, 0.5)
    assert machine.on_page(body, 0.0) is None
    assert pause_of(machine, 0.0) > 0
    assert not machine.synced


def test_a_token_that_leads_to_itself_is_not_followed(machine: Machine) -> None:
    machine.next(0.0, 0.5)
    machine.on_page(page("7", "a", token="t"), 0.0)
    machine.next(0.0, 0.5)
    machine.on_page(page("7", "a", token="t"), 0.0)
    assert pause_of(machine, 0.0) > 0


def test_events_are_delivered_in_order_and_resumed_from(machine: Machine) -> None:
    watching(machine)
    first = machine.on_line(event("ADDED", "b", "8"), 5.0)
    second = machine.on_line(event("DELETED", "b", "9"), 6.0)
    assert [e.kind for e in (first, second) if e] == ["ADDED", "DELETED"]
    assert machine.watching
    assert machine.last_contact == 6.0
    machine.on_end(30.0)
    again = watching(machine, 30.0)
    assert asked(again.query, "resourceVersion") == "9"


def test_a_bookmark_moves_the_place_and_delivers_nothing(machine: Machine) -> None:
    watching(machine)
    assert machine.on_line(event("BOOKMARK", "", "50"), 60.0) is None
    assert machine.last_contact == 60.0
    machine.on_error(NO_ANSWER, 61.0)
    assert asked(watching(machine, 61.0).query, "resourceVersion") == "50"


def test_a_clean_end_is_followed_by_a_small_pause(machine: Machine) -> None:
    for turn in range(20):
        watching(machine, 300.0 * turn)
        machine.on_line(event("BOOKMARK", "", "8"), 300.0 * turn + 278.0)
        machine.on_end(300.0 * turn + 280.0)
        assert 0.05 <= pause_of(machine, 300.0 * turn + 280.0) <= 0.11
    assert machine.relists == 1
    assert machine.restarts["end"] == 20


def test_a_server_that_closes_at_once_is_asked_ever_more_rarely(machine: Machine) -> None:
    now = 0.0
    pauses = []
    watching(machine)
    for _ in range(12):
        machine.on_end(now)
        pauses.append(pause_of(machine, now))
        now += pauses[-1]
        watching(machine, now)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.1)
    assert pauses[-1] == pytest.approx(30)


@pytest.mark.parametrize("as_event", [True, False])
def test_410_lists_again_at_once_and_when_it_repeats_after_a_pause(
    machine: Machine, as_event: bool
) -> None:
    watching(machine)

    def gone(now: float) -> None:
        if as_event:
            assert machine.on_line(error_event(410), now) is None
            assert not machine.watching
        else:
            machine.on_error(GONE, now)

    gone(1.0)
    again = machine.next(1.0, 0.5)
    assert isinstance(again, List)
    assert asked(again.query, "resourceVersion") is None
    taken(machine, page("70"), 1.0)
    machine.next(1.0, 0.5)
    gone(1.0)
    assert pause_of(machine, 1.0) > 0
    assert machine.synced, "what was listed still holds; only news is missing"


def test_a_bad_line_is_read_again_and_when_it_repeats_everything_is_listed(
    machine: Machine,
) -> None:
    watching(machine)
    machine.on_line(event("ADDED", "b", "8"), 1.0)
    assert machine.on_line(b'{"type": "ADD', 1.0) is None
    assert not machine.watching
    resumed = watching(machine, 2.0)
    assert asked(resumed.query, "resourceVersion") == "8"
    machine.on_line(b"null", 3.0)
    assert isinstance(machine.next(9.0, 0.5), List)
    assert machine.decode_errors == 2


def test_a_good_line_makes_the_next_bad_one_a_first(machine: Machine) -> None:
    watching(machine)
    machine.on_line(b"x", 1.0)
    watching(machine, 2.0)
    machine.on_line(event("ADDED", "b", "8"), 2.0)
    machine.on_line(b"x", 3.0)
    assert isinstance(machine.next(9.0, 0.5), Watch)


def test_an_event_without_a_version_is_a_bad_line(machine: Machine) -> None:
    watching(machine)
    assert machine.on_line(event("ADDED", "b", ""), 1.0) is None
    assert machine.restarts["bad-line"] == 1


def test_an_object_that_cannot_be_read_is_delivered_as_such_and_counted(machine: Machine) -> None:
    machine.next(0.0, 0.5)
    whole = machine.on_page(page("7", "a", bad=["odd"]), 0.0)
    assert whole is not None
    assert whole.pages[0].bad == ["odd"]
    machine.next(0.0, 0.5)
    got = machine.on_line(event("MODIFIED", "", "8", bad="odd"), 1.0)
    assert got is not None
    assert got.bad == "odd"
    assert machine.watching
    assert machine.decode_errors == 2


def test_a_failed_delivery_puts_the_books_in_doubt_until_they_are_listed_anew(
    machine: Machine,
) -> None:
    watching(machine)
    machine.on_line(event("ADDED", "b", "8"), 1.0)
    machine.on_handler_error(1.0)
    assert not machine.synced
    assert not machine.watching
    assert isinstance(machine.next(2.0, 0.5), List)
    taken(machine, page("9"), 2.0)
    assert machine.synced


def test_a_watch_that_the_server_will_not_have_is_not_asked_for_again(machine: Machine) -> None:
    watching(machine)
    machine.on_error(ApiError("bad resource version", 400), 1.0)
    assert isinstance(machine.next(9.0, 0.5), List)


@pytest.mark.parametrize(
    "error", [NO_ANSWER, ApiError("forbidden", 403), ApiError("slow down", 429)]
)
def test_other_errors_resume_after_a_pause_that_doubles(machine: Machine, error: ApiError) -> None:
    watching(machine)
    now = 0.0
    for expected in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30):
        machine.on_error(error, now)
        assert pause_of(machine, now) == pytest.approx(expected)
        now += 30.0
        assert isinstance(machine.next(now, 0.5), Watch)
    assert machine.relists == 1


def test_a_while_of_health_makes_the_next_failure_a_first(machine: Machine) -> None:
    now = 0.0
    for _ in range(9):
        watching(machine, now)
        machine.on_error(NO_ANSWER, now)
        now += 40.0
    watching(machine, now)
    machine.on_line(event("ADDED", "b", "8"), now)
    machine.on_error(NO_ANSWER, now + 16)
    assert pause_of(machine, now + 16) == pytest.approx(0.1)


def test_a_long_outage_is_no_health(machine: Machine) -> None:
    watching(machine)
    now = 0.0
    for _ in range(20):
        machine.on_error(NO_ANSWER, now)
        now += 100.0
        machine.next(now, 0.5)
    machine.on_error(NO_ANSWER, now)
    assert pause_of(machine, now) == pytest.approx(30)


@pytest.mark.parametrize("idle", [20.0, 35.0, 60.0])
def test_a_load_balancer_that_cuts_idle_watches_makes_nothing_old_and_no_pause_long(
    machine: Machine, idle: float
) -> None:
    """kubeadm's own example of a haproxy cuts after 35 s; a bookmark comes once a minute."""
    now, longest = 0.0, 0.0
    while now < 3600.0:
        now += pause_of(machine, now)
        watching(machine, now)
        now += idle
        longest = max(longest, now - machine.last_contact)
        machine.on_error(NO_ANSWER, now)
        assert pause_of(machine, now) == pytest.approx(0.1)
    assert longest < 150.0


def test_a_watch_that_has_fallen_silent_is_followed_by_a_list(machine: Machine) -> None:
    """kube-apiserver says nothing on a watch from a version that an older etcd has yet to reach."""
    watching(machine, version="700")
    machine.on_line(event("ADDED", "b", "701"), 1.0)
    machine.on_error(NO_ANSWER, 100.0)
    assert isinstance(machine.next(101.0, 0.5), List)
    taken(machine, page("7", "a"), 101.0)
    watch = machine.next(101.0, 0.5)
    assert isinstance(watch, Watch)
    assert asked(watch.query, "resourceVersion") == "7"


def test_a_watch_that_is_cut_soon_or_never_opened_goes_on_where_it_was(machine: Machine) -> None:
    watching(machine)
    machine.on_line(event("ADDED", "b", "8"), 1.0)
    machine.on_error(NO_ANSWER, 2.0)
    watching(machine, 3.0)
    machine.on_error(NO_ANSWER, 4.0)
    assert asked(watching(machine, 5.0).query, "resourceVersion") == "8"
    machine.on_line(event("BOOKMARK", "", "9"), 6.0)
    machine.on_error(NO_ANSWER, 30.0)
    assert pause_of(machine, 30.0) > 0
    assert isinstance(machine.next(60.0, 0.5), Watch)
    for now in (100.0, 200.0, 300.0):
        machine.on_error(NO_ANSWER, now)
        watch = machine.next(now + 30.0, 0.5)
        assert isinstance(watch, Watch)
        assert asked(watch.query, "resourceVersion") == "9"


def test_a_relist_asked_for_is_begun_after_the_asking(machine: Machine) -> None:
    watching(machine, 0.0)
    machine.request_relist()
    machine.on_end(5.0)
    assert isinstance(machine.next(5.0, 0.5), List)
    assert not machine.restarts["short"]


def test_a_list_under_way_does_not_count_as_the_one_asked_for(machine: Machine) -> None:
    machine.next(0.0, 0.5)
    machine.request_relist()
    taken(machine, page("7", "a"), 4.0)
    assert isinstance(machine.next(4.0, 0.5), List)
    taken(machine, page("8", "a"), 5.0)
    assert machine.listed_at == 4.0
    assert isinstance(machine.next(5.0, 0.5), Watch)


def test_relists_asked_for_without_end_are_spaced(machine: Machine) -> None:
    now = 0.0
    lists = 0
    while now < 10.0:
        action = machine.next(now, 0.5)
        if isinstance(action, Sleep):
            now += action.seconds
            continue
        if isinstance(action, List):
            lists += 1
            taken(machine, page("7"), now)
        machine.request_relist()
        if isinstance(action, Watch):
            machine.on_end(now)
    assert lists <= 11


@dataclass
class Story:
    """A machine against an adversary in virtual time, with all requests and deliveries."""

    machine: Machine
    now: float = 0.0
    asked_at: list[float] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)

    def step(self, choice: int, jitter: float) -> None:
        action = self.machine.next(self.now, jitter)
        if isinstance(action, Sleep):
            assert action.seconds > 0
            self.now += action.seconds
            return
        self.asked_at.append(self.now)
        if isinstance(action, List):
            self.list(choice)
        else:
            self.watch(choice)

    def list(self, choice: int) -> None:
        answers = [page("7", "a"), page("7"), b"x", page("7", token="t"), b"", page("")]
        if choice < len(answers):
            whole = self.machine.on_page(answers[choice], self.now)
            if whole is not None:
                self.delivered.append("replace")
                if choice == 1:
                    self.machine.on_handler_error(self.now)
                else:
                    self.machine.on_delivered(whole)
        else:
            self.machine.on_error([GONE, NO_ANSWER, ApiError("", 403)][choice % 3], self.now)

    def watch(self, choice: int) -> None:
        errors = [GONE, NO_ANSWER, ApiError("", 400), ApiError("", 429)]
        if choice < len(errors):
            self.machine.on_error(errors[choice], self.now)
            return
        self.machine.on_open(self.now)
        lines = [b"x", error_event(410), error_event(500), event("ADDED", "b", "8")]
        got = self.machine.on_line(lines[choice % len(lines)], self.now)
        if got is not None:
            self.delivered.append("event")
            if choice % 2:
                self.machine.on_handler_error(self.now)
        if choice == 7:
            self.machine.request_relist()
        if self.machine.watching:
            self.machine.on_end(self.now)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 11), st.floats(0, 0.999)), min_size=1, max_size=30),
    st.booleans(),
)
def test_no_server_makes_it_ask_in_a_hot_loop_or_deliver_an_event_before_a_list(
    choices: list[tuple[int, float]], with_wishes: bool
) -> None:
    story = Story(ListWatch("/api/v1/pods", JsonCodec()))
    turn = 0
    while story.now < 60.0:
        choice, jitter = choices[turn % len(choices)]
        turn += 1
        if with_wishes and turn % 5 == 0:
            story.machine.request_relist()
        story.step(choice, jitter)

    times = story.asked_at
    for first in times:
        assert sum(first <= t < first + 1.0 for t in times) <= 20
    # Wishes of the owner are served once a second, each with a list and a watch.
    assert len(times) <= (190 if with_wishes else 60)
    if "event" in story.delivered:
        assert "replace" in story.delivered[: story.delivered.index("event")]


@settings(deadline=None)  # machines of tests are busy
@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=10))
def test_after_any_trouble_a_healthy_server_makes_it_synced_within_half_a_minute(
    jitters: list[float],
) -> None:
    story = Story(ListWatch("/api/v1/pods", JsonCodec()))
    for jitter in jitters * 8:
        story.step(10, jitter)
    since = story.now
    while not story.machine.synced:
        story.step(0, 0.5)
    assert story.now - since <= Timing().longest_pause


def limit(action: object) -> int:
    """How many objects the page that is asked for may have."""
    assert isinstance(action, List), action
    return int(dict(action.query)["limit"])


def test_a_page_of_too_many_bytes_is_asked_for_again_at_once_with_half_as_many_objects(
    machine: Machine,
) -> None:
    limits = []
    for _ in range(8):
        limits.append(limit(machine.next(0.0, 0.0)))
        machine.on_error(ApiTooLarge("16 MiB", 200), 0.0)
    assert limits == [500, 250, 125, 62, 31, 15, 7, 3]
    assert limit(machine.next(0.0, 0.0)) == 1
    assert not machine.restarts
    # One object that is too large is a failure like any other.
    machine.on_error(ApiTooLarge("16 MiB", 200), 0.0)
    assert pause_of(machine, 0.0) > 0
    assert machine.restarts == {"http-200": 1}


def test_a_page_has_as_many_objects_as_would_be_few_bytes_and_more_once_they_are_small(
    machine: Machine,
) -> None:
    assert limit(machine.next(0.0, 0.0)) == 500
    large = page("7", "a", "b", token="t") + b" " * (4 << 20)
    assert machine.on_page(large, 0.0) is None
    assert limit(machine.next(0.0, 0.0)) == 3
    assert machine.on_page(page("7", "c", token="u"), 0.0) is None
    assert limit(machine.next(0.0, 0.0)) == 500


def test_what_is_kept_of_a_page_is_what_its_receiver_says(machine: Machine) -> None:
    machine.next(0.0, 0.0)
    less = JsonPage((), "7", "")
    whole = machine.on_page(page("7", "a"), 0.0, lambda _: less)
    assert whole is not None
    assert whole.pages == (less,)
