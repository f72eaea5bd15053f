"""A pytest plug-in that adds a third device amount, percent of the encoder, by one row.

`-p tests.support.third_amount` loads it before any other module of gpushare is imported.
`tests/integration/test_third_amount.py` uses it in a process of its own.
"""

import sys

from gpushare.core import amounts

if "gpushare.core.model" in sys.modules:
    raise RuntimeError("the row must be added before the table is used")

ENCODER = amounts.DeviceAmount(
    name="encoder",
    title="Encoder",
    resource_suffix="-encoder.percentage",
    reason="Insufficient GPU Encoder in one device",
    noun="encoder",
    annotation="encoder-percentage",
    original_annotation="gpushare.io/encoder-percentage",
    whole=100,
)
amounts.DEVICE_AMOUNTS = (*amounts.DEVICE_AMOUNTS, ENCODER)
amounts.PERCENT_AMOUNTS = amounts.DEVICE_AMOUNTS[1:]
amounts.NO_PERCENTS = (0,) * len(amounts.PERCENT_AMOUNTS)


def _compute_and_encoder(percent: int) -> amounts.Percents:
    """Return so much compute, and half as much of the encoder: tests that know compute alone then
    hold the encoder too, and the encoder refuses nothing that compute accepts.
    """
    return amounts.percents_of((percent, 0, percent // 2))


amounts.compute = _compute_and_encoder
