"""Whether the fence is there that keeps everybody else from allocating the driver's devices.

Tested in `tests/unit/extender/claims/test_allocator.py`.
"""

import logging
import math
from collections.abc import Callable

from gpushare.errors import ApiError, ApiUnavailable, WireError
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.dra.fence import BINDINGS, POLICIES, unfenced

log = logging.getLogger("gpushare.claims")

_TIMEOUT = 3.0
"""Seconds that a read may take."""
_LOOK_EVERY, _LOOK_AGAIN = 60.0, 5.0
"""Seconds until the fence is looked at again, and until then where it was not there."""


class FenceWatch:
    """Whether the fence is there: looked at once a minute."""

    def __init__(self, api: Calls, driver: str, clock: Callable[[], float]) -> None:
        self.problem = "the fence has not been looked at yet"
        """Why nothing may be given out; "" if nothing is in the way."""
        self._api = api
        self._driver = driver
        self._clock = clock
        self._due = -math.inf

    def look(self) -> None:
        """Look again, if it is time to."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + _LOOK_EVERY
        try:
            policies = POLICIES.decode_list(self._read("validatingadmissionpolicies"))
            bindings = BINDINGS.decode_list(self._read("validatingadmissionpolicybindings"))
            self.problem = unfenced(policies.items, bindings.items, self._driver)
        except ApiUnavailable as error:
            # Without an answer it is as it was; allocations would get none either.
            log.warning(Line("fence not looked at", error=str(error)))
        except (ApiError, WireError) as error:
            self.problem = f"the fence cannot be looked at: {str(error)[:200]}"
        if self.problem:
            self._due = self._clock() + _LOOK_AGAIN

    def _read(self, name: str) -> bytes:
        path = f"/apis/admissionregistration.k8s.io/v1/{name}"
        return self._api.request("GET", path, timeout=_TIMEOUT)
