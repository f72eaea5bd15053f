"""Taint rules of devices as core types.

Tested in `tests/unit/wire/dra/test_taints.py`.
"""

from gpushare.core.claims.model import TaintRule
from gpushare.errors import MessageError
from gpushare.wire.demands import read_taint
from gpushare.wire.dra.objects import DeviceTaintRule, TaintedDevices


def read_taint_rule(item: DeviceTaintRule) -> TaintRule:
    """Return a taint rule; a rule without a selector taints all devices.

    Raises MessageError naming the field.
    """
    if item.spec is None or item.spec.taint is None:
        raise MessageError("DeviceTaintRule.spec: taint is missing")
    devices = item.spec.device_selector or TaintedDevices()
    taint = read_taint(item.spec.taint)
    return TaintRule(taint, devices.driver, devices.pool, devices.device)
