"""Whether a write is worth a try: not for a while after the right to it was missing.

Tested in `tests/unit/extender/follow/test_scale_down_guard.py`.
"""

import math
from collections.abc import Callable

from gpushare.errors import ApiError

PAUSE = 600.0
"""Seconds without a write once the right to it was missing."""
NO_RIGHT = (401, 403)


class WriteRight:
    """The right to some writes, as far as their errors tell."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._missing_until = -math.inf

    @property
    def missing(self) -> bool:
        """Whether it was missing a short while ago."""
        return self._clock() < self._missing_until

    def failed(self, error: ApiError) -> None:
        """Note why a write was not taken."""
        if error.status in NO_RIGHT:
            self._missing_until = self._clock() + PAUSE
