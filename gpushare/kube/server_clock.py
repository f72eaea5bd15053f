"""A client that records the time of the API server.

Knows the Date header of HTTP; not what the time is used for.
"""

from email.utils import parsedate_to_datetime
from typing import Any

from gpushare.kube.client import KubeClient


class ServerTimeClient(KubeClient):
    """A KubeClient for one thread that records the server's time.

    `server_time` is the Date header of the last response in seconds since the epoch (whole seconds:
    HTTP has no finer ones), or None if the response had no such header.
    """

    server_time: float | None = None

    def _send(self, call: Any) -> Any:  # noqa: ANN401 -- urllib3's types stay behind client.py
        response = super()._send(call)
        try:
            self.server_time = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            self.server_time = None
        return response
