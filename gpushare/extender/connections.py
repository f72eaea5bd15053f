"""The connections to the API server: open before this process is ready, and kept open.

Tested in `tests/integration/test_extender.py`.
"""

import contextlib
import json
import logging
import time

from gpushare.daemon.part import Part
from gpushare.errors import ApiError, MessageError
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Api
from gpushare.kube.client import KubeClient

log = logging.getLogger("gpushare.serve")

NOMINATES_PENDING_PODS = (1, 35)
"""The first release with a kube-scheduler that writes nominatedNodeName for each pod that waits to
be bound."""

RETRIES_ON_ANNOTATIONS = (1, 30)
"""The first release with a kube-scheduler that tries pods again after a change of annotations of a
node."""

_WARM_EVERY = 45.0
"""Seconds; kube-apiserver closes connections that are idle for 90 s."""
_VERSION_TIMEOUT = 5.0


class Connections(Part):
    """Keeps connections open, and finds out which release of Kubernetes is served.

    count: connections. is_current: kube-scheduler's file is of a version that releases from 1.29 on
    read.
    """

    def __init__(
        self, client: KubeClient, resources: ManagedResources, count: int, *, is_current: bool
    ) -> None:
        self._client = client
        self._resources = resources
        self._count = count
        self._is_current = is_current
        self._warmed = time.monotonic()
        self._retries_on_annotations = False

    def retries_on_annotations(self) -> bool:
        """Return whether kube-scheduler tries pods again when annotations of a node change."""
        return self._retries_on_annotations

    def start(self) -> None:
        """Open the connections, so that a burst of binds needs no handshakes."""
        try:
            self._client.warm(self._count)
        except ApiError as error:
            log.warning("no connection to the API server yet: %s", error)
        with contextlib.suppress(ApiError, MessageError):
            release = server_release(self._client)
            self._retries_on_annotations = self._is_current and release >= RETRIES_ON_ANNOTATIONS
            for managed in self._resources:
                managed.holds.nominates = self._is_current and release >= NOMINATES_PENDING_PODS
        self._warmed = time.monotonic()

    def tick(self, _is_ready: bool, /) -> None:
        """Use the connections before the API server closes them."""
        if time.monotonic() > self._warmed + _WARM_EVERY:
            self.start()


def server_release(client: Api) -> tuple[int, int]:
    """Return the API server's release, as (1, 37); kube-scheduler is never newer.

    Raises ApiError, or MessageError for an answer that names no release.
    """
    try:
        version = json.loads(client.request("GET", "/version", timeout=_VERSION_TIMEOUT))
        return int(version["major"]), int(str(version["minor"]).rstrip("+"))
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError("/version of the API server names no release") from error
