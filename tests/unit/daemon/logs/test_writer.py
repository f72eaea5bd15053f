"""Whoever logs never waits for whoever reads the log."""

import json
import logging
import os
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpushare.daemon.logs import LogWriter, formatter
from gpushare.logline import Line
from tests.support.waiting import poll

SIZE = 1 << 16
"""Bytes that a pipe holds."""


@dataclass
class Pipe:
    """A pipe, a log writer to the pipe, and a separate logger."""

    read: int
    write: int
    writer: LogWriter
    log: logging.Logger

    def take(self, until: str) -> str:
        """Everything up to a line that has the text."""
        got = b""
        while until.encode() not in got or not got.endswith(b"\n"):
            got += os.read(self.read, 1 << 16)
        return got.decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read_end, write_end = os.pipe()
    writer = LogWriter(write_end, max_waiting=200_000)
    writer.setFormatter(formatter("json"))
    logger = logging.getLogger("gpushare.test.writer")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(writer)
    yield Pipe(read_end, write_end, writer, logger)
    logger.removeHandler(writer)
    os.close(read_end)  # whoever still writes hears of it, and goes on
    writer.stop(5.0)
    os.close(write_end)


def fill(pipe: Pipe, lines: int) -> None:
    for number in range(lines):
        pipe.log.info(Line("bind", number=number))


def numbers(text: str) -> list[int]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["number"] for line in lines if "number" in line]


def test_lines_come_in_order_and_whole_to_who_reads_late(pipe: Pipe) -> None:
    pipe.writer.start()
    fill(pipe, 900)
    pipe.log.info(Line("last"))
    assert numbers(pipe.take('"last"')) == list(range(900))
    assert pipe.writer.state() == {"log_lines_dropped_total": 0}


def test_lines_that_wait_are_written_together_and_each_in_one_piece(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = os.write

    def spy(descriptor: int, data: bytes) -> int:
        if descriptor == pipe.write:
            written.append(data)
        return write(descriptor, data)

    pipe.writer.start()
    fill(pipe, 1)
    pipe.take("\n")  # the thread rests
    monkeypatch.setattr(os, "write", spy)
    fill(pipe, 100)
    pipe.log.info(Line("last"))
    pipe.take('"last"')
    assert len(written) < 50
    assert all(data.endswith(b"\n") for data in written)
    # Else a line of another process could come in between.
    assert max(map(len, written)) <= select.PIPE_BUF


def test_lines_written_at_the_end_leave_their_room_to_others(pipe: Pipe) -> None:
    pipe.writer._max_waiting = 1000  # noqa: SLF001 -- room for some ten lines
    for _ in range(50):
        pipe.writer.start()
        fill(pipe, 1)
        pipe.writer.stop(60)
        pipe.take("\n")
    assert pipe.writer.dropped == 0


def test_what_finds_no_room_is_dropped_counted_and_told(pipe: Pipe) -> None:
    pipe.writer.start()
    fill(pipe, 5000)
    dropped = int(pipe.writer.state()["log_lines_dropped_total"])
    assert 0 < dropped < 5000
    # Lines can be dropped while the pipe still takes some: then several lines report drops.
    text, dropped_count = "", 0
    while dropped_count < dropped or len(numbers(text)) < 5000 - dropped:
        text += pipe.take("\n")
        notes = [json.loads(line) for line in text.splitlines() if "log lines dropped" in line]
        dropped_count = sum(int(note["message"].partition(" ")[0]) for note in notes)
    assert dropped_count == dropped
    assert {note["level"] for note in notes} == {"WARNING"}
    line_numbers = numbers(text)
    assert line_numbers == sorted(set(line_numbers))
    assert len(line_numbers) == 5000 - dropped


def test_without_its_thread_a_full_pipe_drops_too(pipe: Pipe) -> None:
    fill(pipe, 2000)
    assert pipe.writer.dropped > 0
    pipe.log.info(Line("long", text=["x" * 300] * 9))
    line_numbers = numbers(os.read(pipe.read, SIZE).decode().rpartition("\n")[0])
    assert line_numbers == list(range(len(line_numbers)))


def test_what_waits_is_written_at_the_end_and_no_longer_than_it_may_take(pipe: Pipe) -> None:
    pipe.writer.start()
    fill(pipe, 20)
    pipe.writer.stop(5.0)
    assert numbers(os.read(pipe.read, SIZE).decode()) == list(range(20))
    pipe.writer.start()
    fill(pipe, 900)
    pipe.writer.stop(0.05)  # nobody reads


def test_lines_soon_after_another_wait_and_are_written_together(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.daemon.logs._REST", 3600.0)
    pipe.writer.start()

    def waits() -> bool:
        pipe.log.info(Line("soon"))
        is_written = bool(select.select((pipe.read,), (), (), 0.2)[0])
        return not (is_written and os.read(pipe.read, SIZE))

    poll(waits, "the thread rests")
    fill(pipe, 20)
    pipe.writer.stop(5.0)  # ends the rest
    assert numbers(os.read(pipe.read, SIZE).decode()) == list(range(20))


def test_a_line_that_cannot_be_formatted_is_told_of_and_stops_nothing(pipe: Pipe) -> None:
    pipe.writer.start()
    pipe.writer.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
    pipe.log.info(Line("last"))
    assert "cannot be formatted" in pipe.take('"last"')


def test_a_descriptor_that_is_gone_stops_nobody() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    writer = LogWriter(write_end)
    writer.handle(logging.makeLogRecord({"msg": "before"}))
    writer.start()
    writer.handle(logging.makeLogRecord({"msg": "after"}))
    writer.stop(5.0)
    poll(lambda: not any(thread.name == "log" for thread in threading.enumerate()), "it has ended")
    os.close(write_end)


def test_lines_of_many_threads_do_not_mix(pipe: Pipe) -> None:
    pipe.writer.start()
    threads = [threading.Thread(target=fill, args=(pipe, 150)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.log.info(Line("last"))
    assert sorted(numbers(pipe.take('"last"'))) == sorted(list(range(150)) * 8)
