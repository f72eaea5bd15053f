"""A document is tagged and compressed once, and sent in an encoding that the caller accepts."""

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
    representations = Representations()
    first, coding = representations.encoded("books", BODY, "gzip")
    assert coding == "gzip"
    assert gzip.decompress(first) == BODY
    assert len(first) * 5 < len(BODY)
    assert representations.encoded("books", BODY, "gzip")[0] is first
    equal_body = bytes(bytearray(BODY))
    assert representations.encoded("books", equal_body, "gzip")[0] is not first
    assert representations.encoded("books", BODY, "") == (BODY, "")
    assert representations.encoded("books", b"ok\n", "gzip") == (b"ok\n", "")


def test_equal_bodies_have_equal_tags_and_others_have_not() -> None:
    representations = Representations()
    tag = representations.tag("books", BODY)
    assert tag == representations.tag("books", bytes(bytearray(BODY)))
    assert tag != representations.tag("books", BODY[:-1])


def test_of_few_documents_something_is_kept() -> None:
    representations = Representations()
    for number in range(20):
        representations.tag(f"node-{number}", BODY)
    assert len(representations._by_name) == 8  # noqa: SLF001
