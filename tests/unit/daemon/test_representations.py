"""A document is tagged and compressed once, and sent as the caller takes it."""

import gzip

import pytest

from gpushare.daemon.representations import Representations, accepts_gzip

BODY = b'{"nodes":[' + b",".join(b'{"name":"n%d"}' % number for number in range(500)) + b"]}"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("", False),
        ("identity", False),
        ("x-gzip-like", False),
    ],
)
def test_the_caller_says_whether_gzip_is_taken(header: str, expected: bool) -> None:
    assert accepts_gzip(header) == expected


def test_a_body_is_compressed_once_and_is_what_it_was() -> None:
    kept = Representations()
    first, coding = kept.encoded("books", BODY, "gzip")
    assert coding == "gzip"
    assert gzip.decompress(first) == BODY
    assert len(first) * 5 < len(BODY)
    assert kept.encoded("books", BODY, "gzip")[0] is first
    other = bytes(bytearray(BODY))
    assert kept.encoded("books", other, "gzip")[0] is not first
    assert kept.encoded("books", BODY, "") == (BODY, "")
    assert kept.encoded("books", b"ok\n", "gzip") == (b"ok\n", "")


def test_equal_bodies_have_equal_tags_and_others_have_not() -> None:
    kept = Representations()
    tag = kept.tag("books", BODY)
    assert tag == kept.tag("books", bytes(bytearray(BODY)))
    assert tag != kept.tag("books", BODY[:-1])


def test_of_few_documents_something_is_kept() -> None:
    kept = Representations()
    for number in range(20):
        kept.tag(f"node-{number}", BODY)
    assert len(kept._by_name) == 8  # noqa: SLF001
