"""Writes inputs to sockets, reads the answers, and reports wrong answers.

Knows HTTP/1.1 answers; standard library only.
"""

import contextlib
import json
import socket
import struct
from dataclasses import dataclass

from tests.badinput.attempt import Attempt

PATIENCE = 20.0
"""Seconds until an answer, or the end of a connection we have ended, counts as never coming."""

_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Answer:
    """One answer as received."""

    status: int
    kind: str
    body: bytes
    last: bool


class Sender:
    """One client: one connection for well-framed inputs, and a new one for each other input."""

    def __init__(self, port: int, probe_port: int) -> None:
        self._port, self._probe_port = port, probe_port
        self._kept: socket.socket | None = None

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def send(self, attempt: Attempt) -> tuple[list[Answer], str]:
        """(the answers, the finding or "")."""
        try:
            answers = self._framed(attempt.payload) if attempt.framed else self._loose(attempt)
        except TimeoutError:
            self.close()
            return [], f"no answer, and no end, within {PATIENCE:.0f} s"
        except ValueError as error:
            self.close()
            return [], f"no HTTP in the answer: {error}"
        wrong = "" if attempt.cut else _wrong(attempt, answers)
        return answers, wrong

    def _framed(self, payload: bytes) -> list[Answer]:
        for _ in range(2):  # a connection that was kept may have been closed meanwhile
            fresh = self._kept is None
            if self._kept is None:
                self._kept = self._connect(self._port)
            with contextlib.suppress(ConnectionError):
                self._kept.sendall(payload)
            reader = _Reader(self._kept)
            answer = reader.answer(head_only=False)
            if answer is not None:
                if answer.last:
                    self.close()
                return [answer]
            self.close()
            if fresh:
                break
        return []

    def _loose(self, attempt: Attempt) -> list[Answer]:
        with self._connect(self._probe_port if attempt.probe else self._port) as connection:
            if attempt.cut:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(ConnectionError):
                connection.sendall(attempt.payload)
            if attempt.cut:
                return []
            with contextlib.suppress(OSError):  # the connection is closed already
                connection.shutdown(socket.SHUT_WR)
            reader = _Reader(connection)
            answers: list[Answer] = []
            head_only = attempt.payload.startswith(b"HEAD ")
            while (answer := reader.answer(head_only)) is not None:
                answers.append(answer)
            return answers

    def _connect(self, port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class _Reader:
    """The answers on a connection, one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""

    def answer(self, head_only: bool) -> Answer | None:
        """The next answer; None at the end. Raises ValueError for malformed HTTP."""
        while b"\r\n\r\n" not in self._data:
            if not self._more():
                if self._data and not head_only:
                    raise ValueError(repr(self._data[:80]))
                return None
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(lines[0][:80])
        fields = {name.lower(): value.strip() for name, _, value in map(_parted, lines[1:])}
        bare = head_only or status in ("100", "204", "304")
        length = 0 if bare else int(fields.get("content-length", -1))
        while len(self._data) < length or length < 0:
            if not self._more():
                if length >= 0:
                    raise ValueError("an answer that ends early")
                length = len(self._data)
        body, self._data = self._data[:length], self._data[length:]
        closes = fields.get("connection", "").lower() == "close"
        return Answer(int(status), fields.get("content-type", ""), body, closes)

    def _more(self) -> bool:
        try:
            chunk = self._connection.recv(1 << 16)
        except ConnectionError:
            return False
        self._data += chunk
        return bool(chunk)


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _wrong(attempt: Attempt, answers: list[Answer]) -> str:
    """The finding about the answers, or ""."""
    for answer in answers:
        if answer.status >= 500:
            return f"status {answer.status}: {answer.body[:200]!r}"
        if b"Traceback" in answer.body or b'File "' in answer.body:
            return f"a traceback in the answer: {answer.body[:200]!r}"
    if attempt.alone and not all(400 <= answer.status < 500 for answer in answers):
        return f"taken for a request: {[answer.status for answer in answers]}"
    if attempt.alone and len(answers) > 1:
        return f"{len(answers)} answers to one request"
    if attempt.framed:
        return _odd_answer(answers)
    return ""


def _odd_answer(answers: list[Answer]) -> str:
    """The finding about the answer to a well-framed request, which is always JSON."""
    if not answers:
        return "no answer to a well-framed request"
    (answer,) = answers
    if answer.kind != "application/json":
        return f"status {answer.status} with content type {answer.kind!r}"
    try:
        document = json.loads(answer.body)
    except ValueError:
        return f"no JSON: {answer.body[:200]!r}"
    if answer.status >= 400 and not (isinstance(document, dict) and document.get("error")):
        return f"status {answer.status} that says not what was wrong: {answer.body[:200]!r}"
    return ""
