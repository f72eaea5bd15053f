"""`python -m gpushare_localcluster.demo.hurried serve FLAG...`: gpushare, in a hurry.

The extender that the demo starts beside an autoscaler: the real one, but with half a second for
each interval and wait that concerns autoscalers. Tested in `tests/integration/test_demo.py`, which
runs the demo.
"""

import runpy

from gpushare.extender.follow import placeholders, scale_down_guard

_SOON = 0.5

if __name__ == "__main__":
    scale_down_guard.EVERY = scale_down_guard.AGAIN = _SOON
    placeholders.EVERY = placeholders.AGAIN = _SOON
    placeholders.WAITING = placeholders.AFTER_JOIN = _SOON
    runpy.run_module("gpushare.cli.main", run_name="__main__", alter_sys=True)
