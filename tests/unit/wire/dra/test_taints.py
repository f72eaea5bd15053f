"""Taint rules become core types."""

from typing import Any

import msgspec
import pytest

from gpushare.core.claims.model import TaintRule
from gpushare.core.selectors import Taint
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import DEVICE_TAINT_RULES
from gpushare.wire.dra.taints import read_taint_rule

TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def read(**fields: Any) -> TaintRule:
    return read_taint_rule(DEVICE_TAINT_RULES.decode(msgspec.json.encode(fields)))


def test_a_rule_names_a_driver_a_pool_and_a_device_or_any() -> None:
    taint = Taint("k", "v", "NoSchedule")
    selector = {"driver": "gpu", "pool": "p", "device": "d"}
    rule = read(spec={"deviceSelector": selector, "taint": TAINT})
    assert rule == TaintRule(taint, "gpu", "p", "d")
    assert read(spec={"deviceSelector": {}, "taint": TAINT}) == TaintRule(taint)
    assert read(spec={"taint": TAINT}) == TaintRule(taint)


@pytest.mark.parametrize("fields", [{}, {"spec": {}}])
def test_a_rule_without_a_taint_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="taint is missing"):
        read(**fields)
