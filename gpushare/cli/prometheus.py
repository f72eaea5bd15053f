"""Ask a Prometheus, or what answers like one, by its HTTP API.

Standard library only. What a Prometheus answers is not trusted: an answer is bounded, and what is
no number is left out.

Tested in `tests/unit/cli/test_prometheus.py` and `tests/e2e/test_report.py`.
"""

import http.client
import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

from gpushare.addresses import is_loopback
from gpushare.cli.facts import elements, mapping, text
from gpushare.errors import MessageError, SettingsError

_PATIENCE = 120.0
"""Seconds; Prometheus itself gives a query two minutes."""
_LONGEST = 64 * 2**20
"""Bytes of an answer."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_MOST_DAYS = 400

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


def seconds_of(duration: str, flag: str) -> int:
    """Return the seconds of a duration such as 7d. Raises SettingsError."""
    match = _DURATION.fullmatch(duration)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 5 * 60 <= seconds <= _MOST_DAYS * 86_400:
        raise SettingsError(
            f"{flag}: {duration[:40]!r} is not from 5m to {_MOST_DAYS}d, as in 90m, 12h, 7d or 4w"
        )
    return seconds


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a token is for the address that the user named."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Prometheus:
    """One Prometheus. token: of the header Authorization, or "". Raises SettingsError for another
    URL than of HTTP.
    """

    url: str
    token: str = ""
    warnings: list[str] = field(default_factory=list)
    """Warnings so far, each once."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_http = False
        if not is_http:
            raise SettingsError(f"--prometheus: {self.url[:200]!r} is not http://HOST:PORT")

    def query(self, expression: str) -> list[Sample]:
        """Return the samples of an expression now, without values that are no finite number.

        Raises MessageError that says what to do.
        """
        document = self._post("/api/v1/query", {"query": expression})
        for warning in map(text, elements(document.get("warnings"))):
            self.warn(warning)
        answer = mapping(document.get("data"))
        if document.get("status") != "success" or answer.get("resultType") != "vector":
            self._fail("is no answer of Prometheus' API: is it the address of a Prometheus?")
        return [*_samples(answer)]

    def warn(self, warning: str) -> None:
        """Keep a warning for the user."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _post(self, path: str, fields: Mapping[str, str]) -> Mapping[str, object]:
        request = urllib.request.Request(  # noqa: S310 -- the scheme was checked
            f"{self.url.rstrip('/')}{path}", data=urlencode(fields).encode()
        )
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        handlers: list[type | urllib.request.BaseHandler] = [_NoRedirect]
        if is_loopback(urlsplit(self.url).hostname or ""):
            # As in kube/session.py: no call to this machine, nor its token, is for a proxy.
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=_PATIENCE) as answer:
                body = answer.read(_LONGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._fail(
                f"does not answer ({error}): name what Prometheus listens at, or forward it with"
                " kubectl port-forward"
            )
        if len(body) > _LONGEST:
            self._fail("answers more than 64 MiB: ask for one namespace with -n")
        return _object(body)

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        try:
            refusal = _object(error.read(2**16))
        except (OSError, http.client.HTTPException):
            refusal = {}
        message, status = text(refusal.get("error"))[:300], error.code
        advice = "is it the address of a Prometheus?"
        if status in (401, 403):
            advice = "name a file with a token by --token-file"
        elif status in (422, 503) or text(refusal.get("errorType")) in ("execution", "timeout"):
            advice = "ask for a shorter time with --since, or for one namespace with -n"
        elif status in (301, 302, 303, 307, 308):
            message = f"redirects to {text(error.headers.get('Location'))[:200]}"
            advice = "name that address"
        self._fail(f"refuses the query: {status} {message or error.reason}; {advice}")

    def _fail(self, what: str) -> NoReturn:
        raise MessageError(f"{self.url} {what}")


def _object(body: bytes) -> Mapping[str, object]:
    """Return the JSON object; {} for another text."""
    try:
        return mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _samples(answer: Mapping[str, object]) -> Iterator[Sample]:
    for sample in map(mapping, elements(answer.get("result"))):
        labels = {str(key): text(value) for key, value in mapping(sample.get("metric")).items()}
        pair = elements(sample.get("value"))
        try:
            value = float(text(pair[1]))
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield labels, value
