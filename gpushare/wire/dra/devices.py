"""Slices of devices as core types.

Tested in `tests/unit/wire/dra/test_devices.py`.
"""

from gpushare.core.claims.model import Slice
from gpushare.wire.dra.objects import ResourceSlice


def read_slice(item: ResourceSlice) -> Slice:
    """Return a slice with its devices. Raises MessageError naming the field."""
    raise NotImplementedError
