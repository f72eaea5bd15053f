"""The end of an HTTP/1.1 request, found from its head in one pass.

Pure. It is stricter than a server has to be: a head that two readers could take for two different
requests is refused, so that the parser behind this one (gunicorn's) can only agree.
"""

HEAD_END = b"\r\n\r\n"

BAD_REQUEST = b"400 Bad Request"
LENGTH_REQUIRED = b"411 Length Required"
TOO_LARGE = b"413 Content Too Large"
HEAD_TOO_LARGE = b"431 Request Header Fields Too Large"

_CONTROLS = frozenset(range(0x20)) - {0x09} | {0x7F}
_NO_CONTROLS = bytes(sorted(frozenset(range(256)) - _CONTROLS))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_LARGEST = 15
"""Digits of a length; no body needs more."""


class FramingError(Exception):
    """The head is no request that can be answered; `status` is the answer's status line."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


def body_length(head: bytes) -> int:
    """Return the length in bytes of the body behind a head, which ends with HEAD_END.

    Raises FramingError.
    """
    lines = head[: -len(HEAD_END)].split(b"\r\n")
    # Control characters may only be the ends of these lines: no bare CR or LF, no NUL.
    if head.translate(None, _NO_CONTROLS) != b"\r\n" * (len(lines) + 1) or not lines[0]:
        raise FramingError(BAD_REQUEST)
    lengths = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        # A folded line begins with a blank, and a blank before the colon is an old trick.
        if not colon or not name or name.translate(None, _TOKEN):
            raise FramingError(BAD_REQUEST)
        name = name.lower()
        if name == b"transfer-encoding":
            raise FramingError(LENGTH_REQUIRED)  # Go's client always knows the length of JSON
        if name == b"content-length":
            lengths.append(value.strip(b" \t"))
    return _number(lengths) if lengths else 0


def _number(lengths: list[bytes]) -> int:
    digits = lengths[0]
    if len(lengths) > 1 or not digits or digits.translate(None, _DIGITS):
        raise FramingError(BAD_REQUEST)
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > _LARGEST:
        raise FramingError(TOO_LARGE)
    return int(digits)
