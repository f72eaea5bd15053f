"""The log: one line for a decision, with any names and texts."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.core.model import Allocation, PodRef, Request
from gpushare.daemon.logs import JsonFormatter, formatter
from gpushare.errors import ApiError, MessageError
from gpushare.logline import Line
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import ScriptedExtender, bind_request, request

NASTY = "x\r\nbind outcome=bound\x1b[31m pod=\u202eevil\u2028"


def record(message: object, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("gpushare.x", logging.INFO, "file", 1, message, args, info)


def test_a_line_is_its_message_and_key_value() -> None:
    line = Line("bind", pod="team/web", units=4, devices="0:4,1:4", error="")
    assert str(line) == 'bind pod=team/web units=4 devices=0:4,1:4 error=""'


@pytest.mark.parametrize("value", [NASTY, "a b", 'a"b', "a=b", "", "é", "\x7f"])
def test_a_value_can_neither_end_its_line_nor_forge_a_key(value: str) -> None:
    text = str(Line("bind", pod=value, node="n"))
    assert text.isascii()
    assert text.isprintable()
    assert text.startswith('bind pod="')
    assert text.endswith('" node=n')
    assert json.loads(text.removeprefix("bind pod=").removesuffix(" node=n")) == value


def test_a_long_value_is_cut() -> None:
    assert len(str(Line("bind", error="x" * 100_000))) < 500
    assert len(JsonFormatter().format(record(Line("bind", error="x" * 100_000)))) < 700


def test_text_escapes_what_others_log() -> None:
    text = formatter("text").format(record("name=%s", NASTY))
    assert "\\r\\n" in text
    assert "\\x1b" in text
    assert text.isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_there_and_harmless(form: str) -> None:
    try:
        raise ValueError(NASTY)
    except ValueError as error:
        text = formatter(form).format(record("failed", error=error))
    assert "ValueError" in text
    assert "\x1b" not in text
    assert "\r" not in text
    if form == "json":
        assert "\n" not in text


def test_json_is_an_object_a_line_with_the_values_as_they_are() -> None:
    text = JsonFormatter().format(record(Line("filter", pod=NASTY, units=4, ms=0.5, level="odd")))
    document = json.loads(text)
    assert "\n" not in text
    assert document.pop("ts").endswith("+00:00")
    assert document == {
        "level": "INFO",
        "logger": "gpushare.x",
        "message": "filter",
        "pod": NASTY,
        "units": 4,
        "ms": 0.5,
    }
    assert json.loads(JsonFormatter().format(record("a %s", "b")))["message"] == "a b"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        log_record.getMessage()
        for log_record in caplog.records
        if log_record.name == "gpushare.decision"
    ]


def preempt(extender: ScriptedExtender, pod: dict[str, Any]) -> None:
    body = {"Pod": pod, "NodeNameToMetaVictims": {"big": {"Pods": []}}}
    extender.service.preempt(json.dumps(body).encode())


WEB = pod_json("web", 4)
CALLS: list[tuple[str, Callable[[ScriptedExtender], object]]] = [
    ("filter outcome=fit pod=team/web units=4 ", lambda extender: extender.filter(WEB)),
    ("filter outcome=no_fit pod=team/web ", lambda extender: extender.filter(pod_json("web", 99))),
    ("filter outcome=plain pod=team/web ", lambda extender: extender.filter(pod_json("web"))),
    (
        "filter outcome=refused pod=team/web error=",
        lambda extender: extender.filter(pod_json("web", -1)),
    ),
    ("filter outcome=malformed error=", lambda extender: extender.service.filter(b"{")),
    ("prioritize outcome=scored pod=team/web ", lambda extender: extender.prioritize(WEB, ["big"])),
    ("prioritize outcome=malformed error=", lambda extender: extender.service.prioritize(b"{")),
    ("preempt outcome=victims pod=team/web ", lambda extender: preempt(extender, WEB)),
    ("preempt outcome=plain pod=team/web ", lambda extender: preempt(extender, pod_json("web"))),
    ("bind outcome=malformed error=", lambda extender: extender.service.bind(b"{")),
]


@pytest.mark.parametrize(("begins", "call"), CALLS, ids=[begins for begins, _ in CALLS])
def test_every_call_is_one_line(
    begins: str, call: Callable[[ScriptedExtender], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    try:
        call(ScriptedExtender())
    except MessageError:
        assert "malformed" in begins
    (line,) = lines(caplog)
    assert line.startswith(begins)


def test_a_bind_is_one_line_however_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    extender = ScriptedExtender()
    extender.filter(WEB)
    caplog.clear()
    extender.api.answers = [ApiError("no\nsuch right", 403)]
    extender.bind(WEB, "small")
    extender.bind(WEB, "small")
    refused_line, bound_line = lines(caplog)
    assert refused_line.startswith("bind outcome=refused pod=team/web node=small error=")
    assert "\n" not in refused_line
    assert bound_line.startswith("bind outcome=bound pod=team/web node=small devices=0:4 ms=")


def test_a_pod_sent_where_its_charge_is_fits_one_node_at_least(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    extender = ScriptedExtender()
    for name, device in (("web", 0), ("other", 1)):
        allocation = Allocation("small", ((device, 8),))
        extender.ledger.assume(PodRef("team", name, f"uid-{name}"), Request(8, 1), allocation, 0.0)
    assert extender.filter(pod_json("web", 8), ["small", "tiny"])["NodeNames"] == ["small"]
    (line,) = lines(caplog)
    assert " fit=1 busy=0 never=1 " in line


def test_who_is_not_ready_says_so_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    extender = ScriptedExtender()
    extender.why_not = "pods are not listed yet"
    extender.service.filter(request(WEB, ["big"]))
    extender.service.bind(bind_request(WEB, "big"))
    for line, verb in zip(lines(caplog), ("filter", "bind"), strict=True):
        assert line.startswith(f"{verb} outcome=not_ready pod=team/web ")
        assert "not listed yet" in line


def test_a_pod_is_named_and_never_written_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2"
    pod = pod_json("web", 4, annotations={"note": secret})
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": secret}]
    extender = ScriptedExtender()
    extender.filter(pod)
    extender.prioritize(pod, ["big"])
    extender.bind(pod, "big")
    assert len(lines(caplog)) == 3
    assert secret not in caplog.text


def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pod = pod_json("web", 4)
    pod["metadata"]["name"] = NASTY
    ScriptedExtender().filter(pod)
    (line,) = lines(caplog)
    assert line.isprintable()
    assert line.isascii()
