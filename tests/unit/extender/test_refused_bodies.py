"""A refused body is gone when its answer is: no error, frame or traceback keeps the body.

The garbage collector passes over the whole heap once an hour (see garbage_collection.py). An error
that its own frame still names, in a log line for example, keeps the frame and the body for so long.
"""

import gc
import json
import types
from collections.abc import Iterator

import pytest

from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, bind_request, request

pytestmark = pytest.mark.usefixtures("frozen_heap")

LIMIT = 20_000
WEB = pod_json("web", 4)
BODIES = {
    "no JSON": b"{",
    "another type": b'{"Pod":7}',
    "no pod": b"{}",
    "a quantity without sense": request(pod_json("web", "x"), ["big"]),
    "CPU without sense": request(pod_json("web", 4, limits={"cpu": "x"}), ["big"]),
    "CPU beyond all bounds": request(pod_json("web", 4, limits={"cpu": "1e30"}), ["big"]),
    "a bind": bind_request(WEB, "nowhere"),
    "too large": b" " * (LIMIT + 1),
    "nested": b'{"Pod":' + b"[" * 5000,
    "sound": request(WEB, ["big"]),
}


@pytest.fixture
def kept() -> Iterator[list[object]]:
    """The objects that only the collector would have freed, at the test's request."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.garbage.clear()
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "not ready"])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_refused_request_is_kept_by_nothing(
    body: bytes, verb: str, ready: bool, kept: list[object]
) -> None:
    extender = ScriptedExtender()
    client = build_app(extender.service, Routes(), LIMIT, Callers()).test_client()
    answer = client.post(
        f"/gpushare-scheduler/{verb}", data=body, headers={"Content-Type": "application/json"}
    )
    extender.why_not = "" if ready else "not yet"
    kept.clear()
    client.post(
        f"/gpushare-scheduler/{verb}", data=body, headers={"Content-Type": "application/json"}
    )
    gc.collect()
    json.loads(answer.data)
    _nothing_of_ours(kept)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/gpushare-scheduler/inspect", 405), ("/gpushare-scheduler//filter", 404)],
)
def test_a_request_that_no_route_fits_is_kept_by_nothing(
    path: str, status: int, kept: list[object]
) -> None:
    client = build_app(ScriptedExtender().service, Routes(), LIMIT, Callers()).test_client()
    assert client.post(path, data=BODIES["sound"]).status_code == status
    gc.collect()
    _nothing_of_ours(kept)


def _nothing_of_ours(kept_items: list[object]) -> None:
    holders = [item for item in kept_items if _holds(item)]
    assert holders == [], [str(our)[:300] for our in holders]


def _holds(found: object) -> bool:
    """Whether the object holds the frames of a call, and with them its body."""
    return isinstance(found, BaseException | types.FrameType | types.TracebackType)
