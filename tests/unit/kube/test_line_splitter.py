from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.kube.responses import LineSplitter


@settings(deadline=None)  # machines of tests are busy
@given(st.lists(st.binary().filter(lambda line: line.strip() and b"\n" not in line)), st.data())
def test_lines_come_out_whole_wherever_the_stream_is_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    places = st.lists(st.integers(0, len(stream)))
    cuts = sorted({0, len(stream), *data.draw(places)})
    splitter = LineSplitter()

    got = [line for start, end in pairwise(cuts) for line in splitter.feed(stream[start:end])]

    assert got == lines


def test_what_lacks_its_line_end_is_not_delivered() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert splitter.feed(b":2}") == []


def test_blank_lines_are_dropped() -> None:
    assert LineSplitter().feed(b"\n\r\n  \nx\n") == [b"x"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    splitter = LineSplitter(limit=10)
    splitter.feed(b"12345678")
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        splitter.feed(b"9ab")
