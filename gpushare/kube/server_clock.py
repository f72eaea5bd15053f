"""A client that remembers what time the API server said it was.

Knows the Date header of HTTP, and nothing of what the time is wanted for.
"""

from email.utils import parsedate_to_datetime
from typing import Any

from gpushare.kube.client import KubeClient


class DatedClient(KubeClient):
    """A KubeClient for one thread; `date` is the clock of the last answer, in seconds since the
    epoch, or None where it did not say (whole seconds: HTTP has no finer ones).
    """

    date: float | None = None

    def _send(self, call: Any) -> Any:  # noqa: ANN401 -- urllib3's types stay behind client.py
        response = super()._send(call)
        try:
            self.date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            self.date = None
        return response
