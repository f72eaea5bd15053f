"""Which policy ranks pods, read from the extender's health listener.

Loaded if --extender is given alone: HTTP takes longer to import than all of the command.

Tested in `tests/unit/cli/test_inspect_policy.py` and `tests/unit/cli/test_inspect.py`.
"""

import http.client
import urllib.error
import urllib.request

from gpushare.wire.metrics import RankingPolicy, ranking_policies, read_samples

_SECONDS = 10.0
_LARGEST = 64 * 2**20
"""Bytes of metrics: 5,000 nodes of 8 devices have 15 MB."""


def read_policy(url: str, resource: str) -> tuple[RankingPolicy | None, str]:
    """Return the policy of the managed resource, or None and why it is not known."""
    # Of this machine or forwarded to it, so no proxy is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/metrics", timeout=_SECONDS) as answer:
            metrics = answer.read(_LARGEST).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it has the answer's body
        return None, f"the policy is not known: {url} does not answer: {error}"
    policy = ranking_policies(read_samples(metrics)).get(resource)
    wrong = f"the policy is not known: {url} tells nothing of {resource}"
    return policy, "" if policy else wrong
