"""What a running extender tells on its health listener: which policy ranks, and what is held.

Loaded if --extender is given alone: HTTP takes longer to import than all of the command.

Tested in `tests/unit/cli/test_inspect_policy.py` and `tests/unit/cli/test_inspect_held.py`.
"""

import http.client
import json
import urllib.error
import urllib.request
from contextlib import suppress

from gpushare.errors import MessageError
from gpushare.wire.held import HeldPlace, decode_held
from gpushare.wire.metrics import RankingPolicy, ranking_policies, read_samples

_SECONDS = 10.0
_LARGEST = 64 * 2**20
"""Bytes of metrics: 5,000 nodes of 8 devices have 15 MB."""


def read_policy(url: str, resource: str) -> tuple[RankingPolicy | None, str]:
    """Return the policy of the managed resource, or None and why it is not known."""
    try:
        metrics = _read(url, "/metrics").decode(errors="replace")
    except MessageError as error:
        return None, f"the policy is not known: {url} {error}"
    policy = ranking_policies(read_samples(metrics)).get(resource)
    wrong = f"the policy is not known: {url} tells nothing of {resource}"
    return policy, "" if policy else wrong


def read_held(url: str, resource: str, unit: str) -> tuple[tuple[HeldPlace, ...] | None, str]:
    """Return what filter keeps for which pod, in this unit, or None and why it is not known."""
    try:
        return decode_held(_read(url, "/apis/v1/held"), resource, unit), ""
    except MessageError as error:
        return None, f"what is held is not known: {url} {error}"


def _read(url: str, path: str) -> bytes:
    """Return what is there. Raises MessageError."""
    # Of this machine or forwarded to it, so no proxy is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}{path}", timeout=_SECONDS) as answer:
            body: bytes = answer.read(_LARGEST)
            return body
    except urllib.error.HTTPError as error:
        why = ""  # what an extender that has an answer gave in its place
        with error, suppress(OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
            why = str(json.loads(error.read(4096))["error"])[:300]
        raise MessageError(f"does not answer: {why or error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise MessageError(f"does not answer: {error}") from error
