"""Input of strangers costs linear time in every reader."""

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser

from gpushare.daemon.callers import Callers
from gpushare.daemon.logs import formatter
from gpushare.errors import WireError
from gpushare.extender.door.app import Routes, build_app
from gpushare.logline import Line
from tests.badinput import odd
from tests.badinput.attempt import PREFIX
from tests.badinput.decoders import DECODERS
from tests.support.growth import assert_linear
from tests.unit.extender.scripted_extender import ScriptedExtender

RUNS = (
    *("0", "9", "a", "-", ".", ",", "0,", "=", " ", "\\"),
    *('"', "[", "{", "e", "\t", "1s", "é", ";a=", "/"),
)
"""Texts that are repeated."""

STRANGERS = [decoder for decoder in DECODERS if decoder.name != "scheduler files"]
"""Decoders of strangers' input; a scheduler's file comes from the operator."""


def repeated(run: str, size: int) -> str:
    return run * (size // len(run)) + "!"


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("decoder", STRANGERS, ids=lambda decoder: decoder.name)
def test_a_decoder_reads_a_long_run_in_linear_time(decoder: Any, run: str) -> None:
    def work(size: int) -> Callable[[], object]:
        data = repeated(run, size).encode()
        return lambda: decoder.refuses(data)

    assert_linear(work, 64 * 1024)


def call(extender: ScriptedExtender, bodies: dict[str, Any]) -> None:
    for verb, body in bodies.items():
        with contextlib.suppress(WireError):
            getattr(extender.service, verb)(body)


@pytest.mark.parametrize("run", RUNS)
def test_every_text_of_a_pod_is_read_in_linear_time(run: str) -> None:
    extender = ScriptedExtender()

    def work(size: int) -> Callable[[], object]:
        text = repeated(run, size)
        notes = dict.fromkeys(odd.POD["metadata"]["annotations"], text)
        meta = {"name": text, "namespace": text, "uid": "u", "annotations": notes, "labels": notes}
        request = {"Pod": {**odd.POD, "metadata": meta}, "NodeNames": [text, "big"]}
        binding = {"PodName": text, "PodNamespace": text, "PodUID": text, "Node": text}
        bodies = dict.fromkeys(("filter", "prioritize", "preempt"), json.dumps(request).encode())
        bodies["bind"] = json.dumps(binding).encode()
        return lambda: call(extender, bodies)

    assert_linear(work, 32 * 1024)


CONTAINER = odd.POD["spec"]["containers"][0]
WIDE: dict[str, Callable[[range], Any]] = {
    "annotations": lambda each: {"metadata": {"annotations": {f"k{i}": "" for i in each}}},
    "containers": lambda each: {"spec": {"containers": [CONTAINER for _ in each]}},
    "limits": lambda each: limited({f"x/k{i}": "1" for i in each}),
    "owners": lambda each: {"metadata": {"ownerReferences": [{"name": "y"} for _ in each]}},
    "keys": lambda each: {"metadata": {"nam" + "e" * (i % 50) + str(i): "x" for i in each}},
}


def limited(limits: Any) -> Any:
    return {"spec": {"containers": [{"resources": {"limits": limits}}]}}


@pytest.mark.parametrize("part", WIDE.values(), ids=WIDE.keys())
def test_a_wide_pod_is_read_in_linear_time(part: Callable[[range], Any]) -> None:
    extender = ScriptedExtender()

    def work(size: int) -> Callable[[], object]:
        args = {"Pod": {**odd.POD, **part(range(size))}, "NodeNames": ["big"]}
        body = json.dumps(args).encode()
        return lambda: call(extender, {"filter": body})

    assert_linear(work, 10_000)


@pytest.mark.parametrize("name", ["one", "many"])
def test_node_names_are_looked_at_in_linear_time(name: str) -> None:
    extender = ScriptedExtender()

    def work(size: int) -> Callable[[], object]:
        names = ["big"] * size if name == "one" else [f"n{i}" for i in range(size)]
        body = json.dumps({"Pod": odd.POD, "NodeNames": names}).encode()
        return lambda: call(extender, {"filter": body})

    assert_linear(work, 30_000)


HEADERS = ("Content-Type", "Content-Encoding", "Host", "User-Agent", "Cookie", "Accept", "Origin")


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_is_looked_at_in_linear_time(header: str) -> None:
    client = build_app(
        ScriptedExtender().service, Routes(), 10_000, Callers(hosts=frozenset())
    ).test_client()

    def work(size: int) -> Callable[[], object]:
        texts = [
            kind + repeated(run, size).encode().decode("latin-1")
            for run in (*RUNS, 'a="', "a=b;", '\\"')
            for kind in ("", "application/json;")
        ]

        def ask() -> None:
            for text in texts:
                headers = {"Content-Type": "application/json"} | {header: text}
                client.post(f"{PREFIX}/filter", data=b"{}", headers=headers)

        return ask

    assert_linear(work, 4000)  # gunicorn accepts twice this length


PATHS = ("/x{}", PREFIX + "/inspect/{}", PREFIX + "/inspect?resource={}", PREFIX + "/inspect?{}")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_looked_at_in_linear_time(path: str) -> None:
    client = build_app(ScriptedExtender().service, Routes(), 10_000, Callers()).test_client()

    def work(size: int) -> Callable[[], object]:
        runs = ("/", "a", "%2e", "//", "&", "=", "&a=b", ";", "%", "..", "/..")
        paths = [path.format("/" + run * (size // len(run))) for run in runs]
        return lambda: [client.get(item) for item in paths]

    assert_linear(work, 4000)


LINES = ("a:b\r\n", "a:" + "b" * 8000 + "\r\n", "Connection: a,,,\r\n")


@pytest.mark.parametrize("line", LINES, ids=("short", "long", "lists"))
def test_gunicorn_reads_a_head_in_linear_time(line: str) -> None:
    config = Config()

    def work(size: int) -> Callable[[], object]:
        data = f"GET / HTTP/1.1\r\n{line * (size // len(line))}\r\n".encode()

        def read() -> None:
            for _ in range(20):
                with contextlib.suppress(Exception):
                    next(RequestParser(config, iter((data,)), ("127.0.0.1", 1)))

        return read

    assert_linear(work, 16 * 1024)


def test_a_log_line_is_made_in_linear_time() -> None:
    def work(size: int) -> Callable[[], object]:
        text = "\x1b" * size
        record = logging.LogRecord("x", 20, "", 0, "%s", (text,), None)
        return lambda: (str(Line("m", value=text)), formatter("text").format(record))

    assert_linear(work, 200_000)
