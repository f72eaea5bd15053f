"""Taint rules of devices as core types.

Tested in `tests/unit/wire/dra/test_taints.py`.
"""

from gpushare.core.claims.model import TaintRule
from gpushare.wire.dra.objects import DeviceTaintRule


def read_taint_rule(item: DeviceTaintRule) -> TaintRule:
    """Return a taint rule. Raises MessageError naming the field."""
    raise NotImplementedError
