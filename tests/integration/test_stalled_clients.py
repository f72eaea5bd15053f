"""Slow clients against a real gunicorn process: the bounds of their costs."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.process import free_port
from tests.integration.stalled_service import LARGE
from tests.support.waiting import poll

_SERVICE = Path(__file__).with_name("stalled_service.py")
_WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
_THREADS = 2
_PROMPT_S = 30.0
"""Half of the time that a patient worker waits for a client that stalls."""

Start = Callable[..., "Server"]


class Server:
    """A gunicorn process of the test."""

    def __init__(self, log: Path, **options: object) -> None:
        self.port = free_port()
        self.log = log
        options = {"bind": f"127.0.0.1:{self.port}", "threads": _THREADS} | options
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(_SERVICE), json.dumps(options)], stderr=stderr
            )
        poll(self._listens, "the service listens")

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 2 * _PROMPT_S)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def begin(**options: object) -> Server:
        servers.append(Server(tmp_path / f"log-{len(servers)}", **options))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def answer(connection: socket.socket) -> bytes:
    """One whole answer, or the bytes until the other side closed."""
    data = b""
    while chunk := connection.recv(1 << 16):
        data += chunk
        head, result, body = data.partition(b"\r\n\r\n")
        if result and len(body) >= int(
            head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        ):
            break
    return data


def closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def seconds_of_a_request(server: Server) -> float:
    begin = time.monotonic()
    with server.connect() as connection:
        connection.sendall(_WHOLE)
        assert answer(connection).endswith(b"hello")
    return time.monotonic() - begin


@pytest.mark.parametrize(
    "start_of_request",
    [b"", b"P", b"POST / HTTP/1.1\r\nHost: x\r\n", _WHOLE[:-1]],
    ids=["silent", "one byte", "part of the head", "part of the body"],
)
def test_clients_stalled_anywhere_in_a_request_delay_nobody(
    start: Start, start_of_request: bytes
) -> None:
    server = start(worker="patient")
    with contextlib.ExitStack() as stalled:
        for _ in range(8 * _THREADS):
            stalled.enter_context(server.connect()).sendall(start_of_request)
        assert seconds_of_a_request(server) < _PROMPT_S


def test_more_stalled_clients_than_connections_allowed_delay_nobody(start: Start) -> None:
    server = start(worker="patient", connections=32)
    with contextlib.ExitStack() as stalled:
        for number in range(200):
            stalled.enter_context(server.connect()).sendall(b"P" if number % 2 else b"")
        assert seconds_of_a_request(server) < _PROMPT_S


def test_silent_clients_never_cost_an_idle_one_that_has_called(start: Start) -> None:
    server = start(connections=32)
    with contextlib.ExitStack() as silent, server.connect() as connect_result:
        connect_result.sendall(_WHOLE)
        answer(connect_result)
        first = silent.enter_context(server.connect())
        for number in range(200):
            silent.enter_context(server.connect()).sendall(b"P" if number % 5 == 0 else b"")
        assert closed(first, _PROMPT_S)  # they were accepted, and dropped for each other
        assert seconds_of_a_request(server) < _PROMPT_S
        connect_result.sendall(_WHOLE)
        assert answer(connect_result).endswith(b"hello")


def worker_pid(server: Server) -> int:
    with server.connect() as connection:
        connection.sendall(b"GET /pid HTTP/1.1\r\n\r\n")
        return int(answer(connection).rpartition(b"\r\n")[2])


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_a_client_dropped_for_another_in_the_moment_it_speaks_ends_nothing(start: Start) -> None:
    connections = 32
    server = start(connections=connections)
    worker = worker_pid(server)
    with contextlib.ExitStack() as stalled:
        waiting_pods = [stalled.enter_context(server.connect()) for _ in range(connections)]
        for client in waiting_pods:
            client.sendall(b"P")
        assert closed(waiting_pods[0], _PROMPT_S)  # all connections were accepted
        os.kill(worker, signal.SIGSTOP)  # so that the next events come in one turn of the loop
        stalled.enter_context(server.connect())
        for client in waiting_pods[1:]:
            with contextlib.suppress(ConnectionError):  # dropped too, while the first request ended
                client.sendall(b"O")
        os.kill(worker, signal.SIGCONT)
        assert seconds_of_a_request(server) < _PROMPT_S
        assert worker_pid(server) == worker
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("answered", [0, 1], ids=["the first request", "the one after"])
def test_a_request_not_finished_by_its_deadline_is_closed_even_if_it_drips(
    start: Start, answered: int
) -> None:
    with start().connect() as connection:
        for _ in range(answered):
            connection.sendall(_WHOLE)
            answer(connection)
        begin = time.monotonic()
        connection.sendall(b"POST / HTTP/1.1\r\nX: ")
        while not closed(connection, 0.2):
            assert time.monotonic() - begin < _PROMPT_S
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
        assert time.monotonic() - begin > 0.9


def test_a_request_begun_right_after_an_answer_has_the_deadline_of_any_other(start: Start) -> None:
    with start().connect() as connection:
        connection.sendall(_WHOLE)
        answer(connection)
        begin = time.monotonic()
        connection.sendall(_WHOLE[:-1])  # the thread that has answered reads the request
        assert closed(connection, _PROMPT_S)
        assert time.monotonic() - begin > 0.9


def test_a_request_that_comes_byte_by_byte_is_answered_on_a_connection_that_stays(
    start: Start,
) -> None:
    with start().connect() as connection:
        for _ in range(2):
            for byte in _WHOLE:
                connection.sendall(bytes([byte]))
            assert answer(connection).endswith(b"hello")


@pytest.mark.parametrize("request_bytes", [_WHOLE, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_requests_sent_together_are_answered_in_turn(start: Start, request_bytes: bytes) -> None:
    with start().connect() as connection:
        connection.sendall(request_bytes * 2)
        data = answer(connection)
        while data.count(b"200 OK") < 2:
            data += connection.recv(1 << 16) or pytest.fail("closed before the second answer")


def test_a_request_that_comes_while_another_waits_its_turn_is_answered_after_it(
    start: Start,
) -> None:
    first, second, third = (
        _WHOLE.replace(b"hello", body) for body in (b"one__", b"two__", b"three")
    )
    with start().connect() as connection:
        connection.sendall(first + second)
        data = connection.recv(1)  # the thread that has answered awaits the next request
        connection.sendall(third)
        while not data.endswith(b"three"):
            data += connection.recv(1 << 16) or pytest.fail("closed before the last answer")
    assert re.findall(b"one__|two__|three", data) == [b"one__", b"two__", b"three"]


def test_a_request_begun_while_the_one_before_it_is_with_a_thread_is_answered_too(
    start: Start,
) -> None:
    server = start(worker="patient")
    with server.connect() as connection:
        connection.sendall(b"GET /pid HTTP/1.1\r\n\r\n" + _WHOLE.replace(b"/ ", b"/slow ", 1))
        data = connection.recv(1)  # the first answer; the second request is with a thread
        connection.sendall(_WHOLE[:-1])
        while not data.endswith(b"hello"):
            data += connection.recv(1 << 16) or pytest.fail("closed before the second answer")
        connection.sendall(_WHOLE[-1:])
        assert answer(connection).endswith(b"hello")
    assert worker_pid(server) == int(re.findall(rb"\r\n\r\n(\d+)HTTP", data)[0])
    assert "Traceback" not in server.log.read_text()


def test_a_body_that_comes_after_its_head_is_never_read_as_a_request(start: Start) -> None:
    hidden = b"GET /pid HTTP/1.1\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    with start(worker="patient").connect() as connection:
        connection.sendall(_WHOLE + head)
        assert answer(connection).endswith(b"hello")
        connection.sendall(hidden + _WHOLE)
        data = b""
        while not data.endswith(b"hello"):
            data += connection.recv(1 << 16) or pytest.fail("closed before the last answer")
    assert re.findall(rb"\r\n\r\n(.*?)(?=HTTP/1.1 200|$)", data, re.DOTALL) == [hidden, b"hello"]


def test_heads_made_to_cost_much_time_delay_nobody(start: Start) -> None:
    server = start(worker="patient")
    worker = worker_pid(server)
    before = cpu_seconds(worker)
    zeros = b"POST / HTTP/1.1\r\nContent-Length: " + b"0" * 32_600 + b"x\r\n\r\n"
    with contextlib.ExitStack() as hostile:
        for _ in range(3):
            hostile.enter_context(server.connect()).sendall(zeros)
        seconds_of_a_request(server)
        assert cpu_seconds(worker) - before < 5  # one of these requests took 13


def test_clients_that_ask_without_end_leave_a_thread_to_others(start: Start) -> None:
    server, stop = start(worker="patient"), threading.Event()

    def for_ever(turn: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                turn()

    with contextlib.ExitStack() as greedy:
        for _ in range(2 * _THREADS):
            connection = greedy.enter_context(server.connect())
            for turn in (partial(connection.sendall, _WHOLE * 100), partial(answer, connection)):
                threading.Thread(target=for_ever, args=(turn,), daemon=True).start()
        try:
            for _ in range(5):
                seconds_of_a_request(server)  # fails where the answer never comes
        finally:
            stop.set()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 40000, b"431"),
        (b"\x16\x03\x01\x00", b"400"),
    ],
    ids=[
        *("body too large", "body far too large", "chunked", "nearly chunked", "two lengths"),
        *("head too large", "tls"),
    ],
)
def test_what_cannot_be_collected_is_refused_with_a_status(
    start: Start, request_head: bytes, status: bytes
) -> None:
    with start().connect() as connection:
        connection.sendall(request_head)
        assert answer(connection).startswith(b"HTTP/1.1 " + status)
        assert closed(connection, _PROMPT_S)


@pytest.mark.parametrize("answered", [0, 1], ids=["the first request", "the one after"])
def test_unfinished_bodies_do_not_pile_up_in_memory(start: Start, answered: int) -> None:
    server = start(worker="patient")
    part = b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 900_000
    with contextlib.ExitStack() as stalled:
        clients = [stalled.enter_context(server.connect()) for _ in range(4)]
        for client in clients:
            for _ in range(answered):
                client.sendall(_WHOLE)
                answer(client)
            client.sendall(part)
        # The connection whose part was collected first, in any order on a busy machine.
        dropped, _, _ = select.select(clients, [], [], _PROMPT_S)
        assert dropped, "one is dropped for the others, long before its deadline"
        assert all(closed(client, 1) for client in dropped)
        assert seconds_of_a_request(server) < _PROMPT_S


def test_connections_that_stay_open_do_not_hold_on_to_their_last_bodies(start: Start) -> None:
    server = start(connections=256)
    status = Path(f"/proc/{worker_pid(server)}/status")

    def megabytes() -> int:
        return int(status.read_text().split("VmRSS:")[1].split()[0]) // 1024

    before, clients = megabytes(), 100
    with contextlib.ExitStack() as idle:
        for _ in range(clients):
            connection = idle.enter_context(server.connect())
            connection.sendall(_WHOLE.replace(b" 5", b" 1000000").replace(b"hello", b"x" * 10**6))
            answer(connection)
        assert megabytes() - before < clients / 2


def test_clients_that_do_not_take_their_answer_free_their_threads(start: Start) -> None:
    server = start()
    with contextlib.ExitStack() as stalled:
        for _ in range(_THREADS):
            stalled.enter_context(server.connect()).sendall(b"GET /large HTTP/1.1\r\n\r\n")
        poll(lambda: "took no answer" in server.log.read_text(), "the answer is given up")
        assert seconds_of_a_request(server) < _PROMPT_S
    assert "Traceback" not in server.log.read_text()


def test_clients_that_do_not_take_their_answer_hold_no_thread(start: Start) -> None:
    server = start(worker="patient", threads=_THREADS)
    with contextlib.ExitStack() as stalled:
        for _ in range(4 * _THREADS):
            stalled.enter_context(server.connect()).sendall(b"GET /large HTTP/1.1\r\n\r\n")
        for _ in range(4 * _THREADS):
            assert seconds_of_a_request(server) < _PROMPT_S


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_large_answer_comes_whole_to_a_slow_reader_and_the_connection_stays(
    start: Start, certificate: tuple[Path, Path], tls: bool
) -> None:
    cert, key = map(str, certificate)
    server = start(worker="patient", **({"certfile": cert, "keyfile": key} if tls else {}))
    connection = server.connect()
    if tls:
        context = client_context(certificate)
        connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
    with connection:
        for _ in range(2):
            connection.sendall(b"GET /large HTTP/1.1\r\n\r\n" + _WHOLE)
            data = bytearray()
            while not data.endswith(b"hello"):
                data += connection.recv(1 << 16) or pytest.fail("closed before the second answer")
                if len(data) % 7 == 0:
                    time.sleep(0.001)
            body = data.partition(b"\r\n\r\n")[2].partition(b"HTTP/1.1")[0]
            assert body == LARGE


def test_whole_requests_that_wait_for_a_thread_count_as_held(start: Start) -> None:
    server = start(worker="patient")
    body = b"x" * 900_000
    slow = b"POST /slow HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + body
    with contextlib.ExitStack() as crowd:
        clients = [crowd.enter_context(server.connect()) for _ in range(12)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # dropped already
                client.sendall(slow)
        dropped = sum(closed(client, _PROMPT_S) for client in clients)
        assert 0 < dropped < len(clients)
        assert seconds_of_a_request(server) < _PROMPT_S
    assert "Traceback" not in server.log.read_text()


def test_a_stop_answers_what_is_in_flight_and_waits_for_no_stalled_client(start: Start) -> None:
    server = start()
    with contextlib.ExitStack() as stalled, server.connect() as busy:
        for _ in range(8):
            stalled.enter_context(server.connect()).sendall(b"P")
        answers: list[bytes] = []
        reader = threading.Thread(target=lambda: answers.append(answer(busy)))
        busy.sendall(_WHOLE.replace(b"/ ", b"/slow ", 1))
        poll(lambda: "slow begins" in server.log.read_text(), "a thread works on the request")
        reader.start()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2 * _PROMPT_S) == 0
        reader.join(_PROMPT_S)
    assert answers[0].endswith(b"hello")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command.split(), *names, "-keyout", str(key), "-out", str(cert)],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl on PATH to make a certificate with")
    return cert, key


def client_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """A client that trusts the certificate, and shows its own."""
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    context.load_cert_chain(cert, key)
    return context


def test_with_tls_a_stalled_handshake_or_request_delays_nobody(
    start: Start, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    server = start(worker="patient", certfile=str(cert), keyfile=str(key))
    context = client_context(certificate)
    with contextlib.ExitStack() as stalled:
        for _ in range(8 * _THREADS):
            stalled.enter_context(server.connect()).sendall(b"\x16\x03\x01")
        for _ in range(8 * _THREADS):
            slow = context.wrap_socket(server.connect(), server_hostname="127.0.0.1")
            stalled.enter_context(slow).sendall(_WHOLE[:20])
        begin = time.monotonic()
        with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
            for _ in range(2):
                body = b"y" * 100_000
                head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
                connection.sendall(head + body)
                assert answer(connection).endswith(body)
        assert time.monotonic() - begin < _PROMPT_S


def test_a_connection_makes_no_context_of_its_own(
    start: Start, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = (tmp_path / file.name for file in certificate)
    for file, copy in zip(certificate, (cert, key), strict=True):
        copy.write_bytes(file.read_bytes())
    server = start(certfile=str(cert), keyfile=str(key), connections=32)
    context = client_context(certificate)

    def made() -> bytes:
        with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET /contexts HTTP/1.1\r\n\r\n")
            return answer(connection).rpartition(b"\r\n")[2]

    for _ in range(100):
        with server.connect():
            pass
    assert made() == b"[1]"
    key.write_text("")
    assert made() == made() == b"[2]"  # the last one goes on
    assert server.log.read_text().count("certificates cannot be read") == 1
    key.write_bytes(certificate[1].read_bytes())
    assert made() == made() == b"[3]"
