"""Ask a running extender's health listener for its policy, its holds, and explanations of pods.

Imported only with --extender: HTTP takes longer to import than all of `inspect`.

Tested in `tests/unit/cli/test_inspect_policy.py`, `tests/unit/cli/test_inspect_held.py` and
`tests/unit/cli/test_explain.py`.
"""

import http.client
import json
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from gpushare.errors import MessageError, SettingsError
from gpushare.wire.held import HeldPlace, decode_held
from gpushare.wire.metrics import RankingPolicy, ranking_policies, read_samples

_SECONDS = 10.0
_LARGEST = 64 * 2**20
"""Bytes of metrics: 5,000 nodes of 8 devices have 15 MB."""

_PATIENCE = 15.0
_LONGEST = 16 * 2**20
"""Bytes of an explanation."""


def read_policy(url: str, resource: str) -> tuple[RankingPolicy | None, str]:
    """Return (the policy of the resource, ""), or (None, why the policy is unknown)."""
    try:
        metrics = _read(url, "/metrics").decode(errors="replace")
    except MessageError as error:
        return None, f"the policy is not known: {url} {error}"
    policy = ranking_policies(read_samples(metrics)).get(resource)
    wrong = f"the policy is not known: {url} tells nothing of {resource}"
    return policy, "" if policy else wrong


def read_held(url: str, resource: str, unit: str) -> tuple[tuple[HeldPlace, ...] | None, str]:
    """Return (the holds of filter in this unit, ""), or (None, why the holds are unknown)."""
    try:
        return decode_held(_read(url, "/apis/v1/held"), resource, unit), ""
    except MessageError as error:
        return None, f"what is held is not known: {url} {error}"


def _read(url: str, path: str) -> bytes:
    """Return the body of a GET. Raises MessageError."""
    # The listener is on this machine or forwarded to it: no proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}{path}", timeout=_SECONDS) as answer:
            body: bytes = answer.read(_LARGEST)
            return body
    except urllib.error.HTTPError as error:
        reason = ""  # the extender's own error
        with error, suppress(OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
            reason = str(json.loads(error.read(4096))["error"])[:300]
        raise MessageError(f"does not answer: {reason or error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MessageError(f"does not answer: {error}") from error


def ask_explanation(url: str, namespace: str, name: str) -> dict[str, Any]:
    """Return the extender's document about a pod. Raises SettingsError, MessageError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or not host:
        raise SettingsError(f"--extender: {url[:200]!r} is not http://HOST:PORT")
    client = http.client.HTTPConnection(host, port or 80, timeout=_PATIENCE)
    try:
        client.request("GET", f"/apis/v1/explain/{namespace}/{name}")
        answer = client.getresponse()
        status, body = answer.status, answer.read(_LONGEST)
    except (OSError, http.client.HTTPException) as error:
        raise SettingsError(f"{url} does not answer ({error}): is it --health-listen?") from error
    finally:
        client.close()
    try:
        explanation = json.loads(body)
    except (ValueError, RecursionError):
        explanation = None
    if not isinstance(explanation, dict):
        raise MessageError(f"{url} answered {status}, and no explanation: is it --health-listen?")
    if "error" in explanation or not isinstance(explanation.get("lines"), list):
        raise MessageError(f"{url}: {explanation.get('error') or 'the answer is no explanation'}")
    return explanation
