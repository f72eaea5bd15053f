"""The recorder writes events, and nobody ever waits for the recorder."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gpushare.daemon.events import QUEUED, Recorder
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.wire.events import ObjectReference
from tests.support.scripted_api import ScriptedApi
from tests.support.waiting import poll

POD = ObjectReference("Pod", "team", "web", "uid-web")


WRITTEN = b'{"kind":"Event","apiVersion":"events.k8s.io/v1"}'


class EventApi(ScriptedApi):
    """An API server for events that answers after `open` is set."""

    def __init__(self) -> None:
        super().__init__(forever=WRITTEN, takes=self._wait)
        self.open = threading.Event()

    def _wait(self, timeout: float) -> float:
        self.open.wait(min(timeout, 20.0))
        return 0.0


@pytest.fixture
def api() -> EventApi:
    event_api = EventApi()
    event_api.open.set()
    return event_api


@pytest.fixture
def recorder(api: EventApi) -> Iterator[Recorder]:
    new_recorder = Recorder(api, "host")
    new_recorder.start()
    yield new_recorder
    api.open.set()
    new_recorder.stop()


def tell(recorder: Recorder, note: str = "node a: 4 GiB on device 0") -> None:
    recorder.record(POD, "GPUShareAllocated", "Binding", note)


def test_what_is_told_is_written(recorder: Recorder, api: EventApi) -> None:
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 1)
    (call,) = api.calls
    body = call.document
    assert (call.method, call.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/team/events")
    assert body["reason"] == "GPUShareAllocated"
    assert body["reportingInstance"] == "host"
    assert body["regarding"]["uid"] == "uid-web"


def test_a_repetition_is_not_written_at_once(recorder: Recorder, api: EventApi) -> None:
    for _ in range(5):
        tell(recorder)
    tell(recorder, "something else")
    poll(lambda: recorder.state()["events_written_total"] == 2)
    assert len(api.calls) == 2


def test_details_are_made_when_the_event_is_written_and_make_no_event_of_their_own(
    recorder: Recorder, api: EventApi, caplog: pytest.LogCaptureFixture
) -> None:
    made_by: list[str] = []

    def details() -> str:
        made_by.append(threading.current_thread().name)
        return f"detail {len(made_by)}"

    def broken() -> str:
        raise ZeroDivisionError

    for _ in range(3):
        recorder.record(POD, "GPUShareNoFit", "Scheduling", "no", warning=True, details=details)
    recorder.record(POD, "GPUShareNoFit", "Scheduling", "no!", warning=True, details=broken)
    recorder.record(POD, "GPUShareNoFit", "Scheduling", "none", warning=True, details=str)
    poll(lambda: recorder.state()["events_written_total"] == 3)
    assert [call.document["note"] for call in api.calls] == ["no; detail 1", "no!", "none"]
    assert made_by == ["events"]
    assert "details of an event failed" in caplog.text


def test_details_take_at_most_a_tenth_of_the_time(recorder: Recorder) -> None:
    began: list[float] = []

    def details() -> str:
        began.append(time.monotonic())
        begin = time.thread_time()
        while time.thread_time() < begin + 0.02:
            pass
        return "slow"

    for note in ("a", "b", "c"):
        recorder.record(POD, "GPUShareNoFit", "Scheduling", note, warning=True, details=details)
    poll(lambda: recorder.state()["events_written_total"] == 3)
    assert began[2] - began[0] > 2 * 10 * 0.02 * 0.99


def test_nobody_waits_for_an_api_server_that_does_not_answer() -> None:
    api = EventApi()
    recorder = Recorder(api, "host")
    recorder.start()
    for number in range(QUEUED * 2):
        tell(recorder, str(number))
    # A recorder that waits for room would drop nothing.
    assert recorder.state()["events_dropped_total"] >= QUEUED - 1
    api.open.set()
    recorder.stop()


def test_without_the_right_events_are_off_and_that_is_said_once(
    recorder: Recorder, api: EventApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.forever = ApiError("events is forbidden", 403)
    for number in range(10):
        tell(recorder, str(number))
    poll(lambda: recorder.state()["events_dropped_total"] == 10)
    assert len(api.calls) == 3
    assert [log_record.getMessage() for log_record in caplog.records].count(
        caplog.records[0].getMessage()
    ) == 1
    assert "events are off" in caplog.text


def test_a_403_of_a_proxy_is_no_missing_right(
    recorder: Recorder, api: EventApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.daemon.events._MAX_PAUSE", 0.0)
    api.answers = [ApiUnavailable("blocked", 403) for _ in range(5)]
    for number in range(6):
        tell(recorder, str(number))
    poll(lambda: recorder.state()["events_written_total"] == 1)


def test_one_403_is_a_namespace_that_is_being_deleted(recorder: Recorder, api: EventApi) -> None:
    api.answers = [ApiError("it is being terminated", 403)]
    tell(recorder, "first")
    tell(recorder, "second")
    poll(lambda: recorder.state()["events_written_total"] == 1)


def test_a_namespace_that_refuses_events_takes_them_from_no_other(api: EventApi) -> None:
    now = 0.0
    recorder = Recorder(api, "host", clock=lambda: now)
    recorder.start()
    event_count = 0

    def all_handled() -> bool:
        return sum(recorder.state().values()) == event_count

    def tell_of(namespace: str, answer: ApiError | None, times: int = 1) -> None:
        nonlocal event_count, now
        for _ in range(times):
            now += 1.0
            event_count += 1
            api.forever = answer or WRITTEN
            about = ObjectReference("Pod", namespace, f"p{event_count}", f"uid-{event_count}")
            recorder.record(about, "GPUShareBindFailed", "Binding", "why")
            poll(all_handled)

    deleted = ApiError("it is being terminated", 403)
    tell_of("doomed", deleted, 3)
    tell_of("team", None)
    assert (len(api.calls), recorder.state()["events_written_total"]) == (4, 1)
    tell_of("doomed", deleted, 5)
    assert len(api.calls) == 4, "it is not asked any more"
    now += 600.0
    tell_of("doomed", deleted)
    tell_of("doomed", None)
    assert recorder.state()["events_written_total"] == 2, "one refusal is no row of three"
    recorder.stop()


@pytest.mark.parametrize(
    "error", [ApiNotFound("", 404), ApiError("", 422), ApiUnavailable("", 500), ApiError("", 429)]
)
def test_an_event_not_taken_is_dropped_and_the_next_is_tried(
    recorder: Recorder, api: EventApi, error: ApiError
) -> None:
    api.answers = [error]
    tell(recorder, "first")
    tell(recorder, "second")
    poll(lambda: recorder.state() == {"events_written_total": 1, "events_dropped_total": 1})


def test_a_refusal_of_one_namespaces_events_delays_no_other(
    recorder: Recorder, api: EventApi
) -> None:
    api.answers = [ApiError("denied by a webhook", 400) for _ in range(6)]
    for number in range(6):
        about = ObjectReference("Pod", "denied", f"p{number}", f"uid-{number}")
        recorder.record(about, "GPUShareBindFailed", "Binding", "why")
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 1)


def test_an_event_that_is_there_already_was_taken(recorder: Recorder, api: EventApi) -> None:
    api.answers = [ApiConflict("", 409)]
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 1)


def test_a_later_repetition_is_a_patch_of_the_series(api: EventApi) -> None:
    now = 0.0
    recorder = Recorder(api, "host", clock=lambda: now)
    recorder.start()
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 1)
    now = 100.0
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 2)
    recorder.stop()
    first, second = api.calls
    assert second.method == "PATCH"
    assert second.path.rpartition("/")[2] == first.document["metadata"]["name"]
    assert second.document["series"]["count"] == 2


def test_a_name_that_leads_elsewhere_is_never_sent(recorder: Recorder, api: EventApi) -> None:
    recorder.record(ObjectReference("Pod", "..", "x", "uid"), "GPUShareNoFit", "Scheduling", "odd")
    tell(recorder)
    poll(lambda: recorder.state()["events_written_total"] == 1)
    assert len(api.calls) == 1


def test_our_own_bug_does_not_end_the_thread(
    recorder: Recorder, api: EventApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.answers = [ZeroDivisionError()]  # no API raises this
    tell(recorder, "first")
    tell(recorder, "second")
    poll(lambda: recorder.state()["events_written_total"] == 1)
    assert "event failed" in caplog.text


_SLOW = """
import os, threading, time
from gpushare.daemon.events import Recorder
from gpushare.wire.events import ObjectReference

begun = threading.Event()

class Api:
    def request(self, *_, **__):
        begun.set()
        time.sleep(0.3)
        os.write(1, b"written")
        return b'{"kind":"Event"}'

recorder = Recorder(Api(), "me")
if os.fork() == 0:  # as gunicorn's worker
    recorder.start()
    recorder.record(ObjectReference("Pod", "web", "team", "u"), "Why", "Act", "note")
    begun.wait()
    recorder.stop()
    os._exit(0)
os.wait()
"""


def test_the_end_waits_for_an_event_that_is_being_written() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _SLOW], capture_output=True, timeout=60, check=True
    )
    assert process.stdout == b"written"
