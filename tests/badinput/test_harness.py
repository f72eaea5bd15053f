"""The harness finds wrong answers."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.badinput.attempt import Attempt, Targets, framed
from tests.badinput.decoders import Decoder
from tests.badinput.flood import flood
from tests.badinput.inputs import KINDS, attempt
from tests.badinput.sender import Sender
from tests.badinput.world import BadWorld, bad_world

TARGETS = Targets(["a", "b"], [{"metadata": {"name": "p", "namespace": "d", "uid": "u"}}])
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
FRAMED = Attempt("framed", framed(b"{}", "/x"), framed=True)
LOOSE = Attempt("loose", b"GET / HTTP/1.1\r\n\r\n")
ALONE = Attempt("alone", b"GET / HTTP/1.1\r\n\r\n", alone=True)


@contextmanager
def answering(output: bytes) -> Iterator[Sender]:
    """A client of a server that says this to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(output)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = int(listener.getsockname()[1])
        with closing(Sender(port, port)) as sender:
            yield sender
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    ("body", "output", "result"),
    [
        (FRAMED, OK.replace(b"200", b"500"), "status 500"),
        (LOOSE, OK.replace(b"200", b"503"), "status 503"),
        (LOOSE, OK + OK.replace(b"200", b"502"), "status 502"),
        (LOOSE, OK.replace(b": 2", b": 12").replace(b"{}", b"Traceback..."), "a traceback"),
        (ALONE, OK, "taken for a request"),
        (ALONE, 2 * OK.replace(b"200", b"400"), "2 answers"),
        (FRAMED, b"", "no answer"),
        (FRAMED, b"hello", "no HTTP"),
        (FRAMED, OK[:-1], "no HTTP"),
        (FRAMED, OK.replace(b"json", b"html"), "content type"),
        (FRAMED, OK.replace(b"{}", b"{]"), "no JSON"),
        (FRAMED, OK.replace(b"200", b"400"), "says not what was wrong"),
    ],
)
def test_an_answer_that_must_not_come_is_found(body: Attempt, output: bytes, result: str) -> None:
    with answering(output) as sender:
        assert result in sender.send(body)[1]


@pytest.mark.parametrize("body", [FRAMED, LOOSE])
def test_a_sound_answer_is_no_finding(body: Attempt) -> None:
    with answering(OK) as sender:
        answers, wrong = sender.send(body)
    assert ([answer.status for answer in answers], wrong) == ([200], "")


def test_an_input_is_the_same_whenever_it_is_made() -> None:
    for number in range(2 * len(KINDS)):
        assert attempt(number, 7, TARGETS) == attempt(number, 7, TARGETS)


def test_no_two_kinds_have_a_name() -> None:
    names = {kind(random.Random(1), TARGETS).kind for kind in KINDS}
    assert len(names) == len(KINDS)


def test_what_a_decoder_must_not_raise_is_raised() -> None:
    with pytest.raises(KeyError):
        Decoder("wrong", {b"y": 1}.__getitem__, ()).refuses(b"x")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadWorld]:
    with bad_world(Path(tmp_path_factory.mktemp("bad"))) as created:
        yield created


def test_some_of_each_kind_do_no_harm(world: BadWorld) -> None:
    result = flood(world, 0, 8 * len(KINDS), 1)
    assert result.findings == []
    assert result.sent == 8 * len(KINDS)


def test_a_change_of_the_books_is_found(world: BadWorld) -> None:
    pod = world.cluster.pod(1)
    assert world.extender.bind(pod, world.targets.nodes[0]) == ""
    assert any(change.startswith("inspect changed") for change in world.changes())
